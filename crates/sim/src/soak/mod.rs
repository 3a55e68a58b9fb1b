//! Soak test: long random runs of the product, checked against invariants.
//!
//! Each seed draws a cluster, its jobs and demand, and a random subset of fault kinds, so that
//! kinds also occur alone (swarm testing: Groce et al., ISSTA 2012). The product acts: its planner,
//! guard, forecast and executor, over a journal that outlives each executor.

mod check;
mod executors;
mod fault_kind;
mod invariant;
mod journal_check;
mod rollout_check;
mod swarm;

pub use check::{Limits, Violation};
pub use fault_kind::FaultKind;
pub use invariant::Invariant;
pub use swarm::Swarm;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use serde::Serialize;
use tidegate_autopilot::{executor::InMemoryJournal, guard::KillSwitch, policy::Policy};

use crate::{
    DAY_US, HOUR_US, Sim, SimError,
    forecast_fault::ForecastFault,
    pilot::{warmed_up_forecast, with_approvals},
    target::{ControlFaults, SimTarget},
};
use check::Checker;
use executors::Executors;

/// Result of a soak test.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SoakReport {
    /// Number of seeds.
    pub seeds: u64,
    /// Simulated time, µs.
    pub simulated_us: i64,
    /// Faults injected, by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Effects on clusters.
    pub effects: u64,
    /// Ended loans.
    pub loans: u64,
    /// Times an executor found within a step that it had lost its lease.
    pub fenced: u64,
    /// Plans replayed from the journal.
    pub plans: u64,
    /// Shadow plans replayed from the journal.
    #[serde(rename = "thoughts")]
    pub shadow_plans: u64,
    /// Canaries rolled back by their own record.
    pub rolled_back: u64,
    /// Violated invariants.
    pub violations: Vec<Violation>,
}

/// Runs seeds one after the other with a policy, and checks it against `limits`.
///
/// # Errors
/// [`SimError`] if a made-up cluster does not fit together.
pub fn soak(
    seeds: impl Iterator<Item = u64>,
    policy: &Policy,
    limits: &Limits,
) -> Result<SoakReport, SimError> {
    let mut all = SoakReport::default();
    for seed in seeds {
        let one = soak_one(seed, policy, limits)?;
        all.seeds += 1;
        all.simulated_us += one.simulated_us;
        one.faults.iter().for_each(|(kind, n)| *all.faults.entry(*kind).or_default() += n);
        all.effects += one.effects;
        all.loans += one.loans;
        all.fenced += one.fenced;
        all.plans += one.plans;
        all.shadow_plans += one.shadow_plans;
        all.rolled_back += one.rolled_back;
        all.violations.extend(one.violations);
    }
    Ok(all)
}

/// Time after the last fault until everything must have settled.
const SETTLES_US: i64 = 6 * HOUR_US;
/// Time after the last fault until executors end.
const LIVES_ON_US: i64 = 12 * HOUR_US;

/// The cluster, its faults, the journal and the checker. Shared by all executors.
struct World {
    swarm: Swarm,
    epoch_us: i64,
    target: RefCell<SimTarget>,
    journal: InMemoryJournal,
    checker: RefCell<Checker>,
    fenced: Cell<u64>,
}

impl World {
    /// Simulated time, µs.
    fn now_us(&self) -> i64 {
        self.target.borrow().sim().now_us()
    }

    fn switch(&self) -> KillSwitch {
        self.swarm.switch(self.now_us())
    }

    /// Applies actions of people, advances to the next observation, and checks all invariants.
    fn advance(&self) {
        let (now_us, quiet_us) = (self.now_us(), self.swarm.span_us);
        let mut target = self.target.borrow_mut();
        if now_us == quiet_us {
            target.set_control_faults(ControlFaults::default());
            (0..target.sim().nodes().len() as u32).for_each(|n| target.drain_by_hand(n, false));
        }
        self.swarm.apply_manual_drains(&mut target, now_us);
        self.swarm.apply_manual_reservations(&mut target, now_us);
        target.run_until(now_us + self.swarm.habits.every_us);
        let is_quiet = (quiet_us + SETTLES_US..quiet_us + LIVES_ON_US).contains(&now_us);
        self.checker.borrow_mut().check(&target, is_quiet);
    }
}

fn soak_one(seed: u64, policy: &Policy, limits: &Limits) -> Result<SoakReport, SimError> {
    let swarm = Swarm::draw(seed);
    let setting = swarm.scenario();
    let mut sim = Sim::new(setting.spec.clone(), setting.jobs.clone(), setting.services.clone())?;
    swarm.plan(&mut sim);
    let epoch_us = setting.spec.epoch_us;
    let error = ForecastFault { until_us: epoch_us + swarm.forecast.until_us, ..swarm.forecast };
    let policy = &swarm.policy(policy.clone());
    let policy = if swarm.habits.approval_us > 0 { with_approvals(policy.clone()) } else { policy.clone() };
    let journal = InMemoryJournal::default();
    let teams = setting.spec.teams.iter().map(|team| team.name.clone());
    let owners: Vec<String> = teams.chain([setting.spec.pools[1].name.clone()]).collect();
    let tried = rollout_check::draw(seed, &policy, &owners);
    let checker = Checker::new(seed, limits.clone(), journal.reader(), swarm.switch_off());
    let world = Rc::new(World {
        epoch_us,
        target: RefCell::new(SimTarget::new(sim, swarm.control, seed)),
        journal,
        checker: RefCell::new(checker),
        fenced: Cell::new(0),
        swarm,
    });
    let mut executors = Executors::new(Rc::clone(&world), policy, tried, warmed_up_forecast(&setting, error));
    let dies_us = world.swarm.span_us + LIVES_ON_US;
    while world.now_us() < dies_us {
        executors.act();
        world.advance();
    }
    drop(executors);
    while world.now_us() < dies_us + DAY_US {
        world.advance();
    }
    let target = world.target.borrow();
    let mut checker = world.checker.borrow_mut();
    checker.end(&target);
    let (shadow_plans, rolled_back) = checker.rollout_counts();
    Ok(SoakReport {
        seeds: 1,
        simulated_us: target.sim().now_us(),
        faults: world.swarm.fault_counts(),
        effects: target.effects().len() as u64,
        loans: target.ended_loans().len() as u64,
        fenced: world.fenced.get(),
        plans: checker.plans(),
        shadow_plans,
        rolled_back,
        violations: checker.take_violations(),
    })
}
