//! Shadow and canary on a simulated cluster: the shadow only plans; the canary acts for an owner
//! until its record rolls it back.

use std::collections::BTreeSet;
use std::ops::Range;

use tidegate_autopilot::{
    action::{Change, Kind},
    executor::{
        Executor, ExecutorState, InMemoryJournal, Journal, JournalEntry, JournalEvent, OnlineForecast,
        Settings,
    },
    forecast::{Series, Trailing, TrailingConfig},
    guard::KillSwitch,
    intent::PersonApproval,
    policy::{Mode, Policy, RollbackRules},
    rollout::{Canary, CanaryEvent, Rollout, shadow::ShadowEvent, summary::summary},
};
use tidegate_sim::{
    DAY_US, HOUR_US, MINUTE_US, Sim,
    generate::{Arrivals, Load},
    scenario::Scenario,
    target::{ControlFaults, SimTarget},
};

const EPOCH_US: i64 = 1_760_000_000_000_000;

fn setting() -> Scenario {
    let arrivals = Arrivals { span_us: 2 * DAY_US, load_gpus: 90, max_gpus: 32, ..Arrivals::default() };
    let load = Load { span_us: 2 * DAY_US, peak_gpus: 50, ..Load::default() };
    let mut setting = Scenario::synthetic(8, 8, &arrivals, &load, 5);
    setting.spec.epoch_us = EPOCH_US;
    setting
}

fn cluster(setting: &Scenario) -> SimTarget {
    let sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone()).unwrap();
    let mut target = SimTarget::new(sim, ControlFaults::default(), 1);
    target.run_until(17 * HOUR_US);
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
        forecast.observe(
            Series { owner: pool, pool },
            at_us,
            f64::from(service.demand_gpus[step % (2 * day)]),
        );
    }
    forecast
}

fn pilot(
    policy: Policy,
    holder: &str,
    journal: InMemoryJournal,
    tried: Rollout,
    setting: &Scenario,
) -> Executor<InMemoryJournal, Trailing> {
    let settings = Settings { holder: holder.to_owned(), lease_ms: 90_000, ..Settings::default() };
    Executor::new(policy, settings, journal, warmed(setting)).with_rollout(tried)
}

/// Runs until `until_us` after the beginning, with a step each minute.
fn run<F: OnlineForecast>(
    executor: &mut Executor<InMemoryJournal, F>,
    target: &mut SimTarget,
    until_us: i64,
) {
    while target.sim().now_us() < until_us {
        step(executor, target, &[]);
    }
}

fn step<F: OnlineForecast>(
    executor: &mut Executor<InMemoryJournal, F>,
    target: &mut SimTarget,
    approved: &[PersonApproval],
) {
    let now_us = target.sim().now_us();
    executor.step(target, &mut || KillSwitch::On, approved, EPOCH_US + now_us).unwrap();
    target.run_until((now_us / MINUTE_US + 1) * MINUTE_US);
}

fn read(journal: &InMemoryJournal) -> (ExecutorState, Vec<JournalEntry>) {
    let entries = journal.reader().read().unwrap();
    let mut known = ExecutorState::default();
    entries.iter().cloned().for_each(|entry| known.fold(entry));
    (known, entries)
}

fn shadow_events(entries: &[JournalEntry]) -> Vec<&ShadowEvent> {
    let events = entries.iter().filter_map(|entry| match &entry.event {
        JournalEvent::Shadow(event) => Some(&**event),
        _ => None,
    });
    events.collect()
}

fn named(name: &str) -> Policy {
    Policy { name: name.to_owned(), ..Policy::auto() }
}

