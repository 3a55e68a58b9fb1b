//! Long random runs against what must never happen. Each seed draws a cluster, its jobs and demand,
//! and a swarm of faults: a random choice of kinds (Groce et al., Swarm Testing, ISSTA 2012), so
//! that kinds also meet alone. It is the product that acts: its planner, guard, forecast and
//! executor, over a journal that outlives them.

mod check;
mod executors;
mod journal_check;
mod rollout_check;
mod swarm;

pub use check::{Invariant, Limits, Violation};
pub use swarm::{FaultKind, Swarm};

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

/// What a soak came to.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct SoakReport {
    pub seeds: u64,
    /// Days simulated, as µs.
    pub simulated_us: i64,
    /// Faults injected, by kind.
    pub faults: BTreeMap<FaultKind, u64>,
    /// Effects on clusters.
    pub effects: u64,
    /// Loans that were opened and ended.
    pub loans: u64,
    /// Times that an executor learnt in the midst of a step that it had lost its lease.
    pub fenced: u64,
    /// Plans that were made again from the journal.
    pub plans: u64,
    /// Plans of shadows that were made again.
    pub thoughts: u64,
    /// Canaries that their record ended.
    pub rolled_back: u64,
    pub violations: Vec<Violation>,
}

/// Runs seeds one after the other by a policy, and checks it against `limits`.
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
        all.thoughts += one.thoughts;
        all.rolled_back += one.rolled_back;
        all.violations.extend(one.violations);
    }
    Ok(all)
}

/// After the last fault things have this long to settle before they have to be settled.
const SETTLES_US: i64 = 6 * HOUR_US;
/// After the last fault actuators live this long.
const LIVES_ON_US: i64 = 12 * HOUR_US;

/// A cluster, what goes wrong with it, the journal, and who checks. Shared by all who act.
struct World {
    swarm: Swarm,
    epoch_us: i64,
    target: RefCell<SimTarget>,
    journal: InMemoryJournal,
    checker: RefCell<Checker>,
    fenced: Cell<u64>,
}

impl World {
    /// Time of the simulation, µs.
    fn now_us(&self) -> i64 {
        self.target.borrow().sim().now_us()
    }

    fn switch(&self) -> KillSwitch {
        self.swarm.switch(self.now_us())
    }

    /// People do what they do, time goes on until the next look, and all is checked.
    fn advance(&self) {
        let (now_us, quiet_us) = (self.now_us(), self.swarm.span_us);
        let mut target = self.target.borrow_mut();
        if now_us == quiet_us {
            target.set_control_faults(ControlFaults::default());
            (0..target.sim().nodes().len() as u32).for_each(|n| target.drain_by_hand(n, false));
        }
        self.swarm.apply_manual_drains(&mut target, now_us);
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
    let (thoughts, rolled_back) = checker.rollout_counts();
    Ok(SoakReport {
        seeds: 1,
        simulated_us: target.sim().now_us(),
        faults: world.swarm.fault_counts(),
        effects: target.effects().len() as u64,
        loans: target.ended_loans().len() as u64,
        fenced: world.fenced.get(),
        plans: checker.plans(),
        thoughts,
        rolled_back,
        violations: checker.take_violations(),
    })
}
