//! Updates partial aggregates with the rows that arrived since the last commit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimestampMicrosecondType};
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::datasource::MemTable;

use super::Lake;
use super::publish::split_segments;
use crate::error::Result;
use crate::exec::merge;
use crate::exec::run::run_partial;
use crate::pipeline::definition::{Extent, Shape};
use crate::pipeline::plan::Planned;
use crate::raw::samples::metrics::derived_column;
use crate::state::GroupState;
use crate::table::{Layout, TableSpec};
use crate::window::Segment;

/// Parts of a segment's partial aggregates that are held before they are merged. Refreshes come
/// twice a second and a commit every ten; each merge costs as much as all rows of the segment.
const MAX_PARTS: usize = 32;

impl Lake {
    /// Aggregates what a group absorbed since the last time, and adds it to the partial aggregates
    /// that are not committed.
    pub(super) async fn update_partials(&mut self, name: &(String, u32)) -> Result<()> {
        let state = &self.states[name];
        let group = state.group.clone();
        let ctx = self.session();
        let mut computed: BTreeMap<&str, RecordBatch> = BTreeMap::new();
        for planned in group.with_partials() {
            let source = planned.pipeline.sources[0].as_str();
            let rows: Option<Arc<dyn TableProvider>> = match computed.get(source) {
                Some(parts) => Some(Arc::new(MemTable::try_new(parts.schema(), vec![vec![parts.clone()]])?)),
                None => rows_to_aggregate(state, planned)?,
            };
            if let Some(rows) = rows {
                computed.insert(&planned.spec.name, run_partial(&ctx, planned, rows).await?);
            }
        }
        let samples = group.raw.spec.layout == Layout::Samples;
        for planned in group.with_partials() {
            let Some(rows) = computed.remove(planned.spec.name.as_str()) else { continue };
            let segment = planned.pipeline.shape.segment().expect("windowed pipelines have segments");
            let held = self.windows.entry((planned.spec.name.clone(), name.1)).or_default();
            // For other events, all uncommitted rows were aggregated again.
            if !samples {
                held.clear();
            }
            for (start, rows) in by_segment(&rows, segment) {
                let parts = held.entry(start).or_default();
                parts.push(rows);
                if parts.len() >= MAX_PARTS {
                    *parts = vec![merge::merge_batches(&ctx, &planned.spec, std::mem::take(parts)).await?];
                }
            }
        }
        if let Some(samples) = self.states.get_mut(name).expect("just read").samples_mut() {
            samples.mark_aggregated();
        }
        Ok(())
    }
}

/// The group's rows that are in no partial aggregate yet, as the pipeline's SQL sees them; `None`
/// if there are none.
fn rows_to_aggregate(state: &GroupState, planned: &Planned) -> Result<Option<Arc<dyn TableProvider>>> {
    let raw = &state.raw().spec;
    let Some(samples) = state.samples() else {
        let rows = state.raw_rows_from(state.committed)?;
        return Ok(Some(Arc::new(MemTable::try_new(raw.full_schema(), vec![rows])?)));
    };
    let schema = sample_schema(raw, planned);
    let Some(rows) = samples.not_aggregated(state.partition, &schema) else { return Ok(None) };
    Ok(Some(Arc::new(StreamingTable::try_new(schema, vec![rows])?)))
}

/// The columns of samples that the pipeline reads.
fn sample_schema(raw: &TableSpec, planned: &Planned) -> SchemaRef {
    let Shape::Windowed { extent: Extent::Instant { time }, .. } = &planned.pipeline.shape else {
        unreachable!("only such windows are partial aggregates")
    };
    let is_read = |name: &str| planned.columns_read.iter().any(|read| read == name) || time.contains(name);
    let mut fields: Vec<Field> = raw
        .columns
        .iter()
        .filter(|c| is_read(&c.name))
        .map(|c| Field::new(&c.name, c.data_type.clone(), true))
        .collect();
    let derived = planned.columns_read.iter().filter(|read| derived_column(read).is_some());
    fields.extend(derived.map(|name| Field::new(name, DataType::Int64, true)));
    Arc::new(Schema::new(fields))
}

/// Rows sorted by `window_start`, split by segment.
fn by_segment(rows: &RecordBatch, segment: Segment) -> Vec<(i64, RecordBatch)> {
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>().values();
    let segments: BTreeSet<i64> = starts.iter().map(|start| segment.start(*start)).collect();
    split_segments(rows, segment, segments.into_iter())
}
