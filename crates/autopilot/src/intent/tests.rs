mod rejections;

use super::*;
use crate::action::{ActionId, Change, Precondition};
use crate::fixture::{NOW, S, cluster};
use crate::guard::{ActionStatus, KillSwitch};
use crate::impact::{Basis, Stop};
use crate::planner::Predicted;
use crate::policy::{Footprint, Mode};
use crate::target::{Effect, TargetError};

const LIMITS: Limits = Limits { verify_within_ms: 900_000, look_every_ms: 5_000 };

fn decision(mode: Mode, notice_ms: i64) -> Decision {
    let action = Action {
        id: "drain-1".into(),
        generation: 0,
        change: Change::DrainNode { node: "s00".into(), reason: "ecc".into() },
        preconditions: vec![Precondition::NodeTakesJobs { node: "s00".into() }],
        inverse: Some(Change::ReturnNode { node: "s00".into(), drained_by: "drain-1".into() }),
        expires_us: NOW + 300 * S,
        effect_ends_us: None,
        notice_ms,
        after: Vec::new(),
    };
    let kind = action.change.kind();
    let (footprint, predicted) = (Footprint::default(), Predicted::default());
    Decision {
        action,
        kind,
        mode,
        canary: None,
        serves: None,
        is_owed: false,
        footprint,
        gpus: 8,
        predicted,
        reason: "ecc".into(),
    }
}

fn event(generation: u64, at_s: i64, transition: Transition) -> IntentEvent {
    IntentEvent { action: "drain-1".into(), at_us: NOW + at_s * S, generation, transition }
}

fn proposed(decision: Decision) -> IntentEvent {
    let past = PastAction::begun(&decision.action, &cluster(), 0, NOW);
    event(
        1,
        0,
        Transition::Proposed {
            decision: Box::new(decision),
            plan: "p".into(),
            past: Box::new(past),
            basis: None,
        },
    )
}

fn receipt() -> Receipt {
    Receipt { action: ActionId::from("drain-1"), at_us: NOW, already: false, done: "drained".into() }
}

fn leased() -> Transition {
    Transition::Leased { holder: "a".into() }
}

fn approved() -> Transition {
    Transition::approved_by_policy()
}

fn with(events: &[(u64, Transition)]) -> Intent {
    let mut intent = Intent::proposed(&proposed(decision(Mode::Act, 0))).unwrap();
    for (at, (generation, what)) in events.iter().enumerate() {
        intent.fold(&event(*generation, at as i64 + 1, what.clone())).unwrap();
    }
    intent
}

fn applying() -> Intent {
    with(&[(1, approved()), (1, leased()), (1, Transition::Applying)])
}

#[test]
fn the_whole_life_of_an_intent() {
    let mut intents = IntentLedger::default();
    let mut at = 0;
    let mut tell = |intents: &mut IntentLedger, what: Transition| {
        at += 1;
        intents.fold(&event(1, at, what)).unwrap();
    };
    intents.fold(&proposed(decision(Mode::Act, 60_000))).unwrap();
    let next =
        |intents: &IntentLedger, at_s: i64| intents.get("drain-1").unwrap().next(1, NOW + at_s * S, &LIMITS);
    assert_eq!(next(&intents, 1), NextStep::Record(approved()));
    tell(&mut intents, approved());
    assert_eq!(next(&intents, 1), NextStep::Lease);
    tell(&mut intents, leased());
    assert!(matches!(next(&intents, 2), NextStep::Notify(_)));
    tell(&mut intents, Transition::Noticed);
    assert!(matches!(next(&intents, 62), NextStep::Notify(_)), "notified at 3: a minute is over at 63");
    tell(&mut intents, Transition::Acknowledged { saved_step: Some(7) });
    let NextStep::Begin(action) = next(&intents, 10) else { panic!() };
    assert_eq!(action.generation, 1);
    assert!(intents.history(NOW + 10 * S, KillSwitch::On).past.is_empty(), "not begun");
    tell(&mut intents, Transition::Applying);
    assert_eq!(intents.history(NOW + 10 * S, KillSwitch::On).past[0].outcome, ActionStatus::UnderWay);
    assert!(matches!(next(&intents, 10), NextStep::ReadBack(_)));
    tell(&mut intents, Transition::Applied { receipt: receipt() });
    tell(&mut intents, Transition::Verified);
    assert_eq!(next(&intents, 20), NextStep::Over);
    assert_eq!(intents.open().count(), 0);
    let history = intents.history(NOW + 20 * S, KillSwitch::On);
    assert_eq!(
        (history.past[0].outcome.clone(), history.past[0].at_us),
        (ActionStatus::Verified, NOW + 5 * S)
    );
    assert!(history.approvals.is_empty(), "the policy is no person");
    assert!(intents.history(NOW + 86_405 * S, KillSwitch::On).past.is_empty(), "a day later");
}

