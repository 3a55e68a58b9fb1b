//! Decoded events on their way into the lake.

use arrow::array::RecordBatch;
use tidegate_events::{Event, SchemaId};

use crate::group::GroupState;
use crate::raw::{Facts, RawRows};

/// Rows of a record batch.
const BATCH_ROWS: usize = 16 * 1024;

/// Takes in the events of one log partition, in order of offset. [`crate::lake::Lake::absorb`] takes it on from here.
#[derive(Debug)]
pub struct Intake {
    pub(crate) partition: u32,
    tables: Vec<IntakeTable>,
}

#[derive(Debug)]
struct IntakeTable {
    name: String,
    schema: SchemaId,
    /// Records below this offset were taken in before.
    from: u64,
    rows: RawRows,
    batches: Vec<(RecordBatch, Vec<Facts>)>,
}

impl Intake {
    pub(crate) fn new<'a>(partition: u32, states: impl Iterator<Item = &'a GroupState>) -> Self {
        let table = |state: &GroupState| IntakeTable {
            name: state.raw().spec.name.clone(),
            schema: state.raw().schema,
            from: state.absorbed,
            rows: RawRows::new(state.raw().clone(), partition),
            batches: Vec::new(),
        };
        Self { partition, tables: states.map(table).collect() }
    }

    /// Takes in one event. Records that an earlier life already took in are left out.
    pub fn push(&mut self, offset: u64, event: &Event) {
        let schema = event.schema();
        let wanted = |t: &&mut IntakeTable| t.schema == schema && offset >= t.from;
        if let Some(table) = self.tables.iter_mut().find(wanted) {
            table.rows.push(offset, event);
            if table.rows.len() == BATCH_ROWS {
                table.batches.push(table.rows.finish());
            }
        }
    }

    /// The rows of each raw table, by name.
    pub(crate) fn finish(self) -> impl Iterator<Item = (String, Vec<(RecordBatch, Vec<Facts>)>)> {
        self.tables.into_iter().map(|mut table| {
            if !table.rows.is_empty() {
                table.batches.push(table.rows.finish());
            }
            (table.name, table.batches)
        })
    }
}
