//! The executor on a simulated cluster: a day of work, death at every write, and a second executor
//! that believes it still holds the lease.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use tidegate_autopilot::{
    action::Kind,
    executor::{
        Executor, ExecutorState, InMemoryJournal, Journal, JournalEntry, JournalError, JournalEvent,
        OnlineForecast, PlanRecord, Role, Settings,
    },
    forecast::{Series, Trailing, TrailingConfig},
    guard::{KillSwitch, Rule},
    intent::{Lease, PersonApproval, PersonRejection, Stage, Transition},
    planner::Plan,
    policy::{Mode, Policy},
    scorecard::Score,
    target::Target,
};
use tidegate_sim::{
    DAY_US, HOUR_US, MINUTE_US, SECOND_US, Sim,
    generate::{Arrivals, Load},
    scenario::Scenario,
    target::{ControlFaults, SimTarget},
};

const EPOCH_US: i64 = 1_760_000_000_000_000;

fn setting(seed: u64) -> Scenario {
    let arrivals = Arrivals { span_us: 2 * DAY_US, load_gpus: 90, max_gpus: 32, ..Arrivals::default() };
    let load = Load { span_us: 2 * DAY_US, peak_gpus: 50, ..Load::default() };
    let mut setting = Scenario::synthetic(8, 8, &arrivals, &load, seed);
    setting.spec.epoch_us = EPOCH_US;
    setting
}

fn cluster(setting: &Scenario, hour: i64) -> SimTarget {
    let sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone()).unwrap();
    let mut target = SimTarget::new(sim, ControlFaults::default(), 1);
    target.run_until(hour * HOUR_US);
    target
}

/// A forecast that has learnt a week of such days.
fn warmed(setting: &Scenario) -> Trailing {
    let mut forecast = Trailing::new(TrailingConfig::default());
    let service = &setting.services[0];
    let pool = &setting.spec.pools[service.pool].name;
    let day = (DAY_US / service.step_us) as usize;
    for step in 0..7 * day {
        let at_us = EPOCH_US - 7 * DAY_US + step as i64 * service.step_us;
        let gpus = f64::from(service.demand_gpus[step % (2 * day)]);
        forecast.observe(Series { owner: pool, pool }, at_us, gpus);
    }
    forecast
}

fn settings(holder: &str) -> Settings {
    Settings { holder: holder.to_owned(), lease_ms: 90_000, ..Settings::default() }
}

fn on() -> KillSwitch {
    KillSwitch::On
}

/// Runs until `until_us` after the beginning, with a step each minute.
fn run<J: Journal, F: OnlineForecast>(
    executor: &mut Executor<J, F>,
    target: &mut SimTarget,
    until_us: i64,
) -> Result<(), JournalError> {
    while target.sim().now_us() < until_us {
        let now_us = target.sim().now_us();
        executor.step(target, &mut on, &[], EPOCH_US + now_us)?;
        target.run_until((now_us / MINUTE_US + 1) * MINUTE_US);
    }
    Ok(())
}

fn known(journal: &InMemoryJournal) -> (ExecutorState, Vec<JournalEntry>) {
    let entries = journal.reader().read().unwrap();
    let mut known = ExecutorState::default();
    entries.iter().cloned().for_each(|entry| known.fold(entry));
    (known, entries)
}

