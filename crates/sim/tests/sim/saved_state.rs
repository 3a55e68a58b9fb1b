//! The executor's state as a snapshot holds it: saved at any entry of a journal and restored, it
//! goes on as if it had never been saved.

use tidegate_autopilot::{
    executor::{Executor, ExecutorState, InMemoryJournal, Journal, JournalEntry, Settings},
    forecast::{Series, Trailing, TrailingConfig},
    guard::KillSwitch,
    policy::Policy,
};
use tidegate_sim::{
    DAY_US, HOUR_US, MINUTE_US, Sim,
    generate::{Arrivals, Load},
    scenario::Scenario,
    target::{ControlFaults, SimTarget},
};

const EPOCH_US: i64 = 1_760_000_000_000_000;

fn setting(days: i64) -> Scenario {
    let span_us = days * DAY_US;
    let arrivals = Arrivals { span_us, load_gpus: 90, max_gpus: 32, ..Arrivals::default() };
    let load = Load { span_us, peak_gpus: 50, ..Load::default() };
    let mut setting = Scenario::synthetic(8, 8, &arrivals, &load, 5);
    setting.spec.epoch_us = EPOCH_US;
    setting
}

fn cluster(setting: &Scenario) -> SimTarget {
    let sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone()).unwrap();
    let faults = ControlFaults { unknown_ppm: 30_000, refuse_ppm: 20_000, ..ControlFaults::default() };
    let mut target = SimTarget::new(sim, faults, 1);
    target.run_until(17 * HOUR_US);
    target
}

/// A forecast that has learnt the first day, a week long.
fn warmed(setting: &Scenario) -> Trailing {
    let mut forecast = Trailing::new(TrailingConfig::default());
    let service = &setting.services[0];
    let pool = &setting.spec.pools[service.pool].name;
    let day = (DAY_US / service.step_us) as usize;
    for step in 0..7 * day {
        let at_us = EPOCH_US - 7 * DAY_US + step as i64 * service.step_us;
        let gpus = f64::from(service.demand_gpus[step % day]);
        forecast.observe(Series { owner: pool, pool }, at_us, gpus);
    }
    forecast
}

fn executor(
    setting: &Scenario,
    journal: InMemoryJournal,
    holder: &str,
) -> Executor<InMemoryJournal, Trailing> {
    let settings = Settings { holder: holder.to_owned(), lease_ms: 90_000, ..Settings::default() };
    Executor::new(Policy::auto(), settings, journal, warmed(setting))
}

fn run(executor: &mut Executor<InMemoryJournal, Trailing>, target: &mut SimTarget, until_us: i64) {
    while target.sim().now_us() < until_us {
        let now_us = target.sim().now_us();
        executor.step(target, &mut || KillSwitch::On, &[], EPOCH_US + now_us).unwrap();
        target.run_until((now_us / MINUTE_US + 1) * MINUTE_US);
    }
}

fn fold(state: &mut ExecutorState, entries: &[JournalEntry]) {
    entries.iter().cloned().for_each(|entry| state.fold(entry));
}

fn saved_and_restored(state: &ExecutorState) -> ExecutorState {
    serde_json::from_slice(&serde_json::to_vec(state).unwrap()).unwrap()
}

#[test]
fn saved_at_any_entry_the_state_goes_on_as_if_it_never_was() {
    // Over more than two days, so that finished actions are forgotten on the way.
    let setting = setting(4);
    let (mut target, journal) = (cluster(&setting), InMemoryJournal::default());
    let mut lived = executor(&setting, journal.clone(), "one");
    run(&mut lived, &mut target, 4 * DAY_US);
    let entries = journal.reader().read().unwrap();
    let mut whole = ExecutorState::default();
    fold(&mut whole, &entries);
    // A promise that is overdue counts as broken once somebody looks at the clock.
    let mut looked = [whole.clone(), lived.state().clone()];
    looked.iter_mut().for_each(|state| state.slo.tallies.expire(EPOCH_US + 4 * DAY_US));
    assert_eq!(looked[0], looked[1], "read at once, the journal gives what was lived through");
    let proposed = entries.iter().filter(|entry| format!("{entry:?}").contains("Proposed")).count();
    assert!(whole.intents.all().count() < proposed, "old actions are forgotten");
    assert!(whole.scores.len() > 3, "{} scores", whole.scores.len());
    let mut state = ExecutorState::default();
    for (at, entry) in entries.iter().enumerate() {
        state.fold(entry.clone());
        if at % 97 == 0 {
            let mut restored = saved_and_restored(&state);
            assert_eq!(restored, state, "entry {at}");
            fold(&mut restored, &entries[at + 1..]);
            assert_eq!(restored, whole, "entry {at}");
        }
    }
}

#[test]
fn a_successor_decides_the_same_from_a_snapshot_as_from_the_beginning() {
    let setting = setting(2);
    let life = |from_snapshot: bool| {
        let (mut target, journal) = (cluster(&setting), InMemoryJournal::default());
        run(&mut executor(&setting, journal.clone(), "one"), &mut target, 30 * HOUR_US);
        let mut successor = match from_snapshot {
            false => executor(&setting, journal.reader(), "two"),
            true => {
                let (mut rest, mut state) = (journal.reader(), ExecutorState::default());
                fold(&mut state, &rest.read().unwrap());
                executor(&setting, rest, "two").resumed(saved_and_restored(&state))
            }
        };
        run(&mut successor, &mut target, 2 * DAY_US);
        journal.reader().read().unwrap()
    };
    let (beginning, snapshot) = (life(false), life(true));
    assert!(beginning.len() > 100, "{}", beginning.len());
    assert_eq!(serde_json::to_string(&snapshot).unwrap(), serde_json::to_string(&beginning).unwrap());
}
