//! How often a runner does what.

use std::num::NonZeroU64;
use std::time::Duration;

#[cfg(doc)]
use super::Runner;
use crate::maintenance::Maintenance;
#[cfg(doc)]
use crate::raw::samples::SAMPLES_PER_EVENT;

/// 2010-01-01T00:00:00Z, ms since the epoch: no cluster that anybody asks about is older.
pub const OLDEST_MS: i64 = 1_262_304_000_000;

/// How often the runner does what, and with which events.
#[derive(Debug, Clone)]
pub struct Pace {
    /// Payload bytes read from a partition at a time.
    pub read_bytes: usize,
    /// Events absorbed before they are committed; bounds memory. [`SAMPLES_PER_EVENT`] samples
    /// count as one event.
    pub flush_events: u64,
    /// Longest time that absorbed events stay uncommitted in [`Runner::run`].
    pub flush_every: Duration,
    /// Commits an hour that flushes and updates of joined tables make in [`Runner::run`], over all
    /// tables. A flush commits each table that changed, so with many of them flushes come less
    /// often than `flush_every`; more often only if `flush_events` asks for it. Joined tables are
    /// updated by `joined_every` either way.
    pub commits_per_hour: NonZeroU64,
    /// How often joined tables are updated in [`Runner::run`].
    pub joined_every: Duration,
    /// How long a runner that stops goes on with repairs of joined tables. The rest is left to the
    /// next start.
    pub repair_at_stop: Duration,
    /// How often queries see new events; `None` if there are no queries.
    pub refresh_every: Option<Duration>,
    /// When maintenance is due.
    pub maintenance: Maintenance,
    /// Events before this time, ms since the epoch, are set aside: a table has windows from its
    /// first event on.
    pub oldest_ms: i64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            read_bytes: 8 << 20,
            flush_events: 250_000,
            flush_every: Duration::from_secs(10),
            commits_per_hour: NonZeroU64::new(7_200).expect("not zero"),
            joined_every: Duration::from_secs(60),
            repair_at_stop: Duration::from_secs(10),
            refresh_every: Some(Duration::from_secs(1)),
            maintenance: Maintenance::default(),
            oldest_ms: OLDEST_MS,
        }
    }
}

impl Pace {
    /// Time until the next flush after one of this many commits.
    pub(super) fn until_flush(&self, commits: u64) -> Duration {
        let an_hour = Duration::from_secs(3_600);
        let share = an_hour.mul_f64(commits as f64 / self.commits_per_hour.get() as f64);
        self.flush_every.max(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_tables_are_committed_less_often() {
        let pace = Pace { commits_per_hour: NonZeroU64::new(360).expect("not zero"), ..Pace::default() };
        assert_eq!(pace.until_flush(0), Duration::from_secs(10));
        assert_eq!(pace.until_flush(1), Duration::from_secs(10));
        // 30 tables each five minutes are 360 commits an hour.
        assert_eq!(pace.until_flush(30), Duration::from_secs(300));
    }
}
