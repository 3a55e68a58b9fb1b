//! Alibaba PAI's two jobs: worker 6 of job_1 turns slow midway; the workers of job_2 differ
//! permanently, and nobody is to blame.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;
use tidegate_insight::straggler::{Detector, JobShape, Settings, Signal, StepReport};

use crate::ReadError;
use crate::columns::Columns;
use crate::straggler::statistics::{median, peer_noise};

/// The file gives times without a unit, 0 to 1000 with a median of some 500. As milliseconds they
/// are half-second steps. It has about every tenth iteration, so two of them are ten seconds apart.
const STEP_US: i64 = 10_000_000;

/// Signals of the detector on one job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WatchedJob {
    /// Name in the trace.
    pub job: String,
    /// Workers.
    pub workers: usize,
    /// Iterations in the file.
    pub iterations: usize,
    /// Noise of a worker's ratio to the median worker, as a median over workers: 1.4826 times the
    /// median absolute deviation of the logarithm.
    pub peer_noise: f64,
    /// Signals, with the iteration at which each came.
    pub signals: Vec<(i64, Signal)>,
}

/// Runs the detector on each job, with workers as ranks of one role, each on its own node.
///
/// # Errors
/// The file is missing, damaged, or lacks a column.
pub fn pai(folder: &Path) -> Result<Vec<WatchedJob>, ReadError> {
    let columns = Columns::read(folder, "alibaba_pai_minibatch_time")?;
    let names = columns.texts("job")?;
    let (worker, time, taken) =
        (columns.numbers("worker")?, columns.numbers("time")?, columns.numbers("batch_time_norm")?);
    let mut jobs: BTreeMap<&str, BTreeMap<i64, BTreeMap<u32, u64>>> = BTreeMap::new();
    let first = worker.iter().copied().fold(f64::INFINITY, f64::min);
    for row in 0..names.len() {
        let ranks = jobs.entry(&names[row]).or_default().entry(time[row] as i64).or_default();
        // One pair of worker and time is duplicated in the file: the first counts.
        ranks.entry((worker[row] - first) as u32).or_insert(taken[row] as u64);
    }
    Ok(jobs.into_iter().map(|(job, times)| watch(job, &times)).collect())
}

fn watch(job: &str, times: &BTreeMap<i64, BTreeMap<u32, u64>>) -> WatchedJob {
    let workers = times.values().flat_map(|ranks| ranks.keys()).max().map_or(0, |&rank| rank as usize + 1);
    let node = (0..workers as u32).collect();
    let shape = JobShape { attempt: 1, node, role: vec![0; workers], stages: 1, micro_batches: 1 };
    let mut detector = Detector::new(shape, Settings::default());
    let iterations: Vec<i64> = times.keys().copied().collect();
    let mut signals = Vec::new();
    for (step, (&iteration, ranks)) in times.iter().enumerate() {
        let slowest = ranks.values().copied().max().unwrap_or(0);
        let end_us = (step as i64 + 1) * STEP_US;
        for (&rank, &own) in ranks {
            detector.step(&StepReport {
                attempt: 1,
                rank,
                step: step as u64,
                end_us,
                duration_us: slowest * 10_000,
                compute_us: Some(own * 10_000),
                communication_us: None,
                data_us: None,
                tokens: None,
                squared_tokens: None,
            });
        }
        detector.advance(end_us);
        signals.extend(detector.take().into_iter().map(|signal| (iteration, signal)));
    }
    WatchedJob {
        job: job.to_owned(),
        workers,
        iterations: iterations.len(),
        peer_noise: noise(workers, times),
        signals,
    }
}

fn noise(workers: usize, times: &BTreeMap<i64, BTreeMap<u32, u64>>) -> f64 {
    let mut ratios = vec![Vec::new(); workers];
    for ranks in times.values() {
        let mut all: Vec<f64> = ranks.values().map(|&own| own as f64).collect();
        let Some(middle) = median(&mut all) else { continue };
        for (&rank, &own) in ranks {
            ratios[rank as usize].push((own as f64 / middle).ln());
        }
    }
    peer_noise(&mut ratios)
}
