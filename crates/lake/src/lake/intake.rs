//! Intake: turns decoded events into rows of raw tables.

use arrow::array::RecordBatch;
use tidegate_events::{Event, SchemaId};

use crate::raw::facts::Facts;
use crate::raw::rows::RawRows;
use crate::raw::samples::SampleChunk;
use crate::raw::table::RawTable;
use crate::state::GroupState;
use crate::table::Layout;

/// Rows of a record batch.
const BATCH_ROWS: usize = 16 * 1024;
/// Samples per chunk: about what one read of the log brings.
const CHUNK_ROWS: usize = 128 * 1024;

/// Collects the events of one log partition, in order of offset, for [`crate::lake::Lake::absorb`].
#[derive(Debug)]
pub struct Intake {
    pub(crate) partition: u32,
    tables: Vec<IntakeTable>,
}

#[derive(Debug)]
struct IntakeTable {
    name: String,
    schema: SchemaId,
    /// Records below this offset were absorbed before.
    from: u64,
    rows: TableRows,
}

#[derive(Debug)]
enum TableRows {
    Events { rows: RawRows, batches: Vec<(RecordBatch, Vec<Facts>)> },
    Samples { step: u32, rows: Box<SampleChunk>, chunks: Vec<SampleChunk> },
}

/// The new rows of a raw table.
#[derive(Debug)]
pub(crate) enum NewRows {
    Events(Vec<(RecordBatch, Vec<Facts>)>),
    Samples(Vec<SampleChunk>),
}

impl TableRows {
    fn new(table: &RawTable, partition: u32) -> Self {
        match table.spec.layout {
            Layout::Samples => {
                let rows = Box::new(SampleChunk::with_ratio_step(table.ratio_step_ppm));
                Self::Samples { step: table.ratio_step_ppm, rows, chunks: Vec::new() }
            }
            _ => Self::Events { rows: RawRows::new(table.clone(), partition), batches: Vec::new() },
        }
    }

    fn push(&mut self, offset: u64, event: &Event) {
        match (self, event) {
            (Self::Samples { step, rows, chunks }, Event::GpuSamples(batch)) => {
                rows.push(offset, batch);
                if rows.rows() >= CHUNK_ROWS {
                    chunks.push(std::mem::replace(rows.as_mut(), SampleChunk::with_ratio_step(*step)));
                }
            }
            (Self::Samples { .. }, _) => {}
            (Self::Events { rows, batches }, event) => {
                rows.push(offset, event);
                if rows.len() == BATCH_ROWS {
                    batches.push(rows.finish());
                }
            }
        }
    }

    fn finish(self) -> NewRows {
        match self {
            Self::Events { mut rows, mut batches } => {
                if !rows.is_empty() {
                    batches.push(rows.finish());
                }
                NewRows::Events(batches)
            }
            Self::Samples { rows, mut chunks, .. } => {
                if rows.rows() > 0 {
                    chunks.push(*rows);
                }
                NewRows::Samples(chunks)
            }
        }
    }
}

impl Intake {
    pub(crate) fn new<'a>(partition: u32, states: impl Iterator<Item = &'a GroupState>) -> Self {
        let table = |state: &GroupState| IntakeTable {
            name: state.raw().spec.name.clone(),
            schema: state.raw().schema,
            from: state.absorbed,
            rows: TableRows::new(state.raw(), partition),
        };
        Self { partition, tables: states.map(table).collect() }
    }

    /// Adds one event. Events that were absorbed before are skipped.
    pub fn push(&mut self, offset: u64, event: &Event) {
        let schema = event.schema();
        let wanted = |t: &&mut IntakeTable| t.schema == schema && offset >= t.from;
        if let Some(table) = self.tables.iter_mut().find(wanted) {
            table.rows.push(offset, event);
        }
    }

    /// The rows of each raw table, by name.
    pub(crate) fn finish(self) -> impl Iterator<Item = (String, NewRows)> {
        self.tables.into_iter().map(|table| (table.name, table.rows.finish()))
    }
}
