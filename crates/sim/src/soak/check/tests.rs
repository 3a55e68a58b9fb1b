use std::collections::BTreeSet;

use tidegate_autopilot::{
    action::{Action, Change},
    executor::{Journal, JournalEntry, JournalEvent, PlanRecord},
    forecast::RecordedForecast,
    guard::{Refusal, Rule},
    intent::{IntentEvent, Transition},
    planner,
    target::Target,
};

use super::*;
use crate::{ClusterSpec, ServiceSpec, Sim, target::ControlFaults};

fn effect(action: &str, generation: u64, at_us: i64) -> AppliedEffect {
    AppliedEffect {
        at_us,
        asked_us: at_us,
        action: action.into(),
        generation,
        kind: Kind::Lend,
        counts_as: (!action.starts_with("on")).then_some(Kind::Lend),
        early_us: action.starts_with("on").then_some(at_us - 10),
    }
}

fn cluster() -> SimTarget {
    let mut spec = ClusterSpec::uniform(&[1, 2], 8);
    spec.pools[1].floor_gpus = 8;
    let service = ServiceSpec { pool: 1, demand_gpus: vec![8; 100], step_us: HOUR_US };
    SimTarget::new(Sim::new(spec, vec![], vec![service]).unwrap(), ControlFaults::default(), 1)
}

fn checker(journal: &InMemoryJournal) -> Checker {
    Checker::new(
        1,
        Limits { budgets: [(Kind::Lend, (2, 3))].into() },
        journal.reader(),
        std::iter::once(50..60).collect(),
    )
}

fn found(effects: &[(&str, u64, i64)]) -> Vec<Invariant> {
    let mut target = cluster();
    let mut checker = checker(&InMemoryJournal::default());
    for (action, generation, at_us) in effects {
        target.forge(effect(action, *generation, *at_us));
        checker.journal.begun_us.insert((*action).into(), 0);
    }
    checker.check(&target, true);
    checker.take_violations().iter().map(|v| v.invariant).collect()
}

#[test]
fn deeds_that_must_not_be_are_found() {
    assert_eq!(found(&[("a", 1, 0), ("b", 1, 1), ("c", 2, HOUR_US + 1)]), []);
    assert_eq!(found(&[("a", 1, 0), ("a", 1, 1)]), [Invariant::OneEffect]);
    assert_eq!(found(&[("a", 2, 0), ("b", 1, 1)]), [Invariant::Generation]);
    assert_eq!(found(&[("a", 1, 0), ("b", 1, 1), ("c", 1, HOUR_US - 1)]), [Invariant::Budget]);
    let day = [("a", 1, 0), ("b", 1, 2 * HOUR_US), ("c", 1, 4 * HOUR_US), ("d", 1, 6 * HOUR_US)];
    assert_eq!(found(&day), [Invariant::Budget]);
    // What lets a loan go on is of no budget, but has its time.
    let on = |at_us: i64| [("a", 1, 0), ("b", 1, 1), ("on1", 1, at_us), ("on2", 1, at_us)];
    assert_eq!(found(&on(10)), []);
    assert_eq!(found(&on(11)), [Invariant::Prolong]);
    assert_eq!(found(&[("shadow-a", 1, 0)]), [Invariant::Shadow]);
    // From 50 to 60 the switch is off.
    assert_eq!(found(&[("a", 1, 49), ("b", 1, 60)]), []);
    assert_eq!(found(&[("a", 1, 50)]), [Invariant::Switch]);
}

#[test]
fn an_effect_that_is_not_on_record_before_is_found() {
    for (begun_us, expected) in
        [(None, vec![Invariant::Recorded]), (Some(5), vec![]), (Some(6), vec![Invariant::Recorded])]
    {
        let mut target = cluster();
        target.forge(effect("a", 1, 5));
        let mut checker = checker(&InMemoryJournal::default());
        checker.journal.begun_us.extend(begun_us.map(|at_us| ("a".to_owned(), at_us)));
        checker.check(&target, false);
        let found: Vec<Invariant> = checker.take_violations().iter().map(|v| v.invariant).collect();
        assert_eq!(found, expected, "{begun_us:?}");
    }
}

