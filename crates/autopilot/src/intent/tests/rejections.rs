//! What a person rejects before it began is never begun, and the guard learns of it.

use super::*;

fn rejected(by: &str) -> Transition {
    Transition::Rejected { by: by.into(), why: Some("the team asked".into()) }
}

fn ledger_of(events: &[(i64, Transition)]) -> IntentLedger {
    let mut intents = IntentLedger::default();
    intents.fold(&proposed(decision(Mode::Approve, 60_000))).unwrap();
    for (at_s, what) in events {
        intents.fold(&event(1, *at_s, what.clone())).unwrap();
    }
    intents
}

#[test]
fn what_has_not_begun_is_over_once_it_is_rejected() {
    let by_anna = || Transition::Approved { by: "anna".into(), signed: None };
    let before: [&[Transition]; 4] =
        [&[], &[by_anna()], &[by_anna(), leased()], &[by_anna(), leased(), Transition::Noticed]];
    for before in before {
        let steps = before.iter().cloned().chain([rejected("ben")]);
        let intents = ledger_of(&steps.zip(1..).map(|(what, at_s)| (at_s, what)).collect::<Vec<_>>());
        let intent = intents.get("drain-1").unwrap();
        assert_eq!((&intent.stage, intent.next(1, NOW, &LIMITS)), (&Stage::Dropped, NextStep::Over));
        assert_eq!(intents.open().count(), 0);
    }
}

#[test]
fn what_has_begun_cannot_be_rejected() {
    for done in [Transition::Applying, Transition::Verified] {
        let begun = [(1, approved()), (2, leased()), (3, Transition::Applying)];
        let mut intents = ledger_of(&begun);
        if done == Transition::Verified {
            intents.fold(&event(1, 4, done)).unwrap();
        }
        let before = intents.clone();
        let refused = intents.fold(&event(1, 5, rejected("ben"))).unwrap_err();
        assert!(matches!(refused, FoldError::Order { .. }), "{refused}");
        assert_eq!(intents, before);
    }
}

#[test]
fn a_rejection_counts_once_under_any_lease_and_no_approval_follows_it() {
    let mut intents = ledger_of(&[(1, rejected("ben"))]);
    let once = intents.clone();
    intents.fold(&event(1, 2, rejected("carl"))).unwrap();
    assert_eq!(intents, once, "a repeat changes nothing");
    let late = Transition::Approved { by: "anna".into(), signed: None };
    assert!(matches!(intents.fold(&event(1, 3, late)), Err(FoldError::Order { .. })));
    // Another process led meanwhile, and the one that took the rejection in wrote it late.
    let mut intents = IntentLedger::default();
    intents.fold(&proposed(decision(Mode::Approve, 0))).unwrap();
    intents.fold(&event(4, 1, Transition::ApprovalRefused { by: "m".into(), why: "w".into() })).unwrap();
    intents.fold(&event(2, 2, rejected("ben"))).unwrap();
    assert_eq!(intents.get("drain-1").unwrap().stage, Stage::Dropped);
    assert_eq!(intents.generation(), 4);
}

#[test]
fn the_guard_learns_of_it_for_a_day_and_older_snapshots_know_of_none() {
    let mut intents = ledger_of(&[(1, rejected("ben"))]);
    let of = |intents: &IntentLedger, at_s: i64| intents.history(NOW + at_s * S, KillSwitch::On).rejections;
    let known = of(&intents, 2);
    assert_eq!(known.len(), 1);
    assert_eq!((known[0].by.as_str(), known[0].at_us), ("ben", NOW + S));
    assert_eq!(known[0].why.as_deref(), Some("the team asked"));
    assert_eq!(known[0].object, Change::DrainNode { node: "s00".into(), reason: "".into() }.object());
    assert_eq!((of(&intents, 86_400).len(), of(&intents, 86_401).len()), (1, 0));
    // What the guard dropped, nobody rejected.
    let dropped = ledger_of(&[(1, Transition::Dropped { refusal: None }), (2, rejected("ben"))]);
    assert!(of(&dropped, 3).is_empty());
    let saved = serde_json::to_string(&intents).unwrap();
    assert_eq!(serde_json::from_str::<IntentLedger>(&saved).unwrap(), intents);
    let older = serde_json::to_string(&IntentLedger::default()).unwrap();
    assert!(!older.contains("rejections"), "{older}");
    assert_eq!(serde_json::from_str::<IntentLedger>(&older).unwrap(), IntentLedger::default());
    intents.forget(NOW + 2 * S);
    assert!(of(&intents, 3).is_empty());
}
