//! Real traces for the simulator: public Parquet files of jobs and online demand, read as arrivals
//! and services on a cluster on which schedulers are compared.
//!
//! What a trace lacks (which jobs are elastic, how often they save checkpoints, the week that is
//! simulated) is drawn from a seed. Unusable rows are counted with a reason and reported; a missing
//! file is an error. [`site`] does the same with a site's own history.

mod curves;
mod demand;
mod helios;
mod jobs;
mod pairing;
mod published;
mod quotas;
mod schedulers;
pub mod site;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_sim::scenario::Arrival;

pub use curves::curves;
pub use demand::{Demand, DemandTrace};
pub use jobs::Jobs;
pub use pairing::{Pairing, Provenance, Shape};
pub use quotas::{QuotaReport, QuotaRow, Recorded, lend_quotas};
pub use schedulers::{SCHEDULER_NAMES, SchedulerFactory, autopilot, scheduler};

/// A trace that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file is missing, is no Parquet, or lacks a column.
    #[error(transparent)]
    Read(#[from] crate::ReadError),
    /// No usable rows.
    #[error("{file}: none of its rows can be used ({rows}); give a file of the form that its notes describe")]
    Empty {
        /// Name of the file.
        file: &'static str,
        /// Rows by outcome.
        rows: RowCounts,
    },
    /// Trace and cluster do not match.
    #[error("{what}")]
    Shape {
        /// What does not match, and how to fix it.
        what: String,
    },
    /// The simulator rejects its input.
    #[error(transparent)]
    Sim(#[from] tidegate_sim::SimError),
}

/// Rows of a file by outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
#[serde(transparent)]
pub struct RowCounts(BTreeMap<&'static str, usize>);

impl RowCounts {
    fn count(&mut self, what: &'static str) {
        self.add(what, 1);
    }

    fn add(&mut self, what: &'static str, rows: usize) {
        if rows > 0 {
            *self.0.entry(what).or_default() += rows;
        }
    }

    /// Moves rows from outcome `from` to `to`.
    fn reclassify(&mut self, from: &'static str, to: &'static str, rows: usize) {
        if let Some(count) = self.0.get_mut(from) {
            *count -= rows.min(*count);
        }
        self.add(to, rows);
    }

    /// Rows with this outcome.
    pub fn of(&self, what: &str) -> usize {
        self.0.get(what).copied().unwrap_or(0)
    }
}

impl std::fmt::Display for RowCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts: Vec<String> = self.0.iter().map(|(what, rows)| format!("{rows} {what}")).collect();
        f.write_str(&parts.join(", "))
    }
}

/// Jobs of a trace.
#[derive(Debug, Clone, PartialEq)]
pub struct JobTrace {
    /// Name of the file.
    pub file: &'static str,
    /// Jobs by submission, µs from the start of the period.
    pub arrivals: Vec<Arrival>,
    /// Length of the period, µs.
    pub length_us: i64,
    /// GPUs of each node, in the order of the file; empty where unknown.
    pub node_gpus: Vec<u32>,
    /// Team quotas, GPUs; empty where unknown.
    pub quotas: BTreeMap<String, u32>,
    /// Rows by outcome.
    pub rows: RowCounts,
}

impl JobTrace {
    fn of(file: &'static str, arrivals: Vec<Arrival>, length_us: i64, rows: RowCounts) -> Self {
        Self { file, arrivals, length_us, node_gpus: Vec::new(), quotas: BTreeMap::new(), rows }
    }

    /// Mean load: GPU time of the jobs over the length of the trace, GPUs.
    pub fn load_gpus(&self) -> f64 {
        let work: i128 = self.arrivals.iter().map(|a| i128::from(a.gpus) * i128::from(a.work_us)).sum();
        work as f64 / self.length_us.max(1) as f64
    }
}
