//! The batches that an agent makes of readings, without the agent: for tests and measurements that
//! make up a fleet.

use tidegate_events::v1::GpuSampleBatch;

use super::gather::Gatherer;
use crate::reading::Reading;

/// Makes batches of one node's readings, just as its agent does. It has no clock: time passes as
/// the readings say.
pub struct Batches(Gatherer);

impl Batches {
    /// `span_ms`: time that a batch spans; an agent's is 10 s unless it was told otherwise.
    pub fn new(span_ms: i64) -> Self {
        Self(Gatherer::new(span_ms))
    }

    /// Takes a reading; gives the batch that it completes. Envelope and node are for the caller to
    /// fill in.
    pub fn take(&mut self, reading: Reading) -> Option<GpuSampleBatch> {
        let tick_ms = reading.tick_ms;
        self.0.take(reading, tick_ms)
    }

    /// What was gathered and makes no full batch, as when the agent ends.
    pub fn close(&mut self) -> Vec<GpuSampleBatch> {
        self.0.close_all(0)
    }
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batches").finish_non_exhaustive()
    }
}
