//! ByteDance's three traces: the what-if analysis, replayed by micro-batches, against the authors'
//! simulator.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Serialize;
use tidegate_insight::straggler::{Operations, StepTable, WhatIf, correlation, what_if};

use crate::ReadError;
use crate::columns::Columns;
use crate::straggler::statistics::{median, peer_noise};

/// Slowdown of each job by the authors' full simulator over the whole trace: real step over ideal
/// step.
const PUBLISHED: [(&str, f64); 3] = [("AR", 1.973), ("SE", 1.537), ("ST", 1.179)];

/// One job of the trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TracedJob {
    /// AR: one slow worker. SE: uneven sequences. ST: a longer last stage.
    pub job: String,
    /// Replicas.
    pub replicas: usize,
    /// Stages.
    pub stages: usize,
    /// Micro-batches per step.
    pub micro_batches: usize,
    /// Step-to-step noise among peers, as in [`super::WatchedJob`].
    pub peer_noise: f64,
    /// Correlation of forward and backward times of the same micro-batch, each relative to the mean
    /// of its stage.
    pub correlation: Option<f64>,
    /// Result of the what-if analysis.
    pub found: Option<WhatIf>,
    /// The authors' slowdown.
    pub published: f64,
    /// Found over published, less 1.
    pub error: Option<f64>,
}

/// Step, replica, stage, chunk and micro-batch.
type Batch = (i64, usize, usize, i64, i64);

#[derive(Default)]
struct Job {
    /// By step, replica and stage: forward and backward time, and micro-batches seen.
    compute: BTreeMap<(i64, usize, usize), (f64, u32)>,
    /// Forward and backward time.
    pairs: BTreeMap<Batch, (f64, f64)>,
}

impl Job {
    fn traced(&self, job: &str, published: f64) -> TracedJob {
        let replicas = self.compute.keys().map(|key| key.1 + 1).max().unwrap_or(0);
        let stages = self.compute.keys().map(|key| key.2 + 1).max().unwrap_or(0);
        let micro_batches = self.compute.values().map(|cell| cell.1 as usize).max().unwrap_or(0);
        let steps: BTreeSet<i64> = self.compute.keys().map(|key| key.0).collect();
        let tables: Vec<StepTable> = steps
            .into_iter()
            .map(|step| {
                let time = |at: usize| {
                    self.compute.get(&(step, at / stages, at % stages)).map_or(f64::NAN, |cell| cell.0)
                };
                let compute = (0..replicas * stages).map(time).collect();
                let operations = self.operations(step, replicas * stages, stages);
                StepTable { compute, stages, micro_batches, operations: Some(operations) }
            })
            .collect();
        let correlation = correlation(&self.levelled(stages));
        let peer_noise = self.noise(replicas, stages);
        let found = what_if(&tables, correlation);
        let error = found.map(|found| found.slowdown / published - 1.0);
        TracedJob {
            job: job.to_owned(),
            replicas,
            stages,
            micro_batches,
            peer_noise,
            correlation,
            found,
            published,
            error,
        }
    }
}

impl Job {
    /// Pairs of forward and backward times, each over its stage's mean, so that a long stage does
    /// not look like long sequences.
    fn levelled(&self, stages: usize) -> Vec<(f64, f64)> {
        let whole = || self.pairs.iter().filter(|(_, pair)| pair.0 > 0.0 && pair.1 > 0.0);
        let mut sums = vec![(0.0, 0.0, 0.0); stages];
        for (at, pair) in whole() {
            let sum = &mut sums[at.2];
            *sum = (sum.0 + pair.0, sum.1 + pair.1, sum.2 + 1.0);
        }
        whole()
            .map(|(at, pair)| (pair.0 * sums[at.2].2 / sums[at.2].0, pair.1 * sums[at.2].2 / sums[at.2].1))
            .collect()
    }

    /// Each worker's times in the order of its micro-batches. Missing ones leave the table short,
    /// which the what-if checks.
    fn operations(&self, step: i64, workers: usize, stages: usize) -> Operations {
        let mut operations = Operations { forward: Vec::new(), backward: Vec::new() };
        for worker in 0..workers {
            let (replica, stage) = (worker / stages, worker % stages);
            let first = (step, replica, stage, i64::MIN, i64::MIN);
            for (_, pair) in self.pairs.range(first..=(step, replica, stage, i64::MAX, i64::MAX)) {
                operations.forward.push(pair.0);
                operations.backward.push(pair.1);
            }
        }
        operations
    }

    fn noise(&self, replicas: usize, stages: usize) -> f64 {
        let mut peers: BTreeMap<(i64, usize), Vec<f64>> = BTreeMap::new();
        for (&(step, _, stage), cell) in &self.compute {
            peers.entry((step, stage)).or_default().push(cell.0);
        }
        let middles: BTreeMap<_, _> = peers
            .into_iter()
            .filter_map(|(at, mut times)| median(&mut times).map(|middle| (at, middle)))
            .collect();
        let mut ratios = vec![Vec::new(); replicas * stages];
        for (&(step, replica, stage), cell) in &self.compute {
            if let Some(middle) = middles.get(&(step, stage)) {
                ratios[replica * stages + stage].push((cell.0 / middle).ln());
            }
        }
        peer_noise(&mut ratios)
    }
}

/// Reads the trace and runs the what-if analysis on each job.
///
/// # Errors
/// The file is missing, damaged, or lacks a column.
pub fn bytedance(folder: &Path) -> Result<Vec<TracedJob>, ReadError> {
    let columns = Columns::read(folder, "bytedance_straggler_ops")?;
    let (names, ops) = (columns.texts("job")?, columns.texts("optype")?);
    let numbers = |column| columns.numbers(column);
    let (replica, stage, step) = (numbers("dp_rank")?, numbers("stage")?, numbers("step")?);
    let (seconds, chunk, batch) = (numbers("duration")?, numbers("mc")?, numbers("mb_id")?);
    let mut jobs: BTreeMap<&str, Job> = BTreeMap::new();
    for row in 0..names.len() {
        let forward = ops[row] == "forward-compute";
        if !forward && ops[row] != "backward-compute" {
            continue;
        }
        let at = (step[row] as i64, replica[row] as usize, stage[row] as usize);
        let job = jobs.entry(&names[row]).or_default();
        let cell = job.compute.entry(at).or_default();
        *cell = (cell.0 + seconds[row], cell.1 + u32::from(forward));
        let pair = job.pairs.entry((at.0, at.1, at.2, chunk[row] as i64, batch[row] as i64)).or_default();
        *(if forward { &mut pair.0 } else { &mut pair.1 }) += seconds[row];
    }
    let known = PUBLISHED
        .iter()
        .filter_map(|(name, published)| jobs.get(name).map(|job| job.traced(name, *published)));
    Ok(known.collect())
}
