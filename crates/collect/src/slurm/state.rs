//! What the watcher remembers of jobs.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::inventory::Inventory;
use super::record::End;

/// A job that is in the queue, runs, or whose end is not certain yet.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    /// Of the last submission told; a requeue is a new one.
    pub submit_ms: Option<i64>,
    pub eligible_ms: Option<i64>,
    /// Whether it was last seen waiting; and the last reason told of this wait.
    pub waits: bool,
    pub reason: Option<String>,
    /// Attempts that hold devices, or whose end is not certain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<Attempt>,
    /// When the queue was first without it, and when it was last there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<Missing>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Missing {
    pub since_ms: i64,
    pub seen_ms: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Attempt {
    pub start_ms: i64,
    pub suspended: bool,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<(String, Vec<u32>)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Over>,
}

/// An attempt that is over while its end is not certain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Over {
    /// When that was noticed, and when it was last seen to run.
    pub since_ms: i64,
    pub seen_ms: i64,
    /// The end as far as the queue tells it.
    pub hint: Option<End>,
    /// It still gives its devices back: the queue will say how it ended.
    pub giving_back: bool,
}

impl Over {
    pub(super) fn new(since_ms: i64, seen_ms: i64, hint: Option<End>) -> Self {
        Self { since_ms, seen_ms, hint, giving_back: false }
    }
}

/// An end that was told: of the attempt that began then, or of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    pub start_ms: Option<i64>,
    pub end_ms: i64,
}

/// All of it. Losing it loses no event that Slurm can still tell: the events come again and are
/// known by their ids.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct State {
    pub jobs: BTreeMap<String, Job>,
    pub told: BTreeMap<String, Vec<Told>>,
    /// Time of the last answer of the queue that was used, and of accounting.
    pub polled_ms: Option<i64>,
    pub accounted_ms: Option<i64>,
    /// Up to when everything was told.
    pub observed_ms: Option<i64>,
    #[serde(default)]
    pub inventory: Inventory,
}