#[test]
fn a_tide_is_lent_and_taken_back_and_every_plan_can_be_made_again() {
    let setting = setting(5);
    let (mut target, journal) = (cluster(&setting, 17), InMemoryJournal::default());
    let mut executor = Executor::new(Policy::auto(), settings("one"), journal.clone(), warmed(&setting));
    run(&mut executor, &mut target, 2 * DAY_US).unwrap();
    assert!(target.ended_loans().len() > 3, "{} loans", target.ended_loans().len());
    let (known, entries) = known(&journal);
    assert_eq!(known.rejected, 0);
    // Every effect was journaled before, and every action is over.
    let by_id: BTreeMap<&str, &Stage> =
        known.intents.all().map(|intent| (&*intent.decision.action.id, &intent.stage)).collect();
    assert!(target.effects().len() > 20);
    for deed in target.effects() {
        let stage = by_id.get(&*deed.action).unwrap_or_else(|| panic!("{} is nowhere", deed.action));
        assert!(!matches!(stage, Stage::Proposed | Stage::Approved | Stage::Dropped), "{deed:?} {stage:?}");
    }
    // Replaying the journal gives the same plans, byte for byte.
    let plans = entries.iter().filter_map(|entry| match &entry.event {
        JournalEvent::Planned(planned) => Some(planned),
        _ => None,
    });
    let mut parent: Option<Plan> = None;
    let mut made = 0;
    for planned in plans {
        let text = serde_json::to_string(planned).unwrap();
        let read: PlanRecord = serde_json::from_str(&text).unwrap();
        let (plan, report) = read.replay(parent.as_ref());
        let json = |plan: &Plan| serde_json::to_string(plan).unwrap();
        assert_eq!(json(&plan), json(&planned.plan));
        assert_eq!(serde_json::to_string(&report).unwrap(), serde_json::to_string(&planned.report).unwrap());
        parent = Some(plan);
        made += 1;
    }
    assert!(made > 20, "{made}");
    // Finished loans are scored: borrowers held between none and all of them.
    let lent: Vec<_> =
        known.scores.iter().filter(|score| score.kind == Kind::Lend && score.verified).collect();
    assert!(lent.len() > 3 && lent.iter().all(|score| score.realised_gpu_ms.is_some()), "{lent:?}");
    assert!(lent.iter().any(|score| score.benefit_ratio_ppm > Some(300_000)), "{lent:?}");
    // Work lost to a reclaim is a cost of the loan, not a decision of its own.
    let freeing =
        |id: &str| known.intents.get(id).is_some_and(|i| known.intents.frees_a_loan(&i.decision.action));
    assert!(known.intents.all().any(|intent| freeing(&intent.decision.action.id)));
    assert!(!known.scores.iter().any(|score| freeing(&score.action)));
}

#[test]
fn a_successor_goes_on_measuring_and_every_kind_that_acts_is_scored() {
    let setting = setting(5);
    let (mut target, journal) = (cluster(&setting, 17), InMemoryJournal::default());
    let mut first = Executor::new(Policy::auto(), settings("first"), journal.clone(), warmed(&setting));
    run(&mut first, &mut target, 20 * HOUR_US + 17 * MINUTE_US).unwrap();
    let handed_us = EPOCH_US + target.sim().now_us();
    let mut second = Executor::new(Policy::auto(), settings("second"), journal.reader(), warmed(&setting));
    run(&mut second, &mut target, 2 * DAY_US).unwrap();
    let (known, entries) = known(&journal);
    let spans = |score: &&Score| {
        let measured = known.intents.get(&score.action).and_then(|intent| intent.measured());
        measured.is_some_and(|of| of.verified_us < handed_us && of.ends_us() > handed_us)
    };
    let spanning: Vec<&Score> = known.scores.iter().filter(spans).collect();
    assert!(
        !spanning.is_empty() && spanning.iter().all(|score| score.realised_gpu_ms.is_some()),
        "{spanning:?}"
    );
    assert!(spanning.iter().any(|score| score.realised_gpu_ms > Some(0)), "{spanning:?}");
    // Reclaims are scored too, and every score says what would have happened.
    let verified: Vec<&Score> = known.scores.iter().filter(|score| score.verified).collect();
    assert!(verified.iter().all(|score| score.without.is_some()), "{verified:?}");
    let reclaims: Vec<&&Score> = verified.iter().filter(|score| score.kind == Kind::Reclaim).collect();
    assert!(
        reclaims.len() > 2 && reclaims.iter().all(|score| score.realised_gpu_ms.is_some()),
        "{reclaims:?}"
    );
    // A score ends its measurement, and what is under way is no more than what is not scored.
    assert!(known.measured.meters.keys().all(|id| !known.is_scored(id)));
    let written = entries.iter().filter(|entry| matches!(entry.event, JournalEvent::Measured(_))).count();
    assert!(written > 10, "{written}");
}

