//! The agent's batching without the agent: for tests and benchmarks that simulate a fleet.

use tidegate_events::v1::GpuSampleBatch;

use super::batcher::Batcher;
use crate::reading::Reading;

/// Batches the readings of one node exactly as its agent does. It has no clock: time advances with
/// the readings.
pub struct SampleBatcher(Batcher);

impl SampleBatcher {
    /// `span_ms`: time that one batch spans, ms. An agent's default is 10 s.
    pub fn new(span_ms: i64) -> Self {
        Self(Batcher::new(span_ms))
    }

    /// Adds a reading and returns the batch that it completes. The caller fills in envelope and
    /// node.
    pub fn add(&mut self, reading: Reading) -> Option<GpuSampleBatch> {
        let tick_ms = reading.tick_ms;
        self.0.add(reading, tick_ms)
    }

    /// Returns the unfinished batches, as an ending agent does.
    pub fn close(&mut self) -> Vec<GpuSampleBatch> {
        self.0.close_all(0)
    }
}

impl std::fmt::Debug for SampleBatcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampleBatcher").finish_non_exhaustive()
    }
}
