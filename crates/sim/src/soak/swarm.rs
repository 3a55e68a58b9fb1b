//! Draws a cluster, its load and its faults from a seed.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_autopilot::action::Kind;
use tidegate_autopilot::guard::KillSwitch;
use tidegate_autopilot::policy::{Mode, Policy};

use super::fault_kind::{FaultKind, KINDS};
use crate::{
    Backfill, DAY_US, HOUR_US, MINUTE_US, SECOND_US, Sim, TeamSpec,
    forecast_fault::ForecastFault,
    generate::{self, Arrivals, Fault, Load},
    pilot::PilotConfig,
    scenario::Scenario,
    target::{ControlFaults, SimTarget},
};

/// The faults of one seed.
#[derive(Debug, Clone)]
pub struct Swarm {
    /// Kinds that occur.
    pub kinds: BTreeSet<FaultKind>,
    /// Faults of the control path.
    pub control: ControlFaults,
    /// How executors are run.
    pub habits: PilotConfig,
    /// Time in which faults occur.
    pub span_us: i64,
    seed: u64,
    failures: Vec<Fault>,
    /// Failures of racks: time, rack, and time to repair.
    racks: Vec<(i64, u32, i64)>,
    /// Fault of the forecast; its end counts from the beginning.
    pub forecast: ForecastFault,
    slow: Vec<(i64, u32, u32)>,
    drains: Vec<(i64, u32, bool)>,
    reserves: Vec<ByHand>,
    /// GPUs that the autopilot may reserve ahead of the first team's peaks; 0: none.
    ahead_gpus: u32,
    /// Level of the promise to lenders, where it is not the policy's. Less is lent at higher ones.
    promise: Option<f64>,
    teams: usize,
    hangs: Vec<Hang>,
    deaths: Vec<Death>,
    off: Vec<(Range<i64>, KillSwitch)>,
}

/// An executor hangs, another acts meanwhile, and the first continues.
#[derive(Debug, Clone, Copy)]
struct Hang {
    at_us: i64,
    /// Fault points (steps written, requests sent) until then.
    moments: u32,
    /// Periods in which the other one acts; a lease lasts three.
    looks: u32,
}

/// A reservation that a person makes, changes or ends.
#[derive(Debug, Clone, Copy)]
struct ByHand {
    at_us: i64,
    team: usize,
    /// Whether it has the name of the autopilot's own.
    takes_name: bool,
    gpus: u32,
    start_us: i64,
    end_us: i64,
}

/// An executor dies at a write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kill {
    /// Writes left.
    pub(super) writes: u32,
    /// Whether only writes with steps of actions count. Most other writes renew the lease.
    pub(super) at_steps: bool,
    /// Whether the last write is stored.
    pub(super) is_written: bool,
}

/// When executors are killed.
#[derive(Debug, Clone, Copy)]
struct Death {
    at_us: i64,
    /// None is started before.
    until_us: i64,
    kill: Kill,
}

const LOOKS_US: [i64; 2] = [20 * SECOND_US, MINUTE_US];
/// Period of planning.
const PLANS_US: i64 = 5 * MINUTE_US;
const TRAIN: u32 = 8;
const SERVE: u32 = 8;
/// Name of what the autopilot reserves for the first team.
const AHEAD: &str = "ahead-research-train";
/// Nodes in a rack: four racks, two of each pool.
const RACK: u32 = 4;