/// A journal whose writer dies at a write, before or after it is stored.
#[derive(Clone)]
struct Dying {
    inner: InMemoryJournal,
    left: Rc<Cell<i64>>,
    is_written: bool,
}

impl Dying {
    fn write(
        &mut self,
        write: impl FnOnce(&mut InMemoryJournal) -> Result<(), JournalError>,
    ) -> Result<(), JournalError> {
        self.left.set(self.left.get() - 1);
        if self.left.get() != 0 {
            return write(&mut self.inner);
        }
        if self.is_written {
            write(&mut self.inner)?;
        }
        Err(JournalError("killed".to_owned()))
    }
}

impl Journal for Dying {
    fn append(&mut self, entries: Vec<JournalEntry>) -> Result<(), JournalError> {
        self.write(|inner| inner.append(entries))
    }

    fn read(&mut self) -> Result<Vec<JournalEntry>, JournalError> {
        self.inner.read()
    }
}

#[test]
fn killed_at_any_write_the_next_goes_on_and_nothing_is_done_twice_or_left_half_done() {
    let setting = setting(5);
    let forecast = warmed(&setting);
    // The first hours cover every step of lending; later ones cover reclaims.
    let writes = (1..=40).chain((41..400).step_by(9));
    let mut killed = BTreeSet::new();
    for (write, is_written) in writes.flat_map(|write| [(write, false), (write, true)]) {
        let (mut target, journal) = (cluster(&setting, 17), InMemoryJournal::default());
        let dying = Dying { inner: journal.clone(), left: Rc::new(Cell::new(write)), is_written };
        let mut first = Executor::new(Policy::auto(), settings("first"), dying, forecast.clone());
        if run(&mut first, &mut target, 26 * HOUR_US).is_ok() {
            break;
        }
        let at = journal.reader().read().unwrap().last().map(|entry| match &entry.event {
            JournalEvent::Step(event) => event.transition.name(),
            JournalEvent::Planned(_) => "planned",
            JournalEvent::Lease(_) => "lease",
            JournalEvent::Scored(_) => "scored",
            JournalEvent::Measured(_) => "measured",
            JournalEvent::Shadow(_) | JournalEvent::Canary(_) => "beside",
            JournalEvent::Policy(_) => "policy",
            JournalEvent::Alert(_) => "alert",
            JournalEvent::Cycles(_) => "cycles",
            JournalEvent::Switched(_) => "switched",
            JournalEvent::Refused(_) => "refused",
            JournalEvent::Promise(_) => "promise",
            JournalEvent::Expected(_) => "expected",
            JournalEvent::Compared(_) => "compared",
        });
        killed.insert((at, is_written));
        let died_us = target.sim().now_us();
        let mut second =
            Executor::new(Policy::auto(), settings("second"), journal.reader(), forecast.clone());
        run(&mut second, &mut target, died_us + 3 * HOUR_US).unwrap();
        let ids: Vec<&str> = target.effects().iter().map(|deed| &*deed.action).collect();
        let distinct: BTreeSet<&str> = ids.iter().copied().collect();
        assert_eq!(ids.len(), distinct.len(), "an action was done twice, killed at write {write} ({at:?})");
        let (known, _) = known(&journal);
        for intent in known.intents.all().filter(|intent| intent.at_us() < EPOCH_US + died_us) {
            assert!(
                intent.is_over(),
                "killed at write {write} ({at:?}): {:?} {:?}",
                intent.decision.action,
                intent.stage
            );
            let has_effect = distinct.contains(&*intent.decision.action.id);
            let is_done = matches!(intent.stage, Stage::Verified { .. });
            let may_be =
                matches!(intent.stage, Stage::Failed { .. } | Stage::Yielded | Stage::Compensated { .. });
            assert!(
                has_effect == is_done || may_be,
                "killed at write {write}: {:?}, effect {has_effect}",
                intent.stage
            );
        }
    }
    assert!(killed.len() > 10, "{killed:?}");
}

