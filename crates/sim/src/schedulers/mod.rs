//! Rival schedulers, run in the same engine.
//!
//! They see and change the simulation directly, at once and without error. The autopilot has it
//! harder: it observes and acts through a target.

mod clairvoyant;
mod gfs;
mod grow;
mod lend;
mod lender;
mod lyra;

pub use clairvoyant::{Clairvoyant, fluid_bound_gpu_us};
pub use gfs::Gfs;
pub use grow::{Choice, Item, knapsack};
pub use lender::Lender;
pub use lyra::Lyra;

use crate::{Backfill, ClusterSpec, JobSpec, MINUTE_US, Sim};

/// A scheduler that runs a cluster.
pub trait Scheduler {
    /// Its name in tables.
    fn name(&self) -> String;

    /// Configures the simulated scheduler, and adds what this one knows of jobs.
    fn prepare(&self, _spec: &mut ClusterSpec, _jobs: &mut [JobSpec]) {}

    /// Period of its actions.
    fn every_us(&self) -> i64 {
        5 * MINUTE_US
    }

    /// Inspects the cluster and changes it.
    fn act(&mut self, sim: &mut Sim);
}

/// Static split: each pool has its own nodes, and nothing is lent or resized. First come, first
/// served, or with EASY backfill.
#[derive(Debug, Clone, Copy, Default)]
pub struct Static {
    /// Depth of backfill; `None` means no backfill.
    pub backfill: Option<usize>,
}

impl Scheduler for Static {
    fn name(&self) -> String {
        if self.backfill.is_some() { "static+backfill".into() } else { "static".into() }
    }

    fn prepare(&self, spec: &mut ClusterSpec, _jobs: &mut [JobSpec]) {
        spec.schedule.backfill = self.backfill.map_or(Backfill::Off, |depth| Backfill::Easy { depth });
    }

    fn act(&mut self, _sim: &mut Sim) {}
}

/// Lets a policy run a cluster until all jobs are done or it is `limit_us`; calls `at` at each time
/// that is due in between.
pub fn run(sim: &mut Sim, scheduler: &mut dyn Scheduler, limit_us: i64, at: &mut dyn FnMut(&Sim)) {
    let every_us = scheduler.every_us().max(1);
    while sim.jobs_done() < sim.jobs().len() && sim.now_us() < limit_us {
        scheduler.act(sim);
        let next_us = (sim.now_us() / every_us + 1) * every_us;
        sim.run_until(next_us.min(limit_us));
        at(sim);
    }
}