#[test]
fn only_allowed_modes_proceed_and_only_before_the_deadline() {
    for mode in [Mode::Observe, Mode::Suggest, Mode::Approve] {
        let intent = Intent::proposed(&proposed(decision(mode, 0))).unwrap();
        assert_eq!(intent.next(1, NOW + S, &LIMITS), NextStep::Wait { until_us: NOW + 300 * S });
    }
    let late = |intent: &Intent| intent.next(1, NOW + 300 * S, &LIMITS);
    let dropped = NextStep::Record(Transition::Dropped { refusal: None });
    assert_eq!(late(&with(&[])), dropped);
    assert_eq!(late(&with(&[(1, approved()), (1, leased())])), dropped);
    assert!(
        matches!(late(&applying()), NextStep::ReadBack(_)),
        "what may have been done is looked at, however late"
    );
}

#[test]
fn a_notice_is_awaited_for_a_limited_time() {
    let mut intent = Intent::proposed(&proposed(decision(Mode::Act, 60_000))).unwrap();
    for (at, what) in [approved(), leased(), Transition::Noticed].into_iter().enumerate() {
        intent.fold(&event(1, at as i64, what)).unwrap();
    }
    assert!(matches!(intent.next(1, NOW + 61 * S, &LIMITS), NextStep::Notify(_)));
    assert!(
        matches!(intent.next(1, NOW + 62 * S, &LIMITS), NextStep::Begin(_)),
        "notified at 2 s, a minute is over"
    );
    // Said before it begins; whoever comes after begins all the same.
    intent.fold(&event(1, 62, Transition::NoticeIgnored)).unwrap();
    assert!(matches!(intent.next(1, NOW + 63 * S, &LIMITS), NextStep::Begin(_)));
    intent.fold(&event(1, 64, Transition::Applying)).unwrap();
    let late = event(1, 65, Transition::NoticeIgnored);
    assert!(matches!(intent.fold(&late), Err(FoldError::Order { .. })), "after it has begun");
    let mut early = Intent::proposed(&proposed(decision(Mode::Act, 60_000))).unwrap();
    early.fold(&event(1, 1, approved())).unwrap();
    for answer in [Transition::Acknowledged { saved_step: None }, Transition::NoticeIgnored] {
        assert!(matches!(early.fold(&event(1, 2, answer)), Err(FoldError::Order { .. })));
    }
}

#[test]
fn an_older_generation_changes_nothing() {
    let mut intent = with(&[(1, approved()), (2, leased())]);
    let before = intent.clone();
    let stale = intent.fold(&event(1, 9, Transition::Applying));
    assert_eq!(stale, Err(FoldError::Stale { generation: 1, seen: 2 }));
    assert_eq!(intent, before);
    assert_eq!(intent.next(1, NOW + 9 * S, &LIMITS), NextStep::StandDown);
    let mut intents = IntentLedger::default();
    intents.fold(&proposed(decision(Mode::Act, 0))).unwrap();
    intents.fold(&event(3, 1, approved())).unwrap();
    let mut other = proposed(decision(Mode::Act, 0));
    other.action = "other".into();
    assert_eq!(intents.fold(&other), Err(FoldError::Stale { generation: 1, seen: 3 }));
    let stale: Result<Receipt, _> = Err(TargetError::StaleGeneration { generation: 1, seen: 2 });
    assert_eq!(applying().on_apply(&stale, NOW), Outcome::StandDown);
}

