use std::collections::{BTreeMap, BTreeSet};

use super::rollback::{CanaryRecord, reason};
use super::shadow::{MissedDecision, Shadow, ShadowDecision, ShadowEvent, ShadowInput, ShadowPlan};
use super::summary::{KindComparison, summary};
use super::*;
use crate::action::{Change, Kind};
use crate::executor::{JournalEntry, JournalEvent, PlanRecord};
use crate::fixture::{FixedForecast, NOW, S, cluster, elastic, gang, loan, node, pending};
use crate::guard::{KillSwitch, PastAction, Rule};
use crate::intent::{IntentEvent, IntentLedger, Transition};
use crate::planner::{Decision, Predicted, plan, plan_with_canary};
use crate::policy::{Budget, Footprint, Mode, RollbackRules};
use crate::scorecard::Score;
use crate::state::{Owner, Pool, Share};

fn candidate(text: &str) -> Policy {
    let auto = "name = \"candidate\"\n[modes]\nresize_job = \"act\"\nlend = \"act\"\nreclaim = \"act\"\n\
                drain_node = \"act\"\nreturn_node = \"act\"\npreempt = \"act\"\nadjust_reservation = \"act\"\n";
    Policy::parse(&format!("{auto}{text}")).unwrap()
}

fn canary(policy: Policy, owners: &[&str]) -> Canary {
    let owners = owners.iter().map(|owner| (*owner).to_owned()).collect();
    Canary { policy, owners, rollback: RollbackRules::default() }
}

/// Two lenders with 16 nodes each, two teams that wait for loans, and one loan of each lender to a
/// team, all of which is needed back now.
fn two_sides() -> ClusterState {
    let mut state = cluster();
    for at in 0..16 {
        state.nodes.insert(format!("w{at:02}"), node("web", &format!("v{}", at / 4)));
    }
    state.pools.insert("web".into(), Pool::default());
    let share = Share { quota_gpus: 128, lendable: true, demand_gpus: Some(40), ..Share::default() };
    state.owners.insert("web".into(), Owner { shares: [("web".to_owned(), share)].into() });
    state
}

fn waits(state: &mut ClusterState, owner: &str, jobs: u32) {
    for at in 0..jobs {
        let job = crate::state::Job { owner: owner.into(), ..pending(16, 1_000) };
        state.jobs.insert(format!("{owner}-{at}"), job);
    }
}

fn lenders(decisions: &[Decision]) -> Vec<(&str, Option<&str>)> {
    let lends = decisions.iter().filter_map(|decision| match &decision.action.change {
        Change::Lend { from, .. } => Some((from.as_str(), decision.canary.as_deref())),
        _ => None,
    });
    lends.collect()
}

#[test]
fn each_policy_decides_for_its_owners_and_a_job_that_waits_gets_one_loan() {
    let mut state = two_sides();
    waits(&mut state, "research", 1);
    // All of training is in use, so waiting jobs cannot start there.
    for at in 0..4 {
        state.jobs.insert(format!("g{at}"), gang(&[&format!("t{at}")]));
    }
    let (base, says) = (Policy::auto(), FixedForecast::highest(60.0));
    let beside = canary(candidate(""), &["web"]);
    let make = |state: &ClusterState| plan_with_canary(&base, Some(&beside), state, &says, None, NOW, 1).0;
    // Both lenders have enough; the waiting job gets one loan, from the lender that goes first.
    assert_eq!(lenders(&make(&state).decisions), [("serving", None)]);
    // If more wait than one lender lends, the candidate lends the rest, of its owner's GPUs only.
    waits(&mut state, "research", 9);
    let made = make(&state);
    assert_eq!(lenders(&made.decisions), [("serving", None), ("web", Some("candidate"))]);
    // The deciding policy's mode counts: under the shipped policy the others only suggest.
    let shipped = Policy::shipped();
    let made = plan_with_canary(&shipped, Some(&beside), &state, &says, None, NOW, 1).0;
    let modes: Vec<Mode> = made.decisions.iter().map(|decision| decision.mode).collect();
    assert_eq!(modes, [Mode::Suggest, Mode::Act]);
    assert!(made.canary_hash.is_some() && made.id != plan(&shipped, &state, &says, None, NOW, 1).0.id);
}

