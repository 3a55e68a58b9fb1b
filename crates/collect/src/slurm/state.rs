//! What the watcher remembers of jobs, as its checkpoint file holds it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::inventory::Inventory;
use super::observed::End;

/// A job that waits, runs, or whose end is not certain yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    /// Of the last submission reported; a requeue is a new one.
    pub submit_ms: Option<i64>,
    pub eligible_ms: Option<i64>,
    /// Whether it waited when it was last seen.
    pub waits: bool,
    /// The last reason reported of the present wait.
    pub reason: Option<String>,
    /// Attempts that hold devices, or whose end is not certain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// Set while the queue does not list it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

/// When the queue was first without a job, and when it last listed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Missing {
    pub since_ms: i64,
    pub seen_ms: i64,
}

/// An attempt whose start was reported and whose end was not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    pub start_ms: i64,
    pub suspended: bool,
    /// Devices reported as held, by node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<(String, Vec<u32>)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Over>,
}

/// An attempt that is over while its end is not certain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Over {
    /// When this was noticed.
    pub since_ms: i64,
    /// When the attempt was last seen running.
    pub seen_ms: i64,
    /// The end as far as the queue shows it.
    pub hint: Option<End>,
    /// It still releases its devices: the queue will show how it ended.
    pub giving_back: bool,
}

impl Over {
    pub(super) fn new(since_ms: i64, seen_ms: i64, hint: Option<End>) -> Self {
        Self { since_ms, seen_ms, hint, giving_back: false }
    }
}

/// An end that was reported: of the attempt that began at `start_ms`, or of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ReportedEnd {
    pub start_ms: Option<i64>,
    pub end_ms: i64,
}

/// All of it. Losing it loses no event that Slurm still knows: the events come again and are
/// recognized by their ids.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct State {
    pub jobs: BTreeMap<String, Job>,
    /// Ends that were reported, by job.
    #[serde(rename = "told")]
    pub reported: BTreeMap<String, Vec<ReportedEnd>>,
    /// Time of the last answer of the queue that was used.
    pub polled_ms: Option<i64>,
    /// Time of the last answer of accounting.
    pub accounted_ms: Option<i64>,
    /// Everything up to this time was reported.
    pub observed_ms: Option<i64>,
    #[serde(default)]
    pub inventory: Inventory,
}