#[test]
fn a_shadow_that_would_act_beside_a_base_that_observes_does_nothing() {
    let setting = setting();
    let (mut target, journal) = (cluster(&setting), InMemoryJournal::default());
    let tried = Rollout { shadow: Some(named("shadow")), canary: None };
    let mut base = named("base");
    base.modes.values_mut().for_each(|mode| *mode = Mode::Observe);
    let mut executor = pilot(base, "one", journal.clone(), tried, &setting);
    run(&mut executor, &mut target, 30 * HOUR_US);
    assert!(target.effects().is_empty());
    let (known, entries) = read(&journal);
    assert_eq!(known.rejected, 0);
    assert!(known.intents.all().all(|intent| !intent.decision.action.id.starts_with("shadow")));
    let events = shadow_events(&entries);
    // It decides the same, and both lend in its plans alone.
    let found = summary("shadow", events.iter().copied(), known.scores.iter());
    assert!(found.plans > 60 && found.kinds[&Kind::Lend].both > 10, "{found:?}");
    assert_eq!((found.alike, found.kinds[&Kind::Lend].only_shadow), (found.plans, 0), "{found:?}");
    // Cost of a cycle: an equal shadow plan is recorded far smaller than the acting plan.
    let bytes = |entry: &JournalEntry| serde_json::to_vec(entry).unwrap().len();
    let of = |is: fn(&JournalEvent) -> bool| {
        let all: Vec<usize> = entries.iter().filter(|entry| is(&entry.event)).map(bytes).collect();
        all.iter().sum::<usize>() / all.len().max(1)
    };
    let acting = of(|what| matches!(what, JournalEvent::Planned(_)));
    let shadow =
        of(|what| matches!(what, JournalEvent::Shadow(event) if matches!(**event, ShadowEvent::Planned(_))));
    println!("{acting} bytes a plan, {shadow} that of a shadow beside it");
    assert!(shadow < 600 && acting > 20 * shadow, "{acting} and {shadow}");
}

#[test]
fn with_a_shadow_beside_it_what_is_done_is_the_same() {
    let setting = setting();
    let careful = Policy::parse("name = \"careful\"\n[lend]\nbuffer_gpus = 40\n").unwrap();
    let done = |shadow: Option<Policy>| {
        let (mut target, journal) = (cluster(&setting), InMemoryJournal::default());
        let tried = Rollout { shadow, canary: None };
        let mut executor = pilot(Policy::auto(), "one", journal.clone(), tried, &setting);
        run(&mut executor, &mut target, 26 * HOUR_US);
        let done: Vec<_> = target.effects().iter().map(|deed| (deed.kind, deed.asked_us)).collect();
        (done, journal)
    };
    let ((alone, _), (beside, journal)) = (done(None), done(Some(careful)));
    assert!(alone.len() > 10, "{alone:?}");
    assert_eq!(alone, beside);
    let (known, entries) = read(&journal);
    let found = summary("careful", shadow_events(&entries).into_iter(), known.scores.iter());
    assert!(found.kinds[&Kind::Lend].only_acting > 0, "{found:?}");
}

/// The acting policy, with short cool-downs after failures: the test is about ending a canary.
fn patient(name: &str) -> Policy {
    let mut policy = named(name);
    (policy.stability.failures, policy.blast.failures) = (99, 99);
    (policy.stability.cooldown_s, policy.stability.cooldown_most_s) = (60, 60);
    policy
}

/// A canary for the serving owner.
fn canary(setting: &Scenario, failures: u32) -> Canary {
    let owners: BTreeSet<String> = [setting.spec.pools[1].name.clone()].into();
    let rollback = RollbackRules { failures, unmet: 99, breaker_trips: 99, ..RollbackRules::default() };
    Canary { policy: patient("bold"), owners, rollback }
}

/// Policies that decided on the loans of that period.
fn lends(known: &ExecutorState, time: Range<i64>) -> Vec<Option<String>> {
    let of = known.intents.all().filter(|intent| time.contains(&intent.at_us()));
    let lends = of.filter(|intent| matches!(intent.decision.action.change, Change::Lend { .. }));
    lends.map(|intent| intent.decision.canary.clone()).collect()
}

fn canary_events(entries: &[JournalEntry]) -> Vec<&CanaryEvent> {
    let events = entries.iter().filter_map(|entry| match &entry.event {
        JournalEvent::Canary(event) => Some(&**event),
        _ => None,
    });
    events.collect()
}