#[test]
fn unowned_objects_stay_with_the_base_policy() {
    let mut state = two_sides();
    state.nodes.get_mut("w00").unwrap().health.fatal = true;
    let beside = canary(candidate(""), &["web", "research", "serving"]);
    let made =
        plan_with_canary(&Policy::auto(), Some(&beside), &state, &FixedForecast::highest(60.0), None, NOW, 1)
            .0;
    let drains: Vec<_> = made.decisions.iter().map(|d| (d.kind, d.canary.clone())).collect();
    assert_eq!(drains, [(Kind::DrainNode, None)]);
}

#[test]
fn jobs_grow_and_give_way_by_the_policy_of_their_owner_alone() {
    let mut state = cluster();
    let team = |owner: &str, job| crate::state::Job { owner: owner.into(), ..job };
    state.jobs.insert("a".into(), team("blue", elastic(&["t0"], 900_000)));
    state.jobs.insert("b".into(), team("red", elastic(&["t1"], 900_000)));
    let beside = canary(candidate(""), &["red"]);
    let says = FixedForecast::highest(60.0);
    let grown = |state: &ClusterState, base: &Policy| {
        let made = plan_with_canary(base, Some(&beside), state, &says, None, NOW, 1).0;
        let resizes = made.decisions.into_iter().filter(|d| d.kind == Kind::ResizeJob);
        resizes.map(|d| (d.action.change.job().unwrap().clone(), d.canary)).collect::<Vec<_>>()
    };
    // Both could have the two free nodes: the first gets them, and the other waits for what is
    // left.
    assert_eq!(grown(&state, &Policy::auto()), [("a".to_owned(), None)]);
    let stopped = Policy::parse("[modes]\nresize_job = \"stop\"").unwrap();
    assert_eq!(grown(&state, &stopped), [("b".to_owned(), Some("candidate".to_owned()))]);
    // A base-policy job that waits too long gets room among base-policy jobs, never by stopping the
    // canary's.
    let waits =
        crate::state::Job { priority: 5, preemptible: false, owner: "blue".into(), ..pending(32, 90_000) };
    for (name, owner) in [("t0", "red"), ("t1", "red"), ("t2", "red"), ("t3", "red")] {
        state.jobs.insert(format!("g-{name}"), team(owner, gang(&[name])));
    }
    state.jobs.retain(|id, _| id.starts_with("g-"));
    state.jobs.insert("w".into(), waits);
    let stopped = |state: &ClusterState| {
        let made = plan_with_canary(&Policy::auto(), Some(&beside), state, &says, None, NOW, 1).0;
        made.decisions.iter().filter(|d| d.kind == Kind::Preempt).count()
    };
    assert_eq!(stopped(&state), 0);
    state.jobs.values_mut().for_each(|job| job.owner = "red".into());
    assert_eq!(stopped(&state), 4, "among one's own they give way, by one's own policy");
}

