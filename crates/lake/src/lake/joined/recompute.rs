//! Executor of joined tables: recomputes windows from the committed tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{AsArray, BooleanArray, RecordBatch};
use arrow::compute::filter_record_batch;
use arrow::datatypes::TimestampMicrosecondType;
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;

use super::super::publish::split_segments;
use super::super::revision::revise_segment;
use super::super::segments::CommittedSegments;
use super::plan::{Segments, width_us};
use super::too_long::TooLong;
use crate::batch::sort::sorted;
use crate::batch::{concat, conform};
use crate::catalog::Catalog;
use crate::delta::{DataFile, DeltaStore};
use crate::error::{LakeError, Result};
use crate::exec::run::run_joined;
use crate::pipeline::plan::{Plan, Planned};
use crate::pipeline::rollup::START as WINDOW_START;
use crate::table::{PARTITION, SEGMENT};
use crate::window::{Segment, Span, floor_to, merge_spans};

/// What windows are computed from: the committed tables in the versions that the progress names.
pub(super) struct Inputs {
    pub catalog: Catalog,
    /// The windows of this span, µs, are computed from this one: it has the same rows for them, and
    /// less of history.
    pub balance: Option<(Span, Catalog)>,
    /// Watermark of each cluster, µs.
    pub watermarks: BTreeMap<String, i64>,
}

impl Inputs {
    /// The catalog for windows that begin in `[low, high)`, µs.
    fn catalog_for(&self, (low, high): Span) -> &Catalog {
        match &self.balance {
            Some(((from, until), balance)) if low >= *from && high <= *until => balance,
            _ => &self.catalog,
        }
    }

    /// Start of the first window that the watermark has not passed, µs.
    fn open_from(&self, width: i64) -> i64 {
        self.watermarks.values().copied().max().map_or(i64::MAX, |watermark| floor_to(watermark, width))
    }
}

/// Recomputes windows of one joined table.
pub(super) struct Recompute<'a> {
    pub planned: &'a Planned,
    pub plan: &'a Plan,
    pub store: &'a DeltaStore,
    pub inputs: &'a Inputs,
    /// Watermark when joined tables were last up to date, µs.
    pub closed_before: Option<i64>,
    /// Spans that are halved without a try.
    pub too_long: &'a TooLong,
    /// Makes a session without tables.
    pub session: &'a (dyn Fn() -> SessionContext + Send + Sync),
}

