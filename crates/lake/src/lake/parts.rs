//! Windows that are kept in parts: those of the rows that came since the last commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimestampMicrosecondType};
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;

use super::Lake;
use super::show::split_segments;
use crate::error::Result;
use crate::exec::run_part;
use crate::group::GroupState;
use crate::parts;
use crate::pipeline::{Extent, Shape};
use crate::plan::Planned;
use crate::samples::metrics::derived;
use crate::sorted::sorted;
use crate::table::{Layout, TableSpec};
use crate::window::Segment;

impl Lake {
    /// Adds what a group took in since the last time to its windows that are kept in parts.
    pub(super) async fn add_parts(&mut self, name: &(String, u32)) -> Result<()> {
        let state = &self.states[name];
        let group = state.group.clone();
        let ctx = self.session();
        let mut computed: BTreeMap<&str, RecordBatch> = BTreeMap::new();
        for planned in group.in_parts() {
            let source = planned.pipeline.sources[0].as_str();
            let rows: Option<Arc<dyn TableProvider>> = match computed.get(source) {
                Some(parts) => Some(Arc::new(MemTable::try_new(parts.schema(), vec![vec![parts.clone()]])?)),
                None => new_rows(state, planned)?,
            };
            if let Some(rows) = rows {
                computed.insert(&planned.spec.name, run_part(&ctx, planned, rows).await?);
            }
        }
        let samples = group.raw.spec.layout == Layout::Samples;
        for planned in group.in_parts() {
            let Some(rows) = computed.remove(planned.spec.name.as_str()) else { continue };
            let segment = planned.pipeline.shape.segment().expect("windowed pipelines have segments");
            let held = self.windows.entry((planned.spec.name.clone(), name.1)).or_default();
            // Of other events, all that are not committed were gone through once more.
            if !samples {
                held.clear();
            }
            for (start, rows) in segments(&rows, segment) {
                let all = match held.remove(&start) {
                    Some(before) => together(&ctx, &planned.spec, vec![before, rows]).await?,
                    None => rows,
                };
                held.insert(start, all);
            }
        }
        self.states.get_mut(name).expect("just read").samples.are_in_parts();
        Ok(())
    }
}

/// The group's rows that are in no part yet, as the pipeline's SQL sees them; `None` if there are
/// none.
fn new_rows(state: &GroupState, planned: &Planned) -> Result<Option<Arc<dyn TableProvider>>> {
    let raw = &state.raw().spec;
    if raw.layout != Layout::Samples {
        let rows = state.raw_rows_from(state.committed)?;
        return Ok(Some(Arc::new(MemTable::try_new(raw.full_schema(), vec![rows])?)));
    }
    let schema = sample_schema(raw, planned);
    let Some(rows) = state.samples.new_rows(state.partition, &schema) else { return Ok(None) };
    Ok(Some(Arc::new(StreamingTable::try_new(schema, vec![rows])?)))
}

/// The columns of samples that the pipeline reads.
fn sample_schema(raw: &TableSpec, planned: &Planned) -> SchemaRef {
    let Shape::Windowed { extent: Extent::Instant { time }, .. } = &planned.pipeline.shape else {
        unreachable!("only such windows are kept in parts")
    };
    let is_read = |name: &str| planned.reads.iter().any(|read| read == name) || time.contains(name);
    let mut fields: Vec<Field> = raw
        .columns
        .iter()
        .filter(|c| is_read(&c.name))
        .map(|c| Field::new(&c.name, c.data_type.clone(), true))
        .collect();
    let derived = planned.reads.iter().filter(|read| derived(read).is_some());
    fields.extend(derived.map(|name| Field::new(name, DataType::Int64, true)));
    Arc::new(Schema::new(fields))
}

/// Rows sorted by `window_start`, by the segment they are in.
fn segments(rows: &RecordBatch, segment: Segment) -> Vec<(i64, RecordBatch)> {
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>().values();
    let segments: BTreeSet<i64> = starts.iter().map(|start| segment.start(*start)).collect();
    split_segments(rows, segment, segments.into_iter())
}

/// Rows with those of one key put together, sorted by it; public columns.
async fn together(ctx: &SessionContext, spec: &TableSpec, rows: Vec<RecordBatch>) -> Result<RecordBatch> {
    let rows = parts::together(spec, ctx.read_batches(rows)?)?.collect().await?;
    Ok(sorted(&crate::batch::concat(&spec.public_schema(), &rows)?, &spec.key)?)
}