#[test]
fn no_gpu_node_or_job_is_claimed_twice() {
    let mut state = two_sides();
    loan(&mut state, &["s00", "s01"]);
    let mut back = state.loans["lend-1"].clone();
    (back.from, back.pool) = ("web".into(), "web".into());
    back.nodes = ["w00".to_owned(), "w01".to_owned()].into();
    state.loans.insert("lend-2".into(), back);
    // A gang spans nodes of both loans, and both owners are short.
    state.jobs.insert("wide".into(), gang(&["s00", "w00"]));
    for owner in ["serving", "web"] {
        state.owners.get_mut(owner).unwrap().shares.values_mut().next().unwrap().demand_gpus = Some(128);
    }
    let beside = canary(candidate(""), &["web"]);
    let made = plan_with_canary(
        &Policy::auto(),
        Some(&beside),
        &state,
        &FixedForecast::highest(128.0),
        None,
        NOW,
        1,
    )
    .0;
    let reclaims: Vec<_> = made.decisions.iter().filter(|d| d.kind == Kind::Reclaim).collect();
    let loans = |d: &&&Decision| match &d.action.change {
        Change::Reclaim { loan, .. } => (loan.clone(), d.canary.clone()),
        _ => unreachable!(),
    };
    let by: BTreeSet<_> = reclaims.iter().map(|d| loans(&d)).collect();
    assert!(by.contains(&("lend-1".to_owned(), None)), "{by:?}");
    assert!(by.contains(&("lend-2".to_owned(), Some("candidate".to_owned()))), "{by:?}");
    let mut jobs: Vec<_> = made.decisions.iter().filter_map(|d| d.action.change.job()).collect();
    let all = jobs.len();
    jobs.dedup();
    assert_eq!((jobs.len(), all), (1, 1), "the gang is asked to leave once: {:?}", made.decisions);
    let mut nodes: Vec<_> = reclaims.iter().flat_map(|d| &d.footprint.nodes).collect();
    let all = nodes.len();
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes.len(), all);
}

#[test]
fn a_canarys_action_needs_both_policies_and_its_own_modes() {
    let mut state = cluster();
    waits(&mut state, "research", 4);
    (0..4).for_each(|at| drop(state.jobs.insert(format!("g{at}"), gang(&[&format!("t{at}")]))));
    let says = FixedForecast::highest(60.0);
    let history = History { switch: KillSwitch::On, ..History::default() };
    let judged = |base: &Policy, candidate: Policy| {
        let beside = canary(candidate, &["serving"]);
        let made = plan_with_canary(base, Some(&beside), &state, &says, None, NOW, 1).0;
        let lend = made.decisions.iter().find(|d| d.kind == Kind::Lend).unwrap();
        match beside.verdict(base, &state, &history, &lend.action, NOW) {
            Verdict::Allowed => None,
            Verdict::Refused(refusal) => Some(refusal.rule),
        }
    };
    // The canary's modes are its own; for budgets and freezes the stricter policy holds.
    assert_eq!(judged(&Policy::shipped(), candidate("")), None);
    let none = Budget { per_hour: 0, ..Policy::auto().budget(Kind::Lend) };
    let with_none = |mut policy: Policy| {
        policy.budgets.insert(Kind::Lend, none);
        policy
    };
    assert_eq!(judged(&with_none(Policy::auto()), candidate("")), Some(Rule::Budget));
    assert_eq!(judged(&Policy::auto(), with_none(candidate(""))), Some(Rule::Budget));
    let frozen = "calendar = [{ name = \"always\", from = \"00:00\", to = \"00:00\" }]";
    assert_eq!(judged(&Policy::parse(frozen).unwrap(), candidate("")), Some(Rule::Calendar));
}

fn of<'a>(
    policy: &'a str,
    scores: &'a [Score],
    intents: &'a IntentLedger,
    breaker_trips: usize,
) -> CanaryRecord<'a> {
    CanaryRecord { policy, began_us: NOW, scores, intents, breaker_trips, window: 200 }
}

/// A score with 10 GPU-hours predicted and `realised` realised.
fn scored(at: i64, by: Option<&str>, realised: i64) -> Score {
    const HOUR: i64 = 3_600_000;
    Score {
        action: format!("lend-{at}-{by:?}"),
        kind: Kind::Lend,
        decided_us: NOW + at * S,
        verified: true,
        predicted_gpu_ms: 10 * HOUR,
        realised_gpu_ms: Some(realised * HOUR),
        benefit_ratio_ppm: None,
        within: None,
        canary: by.map(str::to_owned),
    }
}

