//! A site whose jobs report nothing: what their restarts show, and what loans are charged for the
//! jobs that they stop, beside the simulator's own ledger of lost work.

use std::collections::BTreeSet;

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::executor::{Executor, InMemoryJournal, Journal, JournalEvent, Settings};
use tidegate_autopilot::forecast::{Trailing, TrailingConfig};
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::policy::Policy;
use tidegate_autopilot::scorecard::{Interval, Score};
use tidegate_autopilot::target::Target;
use tidegate_sim::generate::{Arrivals, Load};
use tidegate_sim::scenario::Scenario;
use tidegate_sim::target::{ControlFaults, SimTarget};
use tidegate_sim::{DAY_US, HOUR_US, MINUTE_US, Reports, Sim};

const EPOCH_US: i64 = 1_760_000_000_000_000;
const DAYS: i64 = 5;
const STEP_US: i64 = 3 * MINUTE_US;

/// What came of five days.
struct Ended {
    /// What was known, at any time, of whether jobs resume.
    resume: BTreeSet<Option<bool>>,
    /// What loans were charged, by the day on which they were decided, GPU-ms.
    charged: Vec<Interval>,
    /// Work lost to stops on these days by the simulator's ledger, GPU-ms.
    lost: Vec<i64>,
}

fn setting(saves: bool) -> Scenario {
    let arrivals = Arrivals {
        span_us: DAYS * DAY_US,
        load_gpus: 110,
        max_gpus: 8,
        max_work_us: 12 * HOUR_US,
        elastic_ppm: 0,
        loan_ppm: 1_000_000,
        notice_ppm: 0,
        ..Arrivals::default()
    };
    let load = Load { span_us: DAYS * DAY_US, peak_gpus: 60, ..Load::default() };
    let mut setting = Scenario::synthetic(8, 8, &arrivals, &load, 5);
    setting.spec.epoch_us = EPOCH_US;
    setting.faults.clear();
    if !saves {
        setting.jobs.iter_mut().for_each(|job| job.checkpoint = None);
    }
    setting
}

fn run(saves: bool) -> Ended {
    let setting = setting(saves);
    let mut policy = Policy::auto();
    policy.lend.promise_quantile = 0.99;
    let sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone()).unwrap();
    let mut target = SimTarget::new(sim, ControlFaults::default(), 1).with_reports(Reports::None);
    let journal = InMemoryJournal::brief();
    let forecast = Trailing::new(TrailingConfig::default());
    // The lease must outlast the time between steps.
    let settings = Settings { lease_ms: 600_000, ..Settings::default() };
    let mut executor = Executor::new(policy, settings, journal.clone(), forecast);
    let (mut resume, mut lost) = (BTreeSet::new(), Vec::new());
    while target.sim().now_us() < DAYS * DAY_US {
        let now_us = target.sim().now_us();
        executor.step(&mut target, &mut || KillSwitch::On, &[], EPOCH_US + now_us).unwrap();
        target.run_until((now_us / STEP_US + 1) * STEP_US);
        if target.sim().now_us() % HOUR_US == 0 {
            let state = target.observe().unwrap();
            resume.extend(state.jobs.values().map(|job| job.checkpoint.resumes));
        }
        if target.sim().now_us() % DAY_US == 0 {
            let sum: i64 = lost.iter().sum();
            let all = target.sim().outcome().lost_preempted_gpu_us / 1_000;
            lost.push(i64::try_from(all).unwrap() - sum);
        }
    }
    let mut charged = vec![Interval::point(0); DAYS as usize];
    for entry in journal.reader().read().unwrap() {
        if let JournalEvent::Scored(score) = entry.event
            && score.kind == Kind::Lend
        {
            let day = (score.decided_us - EPOCH_US) / DAY_US;
            charged[day as usize] = charged[day as usize].plus(cost(&score));
        }
    }
    Ended { resume, charged, lost }
}

/// What a loan is charged.
fn cost(score: &Score) -> Interval {
    let benefit = score.realised_benefit_gpu_ms.expect("exact, whatever its jobs lost");
    let net = score.bounds_gpu_ms().unwrap();
    Interval { low_gpu_ms: benefit - net.high_gpu_ms, high_gpu_ms: benefit - net.low_gpu_ms }
}

#[test]
fn loans_of_silent_sites_are_charged_a_range_until_restarts_show_what_is_lost() {
    let saves = run(true);
    assert_eq!(saves.resume, [None, Some(true)].into());
    let starts_over = run(false);
    assert_eq!(starts_over.resume, [None, Some(false)].into());
    // On the first day hardly anything is lent.
    for (day, lost) in saves.lost.iter().enumerate().skip(1) {
        let charged = saves.charged[day];
        assert!((charged.low_gpu_ms..=charged.high_gpu_ms).contains(lost), "{charged:?} for {lost}");
    }
    for (day, lost) in starts_over.lost.iter().enumerate().skip(1) {
        let Interval { low_gpu_ms, high_gpu_ms } = starts_over.charged[day];
        assert!(
            low_gpu_ms < lost * 23 / 20 && lost * 17 / 20 < high_gpu_ms,
            "{low_gpu_ms} {high_gpu_ms} for {lost}"
        );
        // By the fourth day restarted jobs have shown that they start over.
        assert!(
            day < 3 || low_gpu_ms > lost * 17 / 20 && high_gpu_ms < lost * 23 / 20,
            "{low_gpu_ms} for {lost}"
        );
    }
}
