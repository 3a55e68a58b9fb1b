//! GPU samples: a way of their own from messages to the table `gpu_samples`.
//!
//! Other events are a row each, are held in memory while their key may change, and are looked up in
//! the lake when an old key comes back. A message of samples is eighty rows and more, nothing is
//! folded by key, and the key (a node) comes back for ever. So samples are held column by column
//! ([`SampleChunk`]) until the next commit and then forgotten.
//!
//! **What is guaranteed.** Every batch of the log is in the table exactly once, over crashes and
//! restarts, because the commit that holds its rows holds the log offset they reach to. A batch
//! that stands *twice in the log* (a producer sent it again after it lost its numbering) counts
//! once if the second is within [`REMEMBERED_RECORDS`] records of the first in its log partition,
//! and twice beyond. Which of them counts depends on the log alone, so a lake built anew has the
//! same rows.

mod chunk;
mod gather;
mod growth;
mod held;
pub mod metrics;
mod processes;
mod recent;

use tidegate_events::Event;

pub use chunk::SampleChunk;
pub use held::HeldSamples;
pub use recent::{BatchId, REMEMBERED_RECORDS, Recent};

/// So many samples count as one other event where it is counted how much waits for a commit: 2.5
/// million by default. With [`FULL_COLUMNS`] metrics that is 700 MiB, and beside it the file that
/// they become; with more it is as many fewer samples.
pub const SAMPLES_PER_EVENT: u64 = 10;
const FULL_COLUMNS: usize = 36;

/// What an event takes of memory until it is committed, in samples.
pub fn weight(event: &Event) -> u64 {
    match event {
        Event::GpuSamples(batch) => {
            let columns = batch.columns.len().max(FULL_COLUMNS);
            (batch.devices.len() * (batch.tick_delta_ms.len() + 1) * columns / FULL_COLUMNS) as u64
        }
        _ => SAMPLES_PER_EVENT,
    }
}