#[test]
fn a_canary_ends_if_its_scorecard_is_worse_than_the_others_or_than_nothing() {
    let rules = RollbackRules { decisions: 4, worse: 0.2, loss_gpu_hours: 16.0, ..RollbackRules::default() };
    let none = IntentLedger::default();
    let ended_by = |scores: &[Score]| reason(&rules, &of("candidate", scores, &none, 0), NOW);
    let base: Vec<Score> = (0..4).map(|at| scored(at, None, 8)).collect();
    let with = |own: &[i64]| -> Vec<Score> {
        let own = own.iter().enumerate().map(|(at, net)| scored(at as i64, Some("candidate"), *net));
        base.iter().cloned().chain(own).collect()
    };
    // 0.8 of the prediction on one side, 0.6 on the other: not more than 0.2 less. (6+6+6+5)/40 =
    // 0.575 is.
    assert_eq!(ended_by(&with(&[6, 6, 6, 6])), None);
    let worse = ended_by(&with(&[6, 6, 6, 5])).unwrap();
    assert!(worse.contains("0.57") && worse.contains("0.80"), "{worse}");
    assert_eq!(ended_by(&with(&[0, 0, 0])), None, "too few to compare");
    // A loss needs no minimum number: -10 and -6 are the 16 GPU-hours that end it.
    assert_eq!(ended_by(&with(&[-10, -5])), None);
    assert!(ended_by(&with(&[-10, -6])).unwrap().contains("lost 16.0 GPU-hours"));
    // Results of another candidate, or of this one before a restart, do not count.
    let other: Vec<Score> = (0..4).map(|at| scored(at, Some("other"), -9)).collect();
    assert_eq!(ended_by(&other), None);
    let before: Vec<Score> = (-4..0).map(|at| scored(at, Some("candidate"), -9)).collect();
    assert_eq!(ended_by(&before), None);
    assert_eq!(ended_by(&[]), None);
}

/// An action of the candidate that began at `at` seconds and ended with `ends`.
fn acted(intents: &mut IntentLedger, at: i64, change: Change, ends: &[Transition]) {
    let state = cluster();
    let id = format!("{}-{at}", change.kind());
    let action = Action {
        id: id.clone(),
        generation: 0,
        preconditions: vec![],
        inverse: None,
        expires_us: NOW + 1_000_000 * S,
        effect_ends_us: None,
        notice_ms: 0,
        after: vec![],
        change,
    };
    let past = Box::new(PastAction::begun(&action, &state, 0, NOW + at * S));
    let decision = Decision {
        kind: action.change.kind(),
        action,
        mode: Mode::Act,
        canary: Some("candidate".to_owned()),
        footprint: Footprint::default(),
        gpus: 8,
        predicted: Predicted::default(),
        reason: String::new(),
    };
    let begun = [
        Transition::Proposed { decision: Box::new(decision), plan: "p".into(), past },
        Transition::Approved { by: "policy".into() },
        Transition::Leased { holder: "h".into() },
        Transition::Applying,
    ];
    for what in begun.iter().chain(ends) {
        let late = matches!(what, Transition::Verified);
        let at_us = NOW + (at + if late { 901 } else { 0 }) * S;
        intents
            .fold(&IntentEvent { action: id.clone(), at_us, generation: 1, transition: what.clone() })
            .unwrap();
    }
}

fn lend() -> Change {
    Change::Lend {
        from: "serving".into(),
        to: "research".into(),
        pool: "serve".into(),
        gpus: 8,
        nodes: ["s00".to_owned()].into(),
        extends: None,
        expires_us: NOW + 3_600 * S,
        reclaim_within_ms: 900_000,
    }
}

