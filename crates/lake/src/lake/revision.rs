//! Revisions: how often a window changed after it had closed.

use std::sync::Arc;

use arrow::array::{Array, AsArray, Int32Array, RecordBatch};
use arrow::datatypes::{Int32Type, TimestampMicrosecondType};

use crate::batch::{concat, conform};
use crate::error::Result;
use crate::pipeline::definition::Shape;
use crate::table::{REVISION, TableSpec};
use crate::window::MICROS_PER_MS;

/// Returns the rows of one segment with their revision, in the table's file schema; `None` if they
/// equal `old`.
///
/// `new` has the public columns sorted by key; `old` is what is committed. A window that differs
/// from its committed rows gets the next revision if it had closed: `closed_before` (µs) is the
/// watermark at the last commit.
pub fn revise_segment(
    shape: &Shape,
    spec: &TableSpec,
    new: &RecordBatch,
    old: &[RecordBatch],
    closed_before: Option<i64>,
) -> Result<Option<RecordBatch>> {
    let open_ms = shape.open_ms().expect("planned as windowed");
    let old = concat(&spec.file_schema(), old)?;
    let old_public = conform(&old, &spec.public_schema())?;
    if old_public == *new && (old.num_rows() > 0 || new.num_rows() == 0) {
        return Ok(None);
    }
    let old_revisions = old.column_by_name(REVISION).expect("file schema").as_primitive::<Int32Type>();
    let mut revisions = Vec::with_capacity(new.num_rows());
    for (start, rows) in windows(new) {
        let before = window(&old_public, start);
        let revision = match before {
            None => 0,
            Some((from, len)) => {
                let held = old_revisions.value(from);
                let closes = start + open_ms * MICROS_PER_MS;
                let changed = old_public.slice(from, len) != rows;
                held + i32::from(changed && closed_before.is_some_and(|watermark| closes <= watermark))
            }
        };
        revisions.resize(revisions.len() + rows.num_rows(), revision);
    }
    let mut columns = new.columns().to_vec();
    columns.push(Arc::new(Int32Array::from(revisions)));
    Ok(Some(RecordBatch::try_new(spec.file_schema(), columns)?))
}

/// Returns partial aggregates with their revision, in the table's file schema: 1 if the window had
/// closed before they came, else 0. The window's earlier rows are not read, so changes are not
/// counted.
pub fn partial_revisions(
    shape: &Shape,
    spec: &TableSpec,
    rows: &RecordBatch,
    closed_before: Option<i64>,
) -> Result<RecordBatch> {
    let open_ms = shape.open_ms().expect("planned as windowed");
    let late =
        |start: &i64| closed_before.is_some_and(|watermark| start + open_ms * MICROS_PER_MS <= watermark);
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>().values();
    let mut columns = rows.columns().to_vec();
    columns.push(Arc::new(starts.iter().map(|start| Some(i32::from(late(start)))).collect::<Int32Array>()));
    Ok(RecordBatch::try_new(spec.file_schema(), columns)?)
}

/// The windows of rows sorted by window start, which is the first column.
fn windows(rows: &RecordBatch) -> Vec<(i64, RecordBatch)> {
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>().values();
    let mut found = Vec::new();
    let mut from = 0;
    while from < starts.len() {
        let start = starts[from];
        let len = starts[from..].partition_point(|t| *t == start);
        found.push((start, rows.slice(from, len)));
        from += len;
    }
    found
}

/// First row and number of rows of a window.
fn window(rows: &RecordBatch, start: i64) -> Option<(usize, usize)> {
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>();
    debug_assert_eq!(starts.null_count(), 0);
    let from = starts.values().partition_point(|t| *t < start);
    let len = starts.values()[from..].partition_point(|t| *t == start);
    (len > 0).then_some((from, len))
}
