//! Demand of a serving pool, from what was held and waited for there.

use serde::Serialize;
use tidegate_sim::{DAY_US, HOUR_US, MINUTE_US, SECOND_US};

use super::super::demand::most_in_steps;
use super::jobs::whole;
use super::rows::{Attempt, History, Sample};

/// Length of a step, µs.
pub const STEP_US: i64 = 10 * MINUTE_US;
/// Steps before the period: four weeks.
const MOST_STEPS: i64 = 28 * DAY_US / STEP_US;

/// Source of a demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DemandSource {
    /// The pool's jobs: held, and requested while waiting.
    Jobs,
    /// Samples of the pool.
    Samples,
}

/// Maximum GPUs that `pool` needed in each step of the period. `None` without jobs and samples.
pub fn demand(history: &History, pool: &str) -> Option<(DemandSource, Vec<u32>)> {
    let is_its = |a: &&Attempt| a.pool.as_deref() == Some(pool);
    let jobs: Vec<(i64, i64, u32)> =
        history.attempts.iter().filter(is_its).flat_map(|a| needs(a, history)).collect();
    if !jobs.is_empty() {
        return Some((DemandSource::Jobs, gpus(&levels(&jobs, history))));
    }
    let sample = |s: &Sample| (s.at_us, s.at_us + s.interval_ms * 1_000, whole(s.gpus_milli));
    let samples: Vec<_> = history.samples.iter().filter(|s| s.pool == pool).map(sample).collect();
    let sampled = levels(&samples.iter().map(|(from, to, _)| (*from, *to, 1)).collect::<Vec<_>>(), history);
    if sampled.iter().all(|count| *count == 0.0) {
        return None;
    }
    Some((DemandSource::Samples, gpus(&bridged(&levels(&samples, history), &sampled))))
}

/// GPUs that `pool` needed in each step before the period, from the first known hour on: the hour's
/// mean, rounded up. Missing hours count as zero.
pub fn before(history: &History, pool: &str) -> Vec<u32> {
    let hours: Vec<_> = history.past.iter().filter(|hour| hour.pool == pool).collect();
    let Some(first) = hours.first() else { return Vec::new() };
    let steps = (history.from_us - first.at_us).div_euclid(STEP_US).clamp(0, MOST_STEPS) as usize;
    let mut gpus = vec![0; steps];
    for hour in hours {
        let from = (hour.at_us - (history.from_us - steps as i64 * STEP_US)).div_euclid(STEP_US);
        for step in from..from + HOUR_US / STEP_US {
            if let Some(known) = usize::try_from(step).ok().and_then(|step| gpus.get_mut(step)) {
                *known = whole(hour.gpus_milli);
            }
        }
    }
    gpus
}

/// Spans in which a job held GPUs or waited for them.
fn needs(a: &Attempt, history: &History) -> impl Iterator<Item = (i64, i64, u32)> {
    let until = |end: Option<i64>| end.or(a.as_of_us).unwrap_or(history.to_us);
    let held = a.from_us.map(|from| (from, until(a.to_us), whole(a.gpus_milli.unwrap_or(0))));
    let asked = whole(a.asked_gpus_milli.or(a.gpus_milli).unwrap_or(0));
    let waited = a.queued_from_us.map(|from| (from, until(a.queued_to_us), asked));
    let overlaps =
        |(from, to, gpus): &(i64, i64, u32)| *gpus > 0 && *from < history.to_us && *to > history.from_us;
    [held, waited].into_iter().flatten().filter(overlaps).collect::<Vec<_>>().into_iter()
}

/// Maximum of the spans in each step.
fn levels(stretches: &[(i64, i64, u32)], history: &History) -> Vec<f64> {
    let second = |us: i64| (us.clamp(history.from_us, history.to_us) - history.from_us) / SECOND_US;
    let both = |(from, to, gpus): &(i64, i64, u32)| {
        [(second(*from), i64::from(*gpus)), (second(*to), -i64::from(*gpus))]
    };
    let mut changes: Vec<(i64, i64)> = stretches.iter().flat_map(both).collect();
    changes.sort_unstable();
    let steps = (history.to_us - history.from_us + STEP_US - 1) / STEP_US;
    most_in_steps(&changes, steps as usize, STEP_US / SECOND_US)
}

/// Fills steps without samples with the step before; leading ones with the first known step.
fn bridged(levels: &[f64], sampled: &[f64]) -> Vec<f64> {
    let first = sampled.iter().position(|count| *count > 0.0).unwrap_or(0);
    let mut last = levels[first];
    let mut bridge = |(level, count): (&f64, &f64)| {
        if *count > 0.0 {
            last = *level;
        }
        last
    };
    levels.iter().zip(sampled).map(&mut bridge).collect()
}

fn gpus(levels: &[f64]) -> Vec<u32> {
    levels.iter().map(|level| *level as u32).collect()
}