#[test]
fn a_canary_ends_by_failures_in_a_row_by_the_breaker_and_by_a_broken_promise() {
    let rules = RollbackRules { failures: 3, ..RollbackRules::default() };
    let failed = || Transition::Failed { why: "no".into(), applied: false };
    let mut intents = IntentLedger::default();
    let ended_by =
        |intents: &IntentLedger, trips, now| reason(&rules, &of("candidate", &[], intents, trips), now);
    acted(&mut intents, 1, lend(), &[failed()]);
    acted(&mut intents, 2, lend(), &[failed()]);
    assert_eq!(ended_by(&intents, 0, NOW), None);
    let mut between = intents.clone();
    acted(&mut between, 3, lend(), &[Transition::Verified]);
    acted(&mut between, 4, lend(), &[failed()]);
    assert_eq!(ended_by(&between, 0, NOW), None, "not in a row");
    acted(&mut intents, 3, lend(), &[failed()]);
    assert!(ended_by(&intents, 0, NOW).unwrap().contains("last 3 actions failed"));
    assert!(ended_by(&IntentLedger::default(), 1, NOW).unwrap().contains("breaker refused 1"));
    // 901 s where 900 were promised, and one that is still not back after as long.
    let reclaim = || Change::Reclaim {
        loan: "lend-1".into(),
        from_gpus: 8,
        to_gpus: 0,
        nodes: ["s00".to_owned()].into(),
    };
    let mut late = IntentLedger::default();
    acted(&mut late, 1, lend(), &[Transition::Verified]);
    acted(&mut late, 2, reclaim(), &[]);
    assert_eq!(ended_by(&late, 0, NOW + 902 * S), None);
    assert!(ended_by(&late, 0, NOW + 903 * S).unwrap().contains("reclaim-2"));
    acted(&mut late, 3, reclaim(), &[Transition::Verified]);
    assert!(ended_by(&late, 0, NOW).unwrap().contains("longer than was promised"));
    let soon = CanaryRecord { began_us: NOW + 4 * S, ..of("candidate", &[], &late, 0) };
    assert_eq!(reason(&rules, &soon, NOW + 903 * S), None, "before it began");
}

#[test]
fn unknown_owners_are_named_with_the_known_ones() {
    let mut state = cluster();
    state.jobs.insert("1".into(), crate::state::Job { owner: "guest".into(), ..gang(&["t0"]) });
    assert_eq!(canary(candidate(""), &["research", "guest"]).check_owners(&state), Ok(()));
    let error = canary(candidate(""), &["team-a", "research"]).check_owners(&state).unwrap_err().to_string();
    assert_eq!(error, "canary.owners: the cluster has no team-a; it knows guest, research, serving");
}

#[test]
fn candidates_are_removed_from_the_base_policy() {
    let text = "name = \"site\"\n[shadow]\npolicy = \"auto\"\n[canary]\npolicy = \"own.toml\"\nowners = [\"team-a\"]\n\
                [canary.rollback]\nfailures = 5\n";
    let read = |named: &str| match named {
        "own.toml" => Ok(candidate("")),
        named => Policy::named(named).ok_or_else(|| "no such file".to_owned()),
    };
    let mut policy = Policy::parse(text).unwrap();
    let tried = Rollout::from_policy(&mut policy, read).unwrap();
    assert_eq!(tried.shadow, Some(Policy::auto()));
    let canary = tried.canary.unwrap();
    assert_eq!((&*canary.policy.name, canary.rollback.failures), ("candidate", 5));
    assert_eq!(policy, Policy { name: "site".into(), ..Policy::shipped() }, "its own plans keep their hash");
    assert!(canary.id() != Canary { rollback: RollbackRules::default(), ..canary.clone() }.id());
    // A policy without candidates serializes as it did before candidates existed.
    assert!(!serde_json::to_string(&policy).unwrap().contains("canary"));
    let refused = |text: &str| {
        let mut policy = Policy::parse(text).unwrap();
        Rollout::from_policy(&mut policy, read).unwrap_err().to_string()
    };
    assert_eq!(refused("[shadow]\npolicy = \"none.toml\""), "shadow.policy = \"none.toml\": no such file");
    assert!(refused("[shadow]\npolicy = \"default\"").contains("a `name` of its own"));
    let nested =
        |_: &str| Policy::parse("name = \"c\"\n[shadow]\npolicy = \"auto\"").map_err(|e| e.to_string());
    let mut policy = Policy::parse("[canary]\npolicy = \"c\"\nowners = [\"a\"]").unwrap();
    assert!(
        Rollout::from_policy(&mut policy, nested)
            .unwrap_err()
            .to_string()
            .contains("of its own; only the policy")
    );
    assert_eq!(Policy::shipped().canary.rollback, RollbackRules::default(), "one set of numbers");
}