impl Swarm {
    /// Draws the faults of a seed.
    pub fn draw(seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let kinds: BTreeSet<FaultKind> = KINDS.into_iter().filter(|_| rng.random_bool(0.4)).collect();
        let span_us = DAY_US * rng.random_range(2..4);
        let mut share = |kind: FaultKind, most: u32| {
            let drawn = rng.random_range(1..most);
            if kinds.contains(&kind) { drawn } else { 0 }
        };
        let control = ControlFaults {
            unreachable_ppm: share(FaultKind::Unreachable, 300_000),
            refuse_ppm: share(FaultKind::Refuses, 300_000),
            lie_ppm: share(FaultKind::Lies, 200_000),
            unknown_ppm: share(FaultKind::AnswersLost, 300_000),
            slow_us: i64::from(share(FaultKind::Slow, 600)) * SECOND_US,
            silent_ppm: share(FaultKind::SilentJobs, 1_000_000),
            telemetry_delay_us: i64::from(share(FaultKind::OldTelemetry, 1_200)) * SECOND_US,
            telemetry_loss_ppm: share(FaultKind::LostTelemetry, 500_000),
            telemetry_every_us: MINUTE_US,
        };
        let approval_us = i64::from(share(FaultKind::SlowApproval, 1_800)) * SECOND_US;
        let nodes = TRAIN + SERVE;
        let mut times = |kind: FaultKind, most: usize| -> Vec<i64> {
            let drawn: Vec<i64> =
                (0..rng.random_range(1..=most)).map(|_| rng.random_range(0..span_us)).collect();
            let mut drawn: Vec<i64> = if kinds.contains(&kind) {
                drawn.iter().map(|at| at / MINUTE_US * MINUTE_US).collect()
            } else {
                Vec::new()
            };
            drawn.sort_unstable();
            drawn
        };
        let (hangs_at, deaths_at) = (times(FaultKind::TwoExecutors, 8), times(FaultKind::ExecutorDies, 8));
        let racks_at = times(FaultKind::RacksFail, 2);
        let (slow_at, drains_at) = (times(FaultKind::Stragglers, 10), times(FaultKind::PeopleDrain, 8));
        let off_at = times(FaultKind::SwitchOff, 3);
        let reserves_at = times(FaultKind::PeopleReserve, 8);
        let hang = |at_us, rng: &mut ChaCha8Rng| Hang {
            at_us,
            moments: rng.random_range(0..12),
            looks: rng.random_range(1..20),
        };
        let hangs = hangs_at.into_iter().map(|at_us| hang(at_us, &mut rng)).collect();
        let death = |at_us, rng: &mut ChaCha8Rng| Death {
            at_us,
            until_us: at_us + rng.random_range(0..60) * 5 * MINUTE_US,
            kill: Kill {
                writes: rng.random_range(0..12),
                at_steps: rng.random_bool(0.7),
                is_written: rng.random_bool(0.5),
            },
        };
        let deaths = deaths_at.into_iter().map(|at_us| death(at_us, &mut rng)).collect();
        let off = off_at
            .into_iter()
            .map(|at_us| {
                let until_us = at_us + rng.random_range(1..60) * 5 * MINUTE_US;
                (
                    at_us..until_us,
                    if rng.random_bool(0.5) { KillSwitch::Paused } else { KillSwitch::Unreadable },
                )
            })
            .collect();
        let slow = slow_at
            .iter()
            .map(|at| (*at, rng.random_range(0..nodes), rng.random_range(300_000..950_000)))
            .collect();
        let drains =
            drains_at.iter().map(|at| (*at, rng.random_range(0..nodes), rng.random_bool(0.6))).collect();
        let teams = 1 + usize::from(rng.random_bool(0.5));
        let reserve = |at_us: i64, rng: &mut ChaCha8Rng| {
            let start_us = at_us + rng.random_range(0..6) * HOUR_US;
            let end_us = (start_us + rng.random_range(1..8) * HOUR_US).min(span_us);
            let (team, takes_name) = (rng.random_range(0..teams), rng.random_bool(0.4));
            ByHand { at_us, team, takes_name, gpus: 8 * rng.random_range(0..4), start_us, end_us }
        };
        let reserves = reserves_at.into_iter().map(|at_us| reserve(at_us, &mut rng)).collect();
        let ahead_gpus = if rng.random_bool(0.5) { 8 * rng.random_range(1..4) } else { 0 };
        let promise = rng.random_bool(0.5).then_some(0.99);
        // Two hundred times the published rate: several a day on these few nodes.
        let often = if kinds.contains(&FaultKind::NodesFail) { 200_000_000 } else { 0 };
        let mut failures = generate::faults(nodes, span_us, often, seed);
        failures.iter_mut().for_each(|f| f.repair_us = f.repair_us.min(span_us - f.at_us).max(1));
        // Failure rates of racks are not published. One or two per run is far more than at any
        // site.
        let racks = racks_at
            .iter()
            .map(|at| (*at, rng.random_range(0..nodes / RACK), rng.random_range(1..12) * HOUR_US / 2))
            .map(|(at, rack, repair_us)| (at, rack, repair_us.min(span_us - at).max(1)))
            .collect();
        let has = |kind: FaultKind, value: u32| if kinds.contains(&kind) { value } else { 0 };
        let bias = has(FaultKind::ForecastBias, rng.random_range(1..400_000)) as i32;
        let forecast = ForecastFault {
            bias_ppm: if rng.random_bool(0.7) { -bias } else { bias },
            noise_ppm: has(FaultKind::ForecastNoise, rng.random_range(1..500_000)),
            stale_us: i64::from(has(FaultKind::ForecastStale, rng.random_range(10..600))) * MINUTE_US,
            until_us: span_us,
            seed,
        };
        let every_us = LOOKS_US[usize::from(rng.random_bool(0.5))];
        let habits = PilotConfig { every_us, plan_every_us: PLANS_US, approval_us };
        Self {
            kinds,
            control,
            habits,
            span_us,
            seed,
            failures,
            racks,
            forecast,
            slow,
            drains,
            reserves,
            ahead_gpus,
            promise,
            teams,
            hangs,
            deaths,
            off,
        }
    }

