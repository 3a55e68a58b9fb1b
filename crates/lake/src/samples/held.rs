//! The samples of one log partition that are not committed yet.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use hashbrown::HashMap;

use super::chunk::SampleChunk;
use super::gather::{Picked, gather};
use super::recent::{BatchId, Recent};
use crate::error::Result;

/// Rows of a record batch: few enough that its columns stay in the processor's cache from here to
/// the file.
const BATCH_ROWS: usize = 8 * 1024;

/// Samples that wait for the next commit, and which batches came lately.
#[derive(Debug, Default)]
pub struct HeldSamples {
    recent: Recent,
    chunks: Vec<Arc<SampleChunk>>,
    /// So many chunks are in the windows that are kept in parts.
    in_parts: usize,
}

impl HeldSamples {
    /// On start: remembers batches of the lake, each with its offset, in any order and as often as
    /// they come.
    pub fn remember(&mut self, batches: Vec<(u64, BatchId)>) {
        self.recent.remember(batches);
    }

    /// Takes in samples but for batches that came lately. Returns what was kept, if anything was.
    pub fn absorb(&mut self, mut chunk: SampleChunk) -> Option<Arc<SampleChunk>> {
        chunk.retain(|offset, id| self.recent.insert(offset, id));
        if chunk.runs.is_empty() {
            return None;
        }
        chunk.close();
        let chunk = Arc::new(chunk);
        self.chunks.push(Arc::clone(&chunk));
        Some(chunk)
    }

    /// After a commit: the rows are in the lake.
    pub fn clear(&mut self) {
        self.chunks.clear();
        self.in_parts = 0;
    }

    /// The rows in order of device and time, as they stand in a file: neighbours are alike, and a
    /// device is in one place.
    pub fn sorted(&self, partition: u32, schema: SchemaRef) -> impl Iterator<Item = Result<RecordBatch>> {
        let runs = picked(&self.chunks).collect::<Vec<_>>();
        let mut devices = HashMap::new();
        let mut order: Vec<(u32, i64, u64, u32)> = Vec::with_capacity(runs.len());
        for (place, run) in runs.iter().enumerate() {
            let next = devices.len() as u32;
            let device = *devices.entry(device(run)).or_insert(next);
            let first_tick = run.chunk.ticks[run.run.first_tick as usize];
            order.push((device, first_tick, run.message().offset, place as u32));
        }
        // Devices were numbered as they came; now by name.
        let mut names: Vec<_> = devices.into_iter().collect();
        names.sort_unstable();
        let mut ranks = vec![0; names.len()];
        for (rank, (_, device)) in names.into_iter().enumerate() {
            ranks[device as usize] = rank as u32;
        }
        order.iter_mut().for_each(|(device, ..)| *device = ranks[*device as usize]);
        order.sort_unstable();
        let sorted: Vec<Picked<'_>> = order.into_iter().map(|(.., place)| runs[place as usize]).collect();
        batches(&sorted).into_iter().map(move |rows| Ok(gather(&sorted[rows], partition, &schema)?))
    }

    /// The rows as a source for queries. They are put together when a query asks.
    pub fn stream(&self, partition: u32, schema: &SchemaRef) -> Arc<dyn PartitionStream> {
        Arc::new(HeldRows { chunks: self.chunks.clone(), partition, schema: Arc::clone(schema) })
    }

    /// As [`Self::stream`], of the rows that are in no part of a window yet; `None` if there are
    /// none.
    pub fn new_rows(&self, partition: u32, schema: &SchemaRef) -> Option<Arc<dyn PartitionStream>> {
        let chunks = self.chunks[self.in_parts..].to_vec();
        (!chunks.is_empty())
            .then(|| Arc::new(HeldRows { chunks, partition, schema: Arc::clone(schema) }) as _)
    }

    /// All rows are in the parts of windows now.
    pub fn are_in_parts(&mut self) {
        self.in_parts = self.chunks.len();
    }
}

fn picked(chunks: &[Arc<SampleChunk>]) -> impl Iterator<Item = Picked<'_>> {
    chunks.iter().flat_map(|chunk| chunk.runs.iter().map(|run| Picked { chunk: chunk.as_ref(), run: *run }))
}

/// What rows are sorted by, before their time.
fn device<'a>(run: &Picked<'a>) -> [&'a str; 4] {
    let message = run.message();
    let mig = run.run.mig.map_or("", |mig| run.text(mig));
    [run.text(message.cluster), run.text(message.node), run.text(run.run.uuid), mig]
}

/// Cuts runs into stretches of about [`BATCH_ROWS`] rows.
fn batches(runs: &[Picked<'_>]) -> Vec<std::ops::Range<usize>> {
    let (mut batches, mut begin, mut rows) = (Vec::new(), 0, 0);
    for (place, picked) in runs.iter().enumerate() {
        rows += picked.run.ticks as usize;
        if rows >= BATCH_ROWS || place + 1 == runs.len() {
            batches.push(begin..place + 1);
            (begin, rows) = (place + 1, 0);
        }
    }
    batches
}

/// Samples as they were when a query began.
#[derive(Debug)]
struct HeldRows {
    chunks: Vec<Arc<SampleChunk>>,
    partition: u32,
    schema: SchemaRef,
}

impl PartitionStream for HeldRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (partition, schema) = (self.partition, Arc::clone(&self.schema));
        let batches = self.chunks.clone().into_iter().flat_map(move |chunk| {
            let runs: Vec<Picked<'_>> = picked(std::slice::from_ref(&chunk)).collect();
            let rows =
                |rows: std::ops::Range<usize>| gather(&runs[rows], partition, &schema).map_err(Into::into);
            batches(&runs).into_iter().map(rows).collect::<Vec<_>>()
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::iter(batches)))
    }
}