#[test]
fn a_policy_says_whom_it_tries_in_full() {
    let refused = |text: &str| Policy::parse(text).unwrap_err().to_string();
    assert!(refused("[canary]\npolicy = \"c.toml\"").starts_with("canary.owners = []: name the owners"));
    assert!(refused("[canary]\nowners = [\"a\"]").contains("canary.policy"));
    assert!(refused("[canary]\npolicy = \"c\"\nowners = [\"a\", \"a\"]").contains("each owner once"));
    assert!(refused("[canary.rollback]\nfailures = 0").starts_with("canary.rollback.failures = 0: write 1"));
    assert!(refused("[canary.rollback]\nworse = -1.0").starts_with("canary.rollback.worse"));
    assert!(refused("[shadow]\npolicy = \" \"").starts_with("shadow.policy"));
    assert!(refused("[shadow]\nowners = [\"a\"]").contains("shadow.owners is not a key"));
    assert!(refused("[canary]\npolicy = \"c\"\nowners = [1]").contains("invalid type"));
}

/// A lending cluster, the acting plan by `policy`, and the result of a shadow by `other`.
fn shadow_result(policy: &Policy, other: &Policy) -> (PlanRecord, shadow::ShadowResult) {
    let mut state = cluster();
    waits(&mut state, "research", 4);
    (0..4).for_each(|at| drop(state.jobs.insert(format!("g{at}"), gang(&[&format!("t{at}")]))));
    let says = FixedForecast::highest(60.0);
    let (plan, report) = plan(policy, &state, &says, None, NOW, 7);
    let history = History::default();
    let seen =
        ShadowInput { state: &state, forecast: &says, history: &history, plan: &plan, report: &report };
    let shadow_result = Shadow::new(other.clone()).plan(seen, &BTreeMap::new());
    (PlanRecord { plan, report, policy: policy.clone(), canary: None, state, kept: vec![] }, shadow_result)
}

#[test]
fn a_shadows_plan_replays_from_the_acting_plan() {
    let careful = candidate("[lend]\nbuffer_gpus = 40\nleast_quantile = 0.97\n");
    for other in [Policy::auto(), careful, candidate("[budgets.lend]\nper_hour = 0\n")] {
        let (beside, shadow_result) = shadow_result(&Policy::shipped(), &other);
        let (plan, report) = shadow_result.planned.replay(&other, &beside);
        assert!(shadow_result.planned.matches(&plan, &report), "{}", other.name);
        assert_eq!(shadow_result.decisions.len(), plan.decisions.len());
        assert!(shadow_result.decisions.iter().all(|own| own.id.starts_with(shadow::ID_PREFIX)));
        let (other_plan, report) = shadow_result.planned.replay(&Policy::shipped(), &beside);
        assert!(!shadow_result.planned.matches(&other_plan, &report), "by another policy it is another");
    }
    // The same plan: the kill switch was never turned on, which says nothing about a policy.
    let (beside, same) = shadow_result(&Policy::shipped(), &Policy::auto());
    let lend = &same.decisions[0];
    assert_eq!(lend.same_as.as_ref(), Some(&beside.plan.decisions[0].action.id));
    assert_eq!((lend.mode, &lend.refusal), (Mode::Act, &None));
    assert_eq!((same.planned.same, same.planned.only_acting.len()), (1, 0));
    // What its own guard would refuse, with the rule.
    let (_, refused) = shadow_result(&Policy::shipped(), &candidate("[budgets.lend]\nper_hour = 0\n"));
    assert_eq!(refused.decisions[0].refusal.as_ref().map(|refusal| refusal.rule), Some(Rule::Budget));
    // A shadow that lends nothing misses what the acting policy does.
    let (beside, missed) = shadow_result(&Policy::shipped(), &candidate("[lend]\nbuffer_gpus = 100\n"));
    assert_eq!(missed.decisions, []);
    let net_gpu_ms = beside.plan.decisions[0].predicted.net_gpu_ms();
    let action = beside.plan.decisions[0].action.id.clone();
    assert_eq!(missed.planned.only_acting, [MissedDecision { action, kind: Kind::Lend, net_gpu_ms }]);
}

