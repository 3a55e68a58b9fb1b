//! Time of day as maintenance sees it. Tests of long runs set it.

use std::sync::Arc;

use chrono::{DateTime, Utc};

/// Source of the time of day.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> DateTime<Utc> + Send + Sync>);

impl Clock {
    /// A clock that tells what `now` returns.
    pub fn new(now: impl Fn() -> DateTime<Utc> + Send + Sync + 'static) -> Self {
        Self(Arc::new(now))
    }

    /// The time of day.
    pub fn now(&self) -> DateTime<Utc> {
        (self.0)()
    }

    /// The time of day, ms since the epoch.
    pub fn now_ms(&self) -> i64 {
        self.now().timestamp_millis()
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new(Utc::now)
    }
}

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Clock").field(&self.now()).finish()
    }
}
