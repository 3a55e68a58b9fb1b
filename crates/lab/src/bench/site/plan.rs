//! Jobs of a site: each block of nodes runs one after the other, so that any part of a year can be
//! drawn without the rest.

use std::ops::Range;

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{DAY_MS, MINUTE_MS, START_MS, Site};
use crate::bench::codec::gpu::DEVICES;
use crate::bench::fleet::plan::{BLOCK, DOES_NOTHING, Job, TEAMS, USERS_PER_TEAM};

/// Parts of a block's time between two starts that a job holds, and that pass until the next one.
const HELD: Range<f64> = 0.5..1.1;
const FREE: Range<f64> = 0.0..0.4;
const LONGEST_WAIT_MINUTES: i64 = 45;
/// A block has fewer jobs than this.
const JOBS_OF_A_BLOCK: u64 = 10_000_000;

/// Jobs that were submitted before `to_ms` and end after `from_ms`.
pub fn jobs(site: &Site, from_ms: i64, to_ms: i64) -> Vec<Job> {
    let blocks = site.nodes.div_ceil(BLOCK);
    let slot_ms = DAY_MS as f64 * f64::from(blocks) / f64::from(site.jobs_per_day.max(1));
    let mut jobs = Vec::new();
    for block in 0..blocks {
        let mut rng = ChaCha8Rng::seed_from_u64(site.seed);
        rng.set_stream(u64::from(block));
        let nodes = block * BLOCK..((block + 1) * BLOCK).min(site.nodes);
        let mut begin_ms = START_MS + minutes(slot_ms * rng.random_range(FREE));
        for number in 0.. {
            let job = next(&mut rng, nodes.clone(), begin_ms, slot_ms);
            begin_ms = job.to_ms + minutes(slot_ms * rng.random_range(FREE));
            if job.from_ms - LONGEST_WAIT_MINUTES * MINUTE_MS >= to_ms {
                break;
            }
            if job.to_ms >= from_ms && job.submitted_ms < to_ms {
                let id = (u64::from(block) * JOBS_OF_A_BLOCK + number).to_string();
                jobs.push(Job { id, ..job });
            }
        }
    }
    jobs
}

/// A job without its number.
fn next(rng: &mut ChaCha8Rng, nodes: Range<u32>, from_ms: i64, slot_ms: f64) -> Job {
    let team = TEAMS.choose(rng).expect("there are teams");
    let waited_ms = rng.random_range(0..LONGEST_WAIT_MINUTES) * MINUTE_MS;
    Job {
        id: String::new(),
        team,
        user: format!("{team}-{}", rng.random_range(0..USERS_PER_TEAM)),
        nodes,
        gpus: 0..DEVICES as u32,
        submitted_ms: (from_ms - waited_ms).max(START_MS),
        from_ms,
        to_ms: from_ms + minutes(slot_ms * rng.random_range(HELD)).max(MINUTE_MS),
        works: !rng.random_bool(DOES_NOTHING),
    }
}

/// Whole minutes, as ms: samples, holds and rollups then assign each minute to the same job.
fn minutes(ms: f64) -> i64 {
    (ms / MINUTE_MS as f64).round() as i64 * MINUTE_MS
}