#[test]
fn a_repeated_event_changes_nothing() {
    let failed = || Transition::Failed { why: "no".into(), applied: true };
    let lives = [
        vec![
            approved(),
            leased(),
            Transition::Applying,
            Transition::Applied { receipt: receipt() },
            Transition::Verified,
        ],
        vec![
            approved(),
            leased(),
            Transition::Applying,
            failed(),
            Transition::Compensating,
            Transition::Compensated,
        ],
        vec![Transition::Dropped { refusal: None }],
    ];
    for life in lives {
        let mut once = with(&[]);
        let mut twice = once.clone();
        for (at, what) in life.into_iter().enumerate() {
            let event = event(1, at as i64 + 1, what);
            once.fold(&event).unwrap();
            twice.fold(&event).unwrap();
            twice.fold(&event).unwrap();
            assert_eq!(once, twice);
        }
        assert!(once.is_over());
        twice.fold(&proposed(decision(Mode::Act, 0))).unwrap();
        assert_eq!(once, twice);
    }
}

#[test]
fn transitions_cannot_be_skipped() {
    let mut intent = with(&[]);
    for what in [
        leased(),
        Transition::Applying,
        Transition::Verified,
        Transition::Compensating,
        Transition::Compensated,
        Transition::Noticed,
    ] {
        assert!(matches!(intent.fold(&event(1, 1, what)), Err(FoldError::Order { .. })));
    }
    let mut done =
        with(&[(1, approved()), (1, leased()), (1, Transition::Applying), (1, Transition::Verified)]);
    for what in [Transition::Applying, Transition::Dropped { refusal: None }, Transition::Compensating] {
        assert!(matches!(done.fold(&event(1, 9, what)), Err(FoldError::Order { .. })));
    }
}

#[test]
fn an_unknown_answer_is_read_back_and_never_taken_for_success() {
    let unknown = || TargetError::Unknown { target: "slurm".into(), why: "200 with errors".into() };
    let away = || TargetError::Unreachable { target: "slurm".into(), why: "refused".into() };
    let intent = applying();
    assert_eq!(intent.on_apply(&Err(unknown()), NOW), Outcome::Wait);
    assert!(matches!(intent.next(1, NOW, &LIMITS), NextStep::ReadBack(_)));
    for error in [unknown(), away()] {
        assert_eq!(intent.on_read_back(&Err(error), NOW + 9_000 * S, &LIMITS), Outcome::Wait);
    }
    // Nothing took effect: apply again while there is time, otherwise fail with nothing to undo.
    assert_eq!(intent.on_read_back(&Ok(Effect::Absent), NOW + 10 * S, &LIMITS), Outcome::Again);
    let late = intent.on_read_back(&Ok(Effect::Absent), NOW + 300 * S, &LIMITS);
    assert!(matches!(late, Outcome::Record(Transition::Failed { applied: false, .. })));
    assert_eq!(
        intent.on_read_back(&Ok(Effect::Done { at_us: NOW }), NOW, &LIMITS),
        Outcome::Record(Transition::Verified)
    );
}