/// A journal in which another takes the lease just before a write.
struct Overtaken {
    inner: InMemoryJournal,
    left: i64,
}

impl Journal for Overtaken {
    fn append(&mut self, entries: Vec<JournalEntry>) -> Result<(), JournalError> {
        self.left -= 1;
        if self.left == 0 {
            let (at_us, generation) = (entries[0].at_us, entries[0].generation + 1);
            let lease = Lease { holder: "other".to_owned(), generation, until_us: at_us + DAY_US };
            self.inner.append(vec![JournalEntry { at_us, generation, event: JournalEvent::Lease(lease) }])?;
        }
        self.inner.append(entries)
    }

    fn read(&mut self) -> Result<Vec<JournalEntry>, JournalError> {
        self.inner.read()
    }
}

#[test]
fn overtaken_before_any_write_it_does_nothing_more() {
    let setting = setting(5);
    let forecast = warmed(&setting);
    let mut stages = BTreeSet::new();
    for write in 2..60 {
        let mut target = cluster(&setting, 17);
        let journal = Overtaken { inner: InMemoryJournal::default(), left: write };
        let mut executor = Executor::new(Policy::auto(), settings("one"), journal, forecast.clone());
        let mut role = Role::Fenced;
        while target.sim().now_us() < 22 * HOUR_US {
            let (now_us, before) = (target.sim().now_us(), target.effects().len());
            let stepped = executor.step(&mut target, &mut on, &[], EPOCH_US + now_us).unwrap();
            if !matches!(stepped.role, Role::Leading { .. }) {
                // The step journaled just before may have had its effect; this one has none.
                let last = stepped.steps.last().map(|(_, what)| *what);
                let done = stepped.steps.iter().filter(|(_, what)| *what == "applied").count();
                assert!(last != Some("applying") || target.effects().len() <= before + done, "{stepped:?}");
                stages.extend(last);
                role = stepped.role;
                break;
            }
            target.run_until(now_us + MINUTE_US);
        }
        assert_eq!(role, Role::Fenced, "write {write}");
    }
    assert!(stages.contains("applying") && stages.len() > 3, "{stages:?}");
}

#[test]
fn one_that_lost_the_lease_and_does_not_know_it_does_nothing() {
    let setting = setting(5);
    let (mut target, journal) = (cluster(&setting, 17), InMemoryJournal::default());
    let mut old = Executor::new(Policy::auto(), settings("old"), journal.clone(), warmed(&setting));
    run(&mut old, &mut target, 18 * HOUR_US).unwrap();
    let now_us = |target: &SimTarget| EPOCH_US + target.sim().now_us();
    let mut new = Executor::new(Policy::auto(), settings("new"), journal.reader(), warmed(&setting));
    // The other one waits while the lease is valid.
    let at_us = now_us(&target);
    let held = old.step(&mut target, &mut on, &[], at_us).unwrap();
    assert!(matches!(held.role, Role::Leading { generation: 1 }));
    let waits = new.step(&mut target, &mut on, &[], at_us + SECOND_US).unwrap();
    assert!(
        matches!(&waits.role, Role::Standby(held) if held.holder == "old" && held.generation == 1),
        "{waits:?}"
    );
    // The old one hangs for longer than the lease.
    target.run_until(target.sim().now_us() + 2 * MINUTE_US);
    let at_us = now_us(&target);
    let acts = new.step(&mut target, &mut on, &[], at_us).unwrap();
    assert_eq!(acts.role, Role::Leading { generation: 2 });
    // Another policy records another plan at once, even if it decides nothing.
    let policies = || {
        let entries = known(&journal).1;
        let plans = entries.into_iter().filter_map(|entry| match entry.event {
            JournalEvent::Planned(planned) => Some(planned.plan.policy),
            _ => None,
        });
        plans.collect::<Vec<_>>()
    };
    let count = policies().len();
    target.run_until(target.sim().now_us() + 2 * MINUTE_US);
    let mut shipped =
        Executor::new(Policy::shipped(), settings("shipped"), journal.reader(), warmed(&setting));
    let at_us = now_us(&target);
    shipped.step(&mut target, &mut on, &[], at_us).unwrap();
    assert_eq!((policies().len(), policies().last().map(String::as_str)), (count + 1, Some("default")));
    let deeds = target.effects().len();
    // Its clock stood still, so it believes it holds the lease; the journal refuses it.
    let stale = old.step(&mut target, &mut on, &[], at_us - 90 * SECOND_US).unwrap();
    assert!(!matches!(stale.role, Role::Leading { .. }) && stale.steps.is_empty(), "{stale:?}");
    assert_eq!(target.effects().len(), deeds);
}

