//! A spot quota by forecast, after GFS (ASPLOS 2026, arXiv 2509.11134).
//!
//! It keeps the maximum that high-priority work will need and gives the rest to preemptible work. A
//! coefficient learns from evictions and waits.

use super::{
    Scheduler,
    grow::waits,
    lend::{Cost, keep, working_gpus},
};
use crate::{Backfill, ClusterSpec, DAY_US, JobSpec, MINUTE_US, PPM, ServiceSpec, Sim};

/// GFS-like scheduler. The forecast is yesterday's demand at the same times, plus the
/// `quantile_ppm` quantile of its recent error. The constants of the coefficient are our own: the
/// paper's were not available.
#[derive(Debug, Clone, Copy)]
pub struct Gfs {
    /// Horizon of the forecast, µs.
    pub horizon_us: i64,
    /// Quantile of the forecast error, ppm.
    pub quantile_ppm: u32,
    /// Share of the spare capacity that is lent now.
    share_ppm: u32,
    preempted_before: u64,
    /// Pool that borrows.
    to: usize,
}

impl Default for Gfs {
    fn default() -> Self {
        Self { horizon_us: 60 * MINUTE_US, quantile_ppm: 950_000, share_ppm: PPM, preempted_before: 0, to: 0 }
    }
}

impl Scheduler for Gfs {
    fn name(&self) -> String {
        "gfs-like".into()
    }

    fn prepare(&self, spec: &mut ClusterSpec, _jobs: &mut [JobSpec]) {
        spec.schedule.backfill = Backfill::Easy { depth: 100 };
    }

    fn act(&mut self, sim: &mut Sim) {
        self.learn(sim);
        for s in 0..sim.services().len() {
            let pool = sim.services()[s].pool;
            let all = working_gpus(sim, pool);
            let upper = upper(&sim.services()[s], sim.now_us(), self.horizon_us, self.quantile_ppm);
            let spare = u64::from(upper.map_or(0, |upper| all.saturating_sub(upper)));
            let quota = (spare * u64::from(self.share_ppm) / u64::from(PPM)) as u32;
            keep(sim, pool, self.to, all - quota, usize::MAX, Cost::LostWork);
        }
    }
}

impl Gfs {
    /// Lowers the share after evictions of more than 1 % of the running jobs; raises it while jobs
    /// wait.
    fn learn(&mut self, sim: &Sim) {
        let preempted: u64 = sim.jobs().iter().map(|j| u64::from(j.preempted)).sum();
        let evicted = preempted - self.preempted_before;
        self.preempted_before = preempted;
        if evicted * 100 > sim.running().count() as u64 {
            self.share_ppm = (self.share_ppm / 10 * 9).max(PPM / 2);
        } else if waits(sim, self.to).is_some() {
            self.share_ppm = (self.share_ppm / 100 * 105).min(PPM);
        }
    }
}

/// Upper quantile of a service's maximum demand within the horizon; `None` until a day and an hour
/// are known.
fn upper(service: &ServiceSpec, now_us: i64, horizon_us: i64, quantile_ppm: u32) -> Option<u32> {
    let (day, now) = ((DAY_US / service.step_us) as usize, (now_us / service.step_us) as usize);
    let known = service.demand_gpus.get(..=now.min(service.demand_gpus.len().checked_sub(1)?))?;
    let first = known.len().saturating_sub(3 * day).max(day);
    let mut errors: Vec<i64> =
        (first..known.len()).map(|t| i64::from(known[t]) - i64::from(known[t - day])).collect();
    if errors.len() < day / 24 {
        return None;
    }
    errors.sort_unstable();
    let rank = (errors.len() - 1) as u64 * u64::from(quantile_ppm) / u64::from(PPM);
    let from = known.len() - day;
    let ahead = (horizon_us / service.step_us) as usize;
    let seasonal = known[from..].iter().take(ahead + 1).max()?;
    let upper = i64::from(*seasonal) + errors[rank as usize];
    Some(upper.max(i64::from(known[known.len() - 1])).max(0) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HOUR_US;

    #[test]
    fn the_upper_quantile_is_yesterday_and_how_far_it_was_off() {
        // Hourly. Day 0: hour h needs h. Day 1: two more than that. At hour 24 + 5 the next three
        // hours needed 6, 7, 8.
        let demand: Vec<u32> = (0..48).map(|h| if h < 24 { h } else { h - 24 + 2 }).collect();
        let service = ServiceSpec { pool: 0, demand_gpus: demand, step_us: HOUR_US };
        assert_eq!(upper(&service, 29 * HOUR_US, 2 * HOUR_US, 500_000), Some(8 + 2));
        assert_eq!(upper(&service, 20 * HOUR_US, 2 * HOUR_US, 500_000), None);
    }
}
