//! One step of [`Runner::run`] at a time, for callers whose time is not the clock's.

use std::time::Duration;

use super::Runner;
use crate::error::Result;

/// What [`Runner::run`] does at its pace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Reads what is in the log and shows it to queries.
    Refresh,
    /// Commits what was read, and does the maintenance that is due.
    Flush,
    /// Updates joined tables with what is committed, and repairs what late events changed.
    Joined,
}

impl Runner {
    /// Takes one step.
    ///
    /// # Errors
    /// As [`Runner::run`], except that it does not wait for a log that cannot be reached.
    pub async fn step(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Refresh => {
                while self.read_or_rejoin(Duration::ZERO).await? > 0 {}
                self.lake.refresh_snapshots().await?;
                self.lake.refresh().await
            }
            Step::Flush => self.flush_and_maintain_or_rejoin().await,
            Step::Joined => {
                self.update_live_or_rejoin().await?;
                while self.repair_or_rejoin(false).await? {}
                Ok(())
            }
        }
    }
}
