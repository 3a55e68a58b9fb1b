//! A lender without forecasts: lends what a service does not need now, and calls back on demand.

use super::{
    Scheduler,
    grow::waits,
    lend::{Cost, keep, lent, working_gpus},
};
use crate::{Backfill, ClusterSpec, HOUR_US, JobSpec, Sim};

/// Lends node by node, a few per hour, while jobs wait.
#[derive(Debug, Clone)]
pub struct Lender {
    /// GPUs kept beyond demand. Nodes are called back when less than half of it is left.
    pub buffer_gpus: u32,
    /// Nodes lent per hour.
    pub per_hour: usize,
    lent_us: Vec<i64>,
    /// Pool that borrows.
    to: usize,
}

impl Default for Lender {
    /// Two nodes of eight beyond demand, six loans an hour.
    fn default() -> Self {
        Self { buffer_gpus: 16, per_hour: 6, lent_us: Vec::new(), to: 0 }
    }
}

impl Scheduler for Lender {
    fn name(&self) -> String {
        "lender".into()
    }

    fn prepare(&self, spec: &mut ClusterSpec, _jobs: &mut [JobSpec]) {
        spec.schedule.backfill = Backfill::Easy { depth: 100 };
    }

    fn act(&mut self, sim: &mut Sim) {
        let now_us = sim.now_us();
        self.lent_us.retain(|at_us| now_us - at_us < HOUR_US);
        for s in 0..sim.services().len() {
            let (pool, demand) = (sim.services()[s].pool, sim.demand_gpus(s));
            let out: u32 = lent(sim, pool).iter().map(|n| sim.nodes()[*n as usize].gpus).sum();
            let have = working_gpus(sim, pool).saturating_sub(out);
            let room = self.lent_us.len() < self.per_hour && waits(sim, self.to).is_some();
            if have >= demand + self.buffer_gpus / 2 && !room {
                continue;
            }
            let before = lent(sim, pool).len();
            let chunk = usize::from(room);
            keep(sim, pool, self.to, demand + self.buffer_gpus, chunk, Cost::Jobs);
            if lent(sim, pool).len() > before {
                self.lent_us.push(now_us);
            }
        }
    }
}