#[test]
fn nothing_is_begun_while_the_switch_is_off_and_what_is_suggested_waits_for_a_person() {
    let setting = setting(5);
    let mut target = cluster(&setting, 18);
    let step = |executor: &mut Executor<InMemoryJournal, Trailing>,
                target: &mut SimTarget,
                switch: KillSwitch,
                minutes: i64| {
        let until_us = target.sim().now_us() + minutes * MINUTE_US;
        while target.sim().now_us() < until_us {
            let now_us = target.sim().now_us();
            executor.step(target, &mut || switch, &[], EPOCH_US + now_us).unwrap();
            target.run_until(now_us + MINUTE_US);
        }
    };
    let journal = InMemoryJournal::default();
    let mut off = Executor::new(Policy::auto(), settings("off"), journal.clone(), warmed(&setting));
    for switch in [KillSwitch::Paused, KillSwitch::Unreadable] {
        step(&mut off, &mut target, switch, 180);
    }
    assert_eq!(target.effects().len(), 0);
    let (seen, _) = known(&journal);
    let dropped = seen.intents.all().filter(|intent| intent.stage == Stage::Dropped).count();
    assert!(dropped > 0 && dropped == seen.intents.all().count(), "refusals are on record");
    // The shipped policy only suggests: an action is done once a person approves it.
    let policy = Policy::parse("name = \"ask\"\n[modes]\nlend = \"approve\"\nreclaim = \"act\"\n").unwrap();
    let journal = InMemoryJournal::default();
    let mut asks = Executor::new(policy, settings("asks"), journal.clone(), warmed(&setting));
    step(&mut asks, &mut target, KillSwitch::On, 50);
    assert_eq!(target.effects().len(), 0);
    let waiting = asks.state().open();
    assert!(!waiting.is_empty(), "{:?}", asks.state().intents);
    let now_us = EPOCH_US + target.sim().now_us();
    let approved = [&*waiting[0], "nonesuch"].map(|id| PersonApproval::unsigned(id, "anna"));
    let turn = asks.step(&mut target, &mut on, &approved, now_us).unwrap();
    assert!(turn.steps.contains(&(waiting[0].clone(), "applied")), "{turn:?}");
    assert_eq!(target.effects().len(), 1);
    step(&mut asks, &mut target, KillSwitch::On, 15);
    let stage = &asks.state().intents.get(&waiting[0]).unwrap().stage;
    assert!(matches!(stage, Stage::Verified { .. }), "{stage:?}");
    let entries = known(&journal).1;
    let by: Vec<&String> = entries
        .iter()
        .filter_map(|entry| match &entry.event {
            JournalEvent::Step(event) => match &event.transition {
                Transition::Approved { by, .. } => Some(by),
                _ => None,
            },
            _ => None,
        })
        .collect();
    assert_eq!(by, ["anna"]);
    assert!(target.observe().unwrap().loans.len() == 1);
}

