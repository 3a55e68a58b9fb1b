//! When a canary is rolled back.

use super::*;

fn of<'a>(
    policy: &'a str,
    scores: &'a [Score],
    intents: &'a IntentLedger,
    breaker_trips: usize,
) -> CanaryRecord<'a> {
    CanaryRecord { policy, began_us: NOW, scores, intents, breaker_trips, window: 200 }
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
        serves: None,
        is_owed: false,
        footprint: Footprint::default(),
        gpus: 8,
        predicted: Predicted::default(),
        reason: String::new(),
    };
    let begun = [
        Transition::Proposed { decision: Box::new(decision), plan: "p".into(), past, basis: None },
        Transition::approved_by_policy(),
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
    assert!(ended_by(&late, 0, NOW).unwrap().contains("longer than promised"));
    let soon = CanaryRecord { began_us: NOW + 4 * S, ..of("candidate", &[], &late, 0) };
    assert_eq!(reason(&rules, &soon, NOW + 903 * S), None, "before it began");
}

#[test]
fn a_rolled_back_canary_stays_ended_until_restarted() {
    let canary = canary(candidate(""), &["research"]);
    let mut all = Canaries::default();
    let began = CanaryEvent::Began { canary: Box::new(canary.clone()), by: None, signed: None };
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
