//! The promise to a lender whose demand is forecast far too low, beside the simulator's own ledger.

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::executor::{
    Executor, ExecutorState, InMemoryJournal, Journal, JournalEntry, JournalEvent, Settings,
};
use tidegate_autopilot::forecast::{Series, Trailing, TrailingConfig};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::intent::Transition;
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::promise::Promised;
use tidegate_sim::forecast_fault::{FaultyForecast, ForecastFault};
use tidegate_sim::generate::{Arrivals, Load};
use tidegate_sim::scenario::Scenario;
use tidegate_sim::target::{ControlFaults, SimTarget};
use tidegate_sim::{DAY_US, MINUTE_US, Sim};

const EPOCH_US: i64 = 1_760_000_000_000_000;
const DAYS: i64 = 4;
/// Minutes that the lender may lack what it lent.
const MOST_MINUTES: i64 = 20;

fn setting() -> Scenario {
    let arrivals = Arrivals { span_us: DAYS * DAY_US, load_gpus: 90, max_gpus: 32, ..Arrivals::default() };
    let load = Load { span_us: DAYS * DAY_US, peak_gpus: 50, ..Load::default() };
    let mut setting = Scenario::synthetic(8, 8, &arrivals, &load, 5);
    setting.spec.epoch_us = EPOCH_US;
    setting
}

/// Knows a week of such days, and answers a tenth of it.
fn forecast(setting: &Scenario) -> FaultyForecast<Trailing> {
    let mut right = Trailing::new(TrailingConfig::default());
    let service = &setting.services[0];
    let pool = &setting.spec.pools[service.pool].name;
    let day = (DAY_US / service.step_us) as usize;
    for step in 0..7 * day {
        let at_us = EPOCH_US - 7 * DAY_US + step as i64 * service.step_us;
        let gpus = f64::from(service.demand_gpus[step % day]);
        right.observe(Series { owner: pool, pool }, at_us, gpus);
    }
    let fault = ForecastFault { bias_ppm: -900_000, until_us: i64::MAX, ..ForecastFault::default() };
    FaultyForecast::new(right, fault)
}

/// What came of four days.
struct Ended {
    journal: Vec<JournalEntry>,
    known: ExecutorState,
    /// Time in which the service lacked GPUs, by the simulator's own ledger, minutes.
    unmet_minutes: i64,
}

/// Runs the days under the policy with a step each minute; a second process takes over after two
/// and a half.
fn run(policy: &Policy) -> Ended {
    let setting = setting();
    let sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone()).unwrap();
    let mut target = SimTarget::new(sim, ControlFaults::default(), 1);
    let journal = InMemoryJournal::default();
    for (holder, until_us) in [("one", 5 * DAY_US / 2), ("two", DAYS * DAY_US)] {
        let settings = Settings { holder: holder.to_owned(), lease_ms: 90_000, ..Settings::default() };
        let mut executor = Executor::new(policy.clone(), settings, journal.clone(), forecast(&setting));
        while target.sim().now_us() < until_us {
            let now_us = target.sim().now_us();
            executor.step(&mut target, &mut || KillSwitch::On, &[], EPOCH_US + now_us).unwrap();
            target.run_until((now_us / MINUTE_US + 1) * MINUTE_US);
        }
    }
    let entries = journal.reader().read().unwrap();
    let mut known = ExecutorState::default();
    entries.iter().cloned().for_each(|entry| known.fold(entry));
    let unmet_us = target.sim().outcome().unmet_us;
    Ended { journal: entries, known, unmet_minutes: unmet_us / MINUTE_US }
}

/// Unmet time that the journal recorded, minutes.
fn recorded_minutes(ended: &Ended) -> i64 {
    let unmet = ended.journal.iter().filter_map(|entry| match &entry.event {
        JournalEvent::Promise(event) => match event.what {
            Promised::Unmet { unmet_ms } => Some(unmet_ms),
            _ => None,
        },
        _ => None,
    });
    unmet.sum::<i64>() / 60_000
}

#[test]
fn a_lender_that_lacked_too_much_lends_no_more_and_the_minutes_are_those_of_the_simulator() {
    let mut policy = Policy::auto();
    policy.promise.unmet_minutes = u32::try_from(MOST_MINUTES).unwrap();
    // All else that keeps a bad lender in check is off: the promise alone has to.
    policy.lend.buffer_gpus = 0;
    policy.slo.step_down = false;
    policy.record.decisions = 100_000;
    policy.promise.keep = false;
    let measured = run(&policy);
    policy.promise.keep = true;
    let kept = run(&policy);

    // Without loans it would have lacked nothing: 64 GPUs are its own, and it never needs more.
    assert!(measured.unmet_minutes > 2 * MOST_MINUTES, "{} minutes", measured.unmet_minutes);
    assert!(kept.unmet_minutes < measured.unmet_minutes, "{} minutes", kept.unmet_minutes);
    for ended in [&measured, &kept] {
        // Seen once a minute, and what was seen last before the change of process is lost.
        let (real, recorded) = (ended.unmet_minutes, recorded_minutes(ended));
        assert!((real - recorded).abs() <= 10 + real / 5, "{recorded} recorded of {real}");
    }
    // From the moment at which the promise broke no loan begins, in the second process neither.
    let broke = |entry: &&JournalEntry| match &entry.event {
        JournalEvent::Promise(event) => {
            event.owner == "serve" && matches!(event.what, Promised::Broken { .. })
        }
        _ => false,
    };
    let lends = |entry: &&JournalEntry| match &entry.event {
        JournalEvent::Step(event) if event.transition == Transition::Applying => {
            event.action.starts_with(Kind::Lend.name())
        }
        _ => false,
    };
    let broke_us = kept.journal.iter().find(broke).unwrap().at_us;
    let began =
        |from_us: i64| kept.journal.iter().filter(lends).filter(|entry| entry.at_us > from_us).count();
    assert!(began(0) > began(broke_us), "it lent before");
    assert_eq!(began(broke_us), 0);
    assert!(kept.known.promises.broken().contains_key("serve"));
    let measured_goes_on =
        measured.journal.iter().filter(lends).filter(|entry| entry.at_us > broke_us).count();
    assert!(measured_goes_on > 0, "measured only, it lends on");
}