#[test]
fn a_failure_after_applying_is_compensated() {
    let mut intent = applying();
    intent.fold(&event(1, 4, Transition::Applied { receipt: receipt() })).unwrap();
    let partial = Ok(Effect::Partial { missing: "2 GPUs".into() });
    assert_eq!(intent.on_read_back(&partial, NOW + 903 * S, &LIMITS), Outcome::Wait);
    let Outcome::Record(failed) = intent.on_read_back(&partial, NOW + 904 * S, &LIMITS) else { panic!() };
    intent.fold(&event(1, 904, failed)).unwrap();
    assert!(!intent.is_over());
    let NextStep::Compensate(undo) = intent.next(1, NOW + 905 * S, &LIMITS) else { panic!() };
    assert_eq!(undo.id, "drain-1-undo");
    assert_eq!(undo.change, Change::ReturnNode { node: "s00".into(), drained_by: "drain-1".into() });
    intent.fold(&event(1, 905, Transition::Compensating)).unwrap();
    assert!(matches!(intent.next(1, NOW + 906 * S, &LIMITS), NextStep::Compensate(_)), "until it is done");
    intent.fold(&event(1, 906, Transition::Compensated)).unwrap();
    assert!(intent.is_over());
    // What another has changed since is theirs, and nothing is undone.
    let mut intent = applying();
    let found = Ok(Effect::Overridden { found: "disk".into() });
    let Outcome::Record(yielded) = intent.on_read_back(&found, NOW, &LIMITS) else { panic!() };
    intent.fold(&event(1, 5, yielded)).unwrap();
    assert_eq!(intent.next(1, NOW, &LIMITS), NextStep::Over);
}

/// An in-memory target that applies an id once, and an executor that dies after `steps` steps.
fn run(
    intents: &mut IntentLedger,
    log: &mut Vec<IntentEvent>,
    effects: &mut Vec<String>,
    generation: u64,
    steps: usize,
) {
    let mut at = log.len() as i64;
    let mut tell = |intents: &mut IntentLedger, log: &mut Vec<IntentEvent>, what: Transition| {
        at += 1;
        let event = event(generation, at, what);
        intents.fold(&event).unwrap();
        log.push(event);
    };
    let mut left = steps;
    let mut spend = || {
        left = left.saturating_sub(1);
        left > 0
    };
    loop {
        let intent = intents.get("drain-1").unwrap().clone();
        let apply = |effects: &mut Vec<String>, action: &Action| {
            if !effects.contains(&action.id) {
                effects.push(action.id.clone());
            }
        };
        match intent.next(generation, NOW + 10 * S, &LIMITS) {
            NextStep::Over => return,
            NextStep::Record(what) => tell(intents, log, what),
            NextStep::Lease => tell(intents, log, leased()),
            NextStep::Begin(action) => {
                tell(intents, log, Transition::Applying);
                if !spend() {
                    return;
                }
                apply(effects, &action);
                if !spend() {
                    return;
                }
                tell(intents, log, Transition::Applied { receipt: receipt() });
            }
            NextStep::ReadBack(action) => {
                let done = effects.contains(&action.id);
                let effect = if done { Effect::Done { at_us: NOW } } else { Effect::Absent };
                match intent.on_read_back(&Ok(effect), NOW + 10 * S, &LIMITS) {
                    Outcome::Record(what) => tell(intents, log, what),
                    Outcome::Again => apply(effects, &action),
                    Outcome::Wait | Outcome::StandDown | Outcome::Finish => panic!("not here"),
                }
            }
            step => panic!("{step:?}"),
        }
        if !spend() {
            return;
        }
    }
}

#[test]
fn an_intent_killed_at_any_step_continues_from_its_record() {
    for killed_after in 1..12 {
        let mut log = vec![proposed(decision(Mode::Act, 0))];
        let mut effects = Vec::new();
        let mut generation = 0;
        // Killed again and again after so many steps, each time another process with a newer lease.
        for _ in 0..20 {
            generation += 1;
            let mut intents = IntentLedger::default();
            for event in &log {
                intents.fold(event).unwrap();
            }
            let steps = if generation == 1 { killed_after } else { 3 };
            run(&mut intents, &mut log, &mut effects, generation, steps);
        }
        let mut intents = IntentLedger::default();
        log.iter().for_each(|event| intents.fold(event).unwrap());
        assert!(
            matches!(intents.get("drain-1").unwrap().stage, Stage::Verified { .. }),
            "after {killed_after}"
        );
        assert_eq!(effects, ["drain-1"], "after {killed_after}");
    }
}

