//! A clairvoyant scheduler: a mark for the others.

use super::{
    Scheduler,
    grow::{grow, shrink},
    lend::{Cost, keep},
};
use crate::{ClusterSpec, JobSpec, SECOND_US, ServiceSpec, Sim};

/// Knows each job's run time and all future demand.
///
/// It lends what will not be needed until it could be back, calls back just in time, runs short
/// jobs first, and grows the elastic jobs that gain most. It has the same latencies as the others.
/// It is greedy, so its result is a mark, not a bound; the bound is [`fluid_bound_gpu_us`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Clairvoyant {
    /// Pool that borrows.
    pub to: usize,
}

impl Clairvoyant {
    /// Name in reports.
    pub const NAME: &str = "clairvoyant";
}

impl Scheduler for Clairvoyant {
    fn name(&self) -> String {
        Self::NAME.into()
    }

    fn prepare(&self, spec: &mut ClusterSpec, jobs: &mut [JobSpec]) {
        spec.schedule.start_smaller = true;
        for job in jobs {
            job.estimate_us = job.work_us;
            job.priority = -((job.work_us / SECOND_US).min(i64::from(i32::MAX)) as i32);
        }
        spec.schedule.backfill = crate::Backfill::Easy { depth: 100 };
    }

    fn every_us(&self) -> i64 {
        60 * SECOND_US
    }

    fn act(&mut self, sim: &mut Sim) {
        let ahead_us = sim.spec().latency.reclaim_us() + self.every_us();
        for s in 0..sim.services().len() {
            let service = &sim.services()[s];
            let need = service.most_within(sim.now_us(), ahead_us);
            keep(sim, service.pool, self.to, need, usize::MAX, Cost::LostWork);
        }
        shrink(sim, self.to);
        grow(sim, self.to);
    }
}

/// Useful GPU-µs that no scheduler can exceed by `until_us`.
///
/// Work is a fluid: at each moment all GPUs of the jobs' pool and all that services do not need
/// drain the work that has arrived, at no cost. Elastic jobs are assumed to scale no better than
/// linearly up to the size they ask for.
pub fn fluid_bound_gpu_us(
    spec: &ClusterSpec,
    jobs: &[JobSpec],
    services: &[ServiceSpec],
    until_us: i64,
) -> i128 {
    let mut times: Vec<i64> = jobs.iter().map(|j| j.submit_us).collect();
    let shortest_us = services.iter().map(|s| s.step_us).min().unwrap_or(until_us.max(1));
    times.extend((0..until_us / shortest_us + 1).map(|k| k * shortest_us));
    times.push(until_us);
    times.retain(|t| (0..=until_us).contains(t));
    times.sort_unstable();
    times.dedup();
    let owned = |pool: usize| i128::from(spec.pool_gpus(pool));
    let batch: i128 =
        (0..spec.pools.len()).filter(|p| services.iter().all(|s| s.pool != *p)).map(owned).sum();
    let (mut waiting, mut drained, mut next) = (0i128, 0i128, 0);
    for pair in times.windows(2) {
        while jobs.get(next).is_some_and(|j| j.submit_us <= pair[0]) {
            waiting += i128::from(jobs[next].gpus) * i128::from(jobs[next].work_us);
            next += 1;
        }
        let spare: i128 =
            services.iter().map(|s| (owned(s.pool) - i128::from(s.demand_at(pair[0]))).max(0)).sum();
        let now = waiting.min((batch + spare) * i128::from(pair[1] - pair[0]));
        waiting -= now;
        drained += now;
    }
    drained
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HOUR_US;

    #[test]
    fn the_fluid_bound_of_a_case_done_by_hand() {
        // 8 own GPUs, 8 of a service that needs 8 in hour 0 and 2 in hour 1. 30 GPU-hours arrive at
        // once: 8 + 14 by hour 2.
        let spec = ClusterSpec::uniform(&[1, 1], 8);
        let jobs = [JobSpec::plain(0, 6, 5 * HOUR_US)];
        let service = ServiceSpec { pool: 1, demand_gpus: vec![8, 2], step_us: HOUR_US };
        let bound = fluid_bound_gpu_us(&spec, &jobs, &[service], 2 * HOUR_US);
        assert_eq!(bound, i128::from(22 * HOUR_US));
    }
}
