//! The sink that sources emit into, and the readings that they emit.
//!
//! A source runs on its own threads and emits into a [`Sink`], which numbers, batches and stores.
//! All devices of a node are read at common ticks, so that a batch is devices × ticks.

use tidegate_events::Event;
pub use tidegate_readings::{Device, Metric, MissingReason, Reading, RunningProcess, Value};

/// Where sources emit readings and events. Called from any thread; never blocks for long, except in
/// [`Sink::store`].
pub trait Sink: Send + Sync {
    /// Takes a reading.
    fn reading(&self, reading: Reading);

    /// Takes an event whose envelope holds at least the event time. The sink fills in cluster,
    /// source, epoch and seq, and the node of a node event, where they are empty.
    fn event(&self, event: Event);

    /// Blocks until every event emitted before is safe, so that the caller may forget it. Readings
    /// in an open batch are not included. A sink that stores nothing returns at once.
    ///
    /// # Errors
    /// Why they could not be stored.
    fn store(&self) -> Result<(), String> {
        Ok(())
    }
}
