//! What queries see: windows computed anew, and rows in memory laid over the committed ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{AsArray, Int32Array, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use datafusion::dataframe::DataFrame;
use datafusion::logical_expr::Expr;
use datafusion::prelude::{SessionContext, ident, lit};

use super::{Lake, Sharing};
use crate::catalog::{self, Catalog, Overlay};
use crate::error::Result;
use crate::exec::run_windowed;
use crate::parts;
use crate::plan::Group;
use crate::table::{Layout, OFFSET, OPEN, PARTITION, TableSpec};
use crate::window::{Segment, runs};

/// Which rows of the tables a catalog shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// Committed ones, with those in memory laid over them.
    All,
    Committed,
}

impl Lake {
    /// Computes the windows anew that a group's new events touch, from its rows as they are now.
    pub(super) async fn recompute_windows(&mut self, name: &(String, u32)) -> Result<()> {
        self.add_parts(name).await?;
        let state = &self.states[name];
        if state.dirty.iter().all(BTreeSet::is_empty) {
            return Ok(());
        }
        let (group, dirty, partition) = (state.group.clone(), state.dirty.clone(), state.partition);
        let sources = self.session();
        let read = std::iter::once(&group.raw.spec).chain(group.stored_keyed().map(|p| &p.spec));
        for spec in read.chain(group.in_parts().map(|p| &p.spec)) {
            self.register_partition(&sources, spec, partition).await?;
        }
        let views = self.plan.views.iter().filter(|v| v.root() == Some(&group.raw.spec.name));
        catalog::register_views(&sources, views).await?;
        for (planned, dirty) in group.computed_anew().zip(&dirty) {
            let segment = planned.pipeline.shape.segment().expect("windowed pipelines have segments");
            let source = sources.table_provider(planned.pipeline.sources[0].as_str()).await?;
            let mut segments: BTreeMap<i64, RecordBatch> = BTreeMap::new();
            for run in runs(segment, dirty) {
                let rows = run_windowed(&self.session(), planned, Arc::clone(&source), run).await?;
                segments.extend(split_segments(&rows, segment, dirty.range(run.0..run.1).copied()));
            }
            self.windows.insert((planned.spec.name.clone(), partition), segments);
            // Wider windows may be computed from these.
            self.register_partition(&sources, &planned.spec, partition).await?;
        }
        Ok(())
    }

    /// Makes the rows of one log partition of a stored table readable in a session, all columns.
    async fn register_partition(
        &self,
        ctx: &SessionContext,
        spec: &Arc<TableSpec>,
        partition: u32,
    ) -> Result<()> {
        let mut rows = catalog::of_partition(self.stored_rows(ctx, spec).await?, partition)?;
        if !spec.parts.is_empty() {
            rows = parts::together(spec, rows)?;
        }
        ctx.register_table(spec.name.as_str(), rows.into_view())?;
        Ok(())
    }

    /// Committed rows and rows in memory of a stored table, all columns.
    async fn stored_rows(&self, ctx: &SessionContext, spec: &Arc<TableSpec>) -> Result<DataFrame> {
        let provider = self.stores[&spec.name].provider().await?;
        catalog::with_overlay(ctx, spec, Some(provider), self.overlay(spec)?)
    }

