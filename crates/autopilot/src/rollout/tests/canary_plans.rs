//! Plans in which a canary decides for its owners.

use super::*;

/// Two lenders with 16 nodes each, two teams that wait for loans, and one loan of each lender to a
/// team, all of which is needed back now.
fn two_sides() -> ClusterState {
    let mut state = cluster();
    for at in 0..16 {
        state.nodes.insert(format!("w{at:02}"), node("web", &format!("v{}", at / 4)));
    }
    state.pools.insert("web".into(), Pool::default());
    let share = Share { quota_gpus: 128, lendable: true, demand_gpus: Some(40), ..Share::default() };
    state
        .owners
        .insert("web".into(), Owner { shares: [("web".to_owned(), share)].into(), ..Owner::default() });
    state
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
