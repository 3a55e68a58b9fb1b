//! Warnings about a collector, at most one a minute.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Least time between two warnings.
const EVERY: Duration = Duration::from_secs(60);

/// What one thread has to say about its collector.
#[derive(Debug)]
pub(crate) struct Complaints {
    /// What is sent: `traces` or `metrics`.
    what: &'static str,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    warned: Option<Instant>,
    /// Failures since then.
    unsaid: u64,
    fails: bool,
}

impl Complaints {
    pub fn about(what: &'static str) -> Self {
        Self { what, state: Mutex::default() }
    }

    /// Something failed.
    pub fn failed(&self, why: &str) {
        if let Some(unsaid) = self.is_due(Instant::now()) {
            let what = self.what;
            tracing::warn!(
                unsaid,
                "{what} cannot be exported: {why}; everything else goes on, tidegate_otlp counts what is lost"
            );
        }
    }

    /// Something was taken.
    pub fn taken(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.fails) {
            tracing::info!("{} are exported again", self.what);
        }
    }

    /// Failures that were not said, if it is time for a warning.
    fn is_due(&self, now: Instant) -> Option<u64> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.fails = true;
        if state.warned.is_some_and(|at| now.saturating_duration_since(at) < EVERY) {
            state.unsaid += 1;
            return None;
        }
        state.warned = Some(now);
        Some(std::mem::take(&mut state.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_warning_a_minute() {
        let (complaints, start) = (Complaints::about("traces"), Instant::now());
        let at = |s| complaints.is_due(start + Duration::from_secs(s));
        assert_eq!(
            [at(0), at(1), at(59), at(60), at(61), at(121)],
            [Some(0), None, None, Some(2), None, Some(1)]
        );
        // A collector that comes and goes is no reason for more.
        complaints.taken();
        assert_eq!(at(122), None);
    }
}
