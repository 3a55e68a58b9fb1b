//! Coverage of the safety requirements of docs/control.md (section 5): each number with its tests.
//!
//! A requirement that docs/control.md marks as not met, or partly met, needs no tests here.

/// Number, summary, tests.
const REQUIREMENTS: &[(u8, &str, &[&str])] = &[
    (
        1,
        "modes per kind and scope, default observe, promotion by evidence",
        &[
            "only_the_mode_act_acts_and_approve_asks_a_person",
            "the_shipped_policy_is_complete_and_acts_nowhere",
            "the_last_matching_scope_decides_and_a_stop_always",
            "a_good_record_earns_the_next_mode_and_a_bad_one_loses_it",
        ],
    ),
    (
        2,
        "kill switch read before every write; unreadable counts as off",
        &["the_kill_switch_stops_everything_and_unreadable_is_off"],
    ),
    (
        3,
        "opt-in; do-not-disrupt always holds; what a person rejected is refused for a day",
        &[
            "what_a_person_rejected_is_refused_for_a_day",
            "jobs_are_touched_only_if_their_owner_opted_in",
            "protected_jobs_and_nodes_are_left_alone",
            "plans_keep_floors_and_promises_on_any_state",
        ],
    ),
    (
        4,
        "each kind by the least level, one below is refused, the others go on",
        &["each_kind_takes_the_level_that_the_table_names_and_no_more"],
    ),
    (
        5,
        "what spends or cannot be undone is never automatic",
        &["purchases_are_never_made_and_reservations_ended_only_by_people"],
    ),
    (
        6,
        "budgets over time and concurrency",
        &[
            "budgets_bound_an_hour_a_day_and_gpus",
            "extending_a_loan_uses_no_budget_and_happens_once_per_term",
            "few_actions_run_at_once_and_one_per_object",
            "no_history_leads_below_a_floor_over_a_budget_or_to_two_effects",
        ],
    ),
    (
        7,
        "floors; breaker stops all but restoring actions",
        &[
            "pools_owners_and_jobs_keep_their_floors",
            "floors_count_actions_the_observation_does_not_show_yet",
            "the_breaker_stops_all_but_restoring_actions",
            "pools_keep_their_floors",
        ],
    ),
    (
        8,
        "an empty selection means nothing; no patterns; few objects",
        &["an_empty_selection_means_nothing_and_a_pattern_is_not_a_name"],
    ),
    (
        9,
        "one failure domain; GPU-hours an owner may lose per day",
        &["racks_are_drained_one_at_a_time", "an_owners_daily_loss_is_limited"],
    ),
    (10, "serialised per object", &["few_actions_run_at_once_and_one_per_object"]),
    (
        11,
        "hysteresis, dwell, limit on reversals",
        &[
            "between_the_two_bounds_nothing_moves",
            "an_object_rests_after_a_change_and_a_lender_between_steps",
            "reversals_are_limited",
            "a_lender_reverses_by_share_of_quota_and_not_when_a_loan_lasted_its_term",
        ],
    ),
    (
        12,
        "cooldown that grows; identical failures are left to people",
        &["rests_grow_with_failures_and_identical_ones_are_left_to_people"],
    ),
    (13, "re-validated immediately before acting", &["preconditions_are_checked_again_and_required"]),
    (
        14,
        "yields to other controllers and people",
        &[
            "foreign_changes_are_left_alone",
            "only_our_own_drains_are_undone_and_only_when_healthy",
            "protected_and_foreign_loans_stay",
        ],
    ),
    (
        15,
        "no lending on a stale, unknown or uncalibrated forecast; reclaiming allowed",
        &[
            "nothing_is_lent_on_unknown_demand",
            "nothing_is_lent_on_published_bounds_that_drift",
            "a_current_shortage_reclaims_without_a_forecast",
        ],
    ),
    (16, "intents as events that name their plan", &["the_whole_life_of_an_intent"]),
    (
        17,
        "idempotent by action id",
        &["an_action_has_a_deadline_an_id_and_an_order", "a_repeated_event_changes_nothing"],
    ),
    (
        18,
        "older generations are refused, and leases that nobody takes",
        &["an_older_generation_changes_nothing", "a_lease_far_ahead_holds_nobody_back"],
    ),
    (
        19,
        "preconditions, and effects read back from the target",
        &[
            "preconditions_are_checked_again_and_required",
            "an_unknown_answer_is_read_back_and_never_taken_for_success",
        ],
    ),
    (
        20,
        "unknown is never read as done, drained or empty",
        &[
            "an_unknown_answer_is_read_back_and_never_taken_for_success",
            "stale_data_stops_all_but_restoring_actions",
        ],
    ),
    (
        21,
        "inverse, expiry and owner of every loan",
        &[
            "the_headroom_of_the_forecast_is_lent_in_whole_nodes",
            "an_ending_loan_is_extended_or_comes_back_whole",
        ],
    ),
    (
        22,
        "capacity counts as available once its GPUs are free",
        &[
            "jobs_on_reclaimed_capacity_are_asked_again",
            "floors_count_actions_the_observation_does_not_show_yet",
        ],
    ),
    (
        23,
        "notice before a job is disturbed",
        &["before_a_shrink", "before_a_stop_for_a_waiting_job", "a_notice_is_awaited_for_a_limited_time"],
    ),
    (24, "what is half applied is undone", &["a_failure_after_applying_is_compensated"]),
    (
        25,
        "the same decision again from the log",
        &["the_same_arguments_give_the_same_bytes_and_the_log_alone_the_same_plan"],
    ),
    (
        26,
        "predicted against realised, against doing nothing",
        &["a_score_compares_with_the_prediction_and_with_doing_nothing"],
    ),
    (
        27,
        "shadow on live events that never acts; canary by owner; automatic rollback",
        &[
            "a_shadows_plan_replays_from_the_acting_plan",
            "each_policy_decides_for_its_owners_and_a_job_that_waits_gets_one_loan",
            "no_gpu_node_or_job_is_claimed_twice",
            "a_canarys_action_needs_both_policies_and_its_own_modes",
            "a_canary_ends_if_its_scorecard_is_worse_than_the_others_or_than_nothing",
            "a_canary_ends_by_failures_in_a_row_by_the_breaker_and_by_a_broken_promise",
            "a_rolled_back_canary_stays_ended_until_restarted",
        ],
    ),
    (
        28,
        "calendars",
        &["a_freeze_holds_for_all_but_restoring_actions", "a_day_begins_and_ends_at_its_local_minutes"],
    ),
    (
        29,
        "known approvers, signed policies, two people for what widens, no secret on record",
        &[
            "every_key_of_a_policy_has_a_direction",
            "widening_changes_take_two_signatures",
            "signatures_of_openssh_are_known_by_principal_and_fingerprint",
            "what_widens_takes_two_people_and_what_tightens_one",
            "the_same_person_twice_is_one",
            "an_invalid_approval_is_recorded_and_changes_nothing",
            "a_secret_on_the_command_line_is_refused",
            "an_address_with_a_secret_goes_by_reference",
            "a_policy_has_no_place_for_a_secret",
            "a_statement_is_good_for_one_policy_one_cluster_one_place_and_until_its_end",
            "a_signed_switch_is_on_until_it_is_found_off",
            "a_forged_entry_counts_only_where_there_are_no_keys",
            "an_entry_counts_once_in_its_place_and_behind_the_one_before_it",
            "what_people_decide_counts_only_with_their_signature",
        ],
    ),
    (30, "killed at every step", &["an_intent_killed_at_any_step_continues_from_its_record"]),
    (
        31,
        "each batch on a copy first, and what the copy says against what happened",
        &[
            "two_actions_do_not_take_the_same_free_gpus",
            "owners_stay_within_their_limits",
            "lenders_keep_what_they_need_when_quota_and_loan_go_together",
            "pools_keep_their_floor_and_what_is_reserved_after_the_whole_batch",
            "stops_that_do_not_let_their_job_start_are_refused_together",
            "a_reclaim_frees_what_it_takes_back_or_says_who_stays",
            "restoring_actions_are_reported_and_never_refused",
            "no_batch_overfills_a_node_or_disturbs_a_job_that_nobody_names",
            "an_observation_agrees_or_differs_by_numbers",
            "the_simulator_does_what_the_dry_run_expects",
        ],
    ),
    (
        32,
        "own objectives, burn-rate alerts, a way to a pager",
        &[
            "an_alert_takes_both_windows_and_two_failures",
            "promises_run_from_the_approval_until_the_gpus_are_free",
            "a_fast_burn_takes_a_kind_one_mode_down_until_it_is_over",
            "alerts_are_told_until_they_are_taken_and_again_when_they_end",
            "the_sign_of_life_ends_with_the_last_step",
        ],
    ),
    (
        33,
        "nobody waits longer than before the autopilot acted, or lacks what it lent for long",
        &[
            "nothing_more_is_taken_from_an_owner_whose_promise_is_broken",
            "growth_waits_for_others_whose_promise_is_broken_only_where_they_wait",
            "an_owner_that_lacked_what_it_lent_lends_no_more",
            "the_journal_keeps_what_was_before_the_first_action",
        ],
    ),
];

