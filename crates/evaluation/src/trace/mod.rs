//! Real traces for the simulator: public Parquet files of jobs and of online demand, read as
//! arrivals and services, and put together on a cluster on which policies are compared.
//!
//! What a trace does not tell (which jobs are elastic, how often they write checkpoints, in which
//! week the cluster is looked at) is drawn from a seed. What cannot be used is counted with its
//! reason and said; a file that is missing is an error. [`site`] takes a site's own history in the
//! same way.

mod curves;
mod demand;
mod helios;
mod jobs;
mod pairing;
mod quotas;
mod schedulers;
pub mod site;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Serialize;
use tidegate_sim::backtest::Arrival;

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
    /// No row of it can be used.
    #[error(
        "{file}: none of its rows can be used ({rows}); give a file with rows of the form its notes describe"
    )]
    Empty {
        /// Name of the file.
        file: &'static str,
        /// What its rows were.
        rows: RowCounts,
    },
    /// Trace and cluster do not fit together.
    #[error("{what}")]
    Shape {
        /// What does not fit, and how to mend it.
        what: String,
    },
    /// The simulation does not fit together.
    #[error(transparent)]
    Sim(#[from] tidegate_sim::SimError),
}

/// How many rows of a file there were, by what became of them.
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

    /// Of the rows that became `from`, so many became `to` after all.
    fn reclassify(&mut self, from: &'static str, to: &'static str, rows: usize) {
        if let Some(count) = self.0.get_mut(from) {
            *count -= rows.min(*count);
        }
        self.add(to, rows);
    }

    /// Rows of which this became.
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
    /// Jobs by submission, µs from the beginning of the days that are used.
    pub arrivals: Vec<Arrival>,
    /// Length of those days, µs.
    pub length_us: i64,
    /// GPUs of the nodes of the cluster it is from, in the order of its file; empty where the trace
    /// does not tell.
    pub node_gpus: Vec<u32>,
    /// Quotas of teams, GPUs; empty where the trace does not tell.
    pub quotas: BTreeMap<String, u32>,
    /// What became of its rows.
    pub rows: RowCounts,
}

impl JobTrace {
    fn of(file: &'static str, arrivals: Vec<Arrival>, length_us: i64, rows: RowCounts) -> Self {
        Self { file, arrivals, length_us, node_gpus: Vec::new(), quotas: BTreeMap::new(), rows }
    }

    /// GPUs that its jobs would keep busy all the time: their GPU time over the length of the
    /// trace.
    pub fn load_gpus(&self) -> f64 {
        let work: i128 = self.arrivals.iter().map(|a| i128::from(a.gpus) * i128::from(a.work_us)).sum();
        work as f64 / self.length_us.max(1) as f64
    }
}