#[test]
fn a_shadow_that_thinks_the_same_costs_few_bytes() {
    let (beside, shadow_result) = shadow_result(&Policy::shipped(), &Policy::auto());
    let mut shadow = Shadow::new(Policy::auto());
    let bytes = |events: Vec<ShadowEvent>| -> Vec<usize> {
        let entry =
            |event| JournalEntry { at_us: NOW, generation: 1, event: JournalEvent::Shadow(Box::new(event)) };
        events.into_iter().map(|event| serde_json::to_vec(&entry(event)).unwrap().len()).collect()
    };
    let first = bytes(shadow.record(shadow_result.clone(), 1, 600 * S));
    assert_eq!(first.len(), 3, "its policy once, its plan, and what it decides");
    let mut again = shadow_result.clone();
    again.planned.made_us += 60 * S;
    assert!(!shadow.has_new_decisions(&again, 600 * S));
    let repeated = bytes(shadow.record(again.clone(), 1, 600 * S));
    let whole = serde_json::to_vec(&JournalEvent::Planned(Box::new(beside))).unwrap().len();
    println!("{first:?}, then {repeated:?}; the plan beside it {whole}");
    assert!(repeated.len() == 1 && repeated[0] < 400, "{repeated:?}");
    assert!(whole > 20 * repeated[0], "{whole}");
    // Readers of another generation may not have seen the first; after ten minutes standing
    // decisions are recorded again.
    assert_eq!(shadow.record(again.clone(), 2, 600 * S).len(), 2);
    again.planned.made_us = shadow_result.planned.made_us + 600 * S;
    assert_eq!(shadow.record(again.clone(), 2, 600 * S).len(), 2);
}

#[test]
fn only_decisions_the_acting_plan_lacks_are_new() {
    let (_, same) = shadow_result(&Policy::shipped(), &Policy::auto());
    let mut shadow = Shadow::new(Policy::auto());
    assert!(!shadow.has_new_decisions(&same, 600 * S), "the acting plan is recorded for itself");
    let (_, mut alone) = shadow_result(&candidate("[lend]\nbuffer_gpus = 100\n"), &Policy::auto());
    assert!(alone.decisions[0].same_as.is_none() && shadow.has_new_decisions(&alone, 600 * S));
    shadow.record(alone.clone(), 1, 600 * S);
    alone.planned.made_us += 599 * S;
    assert!(!shadow.has_new_decisions(&alone, 600 * S));
    alone.planned.made_us += S;
    assert!(shadow.has_new_decisions(&alone, 600 * S));
}