    fn overlay(&self, spec: &TableSpec) -> Result<Overlay> {
        let mut overlay = Overlay::default();
        let mut hide =
            |what: Expr| overlay.hide = Some(overlay.hide.take().map_or(what.clone(), |h| h.or(what)));
        let changed = self.states.values().filter(|s| s.changed);
        for state in changed {
            let here = ident(PARTITION).eq(lit(state.partition as i32));
            match spec.layout {
                Layout::Raw if state.raw().spec.name == spec.name => {
                    overlay.rows.extend(state.raw_rows_from(state.committed)?);
                    // Rows of an interrupted flush are committed already and are taken in again
                    // right now.
                    if state.recover_to.is_some() {
                        hide(here.and(ident(OFFSET).gt_eq(lit(state.committed as i64))));
                    }
                }
                Layout::Samples if state.raw().spec.name == spec.name => {
                    overlay.streams.push(state.samples.stream(state.partition, &spec.full_schema()));
                    // As above.
                    if state.recover_to.is_some() {
                        hide(here.and(ident(OFFSET).gt_eq(lit(state.committed as i64))));
                    }
                }
                Layout::Keyed => {
                    let Some(index) = state.group.keyed.iter().position(|p| p.spec.name == spec.name) else {
                        continue;
                    };
                    if let Some(rows) =
                        state.outputs.get(index).map(|_| state.open_output(index)).transpose()?
                    {
                        hide(here.and(ident(OPEN)));
                        overlay
                            .hide_keys
                            .extend(state.revived.iter().map(|key| (state.partition as i32, *key)));
                        overlay.rows.extend(rows);
                    }
                }
                Layout::Windowed => {
                    let Some(windowed) = state.group.windowed.iter().find(|p| p.spec.name == spec.name)
                    else {
                        continue;
                    };
                    let Some(segments) = self.windows.get(&(spec.name.clone(), state.partition)) else {
                        continue;
                    };
                    // A part comes beside what is committed, a window that was computed anew in its
                    // place.
                    if spec.parts.is_empty() {
                        let segment = windowed.pipeline.shape.segment().expect("windowed");
                        let names = segments.keys().map(|s| (state.partition as i32, segment.name(*s)));
                        overlay.hide_segments.extend(names);
                    }
                    for rows in segments.values() {
                        overlay.rows.push(windowed_full(spec, rows, state.partition)?);
                    }
                }
                Layout::Raw | Layout::Samples => {}
            }
        }
        Ok(overlay)
    }

    /// Shows queries what is committed and what lies over it.
    pub(super) async fn publish(&mut self) -> Result<()> {
        if self.is_repairing() {
            return Ok(());
        }
        let catalog = Arc::new(self.catalog_of(Rows::All).await?);
        *self.published.write().unwrap_or_else(std::sync::PoisonError::into_inner) = catalog;
        Ok(())
    }

    /// Whether an interrupted flush is being repaired: the tables stand at two offsets then, and
    /// none of that is shown.
    pub(super) fn is_repairing(&self) -> bool {
        self.states.values().any(|state| state.changed && state.recover_to.is_some())
    }

    /// The tables as they stand now.
    pub(super) async fn catalog_of(&self, shown: Rows) -> Result<Catalog> {
        let ctx = self.session();
        // Of a shared lake the other processes have partitions too.
        let partitions = match self.sharing {
            Sharing::Alone => self.states.keys().map(|(_, p)| p + 1).max().unwrap_or(1),
            Sharing::Shared => u32::MAX,
        };
        let mut stored = Vec::new();
        for spec in self.plan.groups.iter().flat_map(Group::commit_order) {
            let rows = match shown {
                Rows::All => self.stored_rows(&ctx, &spec).await?,
                Rows::Committed => self.committed_rows(&ctx, &spec).await?,
            };
            stored.push((spec, rows, partitions));
        }
        for planned in self.plan.stored_joined() {
            stored.push((Arc::clone(&planned.spec), self.committed_rows(&ctx, &planned.spec).await?, 1));
        }
        catalog::build(&self.runtime, &self.plan, stored).await
    }

    async fn committed_rows(&self, ctx: &SessionContext, spec: &TableSpec) -> Result<DataFrame> {
        let committed = Some(self.stores[&spec.name].provider().await?);
        catalog::with_overlay(ctx, spec, committed, Overlay::default())
    }
}

/// Cuts rows sorted by `window_start` into segments; a segment without rows gets an empty batch.
pub(super) fn split_segments(
    rows: &RecordBatch,
    segment: Segment,
    wanted: impl Iterator<Item = i64>,
) -> Vec<(i64, RecordBatch)> {
    let starts = rows.column(0).as_primitive::<TimestampMicrosecondType>().values();
    let cut = |start: i64| {
        let from = starts.partition_point(|t| *t < start);
        let to = starts.partition_point(|t| *t < segment.next(start));
        (start, rows.slice(from, to - from))
    };
    wanted.map(cut).collect()
}

/// Window rows with their bookkeeping columns as queries on the full table see them before they are
/// committed.
fn windowed_full(spec: &TableSpec, rows: &RecordBatch, partition: u32) -> Result<RecordBatch> {
    let mut columns = rows.columns().to_vec();
    let schema = spec.full_schema();
    columns.push(Arc::new(Int32Array::from_value(partition as i32, rows.num_rows())));
    for field in &schema.fields()[columns.len()..] {
        columns.push(arrow::array::new_null_array(field.data_type(), rows.num_rows()));
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}
