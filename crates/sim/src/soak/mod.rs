//! Long random runs against what must never happen. Each seed draws a cluster, its jobs and demand, and a swarm of faults: a
//! random choice of kinds (Groce et al., Swarm Testing, ISSTA 2012), so that kinds also meet alone.

mod check;
mod swarm;

pub use check::{Invariant, Limits, Violation};
pub use swarm::{FaultKind, Swarm};

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    DAY_US, HOUR_US, MINUTE_US, Sim, SimError,
    backtest::Setting,
    mistake::ForecastError,
    pilot::{Decide, Ended, Pilot},
    target::{Control, SimTarget},
};
use check::Checker;

/// What a soak came to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Soaked {
    pub seeds: u64,
    /// Days simulated, as µs.
    pub simulated_us: i64,
    /// Faults injected, by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Effects on clusters.
    pub deeds: u64,
    /// Loans that were opened and ended.
    pub loans: u64,
    /// Actions refused to an actuator that had lost its lease.
    pub fenced: u64,
    pub violations: Vec<Violation>,
}

/// Runs seeds one after the other. `make(setting, life, before)` gives the decider of an actuator's life: what the one before
/// it has done and learned is on the log, so it may take that from it.
///
/// # Errors
/// [`SimError`] if a made-up cluster does not fit together.
pub fn soak<D: Decide>(
    seeds: impl Iterator<Item = u64>,
    make: &dyn Fn(&Setting, u64, Option<&D>) -> D,
    limits: &Limits,
) -> Result<Soaked, SimError> {
    let mut all = Soaked::default();
    for seed in seeds {
        let one = soak_one(seed, make, limits)?;
        all.seeds += 1;
        all.simulated_us += one.simulated_us;
        one.faults.iter().for_each(|(kind, n)| *all.faults.entry(*kind).or_default() += n);
        all.deeds += one.deeds;
        all.loans += one.loans;
        all.fenced += one.fenced;
        all.violations.extend(one.violations);
    }
    Ok(all)
}

/// How often the actuators act.
const EVERY_US: i64 = 5 * MINUTE_US;

fn soak_one<D: Decide>(
    seed: u64,
    make: &dyn Fn(&Setting, u64, Option<&D>) -> D,
    limits: &Limits,
) -> Result<Soaked, SimError> {
    let swarm = Swarm::draw(seed);
    let setting = swarm.setting();
    let mut sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone())?;
    swarm.plan(&mut sim);
    let mut target = SimTarget::new(sim, swarm.control, seed);
    let mut checker = Checker::new(seed, limits.clone(), 1 + usize::from(swarm.leaves_ghosts()));
    let mut soaked = Soaked { seeds: 1, faults: swarm.counted(), ..Soaked::default() };
    let epoch_us = target.sim().spec().epoch_us;
    let error = ForecastError { until_us: epoch_us + swarm.forecast.until_us, ..swarm.forecast };
    let make = |life: u64, before: Option<&D>| {
        let mut decider = make(&setting, life, before);
        decider.mislead(error);
        decider
    };
    let mut life = 1;
    let mut pilot = Pilot::new(make(life, None), life, swarm.habits);
    // One that lost its lease and does not know it yet.
    let mut ghost: Option<Pilot<D>> = None;
    let quiet_us = swarm.span_us;
    let dies_us = quiet_us + 12 * HOUR_US;
    let end_us = dies_us + DAY_US;
    while target.sim().now_us() < end_us {
        let now_us = target.sim().now_us();
        if now_us == quiet_us {
            target.set_control(Control::default());
            (0..target.sim().nodes().len() as u32).for_each(|n| target.drain_by_hand(n, false));
        }
        if swarm.takes_over(now_us) {
            life += 1;
            let decider = make(life, Some(pilot.decider()));
            let old = std::mem::replace(&mut pilot, Pilot::new(decider, life, swarm.habits));
            ghost = swarm.leaves_ghosts().then_some(old);
        }
        swarm.by_hand(&mut target, now_us);
        if now_us < dies_us && !swarm.is_dead(now_us) {
            pilot.step(&mut target, epoch_us + now_us);
        }
        if let Some(ghost) = ghost.as_mut().filter(|_| now_us < dies_us) {
            ghost.step(&mut target, epoch_us + now_us);
            soaked.fenced += ghost.counts().get(&Ended::Fenced).copied().unwrap_or(0);
        }
        if ghost.as_ref().is_some_and(Pilot::is_fenced) {
            ghost = None;
        }
        target.run_until(now_us + EVERY_US);
        checker.look(&target, now_us >= quiet_us + 6 * HOUR_US && now_us < dies_us);
    }
    checker.end(&target);
    soaked.simulated_us = target.sim().now_us();
    soaked.deeds = target.deeds().len() as u64;
    soaked.loans = target.ended_loans().len() as u64;
    soaked.violations = checker.into_violations();
    Ok(soaked)
}