#[test]
fn a_summary_counts_common_decisions_once_and_one_sided_ones() {
    let planned = |same, decisions, only: &[(&str, i64)]| {
        let only_acting = only.iter().map(|(action, net_gpu_ms)| MissedDecision {
            action: (*action).to_owned(),
            kind: Kind::Lend,
            net_gpu_ms: *net_gpu_ms,
        });
        ShadowEvent::Planned(Box::new(ShadowPlan {
            plan: "shadow-1".into(),
            acting_plan: "1".into(),
            made_us: NOW,
            policy: "candidate".into(),
            policy_hash: "h".into(),
            at_most: BTreeMap::new(),
            print: "p".into(),
            answers: vec![],
            decisions,
            same,
            only_acting: only_acting.collect(),
        }))
    };
    let decided = |policy: &str, same_as: Option<&str>, net: i64, rule: Option<Rule>| {
        ShadowEvent::Decided(Box::new(ShadowDecision {
            id: "shadow-lend-1".into(),
            plan: "shadow-1".into(),
            policy: policy.into(),
            kind: Kind::Lend,
            object: crate::state::Object::Owner("serving".into()),
            mode: Mode::Act,
            gpus: 8,
            predicted: Predicted { benefit_gpu_ms: net + 1, cost_gpu_ms: 1, ..Predicted::default() },
            reason: String::new(),
            refusal: rule.map(|rule| crate::guard::Refusal { rule, why: "no".into() }),
            same_as: same_as.map(str::to_owned),
        }))
    };
    let events = [
        planned(1, 1, &[]),
        decided("candidate", Some("lend-a"), 10, None),
        decided("candidate", Some("lend-a"), 10, None),
        planned(0, 1, &[("lend-b", 5), ("lend-c", 7)]),
        decided("candidate", None, 20, Some(Rule::Budget)),
        planned(0, 0, &[("lend-b", 5)]),
        planned(0, 0, &[]),
        decided("another", None, 99, None),
    ];
    let scores = [Score { action: "lend-a".into(), ..scored(0, None, 3) }, scored(1, None, 9)];
    let found = summary("candidate", events.iter(), scores.iter());
    assert_eq!((found.plans, found.alike), (4, 2));
    let expected = KindComparison {
        both: 1,
        both_net_gpu_ms: 10,
        scored: 1,
        realised_gpu_ms: 3 * 3_600_000,
        only_acting: 2,
        only_acting_net_gpu_ms: 12,
        only_shadow: 1,
        only_shadow_net_gpu_ms: 20,
        refused: [(Rule::Budget, 1)].into(),
    };
    assert_eq!(found.kinds, [(Kind::Lend, expected)].into());
}

#[test]
fn a_rolled_back_canary_stays_ended_until_restarted() {
    let canary = canary(candidate(""), &["research"]);
    let mut all = Canaries::default();
    let began = CanaryEvent::Began { canary: Box::new(canary.clone()), by: None };
    all.fold(&began, NOW);
    assert_eq!(all.acting().count(), 1);
    let mut intents = IntentLedger::default();
    acted(&mut intents, 1, lend(), &[]);
    let refused = |rule| IntentEvent {
        action: "lend-1".into(),
        at_us: NOW + S,
        generation: 1,
        transition: Transition::Dropped {
            refusal: Some(crate::guard::Refusal { rule, why: "too much".into() }),
        },
    };
    all.fold_step(&refused(Rule::Breaker), &intents);
    all.fold_step(&refused(Rule::Budget), &intents);
    assert_eq!((all.trips(NOW), all.trips(NOW + 2 * S)), (1, 0));
    let (id, why) = (canary.id(), "its record".to_owned());
    all.fold(
        &CanaryEvent::Ended {
            id: id.clone(),
            policy: "candidate".into(),
            why: why.clone(),
            rolled_back: true,
        },
        NOW + 9 * S,
    );
    assert_eq!(all.acting().count(), 0);
    assert_eq!(all.get(&id).unwrap().ended, Some((NOW + 9 * S, why, true)));
    all.fold(&began, NOW + 10 * S);
    assert_eq!((all.acting().count(), all.trips(NOW)), (1, 0));
}
