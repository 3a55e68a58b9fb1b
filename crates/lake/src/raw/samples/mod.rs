//! GPU samples: from messages of the log to rows of the table `gpu_samples`.
//!
//! Other events become one row each, stay in memory while their key may change, and are read back
//! from the lake when a sealed key gets another event. A message of samples has eighty rows and
//! more, nothing is folded by key, and its key, a node, never finishes. So samples are held in
//! columns ([`SampleChunk`]) until the next commit and then dropped.
//!
//! **Guarantee.** Every batch in the log is in the table exactly once, across crashes and restarts:
//! the commit that adds its rows also sets the log offset they reach to. A batch that is *twice in
//! the log*, because a producer lost its sequence number and sent it again, counts once if the
//! second is within [`crate::state::dedup::REMEMBERED_RECORDS`] records of the first in its log
//! partition, and twice otherwise. Which of the two counts depends on the log alone, so a rebuilt
//! lake has the same rows.

mod chunk;
mod growth;
pub mod metrics;
mod processes;
mod rows;

use tidegate_events::Event;

pub(crate) use chunk::RunRef;
pub use chunk::SampleChunk;
pub(crate) use rows::gather;

/// Samples that weigh as much as one other event when uncommitted events are counted: 1.25 million
/// samples by default. With 36 metrics these take 350 MiB; with more metrics proportionally fewer
/// samples fit.
pub const SAMPLES_PER_EVENT: u64 = 5;
const FULL_COLUMNS: usize = 36;

/// Memory of an event until it is committed, measured in samples.
pub fn weight(event: &Event) -> u64 {
    match event {
        Event::GpuSamples(batch) => {
            let columns = batch.columns.len().max(FULL_COLUMNS);
            (batch.devices.len() * (batch.tick_delta_ms.len() + 1) * columns / FULL_COLUMNS) as u64
        }
        _ => SAMPLES_PER_EVENT,
    }
}
