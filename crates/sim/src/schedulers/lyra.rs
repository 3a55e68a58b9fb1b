//! Lyra (Li et al., EuroSys 2023), as published.
//!
//! Loans by a forecast of the next minutes, reclaim by server preemption cost, shortest job first
//! for base demands, and a multiple-choice knapsack for the rest.

use super::{
    Scheduler,
    grow::{grow, shrink},
    lend::{Cost, keep, working_gpus},
};
use crate::{ClusterSpec, JobSpec, PPM, SECOND_US, Sim};

/// Lyra. Its forecast of online demand is exact over `horizon_us`, as in the paper's evaluation;
/// beyond it nothing is known. `headroom_ppm` of the pool is never lent (2 % in the paper).
#[derive(Debug, Clone, Copy)]
pub struct Lyra {
    /// Horizon of the exact forecast, µs.
    pub horizon_us: i64,
    /// Share of a pool that is never lent, ppm.
    pub headroom_ppm: u32,
    /// Pool that borrows.
    pub to: usize,
}

impl Default for Lyra {
    fn default() -> Self {
        Self { horizon_us: 300 * SECOND_US, headroom_ppm: 20_000, to: 0 }
    }
}

impl Scheduler for Lyra {
    fn name(&self) -> String {
        "lyra".into()
    }

    fn prepare(&self, spec: &mut ClusterSpec, jobs: &mut [JobSpec]) {
        spec.schedule.start_smaller = true;
        for job in jobs {
            job.priority = -((job.work_us / SECOND_US).min(i64::from(i32::MAX)) as i32);
        }
    }

    fn act(&mut self, sim: &mut Sim) {
        for s in 0..sim.services().len() {
            let service = &sim.services()[s];
            let (pool, now_us) = (service.pool, sim.now_us());
            let need = service.most_within(now_us, self.horizon_us);
            let headroom = u64::from(working_gpus(sim, pool)) * u64::from(self.headroom_ppm);
            let need = need + headroom.div_ceil(u64::from(PPM)) as u32;
            keep(sim, pool, self.to, need, usize::MAX, Cost::Jobs);
        }
        shrink(sim, self.to);
        grow(sim, self.to);
    }
}
