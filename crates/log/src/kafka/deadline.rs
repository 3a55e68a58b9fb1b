//! [`Deadline`]: how long a call may go on asking the cluster.

use std::time::{Duration, Instant};

/// How long a single request may take before it is asked again.
const REQUEST: Duration = Duration::from_secs(3);

/// When a call gives up, and the limit that it began with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Deadline {
    at: Instant,
    pub limit: Duration,
}

impl Deadline {
    pub fn after(limit: Duration) -> Self {
        Self { at: Instant::now() + limit, limit }
    }

    pub fn left(&self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub fn passed(&self) -> bool {
        self.left().is_zero()
    }

    /// What is left, but no longer than one request should take.
    pub fn request(&self) -> Duration {
        self.left().clamp(Duration::from_millis(1), REQUEST)
    }
}