#[test]
fn a_partial_effect_without_a_receipt_is_finished() {
    let half = Ok(Effect::Partial { missing: "a node".into() });
    let mut intent = IntentLedger::default();
    intent.fold(&proposed(decision(Mode::Act, 0))).unwrap();
    for next in [
        event(1, 0, Transition::approved_by_policy()),
        event(1, 1, leased()),
        event(1, 2, Transition::Applying),
    ] {
        intent.fold(&next).unwrap();
    }
    let outcome =
        |intents: &IntentLedger, at_us| intents.get("drain-1").unwrap().on_read_back(&half, at_us, &LIMITS);
    assert_eq!(outcome(&intent, NOW + 10 * S), Outcome::Finish);
    intent.fold(&event(1, 3, Transition::Applied { receipt: receipt() })).unwrap();
    // The target is working on it, so wait.
    assert_eq!(outcome(&intent, NOW + 10 * S), Outcome::Wait);
    let late = outcome(&intent, NOW + 3_600 * S);
    assert!(matches!(late, Outcome::Record(Transition::Failed { applied: true, .. })), "{late:?}");
}

#[test]
fn expired_leases_change_hands_and_raise_the_generation() {
    let first = Lease::take(None, "a", NOW, 10_000).unwrap();
    assert_eq!((first.generation, first.until_us), (1, NOW + 10 * S));
    let held = Lease::take(Some(&first), "b", NOW + 9 * S, 10_000).unwrap_err();
    assert_eq!((held.holder.as_str(), held.generation), ("a", 1));
    let renewed = Lease::take(Some(&first), "a", NOW + 9 * S, 10_000).unwrap();
    assert_eq!((renewed.generation, renewed.until_us), (1, NOW + 19 * S));
    assert_eq!(Lease::take(Some(&renewed), "b", NOW + 19 * S, 10_000).unwrap().generation, 2);
    assert_eq!(
        Lease::take(Some(&renewed), "a", NOW + 19 * S, 10_000).unwrap().generation,
        2,
        "it had lost it"
    );
}

/// A lease that nobody takes: it would stop every autopilot, for ever.
#[test]
fn a_lease_far_ahead_holds_nobody_back() {
    let ahead = |until_us: i64| Lease { holder: "mallory".to_owned(), generation: 7, until_us };
    for until_us in [i64::MAX, NOW + 2 * 86_400 * S] {
        assert!(!ahead(until_us).is_bounded(NOW));
        let taken = Lease::take(Some(&ahead(until_us)), "a", NOW, 10_000).unwrap();
        assert_eq!((taken.holder.as_str(), taken.generation), ("a", 8));
    }
    assert!(!Lease { generation: u64::MAX, ..ahead(NOW) }.is_bounded(NOW));
    // A day is the longest that a deployment may ask for.
    let day = Lease::take(None, "a", NOW, 86_400_000).unwrap();
    assert!(day.is_bounded(NOW));
    assert!(Lease::take(Some(&day), "b", NOW + S, 10_000).is_err());
    assert!(Lease::take(None, "a", NOW, i64::MAX / 2_000).unwrap().is_bounded(NOW));
}

#[test]
fn finished_intents_are_forgotten_and_open_ones_stay() {
    let mut intents = IntentLedger::default();
    intents.fold(&proposed(decision(Mode::Act, 0))).unwrap();
    intents.forget(NOW + 1000 * S);
    assert!(intents.get("drain-1").is_some());
    intents.fold(&event(1, 1, Transition::Dropped { refusal: None })).unwrap();
    intents.forget(NOW + 1000 * S);
    assert!(intents.get("drain-1").is_none());
}

