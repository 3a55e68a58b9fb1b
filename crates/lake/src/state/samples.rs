//! Samples state: the GPU samples of one log partition that are not committed yet.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use hashbrown::HashMap;

use super::dedup::DedupWindow;
use crate::delta::FileRows;
use crate::error::Result;
use crate::raw::facts::EventId;
use crate::raw::samples::metrics::METRICS;
use crate::raw::samples::{RunRef, SampleChunk, gather};

/// Rows of a record batch: few enough that its columns stay in the CPU cache until they are in the
/// file.
const BATCH_ROWS: usize = 8 * 1024;
/// Rows per device from which on counters are smaller as differences, see
/// [`FileRows::short_runs`].
pub(crate) const LONG_RUN_ROWS: usize = 512;

/// Samples that wait for the next commit.
#[derive(Debug, Default)]
pub struct SamplesState {
    dedup: DedupWindow,
    chunks: Vec<Arc<SampleChunk>>,
    /// The first so many chunks are in the partial aggregates already.
    aggregated: usize,
}

impl SamplesState {
    pub(super) fn restore_recent(&mut self, batches: Vec<(u64, EventId)>) {
        self.dedup.restore(batches);
    }

    /// Holds samples, less batches in the dedup window. Returns what is left, if anything is.
    pub(super) fn absorb(&mut self, mut chunk: SampleChunk) -> Option<Arc<SampleChunk>> {
        chunk.retain(|offset, id| self.dedup.insert(offset, id));
        if chunk.runs.is_empty() {
            return None;
        }
        chunk.close();
        let chunk = Arc::new(chunk);
        self.chunks.push(Arc::clone(&chunk));
        Some(chunk)
    }

    /// After a commit: drops all rows.
    pub(super) fn clear(&mut self) {
        self.chunks.clear();
        self.aggregated = 0;
    }

    /// The rows sorted by device and time, as a file holds them: neighbouring values are alike, and
    /// the rows of a device are in one place.
    ///
    /// Returns what is known of the file, and its rows.
    pub fn sorted(
        &self,
        partition: u32,
        schema: SchemaRef,
    ) -> (FileRows, impl Iterator<Item = Result<RecordBatch>>) {
        let runs = picked(&self.chunks).collect::<Vec<_>>();
        let mut devices = HashMap::new();
        let mut order: Vec<(u32, i64, u64, u32)> = Vec::with_capacity(runs.len());
        for (place, run) in runs.iter().enumerate() {
            let next = devices.len() as u32;
            let device = *devices.entry(device(run)).or_insert(next);
            let first_tick = run.chunk.ticks[run.run.first_tick as usize];
            order.push((device, first_tick, run.message().offset, place as u32));
        }
        // Devices were numbered in order of arrival; now renumber them by name.
        let mut names: Vec<_> = devices.into_iter().collect();
        names.sort_unstable();
        let mut ranks = vec![0; names.len()];
        for (rank, (_, device)) in names.into_iter().enumerate() {
            ranks[device as usize] = rank as u32;
        }
        order.iter_mut().for_each(|(device, ..)| *device = ranks[*device as usize]);
        order.sort_unstable();
        let sorted: Vec<RunRef<'_>> = order.into_iter().map(|(.., place)| runs[place as usize]).collect();
        let count: usize = sorted.iter().map(|picked| picked.run.ticks as usize).sum();
        let known = FileRows { empty: self.uncollected(), short_runs: count < LONG_RUN_ROWS * ranks.len() };
        let rows = batches(&sorted).into_iter();
        (known, rows.map(move |rows| Ok(gather(&sorted[rows], partition, &schema)?)))
    }

    /// Metrics of which no sample has a value.
    fn uncollected(&self) -> Vec<String> {
        let is_empty =
            |place: &usize| self.chunks.iter().all(|chunk| chunk.metrics[*place].values.is_empty());
        (0..METRICS.len()).filter(is_empty).map(|place| METRICS[place].0.to_owned()).collect()
    }

    /// The rows as a source for queries. Batches are built when a query reads them.
    pub fn stream(&self, partition: u32, schema: &SchemaRef) -> Arc<dyn PartitionStream> {
        Arc::new(HeldRows { chunks: self.chunks.clone(), partition, schema: Arc::clone(schema) })
    }

    /// As [`Self::stream`], of the rows that are in no partial aggregate yet; `None` if there are
    /// none.
    pub fn not_aggregated(&self, partition: u32, schema: &SchemaRef) -> Option<Arc<dyn PartitionStream>> {
        let chunks = self.chunks[self.aggregated..].to_vec();
        (!chunks.is_empty())
            .then(|| Arc::new(HeldRows { chunks, partition, schema: Arc::clone(schema) }) as _)
    }

    /// Notes that all rows are in the partial aggregates now.
    pub fn mark_aggregated(&mut self) {
        self.aggregated = self.chunks.len();
    }
}

fn picked(chunks: &[Arc<SampleChunk>]) -> impl Iterator<Item = RunRef<'_>> {
    chunks.iter().flat_map(|chunk| chunk.runs.iter().map(|run| RunRef { chunk: chunk.as_ref(), run: *run }))
}

/// Cluster, node, GPU and MIG slice: what rows are sorted by before their time.
fn device<'a>(run: &RunRef<'a>) -> [&'a str; 4] {
    let message = run.message();
    let mig = run.run.mig.map_or("", |mig| run.text(mig));
    [run.text(message.cluster), run.text(message.node), run.text(run.run.uuid), mig]
}

/// Cuts runs into stretches of about [`BATCH_ROWS`] rows.
fn batches(runs: &[RunRef<'_>]) -> Vec<std::ops::Range<usize>> {
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

/// A snapshot of the samples, for one query.
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
            let runs: Vec<RunRef<'_>> = picked(std::slice::from_ref(&chunk)).collect();
            let rows =
                |rows: std::ops::Range<usize>| gather(&runs[rows], partition, &schema).map_err(Into::into);
            batches(&runs).into_iter().map(rows).collect::<Vec<_>>()
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::iter(batches)))
    }
}