/// A rejection comes before an approval of the same step, and holds for what later plans decide.
#[test]
fn what_a_person_rejects_is_neither_begun_nor_proposed_again() {
    let setting = setting(5);
    let mut target = cluster(&setting, 20);
    let policy = Policy::parse("name = \"ask\"\n[modes]\nlend = \"approve\"\nreclaim = \"act\"\n").unwrap();
    let journal = InMemoryJournal::default();
    let mut asks = Executor::new(policy, settings("asks"), journal.clone(), warmed(&setting));
    run(&mut asks, &mut target, 22 * HOUR_US).unwrap();
    let id = asks.state().open()[0].clone();
    let change = asks.state().intents.get(&id).unwrap().decision.action.change.clone();
    let rejection = |action: &str| PersonRejection {
        action: action.to_owned(),
        by: "ben".to_owned(),
        why: Some("a benchmark runs".to_owned()),
    };
    asks.reject(vec![rejection(&id), rejection("nonesuch")]);
    let approved = [PersonApproval::unsigned(&*id, "anna")];
    let now_us = EPOCH_US + target.sim().now_us();
    let turn = asks.step(&mut target, &mut on, &approved, now_us).unwrap();
    let of_it: Vec<&str> = turn.steps.iter().filter(|(of, _)| *of == id).map(|(_, what)| *what).collect();
    assert_eq!(of_it, ["rejected"], "{turn:?}");
    asks.reject(vec![rejection(&id)]);
    run(&mut asks, &mut target, 25 * HOUR_US).unwrap();
    assert_eq!(target.effects().len(), 0);
    let (known, entries) = known(&journal);
    assert_eq!(known.rejected, 0, "a late approval or rejection is not written");
    let alike = |intent: &&tidegate_autopilot::intent::Intent| {
        let other = &intent.decision.action.change;
        (other.kind(), other.object()) == (change.kind(), change.object())
    };
    assert_eq!(known.intents.open().filter(alike).count(), 0, "the like is not proposed");
    let refused = entries.iter().filter(|entry| match &entry.event {
        JournalEvent::Step(event) => match &event.transition {
            Transition::Dropped { refusal: Some(refusal) } => {
                refusal.rule == Rule::Rejected
                    && refusal.why.contains("ben")
                    && refusal.why.contains("benchmark")
            }
            _ => false,
        },
        _ => false,
    });
    assert!(refused.count() > 0);
}

#[test]
fn what_a_target_took_and_never_did_needs_no_undoing() {
    let setting = setting(5);
    let sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone()).unwrap();
    let mut target = SimTarget::new(sim, ControlFaults { lie_ppm: 1_000_000, ..ControlFaults::default() }, 1);
    target.run_until(17 * HOUR_US);
    let journal = InMemoryJournal::default();
    let mut executor = Executor::new(Policy::auto(), settings("one"), journal.clone(), warmed(&setting));
    run(&mut executor, &mut target, 22 * HOUR_US).unwrap();
    assert_eq!(target.effects().len(), 0);
    let (known, _) = known(&journal);
    let undone =
        |intent: &&tidegate_autopilot::intent::Intent| matches!(intent.stage, Stage::Compensated { .. });
    assert!(known.intents.all().filter(undone).count() > 0, "{:?}", known.intents);
    // It is abandoned after fifteen minutes without traces. Suggestions wait for a person.
    let before_us = EPOCH_US + 22 * HOUR_US - 20 * MINUTE_US;
    let sent = known.intents.open().filter(|intent| intent.stage != Stage::Proposed);
    for intent in sent {
        assert!(intent.at_us() > before_us, "{intent:?}");
    }
}