#[test]
fn a_loans_cost_is_the_work_lost_to_its_reclaim_shared_among_loans() {
    let mut intents = IntentLedger::default();
    let mut begin = |id: &str, change: Change, after: &[&str], lost: (i64, Option<Basis>), at_s: i64| {
        let (lost_gpu_ms, basis) = lost;
        let mut begun = decision(Mode::Act, 0);
        begun.action.id = id.into();
        begun.action.change = change;
        begun.action.after = after.iter().map(|id| (*id).into()).collect();
        let past = PastAction::begun(&begun.action, &cluster(), lost_gpu_ms, NOW + at_s * S);
        let of = |at_s: i64, transition| IntentEvent {
            action: id.into(),
            at_us: NOW + at_s * S,
            generation: 1,
            transition,
        };
        let proposed = Transition::Proposed {
            decision: Box::new(begun),
            plan: "p".into(),
            past: Box::new(past),
            basis: basis.map(Box::new),
        };
        for what in [proposed, approved(), leased(), Transition::Applying] {
            intents.fold(&of(at_s, what)).unwrap();
        }
    };
    let reclaim = |loan: &str| Change::Reclaim {
        loan: loan.into(),
        from_gpus: 8,
        to_gpus: 0,
        nodes: std::collections::BTreeSet::new(),
    };
    let preempt = |job: &str| Change::Preempt { job: job.into(), frees_gpus: 8 };
    let part = |least_gpu_ms: Option<i64>| {
        let stop = Stop {
            gpus: 8,
            since_us: Some(NOW),
            again_ms: 5,
            is_shrink: false,
            expected_gpu_ms: 240,
            least_gpu_ms,
            starts_over: false,
        };
        Some(Basis::Part { stop })
    };
    begin("take-a", reclaim("a"), &[], (0, None), 1);
    begin("take-b", reclaim("b"), &[], (0, None), 1);
    begin("take-d", reclaim("d"), &[], (0, None), 1);
    begin("stop-1", preempt("1"), &["take-a", "take-b"], (100, None), 50);
    begin("stop-2", preempt("2"), &["take-a"], (30, None), 70);
    begin("stop-3", preempt("3"), &["take-d"], (0, part(None)), 80);
    begin("stop-4", preempt("4"), &["take-b", "take-d"], (0, part(Some(40))), 90);
    let lost = |loan, from_s: i64, until_s: i64| {
        let lost = intents.lost_to_reclaim(loan, NOW + from_s * S, NOW + until_s * S);
        (lost.low_gpu_ms, lost.high_gpu_ms)
    };
    assert_eq!((lost("a", 0, 60), lost("a", 0, 100), lost("a", 60, 100)), ((50, 50), (80, 80), (30, 30)));
    assert_eq!((lost("b", 0, 85), lost("c", 0, 100)), ((50, 50), (0, 0)));
    // No checkpoint of job 4 is known: half of what it lost, between its start alone and
    // everything, is the share of each loan.
    assert_eq!(
        (lost("d", 0, 85), lost("d", 0, 100), lost("b", 85, 100)),
        ((240, 240), (260, 360), (20, 120))
    );
}

#[test]
fn an_invalid_approval_is_recorded_and_changes_nothing() {
    let refused = || Transition::ApprovalRefused { by: "mallory".into(), why: "it is not signed".into() };
    let mut intents = IntentLedger::default();
    intents.fold(&proposed(decision(Mode::Approve, 0))).unwrap();
    intents.fold(&event(1, 1, refused())).unwrap();
    let intent = intents.get("drain-1").unwrap();
    assert_eq!((&intent.stage, &intent.approved_by), (&Stage::Proposed, &None));
    assert!(intents.history(NOW + 2 * S, KillSwitch::On).approvals.is_empty());
    // Also if it was begun meanwhile.
    let mut begun = applying();
    let stage = begun.stage.clone();
    begun.fold(&event(1, 9, refused())).unwrap();
    assert_eq!(begun.stage, stage);
}

#[test]
fn an_acknowledgement_of_an_older_journal_names_no_step() {
    let read = |text: &str| serde_json::from_str::<Transition>(text).unwrap();
    let none = Transition::Acknowledged { saved_step: None };
    assert_eq!(read(r#"{"what": "acknowledged"}"#), none);
    assert_eq!(serde_json::to_string(&none).unwrap(), r#"{"what":"acknowledged"}"#);
    let saved = Transition::Acknowledged { saved_step: Some(12) };
    assert_eq!(read(&serde_json::to_string(&saved).unwrap()), saved);
}
