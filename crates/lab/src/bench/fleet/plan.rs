//! Plan of which job holds which GPUs of the fleet when, drawn from a seed.

use std::ops::Range;

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use crate::bench::codec::gpu::DEVICES;

/// Nodes of a gang.
pub const BLOCK: u32 = 4;
pub const TEAMS: [&str; 12] = [
    "vision", "speech", "llm", "search", "ads", "robotics", "biology", "climate", "safety", "infra",
    "graphs", "data",
];
pub const USERS_PER_TEAM: u32 = 5;
/// Share of jobs that hold GPUs and leave them idle.
pub const DOES_NOTHING: f64 = 0.12;
const HOLD_MINUTES: Range<i64> = 20..160;
/// Gap between two jobs on a block of nodes; about 81 % of the time is held.
const FREE_MINUTES: Range<i64> = 0..40;

#[derive(Debug)]
pub struct Job {
    pub id: String,
    pub team: &'static str,
    pub user: String,
    pub nodes: Range<u32>,
    /// On each node.
    pub gpus: Range<u32>,
    /// When it was submitted; it starts at `from_ms`.
    pub submitted_ms: i64,
    pub from_ms: i64,
    pub to_ms: i64,
    pub works: bool,
}

#[derive(Debug)]
pub struct Plan {
    pub jobs: Vec<Job>,
    /// By device: indices in `jobs` of its holders, in order of time.
    of_device: Vec<Vec<usize>>,
}

impl Plan {
    /// A plan of these jobs, in order of time, none of which share a device.
    pub fn of_jobs(jobs: Vec<Job>, nodes: u32) -> Self {
        let mut of_device = vec![Vec::new(); nodes as usize * DEVICES];
        for (number, job) in jobs.iter().enumerate() {
            for node in job.nodes.clone() {
                job.gpus.clone().for_each(|gpu| of_device[device(node, gpu as usize)].push(number));
            }
        }
        Self { jobs, of_device }
    }

    /// Jobs on `nodes` from a full minute on. They begin and end at full minutes, so that samples,
    /// holds and rollups assign each minute to the same job.
    pub fn new(rng: &mut ChaCha8Rng, nodes: u32, from_ms: i64, length_ms: i64) -> Self {
        let mut plan = Self { jobs: Vec::new(), of_device: vec![Vec::new(); nodes as usize * DEVICES] };
        let to_ms = from_ms + length_ms;
        for first in (0..nodes).step_by(BLOCK as usize) {
            let block = first..(first + BLOCK).min(nodes);
            // The first job began before the observation.
            let mut at_ms = from_ms - rng.random_range(HOLD_MINUTES) * 60_000;
            while at_ms < to_ms {
                let until_ms = at_ms + rng.random_range(HOLD_MINUTES) * 60_000;
                if until_ms > from_ms {
                    plan.fill(rng, block.clone(), at_ms.max(from_ms), until_ms.min(to_ms));
                }
                at_ms = until_ms + rng.random_range(FREE_MINUTES) * 60_000;
            }
        }
        plan
    }

    /// Adds a gang on all nodes, or one or two jobs on each node.
    fn fill(&mut self, rng: &mut ChaCha8Rng, block: Range<u32>, from_ms: i64, to_ms: i64) {
        let all = 0..DEVICES as u32;
        if rng.random_bool(0.4) {
            return self.add(rng, block, all, from_ms, to_ms);
        }
        for node in block {
            if rng.random_bool(0.6) {
                self.add(rng, node..node + 1, all.clone(), from_ms, to_ms);
            } else {
                let half = all.end / 2;
                self.add(rng, node..node + 1, 0..half, from_ms, to_ms);
                self.add(rng, node..node + 1, half..all.end, from_ms, to_ms);
            }
        }
    }

    fn add(&mut self, rng: &mut ChaCha8Rng, nodes: Range<u32>, gpus: Range<u32>, from_ms: i64, to_ms: i64) {
        let team = TEAMS.choose(rng).expect("there are teams");
        for node in nodes.clone() {
            for gpu in gpus.clone() {
                self.of_device[device(node, gpu as usize)].push(self.jobs.len());
            }
        }
        self.jobs.push(Job {
            id: (100_000 + self.jobs.len()).to_string(),
            team,
            user: format!("{team}-{}", rng.random_range(0..USERS_PER_TEAM)),
            nodes,
            gpus,
            submitted_ms: from_ms,
            from_ms,
            to_ms,
            works: !rng.random_bool(DOES_NOTHING),
        });
    }

    /// Job that holds a device at a time.
    pub fn holder(&self, node: u32, gpu: usize, at_ms: i64) -> Option<usize> {
        let held = &self.of_device[device(node, gpu)];
        let last = held.partition_point(|job| self.jobs[*job].from_ms <= at_ms).checked_sub(1)?;
        Some(held[last]).filter(|job| self.jobs[*job].to_ms > at_ms)
    }
}

impl Job {
    pub fn gpu_count(&self) -> u64 {
        self.nodes.len() as u64 * self.gpus.len() as u64
    }
}

fn device(node: u32, gpu: usize) -> usize {
    node as usize * DEVICES + gpu
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn no_device_is_held_twice_and_four_fifths_of_the_time_are_held() {
        let plan = Plan::new(&mut ChaCha8Rng::seed_from_u64(5), 40, 1_000_000, 21_600_000);
        for held in &plan.of_device {
            assert!(held.windows(2).all(|w| plan.jobs[w[0]].to_ms <= plan.jobs[w[1]].from_ms));
        }
        let held: i64 = plan.jobs.iter().map(|j| j.gpu_count() as i64 * (j.to_ms - j.from_ms)).sum();
        let share = held as f64 / (320.0 * 21_600_000.0);
        assert!((0.7..0.9).contains(&share), "{share}");
        let job = &plan.jobs[3];
        let gpu = job.gpus.start as usize;
        assert_eq!(plan.holder(job.nodes.start, gpu, job.from_ms), Some(3));
        assert_ne!(plan.holder(job.nodes.start, gpu, job.to_ms), Some(3));
    }
}
