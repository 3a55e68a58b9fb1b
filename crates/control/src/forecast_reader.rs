//! Reads published forecasts of demand from the log, and whether their bounds hold.

use std::sync::Arc;

use tidegate_autopilot::forecast::Published;
use tidegate_events::SchemaId;
use tidegate_facts::record_published;
use tidegate_log::{EventLog, LogError};

use super::tail::Tail;

/// How far back to read. Forecasts are published every six hours and coverage once a day; nothing
/// older than this is used.
const LOOKED_BACK_MS: i64 = 3 * 86_400_000;

/// Reads the published forecasts of one cluster.
pub struct ForecastReader {
    tail: Tail,
}

impl std::fmt::Debug for ForecastReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogForecasts").finish_non_exhaustive()
    }
}

impl ForecastReader {
    /// Starts three days before `now_ms`.
    ///
    /// # Errors
    /// The log cannot be reached.
    pub fn new(log: Arc<dyn EventLog>, cluster: &str, now_ms: i64) -> Result<Self, LogError> {
        let topics = [SchemaId::Forecast, SchemaId::CoverageSignal].map(SchemaId::topic);
        Ok(Self { tail: Tail::new(log, cluster, &topics, Some(now_ms.saturating_sub(LOOKED_BACK_MS)))? })
    }

    /// Adds what was published since the last call.
    ///
    /// # Errors
    /// The log cannot be reached; what was read until then was added.
    pub fn read(&mut self, into: &mut Published) -> Result<(), LogError> {
        self.tail.read(|event| record_published(event, into))
    }
}

#[cfg(test)]
pub(crate) mod tests;