#[test]
fn an_owner_below_its_floor_is_found() {
    let mut target = cluster();
    let nodes: BTreeSet<String> = target.state().nodes.keys().skip(1).cloned().collect();
    let change = Change::Lend {
        from: target.sim().spec().pools[1].name.clone(),
        to: target.sim().spec().teams[0].name.clone(),
        pool: target.sim().spec().pools[1].name.clone(),
        gpus: 16,
        nodes,
        extends: None,
        expires_us: HOUR_US,
        reclaim_within_ms: 600_000,
    };
    let action = Action {
        id: "a".into(),
        generation: 1,
        change,
        preconditions: Vec::new(),
        inverse: None,
        expires_us: HOUR_US,
        effect_ends_us: None,
        notice_ms: 0,
        after: Vec::new(),
    };
    target.apply(&action).unwrap();
    let mut checker = checker(&InMemoryJournal::default());
    checker.journal.begun_us.insert("a".into(), 0);
    checker.check(&target, false);
    let found: Vec<Invariant> = checker.take_violations().iter().map(|v| v.invariant).collect();
    assert_eq!(found, [Invariant::Floor]);
}

#[test]
fn plans_that_come_out_otherwise_and_refusals_without_words_are_found() {
    let (target, policy) = (cluster(), Policy::auto());
    let state = target.state();
    let (plan, report) = planner::plan(&policy, &state, &RecordedForecast::default(), None, 0, 7);
    let planned = PlanRecord { plan, report, policy, canary: None, state, kept: Vec::new() };
    let found = |what: Vec<JournalEvent>| {
        let mut journal = InMemoryJournal::default();
        journal
            .append(what.into_iter().map(|event| JournalEntry { at_us: 0, generation: 1, event }).collect())
            .unwrap();
        let mut checker = checker(&journal);
        checker.check(&target, false);
        checker.take_violations().iter().map(|v| v.invariant).collect::<Vec<_>>()
    };
    assert_eq!(found(vec![JournalEvent::Planned(Box::new(planned.clone()))]), []);
    let mut other = planned;
    other.plan.seed = 8;
    assert_eq!(found(vec![JournalEvent::Planned(Box::new(other))]), [Invariant::Rederived]);

    // A step of an action that was never proposed is nothing; so all steps are recorded.
    let proposed: Vec<JournalEntry> = soaked_proposal();
    let refuse = |why: &str| {
        let event = proposed[0].clone();
        let JournalEvent::Step(step) = &event.event else { panic!("a proposal") };
        let refusal = Some(Refusal { rule: Rule::Budget, why: why.into() });
        let what = Transition::Dropped { refusal };
        JournalEvent::Step(Box::new(IntentEvent { transition: what, ..(**step).clone() }))
    };
    assert_eq!(found(vec![proposed[0].event.clone(), refuse("two an hour")]), []);
    assert_eq!(found(vec![proposed[0].event.clone(), refuse("")]), [Invariant::Explained]);
}

/// A proposal that the product made: of the first plan that decides something, where a node stands
/// idle beside a job that waits.
fn soaked_proposal() -> Vec<JournalEntry> {
    let swarm = super::super::Swarm::draw(3);
    let setting = swarm.scenario();
    let sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone()).unwrap();
    let mut target = SimTarget::new(sim, ControlFaults::default(), 1);
    let mut journal = InMemoryJournal::default();
    let foresight =
        crate::pilot::warmed_up_forecast(&setting, crate::forecast_fault::ForecastFault::default());
    let habits = crate::pilot::PilotConfig::default();
    let mut pilot = crate::pilot::Pilot::new(Policy::auto(), 1, habits, journal.reader(), foresight);
    let mut on = || tidegate_autopilot::guard::KillSwitch::On;
    for _ in 0..2 * 1_440 {
        let now_us = target.sim().now_us();
        pilot.step(&mut target, &mut on, setting.spec.epoch_us + now_us).unwrap();
        target.run_until(now_us + MINUTE_US);
    }
    let is_proposal = |entry: &JournalEntry| matches!(&entry.event, JournalEvent::Step(event) if matches!(event.transition, Transition::Proposed { .. }));
    journal.read().unwrap().into_iter().filter(is_proposal).collect()
}
