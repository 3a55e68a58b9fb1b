//! Reservations ahead of a team's daily peak, by the whole product on a simulated cluster.

use std::collections::BTreeSet;

use tidegate_autopilot::{
    action::Kind,
    executor::InMemoryJournal,
    forecast::{SelectedForecast, SeriesNames},
    guard::KillSwitch,
    policy::{Mode, Policy},
    target::Target,
};
use tidegate_sim::{
    Backfill, ClusterSpec, DAY_US, HOUR_US, JobSpec, MINUTE_US, SECOND_US, Sim, TeamSpec,
    forecast_fault::{FaultyForecast, ForecastFault},
    pilot::{Pilot, PilotConfig},
    target::{ControlFaults, SimTarget},
};

const EPOCH_US: i64 = 1_760_054_400_000_000;
const DAYS: i64 = 14;

/// Ten nodes. Each day at nine `a` submits two jobs of a node for two hours. Jobs of `b` keep the
/// nodes busy: one of a node every 390 s, for an hour.
fn cluster() -> SimTarget {
    let mut spec = ClusterSpec::uniform(&[10], 8);
    spec.epoch_us = EPOCH_US;
    spec.schedule.backfill = Backfill::Easy { depth: 20 };
    let team = |name: &str, gpus| TeamSpec { name: name.into(), pool: 0, quota_gpus: Some(gpus) };
    spec.teams = vec![team("a", 16), team("b", 80)];
    let job = |team, submit_us, hours| JobSpec { team, ..JobSpec::plain(submit_us, 8, hours * HOUR_US) };
    let peaks = (0..DAYS).flat_map(|day| (0..2).map(move |_| job(0, day * DAY_US + 9 * HOUR_US, 2)));
    let fills = (0..DAYS * 221).map(|at| job(1, at * 390 * SECOND_US, 1));
    let mut jobs: Vec<JobSpec> = peaks.chain(fills).collect();
    jobs.sort_by_key(|job| job.submit_us);
    SimTarget::new(Sim::new(spec, jobs, vec![]).unwrap(), ControlFaults::default(), 1)
}

/// Mean wait of each team's jobs of the last week in minutes, and the number of days on which
/// something was reserved.
fn waits(policy: &str) -> ([i64; 2], usize) {
    let mut policy = Policy::parse(policy).unwrap();
    policy.modes.insert(Kind::AdjustReservation, Mode::Act);
    let known = SelectedForecast::new(&policy, SeriesNames::default());
    let forecast = FaultyForecast::new(known, ForecastFault::default());
    let mut pilot = Pilot::new(policy, 0, PilotConfig::default(), InMemoryJournal::default(), forecast);
    let mut target = cluster();
    let mut days = BTreeSet::new();
    while target.sim().now_us() < DAYS * DAY_US {
        let now_us = target.sim().now_us();
        pilot.step(&mut target, &mut || KillSwitch::On, EPOCH_US + now_us).unwrap();
        target.run_until(now_us + MINUTE_US);
        days.extend((!target.sim().reservations().is_empty()).then_some(now_us / DAY_US));
    }
    target.run_until(DAYS * DAY_US + 5 * HOUR_US);
    assert!(target.observe().unwrap().reservations.is_empty(), "each ends by itself");
    let week = |team: usize| {
        let jobs = target.sim().jobs().iter();
        let ours = jobs.filter(|job| job.spec.team == team && job.spec.submit_us >= 7 * DAY_US);
        let (sum, count) = ours.fold((0, 0), |(sum, count), job| (sum + job.waited_us, count + 1));
        sum / count / MINUTE_US
    };
    target.sim().audit().unwrap();
    ([week(0), week(1)], days.len())
}

#[test]
fn the_autopilot_reserves_ahead_of_a_daily_peak_and_every_reservation_ends() {
    let (without, none) = waits("name = \"without\"");
    let (with, days) = waits("name = \"ahead\"\n[reservation]\nahead = { a = 16 }");
    println!(
        "minutes of wait of a and b: {without:?} without reservations, {with:?} with them on {days} days"
    );
    assert_eq!(none, 0);
    assert!((3..DAYS as usize).contains(&days), "on {days} days");
}
