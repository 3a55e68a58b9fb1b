//! How an attempt can end, in one vocabulary for all schedulers.

use std::{fmt, str::FromStr};

/// Canonical final state of an attempt; the string forms are what events and tables hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FinalState {
    /// It ended with exit code 0.
    Completed,
    /// It ended with another exit code or by a signal.
    Failed,
    /// A user or an administrator cancelled it.
    Cancelled,
    /// It reached its time limit.
    Timeout,
    /// A node of it failed.
    NodeFail,
    /// It exceeded its memory limit.
    OutOfMemory,
    /// The scheduler took the devices away for another job.
    Preempted,
    /// The attempt ended and the job went back to the queue.
    Requeued,
    /// The job goes on with other devices, as its next attempt.
    Resized,
    /// It ended, and the source does not say how.
    Unknown,
}

/// A state name outside the canonical vocabulary.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown final state `{0}`; map it to COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL, OUT_OF_MEMORY, \
         PREEMPTED, REQUEUED, RESIZED or UNKNOWN"
)]
pub struct UnknownFinalState(pub String);

impl FinalState {
    /// All states, in the order of their declaration.
    pub const ALL: [Self; 10] = [
        Self::Completed,
        Self::Failed,
        Self::Cancelled,
        Self::Timeout,
        Self::NodeFail,
        Self::OutOfMemory,
        Self::Preempted,
        Self::Requeued,
        Self::Resized,
        Self::Unknown,
    ];

    /// The canonical spelling, e.g. `OUT_OF_MEMORY`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "COMPLETED",
            Self::Failed => "FAILED",
            Self::Cancelled => "CANCELLED",
            Self::Timeout => "TIMEOUT",
            Self::NodeFail => "NODE_FAIL",
            Self::OutOfMemory => "OUT_OF_MEMORY",
            Self::Preempted => "PREEMPTED",
            Self::Requeued => "REQUEUED",
            Self::Resized => "RESIZED",
            Self::Unknown => "UNKNOWN",
        }
    }
}

impl fmt::Display for FinalState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for FinalState {
    type Err = UnknownFinalState;

    /// Reads exactly the canonical spelling; translating a scheduler's own names is the importer's
    /// work.
    fn from_str(name: &str) -> Result<Self, UnknownFinalState> {
        let state = Self::ALL.into_iter().find(|state| state.as_str() == name);
        state.ok_or_else(|| UnknownFinalState(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_state_reads_back() {
        for state in FinalState::ALL {
            assert_eq!(state.to_string().parse(), Ok(state));
        }
    }

    #[test]
    fn a_foreign_spelling_is_refused_with_the_vocabulary() {
        let error = "CANCELLED by 1001".parse::<FinalState>().unwrap_err();
        assert!(error.to_string().contains("`CANCELLED by 1001`; map it to COMPLETED"), "{error}");
        assert!("completed".parse::<FinalState>().is_err());
    }
}