#[test]
fn a_budget_is_used_when_it_is_tried_again_not_when_it_was_sent_in_vain() {
    let setting = setting(5);
    let (mut target, journal) = (cluster(&setting, 17), InMemoryJournal::default());
    let mut executor = Executor::new(Policy::auto(), settings("one"), journal.clone(), warmed(&setting));
    // Answers are lost and half of the requests are not done; they are repeated at the next step.
    target.set_control_faults(ControlFaults { unknown_ppm: 500_000, ..ControlFaults::default() });
    while target.sim().now_us() < DAY_US {
        let now_us = target.sim().now_us();
        executor.step(&mut target, &mut on, &[], EPOCH_US + now_us).unwrap();
        target.run_until(now_us + 20 * SECOND_US);
    }
    let (_, entries) = known(&journal);
    let begun: Vec<(&str, i64)> = entries
        .iter()
        .filter_map(|entry| match &entry.event {
            JournalEvent::Step(event) => {
                (event.transition == Transition::Applying).then_some((&*event.action, event.at_us))
            }
            _ => None,
        })
        .collect();
    let ids: BTreeSet<&str> = begun.iter().map(|(id, _)| *id).collect();
    assert!(ids.len() + 3 < begun.len(), "some were tried again: {begun:?}");
    assert!(target.effects().len() > 10);
    for deed in target.effects().iter().filter(|deed| !deed.action.ends_with("-undo")) {
        assert!(begun.contains(&(&*deed.action, EPOCH_US + deed.asked_us)), "{deed:?}");
    }
}

#[test]
fn what_a_bad_record_took_away_waits_for_a_person_and_is_done_on_their_word() {
    let setting = setting(5);
    let (mut target, journal) = (cluster(&setting, 17), InMemoryJournal::default());
    let began_us = EPOCH_US + target.sim().now_us();
    // Ten harmful loans of an executor whose lease is over.
    let mut past = journal.reader();
    let of = |event| JournalEntry { at_us: began_us - HOUR_US, generation: 1, event };
    let lease = Lease { holder: "before".into(), generation: 1, until_us: began_us - 1 };
    let bad = |at: i64| Score {
        action: format!("lend-{at}"),
        kind: Kind::Lend,
        decided_us: began_us - 2 * HOUR_US,
        verified: true,
        predicted_gpu_ms: 1_000,
        realised_gpu_ms: Some(-1_000),
        benefit_ratio_ppm: Some(0),
        predicted_benefit: None,
        realised_benefit_gpu_ms: Some(0),
        within: Some(false),
        interval: None,
        without: None,
        canary: None,
    };
    let scores = (0..10).map(|at| of(JournalEvent::Scored(bad(at))));
    past.append(std::iter::once(of(JournalEvent::Lease(lease))).chain(scores).collect()).unwrap();

    let mut executor = Executor::new(Policy::auto(), settings("two"), journal.clone(), warmed(&setting));
    let (mut waited, mut lent) = (BTreeSet::new(), 0);
    while target.sim().now_us() < 30 * HOUR_US {
        let now_us = target.sim().now_us();
        // No approvals for six hours, then all at once.
        let asked = |id: &&String| now_us > 23 * HOUR_US && executor.state().intents.get(id).is_some();
        let approved: Vec<_> =
            waited.iter().filter(asked).map(|id| PersonApproval::unsigned(id.as_str(), "anna")).collect();
        let stepped = executor.step(&mut target, &mut on, &approved, EPOCH_US + now_us).unwrap();
        for (id, what) in &stepped.steps {
            let Some(intent) = executor.state().intents.get(id).filter(|i| i.decision.kind == Kind::Lend)
            else {
                continue;
            };
            match *what {
                "proposed" => assert_eq!(intent.decision.mode, Mode::Approve),
                "verified" => lent += 1,
                _ => assert!(now_us > 23 * HOUR_US || *what == "dropped", "{id} {what}"),
            }
        }
        let waits = executor.state().intents.open().filter(|i| i.decision.kind == Kind::Lend);
        waited = waits.map(|intent| intent.decision.action.id.clone()).collect();
        assert!(now_us > 23 * HOUR_US || lent == 0);
        target.run_until(now_us + MINUTE_US);
    }
    assert!(lent > 0, "a person said yes");
    // A waiting action is notified once, not each minute.
    let proposed =
        known(&journal).0.intents.all().filter(|intent| intent.decision.kind == Kind::Lend).count();
    assert!(proposed < 100, "{proposed} loans proposed in 13 hours");
}