#[test]
fn a_canary_that_fails_is_rolled_back_for_good_and_the_base_goes_on() {
    let setting = setting();
    let (mut target, journal) = (cluster(&setting), InMemoryJournal::default());
    let bold = canary(&setting, 3);
    let tried = Rollout { shadow: None, canary: Some(bold.clone()) };
    let mut first = pilot(patient("base"), "first", journal.clone(), tried.clone(), &setting);
    // All its actions fail: the scheduler reports success and does nothing.
    target.set_control_faults(ControlFaults { lie_ppm: 1_000_000, ..ControlFaults::default() });
    while first.acting_canary().is_some() || target.sim().now_us() < 18 * HOUR_US {
        step(&mut first, &mut target, &[]);
        assert!(target.sim().now_us() < 30 * HOUR_US, "it goes on for ever");
    }
    let (known, entries) = read(&journal);
    let ended = |entry: &&JournalEntry| matches!(&entry.event, JournalEvent::Canary(event) if matches!(**event, CanaryEvent::Ended { .. }));
    let ended_us = entries.iter().find(ended).unwrap().at_us;
    let before = lends(&known, 0..ended_us);
    assert!(before.len() > 2 && before.iter().all(|by| by.as_deref() == Some("bold")), "{before:?}");
    let events = canary_events(&entries);
    assert!(matches!(events[0], CanaryEvent::Began { by: None, .. }) && events.len() == 2, "{events:?}");
    let CanaryEvent::Ended { why, rolled_back: true, .. } = events[1] else { panic!("{events:?}") };
    assert!(why.contains("last 3 actions failed"), "{why}");
    // From the next plan on the base policy acts for its owner, also after a restart.
    drop(first);
    target.set_control_faults(ControlFaults::default());
    target.run_until(target.sim().now_us() + 2 * MINUTE_US);
    let mut second = pilot(patient("base"), "second", journal.reader(), tried.clone(), &setting);
    run(&mut second, &mut target, 26 * HOUR_US);
    assert!(second.acting_canary().is_none());
    let (known, entries) = read(&journal);
    assert_eq!(canary_events(&entries).len(), 2);
    let after = lends(&known, ended_us..i64::MAX);
    assert!(!after.is_empty() && after.iter().all(Option::is_none), "{after:?}");
    assert!(target.effects().iter().any(|deed| deed.kind == Kind::Lend));
    // A person restarts it, like approving an action.
    let approved = [PersonApproval::unsigned(bold.id(), "anna")];
    step(&mut second, &mut target, &approved);
    assert!(second.acting_canary().is_some());
    let (_, entries) = read(&journal);
    assert!(matches!(canary_events(&entries)[2], CanaryEvent::Began { by: Some(by), .. } if by == "anna"));
    // Changed content is a new canary; one no longer named ends without a rollback.
    drop(second);
    target.run_until(target.sim().now_us() + 2 * MINUTE_US);
    let tried = Rollout { shadow: None, canary: Some(canary(&setting, 4)) };
    let mut third = pilot(patient("base"), "third", journal.reader(), tried, &setting);
    step(&mut third, &mut target, &[]);
    assert!(third.acting_canary().is_some());
    let (_, entries) = read(&journal);
    assert!(matches!(canary_events(&entries)[3], CanaryEvent::Ended { rolled_back: false, .. }));
}

#[test]
fn a_canary_of_owners_that_nobody_knows_never_begins() {
    let setting = setting();
    let (mut target, journal) = (cluster(&setting), InMemoryJournal::default());
    let stranger = Canary { owners: ["stranger".to_owned()].into(), ..canary(&setting, 3) };
    let tried = Rollout { shadow: None, canary: Some(stranger) };
    let mut executor = pilot(patient("base"), "one", journal.clone(), tried, &setting);
    run(&mut executor, &mut target, 20 * HOUR_US);
    let (known, entries) = read(&journal);
    assert!(canary_events(&entries).is_empty() && executor.acting_canary().is_none());
    let lends = lends(&known, 0..i64::MAX);
    assert!(!lends.is_empty() && lends.iter().all(Option::is_none));
}