const CONTROL: &str = include_str!("../../../../../docs/control.md");

const TESTS: &[&str] = &[
    include_str!("rules.rs"),
    include_str!("rates.rs"),
    include_str!("promises.rs"),
    include_str!("../../promise.rs"),
    include_str!("whole.rs"),
    include_str!("../../policy/tests.rs"),
    include_str!("../../policy/calendar.rs"),
    include_str!("../../planner/tests/capacity.rs"),
    include_str!("../../planner/tests/jobs.rs"),
    include_str!("../../planner/tests/nodes.rs"),
    include_str!("../../planner/tests/notices.rs"),
    include_str!("../../planner/tests/whole.rs"),
    include_str!("../../intent/tests.rs"),
    include_str!("../../scorecard/tests.rs"),
    include_str!("../../rollout/tests.rs"),
    include_str!("../../rollout/tests/canary_plans.rs"),
    include_str!("../../rollout/tests/rollbacks.rs"),
    include_str!("../../rollout/tests/shadow_plans.rs"),
    include_str!("../../policy/direction/tests.rs"),
    include_str!("../../slo/tests.rs"),
    include_str!("../../../../control/src/authority/tests.rs"),
    include_str!("../../../../control/src/journal/tests.rs"),
    include_str!("../../../../control/src/service/tests.rs"),
    include_str!("../../../../control/src/pager/tests.rs"),
    include_str!("../../../../log/src/kafka/options.rs"),
    include_str!("../../dry_run/tests/together.rs"),
    include_str!("../../dry_run/tests/batches.rs"),
    include_str!("../../dry_run/tests/comparing.rs"),
    include_str!("../../dry_run/tests/cost.rs"),
    include_str!("../../../../sim/tests/sim/dry_run.rs"),
    include_str!("../../../../control/tests/slurm_target/levels.rs"),
];

