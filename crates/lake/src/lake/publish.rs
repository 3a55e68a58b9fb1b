//! Publishing: recomputes dirty windows and overlays committed rows with those in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{AsArray, Int32Array, RecordBatch};
use arrow::datatypes::TimestampMicrosecondType;
use datafusion::catalog::TableProvider;
use datafusion::dataframe::DataFrame;
use datafusion::prelude::SessionContext;

use super::{Lake, Sharing};
use crate::catalog::full_rows::{FullRows, StoredTable};
use crate::catalog::overlay::{self, Overlay};
use crate::catalog::{Catalog, Stored, TableLag, build};
use crate::error::Result;
use crate::exec::merge;
use crate::exec::run::run_windowed;
use crate::pipeline::plan::Group;
use crate::state::KeyedState;
use crate::table::{Layout, TableSpec};
use crate::window::{Segment, runs};

/// Segments of windows that are recomputed at a time, at least.
const SEGMENTS_AT_ONCE: usize = 8;
/// Passes in which many dirty segments are recomputed. An import makes a year dirty: recomputed at
/// once, its windows take half a gigabyte. Each pass reads the group's rows again.
const PASSES: usize = 8;

/// Which rows of the tables a catalog shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Visibility {
    /// Committed rows, overlaid with those in memory.
    All,
    /// Committed rows only.
    Committed,
}

impl Lake {
    /// Recomputes the dirty windows of a group from its current rows.
    pub(super) async fn recompute_windows(&mut self, name: &(String, u32)) -> Result<()> {
        self.update_partials(name).await?;
        let state = &self.states[name];
        if state.dirty.iter().all(BTreeSet::is_empty) {
            return Ok(());
        }
        let (group, dirty, partition) = (state.group.clone(), state.dirty.clone(), state.partition);
        let sources = self.session();
        let read = std::iter::once(&group.raw.spec).chain(group.stored_keyed().map(|p| &p.spec));
        for spec in read.chain(group.with_partials().map(|p| &p.spec)) {
            self.register_partition(&sources, spec, partition).await?;
        }
        let views = self.plan.views.iter().filter(|v| v.root() == Some(&group.raw.spec.name));
        build::register_views(&sources, views, &BTreeMap::new(), BTreeMap::new()).await?;
        for (planned, dirty) in group.recomputed().zip(&dirty) {
            let segment = planned.pipeline.shape.segment().expect("windowed pipelines have segments");
            let source = sources.table_provider(planned.pipeline.sources[0].as_str()).await?;
            let mut segments: BTreeMap<i64, Vec<RecordBatch>> = BTreeMap::new();
            for run in runs(segment, dirty, dirty.len().div_ceil(PASSES).max(SEGMENTS_AT_ONCE)) {
                let rows = run_windowed(&self.session(), planned, Arc::clone(&source), run).await?;
                let dirty = dirty.range(run.0..run.1).copied();
                let found = split_segments(&rows, segment, dirty).into_iter();
                segments.extend(found.map(|(start, rows)| (start, vec![rows])));
            }
            self.windows.insert((planned.spec.name.clone(), partition), segments);
            // Wider windows may be computed from these.
            self.register_partition(&sources, &planned.spec, partition).await?;
        }
        Ok(())
    }

    /// Registers the rows of one log partition of a stored table in a session, all columns.
    async fn register_partition(
        &self,
        ctx: &SessionContext,
        spec: &Arc<TableSpec>,
        partition: u32,
    ) -> Result<()> {
        let mut rows = overlay::in_partition(self.stored_rows(ctx, spec).await?, partition)?;
        if !spec.partials.is_empty() {
            rows = merge::merge_rows(spec, rows)?;
        }
        ctx.register_table(spec.name.as_str(), rows.into_view())?;
        Ok(())
    }

    /// Committed rows and rows in memory of a stored table, all columns.
    async fn stored_rows(&self, ctx: &SessionContext, spec: &Arc<TableSpec>) -> Result<DataFrame> {
        let committed = Some(self.stores[&spec.name].provider().await?);
        overlay::overlaid(ctx, spec, committed, self.overlay(spec)?)
    }