    /// The cluster with its jobs and demand, without faults.
    pub(super) fn scenario(&self) -> Scenario {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed ^ 0x5e7);
        let span_us = self.span_us + 2 * DAY_US;
        let arrivals = Arrivals {
            span_us,
            load_gpus: rng.random_range(40..110),
            max_gpus: 32,
            max_work_us: 12 * HOUR_US,
            teams: self.teams,
            ..Arrivals::default()
        };
        let load = Load {
            span_us,
            peak_gpus: rng.random_range(30..64),
            noise_ppm: rng.random_range(0..150_000),
            ..Load::default()
        };
        let mut setting = Scenario::synthetic(TRAIN as usize, SERVE as usize, &arrivals, &load, self.seed);
        setting.spec.epoch_us = 1_760_000_000_000_000;
        if self.teams > 1 {
            setting.spec.teams.push(TeamSpec { name: "vision".into(), pool: 0, quota_gpus: None });
        }
        for (at, node) in setting.spec.nodes.iter_mut().enumerate() {
            node.rack = at as u32 / RACK;
        }
        setting.spec.pools[1].floor_gpus = 8 * rng.random_range(0..6);
        if rng.random_bool(0.5) {
            setting.spec.schedule.backfill = Backfill::Easy { depth: 20 };
        }
        if self.kinds.contains(&FaultKind::DemandJumps) {
            let demand = &mut setting.services[0].demand_gpus;
            for _ in 0..6 {
                let from = rng.random_range(0..demand.len() / 2);
                demand.iter_mut().skip(from).take(24).for_each(|gpus| *gpus = (*gpus * 2).min(SERVE * 8));
            }
        }
        setting
    }

    /// Schedules failures and stragglers. All are repaired when faults end.
    pub(super) fn plan(&self, sim: &mut Sim) {
        self.failures.iter().for_each(|f| sim.plan_failure(f.at_us, f.node, f.repair_us));
        self.racks
            .iter()
            .for_each(|(at_us, rack, repair_us)| sim.plan_rack_failure(*at_us, *rack, *repair_us));
        for (at_us, node, speed_ppm) in &self.slow {
            sim.plan_speed(*at_us, *node, *speed_ppm);
            sim.plan_speed(self.span_us, *node, crate::PPM);
        }
    }

    /// A hang that begins now: fault points until then, and its length in periods.
    pub(super) fn hangs(&self, now_us: i64) -> Option<(u32, u32)> {
        let hang = self.hangs.iter().find(|hang| hang.at_us == now_us)?;
        Some((hang.moments, hang.looks))
    }

    /// Whether an executor may hang this long. One that hangs between reading the kill switch and
    /// acting cannot notice a change, so hangs and changes must not overlap; and faults must end.
    pub(super) fn can_hang(&self, now_us: i64, looks: u32) -> bool {
        let wakes_us = now_us + i64::from(looks) * self.habits.every_us;
        let turned = self.off.iter().any(|(off, _)| off.start <= wakes_us && now_us <= off.end);
        !turned && wakes_us < self.span_us
    }

    /// A kill of all live executors that begins now.
    pub(super) fn kills(&self, now_us: i64) -> Option<Kill> {
        self.deaths.iter().find(|death| death.at_us == now_us).map(|death| death.kill)
    }

    /// Whether no executor may start.
    pub(super) fn is_dead(&self, now_us: i64) -> bool {
        self.deaths.iter().any(|death| (death.at_us..death.until_us).contains(&now_us))
    }

    /// State of the kill switch.
    pub(super) fn switch(&self, now_us: i64) -> KillSwitch {
        let off = self.off.iter().find(|(off, _)| off.contains(&now_us));
        off.map_or(KillSwitch::On, |(_, switch)| *switch)
    }

    /// When the kill switch is off.
    pub(super) fn switch_off(&self) -> Vec<Range<i64>> {
        self.off.iter().map(|(off, _)| off.clone()).collect()
    }

    /// Applies drains by people that are due now.
    pub(super) fn apply_manual_drains(&self, target: &mut SimTarget, now_us: i64) {
        for (_, node, drained) in self.drains.iter().filter(|d| d.0 == now_us) {
            target.drain_by_hand(*node, *drained);
        }
    }

    /// Makes the reservations of people that are due now.
    pub(super) fn apply_manual_reservations(&self, target: &mut SimTarget, now_us: i64) {
        for by_hand in self.reserves.iter().filter(|reserve| reserve.at_us == now_us) {
            let ByHand { team, takes_name, gpus, start_us, end_us, .. } = *by_hand;
            let name = if takes_name { AHEAD } else { "maintenance" };
            target.reserve_by_hand(name, team, gpus, start_us, end_us);
        }
    }

    /// The policy, which in half of the seeds lets the autopilot reserve ahead of a team's peaks,
    /// and in half of them promises lenders less.
    pub(super) fn policy(&self, mut policy: Policy) -> Policy {
        if self.ahead_gpus > 0 {
            policy.reservation.ahead.insert("research".to_owned(), self.ahead_gpus);
            policy.modes.insert(Kind::AdjustReservation, Mode::Act);
        }
        policy.lend.promise_quantile = self.promise.unwrap_or(policy.lend.promise_quantile);
        policy
    }

    /// Number of faults by kind. Faults of the control path are drawn at each call and count once.
    pub(super) fn fault_counts(&self) -> BTreeMap<FaultKind, u64> {
        let count = |kind: &FaultKind| match kind {
            FaultKind::NodesFail => self.failures.len(),
            FaultKind::RacksFail => self.racks.len(),
            FaultKind::Stragglers => self.slow.len(),
            FaultKind::ExecutorDies => self.deaths.len(),
            FaultKind::TwoExecutors => self.hangs.len(),
            FaultKind::SwitchOff => self.off.len(),
            FaultKind::PeopleDrain => self.drains.len(),
            FaultKind::PeopleReserve => self.reserves.len(),
            _ => 1,
        };
        self.kinds.iter().map(|kind| (*kind, count(kind) as u64)).collect()
    }
}