impl Recompute<'_> {
    /// Recomputes the windows of these spans. Returns the files to add and those they replace.
    pub async fn run(&self, segment: Segment, segments: &Segments) -> Result<(Vec<DataFile>, Vec<DataFile>)> {
        if segments.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let planned = self.planned;
        let width = width_us(planned);
        let spans = merge_spans(segments.iter().flat_map(|(_, spans)| spans.clone()).collect(), width);
        let mut computed: BTreeMap<i64, Vec<RecordBatch>> = BTreeMap::new();
        for (from, to) in &spans {
            let bounds = (floor_to(*from, width), floor_to(*to, width) + width);
            let starts: BTreeSet<i64> = segments.iter().map(|(start, _)| *start).collect();
            for rows in self.windows_within_memory(bounds).await? {
                let here = starts.range(segment.start(*from)..=*to).copied();
                for (start, rows) in split_segments(&rows, segment, here) {
                    computed.entry(start).or_default().push(rows);
                }
            }
        }
        let mut adds = Vec::new();
        let mut committed = CommittedSegments::new(self.store, segment, self.store.files()?);
        for (start, spans) in segments {
            let old = committed.rows(*start, |file| meets(file, spans, width)).await?;
            let mut rows = computed.remove(start).unwrap_or_default();
            for batch in &old {
                rows.push(outside(&conform(batch, &planned.spec.public_schema())?, spans, width)?);
            }
            // Windows come in order, each sorted: only committed rows may lie between them.
            let mut rows = concat(&planned.spec.public_schema(), &rows)?;
            if !old.is_empty() {
                rows = sorted(&rows, &planned.spec.key)?;
            }
            let shape = &planned.pipeline.shape;
            let Some(rows) = revise_segment(shape, &planned.spec, &rows, &old, self.closed_before)? else {
                continue;
            };
            // The next update replaces the open windows. Apart from the others, those are not read
            // and written again.
            let (closed, open) = split_open(&rows, self.inputs.open_from(width));
            for rows in [closed, open] {
                let values = vec![(PARTITION, "0".to_owned()), (SEGMENT, segment.name(*start))];
                adds.extend(self.store.write(values, &[rows]).await?);
            }
            committed.replace(*start);
        }
        let (left, removes) = committed.finish().await?;
        adds.extend(left);
        Ok((adds, removes))
    }

    /// Rows of the windows that begin in `[low, high)`. A span that does not fit into memory is
    /// halved until it does: a day of a large fleet may be too much, and the size of the result is
    /// not known beforehand.
    async fn windows_within_memory(&self, (low, high): Span) -> Result<Vec<RecordBatch>> {
        let table = &self.planned.spec.name;
        let (mut pieces, mut left) = (Vec::new(), vec![(low, high)]);
        while let Some((low, high)) = left.pop() {
            let middle = low + floor_to((high - low) / 2, width_us(self.planned));
            if middle > low && self.too_long.has(table, high - low, Instant::now()) {
                left.extend([(middle, high), (low, middle)]);
                continue;
            }
            match self.windows((low, high)).await {
                Err(LakeError::Query(e)) if is_out_of_memory(&e) && middle > low => {
                    tracing::debug!(table, low, high, "out of memory: span halved");
                    self.too_long.note(table, high - low, Instant::now());
                    left.extend([(middle, high), (low, middle)]);
                }
                rows => pieces.push(rows?),
            }
        }
        Ok(pieces)
    }

    /// Rows of the windows that begin in `[low, high)`. Steps that are not stored are computed
    /// first, each once.
    async fn windows(&self, bounds: Span) -> Result<RecordBatch> {
        let begun = Instant::now();
        let mut wanted: BTreeSet<&str> = self.planned.pipeline.sources.iter().map(String::as_str).collect();
        let steps = self.plan.joined.iter().rev().filter(|step| {
            let is_wanted = !step.pipeline.stored && wanted.contains(step.spec.name.as_str());
            if is_wanted {
                wanted.extend(step.pipeline.sources.iter().map(String::as_str));
            }
            is_wanted
        });
        let steps: Vec<&Planned> = steps.collect();
        let mut computed: BTreeMap<&str, Arc<dyn TableProvider>> = BTreeMap::new();
        for step in steps.into_iter().rev().chain([self.planned]) {
            let mut sources = Vec::new();
            for name in &step.pipeline.sources {
                let table = computed
                    .get(name.as_str())
                    .or_else(|| self.inputs.catalog_for(bounds).tables.get(name))
                    .ok_or_else(|| {
                        LakeError::Refused(format!(
                            "table {name} cannot be read, so {} cannot be computed",
                            step.spec.name
                        ))
                    })?;
                sources.push((name.as_str(), Arc::clone(table)));
            }
            let rows = run_joined(&(self.session)(), step, &sources, bounds, &self.inputs.watermarks).await?;
            if step.spec.name == self.planned.spec.name {
                let (table, balance) = (&step.spec.name, self.inputs.balance.as_ref().map(|(span, _)| *span));
                tracing::debug!(table, ?bounds, ?balance, took = ?begun.elapsed(), "recomputed");
                return Ok(rows);
            }
            let table = MemTable::try_new(rows.schema(), vec![vec![rows]])?;
            computed.insert(&step.spec.name, Arc::new(table));
        }
        unreachable!("the last step is the pipeline itself")
    }
}

fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Whether a file may hold windows that begin in one of the spans.
fn meets(file: &DataFile, spans: &[Span], width: i64) -> bool {
    let (first, last) = file.time_range(WINDOW_START);
    spans.iter().any(|(from, to)| {
        last.is_none_or(|last| last >= floor_to(*from, width)) && first.is_none_or(|first| first <= *to)
    })
}

/// Divides rows, sorted by window, into those before `open_from` and the others.
fn split_open(rows: &RecordBatch, open_from: i64) -> (RecordBatch, RecordBatch) {
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>().values();
    let closed = starts.partition_point(|start| *start < open_from);
    (rows.slice(0, closed), rows.slice(closed, rows.num_rows() - closed))
}

/// The rows whose windows begin in none of the spans.
fn outside(rows: &RecordBatch, spans: &[Span], width: i64) -> Result<RecordBatch> {
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>().values();
    let is_outside =
        |start: &i64| !spans.iter().any(|(from, to)| floor_to(*from, width) <= *start && start <= to);
    let keep: BooleanArray = starts.iter().map(|start| Some(is_outside(start))).collect();
    Ok(filter_record_batch(rows, &keep)?)
}
