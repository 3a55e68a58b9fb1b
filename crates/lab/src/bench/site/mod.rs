//! A site whose past has a length that one chooses: its jobs, nodes and samples, and the real path
//! that turns them into tables.

pub mod disk;
pub mod drive;
pub mod feed;
pub mod phases;
mod plan;
pub mod questions;
pub mod spread;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use tidegate_events::Event;

use super::fleet::plan::{Job, Plan};
use super::fleet::{Cadence, Fleet, events, node_name};
use crate::bench::codec::gpu::DEVICES;

/// Where every site's time begins: 2025-01-01, so that a year of it has passed.
pub const START_MS: i64 = 1_735_689_600_000;
/// A day, ms.
pub const DAY_MS: i64 = 86_400_000;
const HOUR_MS: i64 = 3_600_000;
const MINUTE_MS: i64 = 60_000;
/// Distance of two samples of a GPU in the past. Minutes, hours and ledger have as many rows as
/// with a sample a second, and are made in a fraction of the time.
const PAST_TICK_MS: i64 = 60_000;
/// Distance of two samples of a GPU that is watched live.
const LIVE_TICK_MS: i64 = 1_000;

/// What a site is; the same description always has the same events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Site {
    pub seed: u64,
    /// Nodes of eight GPUs.
    pub nodes: u32,
    pub jobs_per_day: u32,
    /// Length of its past.
    pub days: u32,
    /// Hours at the end of the past in which agents watched the GPUs.
    pub watched_hours: u32,
}

impl Site {
    pub fn gpus(&self) -> u32 {
        self.nodes * DEVICES as u32
    }

    /// End of the past, ms: here the live part begins.
    pub fn past_end_ms(&self) -> i64 {
        START_MS + i64::from(self.days) * DAY_MS
    }

    /// When agents began to watch, ms.
    pub fn watched_from_ms(&self) -> i64 {
        (self.past_end_ms() - i64::from(self.watched_hours) * HOUR_MS).max(START_MS)
    }

    /// Jobs that were submitted before this time, ms.
    pub fn job_count(&self, before_ms: i64) -> u64 {
        plan::jobs(self, START_MS, before_ms).len() as u64
    }

    /// Events of jobs and nodes in `[from, to)`, ms, as the `epoch`-th life of their sources
    /// reports them. Devices of a job are known from when agents watch.
    pub fn events(&self, from_ms: i64, to_ms: i64, epoch: u64) -> Vec<Event> {
        let names: Vec<String> = (0..self.nodes).map(node_name).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let watched_ms = self.watched_from_ms();
        let mut events: Vec<Event> = names
            .iter()
            .flat_map(|name| {
                [events::registered(name, START_MS), events::collector_started(name, watched_ms)]
            })
            .collect();
        for job in plan::jobs(self, from_ms, to_ms) {
            events.extend(events::of_job(&names, &job, job.from_ms >= watched_ms));
            events.extend(events::waiting(&job));
        }
        let first_minute = from_ms.div_euclid(MINUTE_MS) * MINUTE_MS;
        events.extend((first_minute..to_ms).step_by(MINUTE_MS as usize).map(events::observed));
        events.retain(|event| (from_ms..to_ms).contains(&event.event_time_ms()));
        events::sealed(events, epoch)
    }

    /// The first `nodes` of the fleet, which send their samples from `from_ms` to `to_ms`.
    fn fleet(&self, nodes: u32, tick_ms: i64, from_ms: i64, to_ms: i64, epoch: u64) -> Fleet {
        let mut jobs: Vec<Job> = plan::jobs(self, from_ms, to_ms);
        jobs.sort_by_key(|job| job.from_ms);
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(u64::MAX);
        let cadence = Cadence { first_ms: from_ms, tick_ms, epoch };
        Fleet::of(rng, nodes, Plan::of_jobs(jobs, self.nodes), cadence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SITE: Site = Site { seed: 4, nodes: 13, jobs_per_day: 40, days: 10, watched_hours: 24 };

    #[test]
    fn a_site_has_as_many_jobs_a_day_as_it_is_told_whatever_part_of_it_is_asked_for() {
        let whole = plan::jobs(&SITE, START_MS, SITE.past_end_ms());
        assert!((360..440).contains(&whole.len()), "{} jobs in ten days", whole.len());
        let fifth = plan::jobs(&SITE, START_MS + 4 * DAY_MS, START_MS + 5 * DAY_MS);
        assert!(fifth.iter().all(|job| whole.iter().any(|w| w.id == job.id && w.from_ms == job.from_ms)));
        let held: i64 = whole.iter().map(|j| j.gpu_count() as i64 * (j.to_ms - j.from_ms)).sum();
        let share = held as f64 / (f64::from(SITE.gpus()) * 10.0 * DAY_MS as f64);
        assert!((0.7..0.95).contains(&share), "{share} of the time is held");
    }

    #[test]
    fn parts_of_its_events_are_the_whole() {
        let middle = START_MS + 3 * DAY_MS + 7_777;
        let count = |from, to| SITE.events(from, to, 1).len();
        let end = SITE.past_end_ms();
        assert_eq!(count(START_MS, middle) + count(middle, end), count(START_MS, end));
        let devices_of = |events: Vec<Event>| {
            events.iter().filter(|e| matches!(e, Event::Job(job) if job.gpu_index.is_some())).count()
        };
        assert_eq!(devices_of(SITE.events(START_MS, SITE.watched_from_ms(), 1)), 0);
        assert!(devices_of(SITE.events(SITE.watched_from_ms(), end, 1)) > 0);
    }
}