#[test]
fn every_requirement_has_the_tests_it_names() {
    for (number, what, tests) in REQUIREMENTS {
        assert!(!tests.is_empty(), "{number}: {what}");
        for test in *tests {
            let start = format!("#[test]\nfn {test}()");
            let inner = format!("#[test]\n    fn {test}()");
            let there = TESTS.iter().any(|file| file.contains(&start) || file.contains(&inner));
            assert!(there, "requirement {number} ({what}): no test {test}");
        }
    }
}

/// Numbered requirements of docs/control.md, and whether each is marked as not met or partly met.
fn documented() -> Vec<(u8, bool)> {
    let (_, section) = CONTROL.split_once("## 5. Safety requirements").unwrap();
    let mut out: Vec<(u8, bool)> = Vec::new();
    for line in section.lines() {
        let number = line.split_once(". **").and_then(|(number, _)| number.parse().ok());
        out.extend(number.map(|number| (number, false)));
        if let Some((_, unmet)) = out.last_mut() {
            *unmet |= line.contains("*Not met*") || line.contains("*Partly met*");
        }
    }
    out
}

#[test]
fn the_table_and_docs_control_have_the_same_requirements() {
    let documented = documented();
    let numbers: Vec<u8> = documented.iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, (1..=33).collect::<Vec<u8>>());
    for (number, what, _) in REQUIREMENTS {
        assert!(numbers.contains(number), "docs/control.md lacks {number} ({what})");
    }
    for (number, unmet) in documented {
        let covered = REQUIREMENTS.iter().any(|(covered, ..)| *covered == number);
        assert!(covered || unmet, "requirement {number} of docs/control.md has no tests");
    }
}