    fn overlay(&self, spec: &TableSpec) -> Result<Overlay> {
        let mut overlay = Overlay::default();
        let changed = self.states.values().filter(|s| s.changed);
        for state in changed {
            let here = state.partition as i32;
            match spec.layout {
                Layout::Raw if state.raw().spec.name == spec.name => {
                    overlay.rows.extend(state.raw_rows_from(state.committed)?);
                    // Rows of an interrupted flush are committed already, and are being absorbed
                    // again.
                    if state.recover_to.is_some() {
                        overlay.hide.from.push((here, state.committed as i64));
                    }
                }
                Layout::Samples if state.raw().spec.name == spec.name => {
                    let samples = state.samples().expect("a group of samples");
                    overlay.streams.push(samples.stream(state.partition, &spec.full_schema()));
                    // As above.
                    if state.recover_to.is_some() {
                        overlay.hide.from.push((here, state.committed as i64));
                    }
                }
                Layout::Keyed => {
                    let Some(index) = state.group.keyed.iter().position(|p| p.spec.name == spec.name) else {
                        continue;
                    };
                    if let Some(rows) = state.open_output(index)? {
                        overlay.hide.open.push(here);
                        let revived = state.keyed().into_iter().flat_map(KeyedState::revived);
                        overlay.hide.keys.extend(revived.map(|key| (here, *key)));
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
                    // A partial aggregate adds to what is committed; a recomputed window replaces
                    // it.
                    if spec.partials.is_empty() {
                        let segment = windowed.pipeline.shape.segment().expect("windowed");
                        overlay.hide.segments.extend(segments.keys().map(|s| (here, segment.name(*s))));
                    }
                    for rows in segments.values().flatten() {
                        overlay.rows.push(with_bookkeeping(spec, rows, state.partition)?);
                    }
                }
                Layout::Raw | Layout::Samples => {}
            }
        }
        Ok(overlay)
    }

    /// Publishes a catalog of what is committed, overlaid with what is in memory.
    pub(super) async fn publish(&mut self) -> Result<()> {
        if self.is_repairing() {
            return Ok(());
        }
        let catalog = Arc::new(self.build_catalog(Visibility::All).await?);
        self.in_use.publish(&catalog);
        *self.published.write().unwrap_or_else(std::sync::PoisonError::into_inner) = catalog;
        Ok(())
    }

    /// Whether an interrupted flush is being repaired. Its tables stand at two offsets then, so
    /// nothing is published.
    pub(super) fn is_repairing(&self) -> bool {
        self.states.values().any(|state| state.changed && state.recover_to.is_some())
    }

    /// Builds a catalog of the tables as they are now.
    pub(super) async fn build_catalog(&self, shown: Visibility) -> Result<Catalog> {
        self.build_catalog_with(shown, &BTreeMap::new()).await
    }

    /// As [`Self::build_catalog`]; tables in `replaced`, with public columns, stand in for those of
    /// their name.
    pub(super) async fn build_catalog_with(
        &self,
        shown: Visibility,
        replaced: &BTreeMap<String, Arc<dyn TableProvider>>,
    ) -> Result<Catalog> {
        let ctx = self.session();
        // In a shared lake other processes own partitions too.
        let partitions = match self.sharing {
            Sharing::Exclusive => self.states.keys().map(|(_, p)| p + 1).max().unwrap_or(1),
            Sharing::Shared => u32::MAX,
        };
        let (mut stored, mut lag) = (Vec::new(), Vec::new());
        let mut places = BTreeMap::new();
        for spec in self.plan.groups.iter().flat_map(Group::commit_order) {
            let overlay = match shown {
                Visibility::All => self.overlay(&spec)?,
                Visibility::Committed => Overlay::default(),
            };
            places.insert(spec.name.clone(), self.stored(&spec, partitions, overlay.clone()));
            let rows = match replaced.get(&spec.name) {
                Some(rows) => FullRows::of(&ctx, Arc::clone(rows)),
                None => self.full_rows(&ctx, &spec, overlay).await?,
            };
            stored.push(StoredTable { spec, rows, partitions });
        }
        for planned in self.plan.stored_joined() {
            let spec = &planned.spec;
            places.insert(spec.name.clone(), self.stored(spec, 1, Overlay::default()));
            let rows = self.full_rows(&ctx, spec, Overlay::default()).await?;
            stored.push(StoredTable { spec: Arc::clone(spec), rows, partitions: 1 });
            lag.push(TableLag::new(planned, &self.stores[&spec.name].pending().await?));
        }
        let mut catalog = build::public_catalog(&self.runtime, &self.plan, stored, lag, replaced).await?;
        // Tables that others stand in for are nowhere to be opened.
        if replaced.is_empty() {
            catalog.stored = places;
        }
        Ok(catalog)
    }

    async fn full_rows(
        &self,
        ctx: &SessionContext,
        spec: &Arc<TableSpec>,
        overlay: Overlay,
    ) -> Result<FullRows> {
        let committed = self.stores[&spec.name].provider().await?;
        Ok(FullRows::overlaid(ctx, spec, Some(committed), overlay))
    }

    fn stored(&self, spec: &TableSpec, partitions: u32, overlay: Overlay) -> Stored {
        Stored { version: self.stores[&spec.name].version(), partitions, overlay }
    }
}

/// Cuts rows sorted by `window_start` into segments. A segment without rows gets an empty batch.
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

/// Adds bookkeeping columns to window rows that are not committed, for queries on the full table.
fn with_bookkeeping(spec: &TableSpec, rows: &RecordBatch, partition: u32) -> Result<RecordBatch> {
    let mut columns = rows.columns().to_vec();
    let schema = spec.full_schema();
    columns.push(Arc::new(Int32Array::from_value(partition as i32, rows.num_rows())));
    for field in &schema.fields()[columns.len()..] {
        columns.push(arrow::array::new_null_array(field.data_type(), rows.num_rows()));
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}
