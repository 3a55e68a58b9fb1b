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
            "the_last_scope_that_fits_decides_and_a_stop_always",
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
        "opt-in; do-not-disrupt always holds",
        &[
            "jobs_take_part_only_when_their_owner_said_so",
            "what_is_marked_or_may_not_be_stopped_is_left_alone",
            "plans_keep_floors_and_promises_on_any_state",
        ],
    ),
    (
        5,
        "what spends or cannot be undone is never automatic",
        &["purchases_are_never_made_and_reservations_given_up_by_people"],
    ),
    (
        6,
        "budgets over time and concurrency",
        &[
            "budgets_bound_an_hour_a_day_and_gpus",
            "to_let_a_loan_go_on_uses_no_budget_and_is_done_once_in_a_term",
            "few_are_under_way_at_a_time_and_one_of_an_object",
            "no_history_leads_below_a_floor_over_a_budget_or_to_two_effects",
        ],
    ),
    (
        7,
        "floors; breaker stops all but restoring actions",
        &[
            "pools_owners_and_jobs_keep_their_floors",
            "floors_count_what_the_observation_does_not_show_yet",
            "the_breaker_stops_all_but_giving_back",
            "pools_keep_their_floors",
        ],
    ),
    (
        8,
        "an empty selection means nothing; no patterns; few objects",
        &["an_empty_selection_is_nothing_and_a_pattern_no_name"],
    ),
    (
        9,
        "one failure domain; GPU-hours an owner may lose per day",
        &["racks_go_one_at_a_time", "an_owner_loses_so_much_a_day_and_no_more"],
    ),
    (10, "serialised per object", &["few_are_under_way_at_a_time_and_one_of_an_object"]),
    (
        11,
        "hysteresis, dwell, limit on reversals",
        &[
            "between_the_two_bounds_nothing_moves",
            "an_object_rests_after_a_change_and_a_lender_between_steps",
            "to_and_fro_is_noticed",
            "a_lender_turns_by_the_share_of_its_quota_and_not_when_a_loan_had_its_time",
        ],
    ),
    (
        12,
        "cooldown that grows; identical failures are left to people",
        &["failures_rest_longer_each_time_and_alike_ones_are_for_people"],
    ),
    (
        13,
        "re-validated immediately before acting",
        &["preconditions_are_asked_again_and_an_action_without_any_is_refused"],
    ),
    (
        14,
        "yields to other controllers and people",
        &[
            "what_somebody_else_wrote_is_theirs",
            "only_our_own_drains_are_undone_and_only_when_found_well",
            "what_is_marked_or_somebody_elses_stays",
        ],
    ),
    (
        15,
        "no lending on a stale, unknown or uncalibrated forecast; reclaiming allowed",
        &[
            "nothing_is_lent_on_what_nobody_knows",
            "nothing_is_lent_on_published_bounds_that_drift",
            "a_shortage_now_takes_back_without_any_forecast",
        ],
    ),
    (16, "intents as events that name their plan", &["the_whole_life_of_an_intent"]),
    (
        17,
        "idempotent by action id",
        &["an_action_has_its_time_its_id_and_its_place", "an_event_told_twice_changes_nothing"],
    ),
    (18, "older generations are refused", &["an_older_generation_changes_nothing"]),
    (
        19,
        "preconditions, and effects read back from the target",
        &[
            "preconditions_are_asked_again_and_an_action_without_any_is_refused",
            "an_unknown_answer_is_read_back_and_never_taken_for_success",
        ],
    ),
    (
        20,
        "unknown is never read as done, drained or empty",
        &[
            "an_unknown_answer_is_read_back_and_never_taken_for_success",
            "old_knowledge_is_none_and_giving_back_needs_only_the_cluster",
        ],
    ),
    (
        21,
        "inverse, expiry and owner of every loan",
        &["what_the_forecast_leaves_is_lent_in_whole_nodes", "a_loan_that_ends_goes_on_or_comes_back_whole"],
    ),
    (
        22,
        "capacity counts as available once its GPUs are free",
        &[
            "who_still_holds_what_is_taken_back_is_asked_again",
            "floors_count_what_the_observation_does_not_show_yet",
        ],
    ),
    (
        23,
        "notice before a shrink",
        &[
            "the_victim_is_who_loses_least_and_notice_is_given_where_it_helps",
            "a_notice_is_waited_for_and_not_for_ever",
        ],
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
            "a_shadow_says_what_it_would_do_and_its_plan_comes_out_again_from_the_one_beside_it",
            "each_policy_decides_for_its_owners_and_a_job_that_waits_gets_one_loan",
            "no_gpu_node_or_job_is_spoken_for_twice",
            "a_canary_needs_the_leave_of_both_policies_and_its_own_modes",
            "a_canary_ends_where_its_record_is_worse_than_the_others_or_than_nothing",
            "a_canary_ends_by_failures_in_a_row_by_the_breaker_and_by_a_broken_promise",
            "a_canary_that_its_record_ended_stays_so_until_it_begins_again",
        ],
    ),
    (
        28,
        "calendars",
        &["a_freeze_holds_for_all_but_giving_back", "a_day_begins_and_ends_at_its_local_minutes"],
    ),
    (
        29,
        "known approvers, signed policies, two people for what widens, no secret on record",
        &[
            "every_key_of_a_policy_has_a_direction",
            "what_raises_a_budget_lowers_a_floor_acts_or_opts_in_for_others_takes_two",
            "signatures_of_openssh_are_known_by_principal_and_fingerprint",
            "what_widens_takes_two_people_and_what_tightens_one",
            "the_same_person_twice_is_one",
            "an_approval_that_does_not_count_is_told_and_changes_nothing",
            "a_secret_on_the_command_line_is_refused",
            "an_address_with_a_secret_goes_by_reference",
            "a_policy_has_no_place_for_a_secret",
        ],
    ),
    (30, "killed at every step", &["an_intent_killed_at_any_step_goes_on_from_its_record"]),
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
];

const CONTROL: &str = include_str!("../../../../../docs/control.md");

const TESTS: &[&str] = &[
    include_str!("rules.rs"),
    include_str!("rates.rs"),
    include_str!("whole.rs"),
    include_str!("../../policy/tests.rs"),
    include_str!("../../policy/calendar.rs"),
    include_str!("../../planner/tests/capacity.rs"),
    include_str!("../../planner/tests/jobs.rs"),
    include_str!("../../planner/tests/nodes.rs"),
    include_str!("../../planner/tests/whole.rs"),
    include_str!("../../intent/tests.rs"),
    include_str!("../../scorecard/tests.rs"),
    include_str!("../../rollout/tests.rs"),
    include_str!("../../policy/direction/tests.rs"),
    include_str!("../../slo/tests.rs"),
    include_str!("../../../../control/src/authority/tests.rs"),
    include_str!("../../../../control/src/pager/tests.rs"),
    include_str!("../../../../log/src/kafka/options.rs"),
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
    assert_eq!(numbers, (1..=32).collect::<Vec<u8>>());
    for (number, what, _) in REQUIREMENTS {
        assert!(numbers.contains(number), "docs/control.md lacks {number} ({what})");
    }
    for (number, unmet) in documented {
        let covered = REQUIREMENTS.iter().any(|(covered, ..)| *covered == number);
        assert!(covered || unmet, "requirement {number} of docs/control.md has no tests");
    }
}
