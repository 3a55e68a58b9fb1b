//! The lake: takes events in, keeps every table up to date, commits, and shows a consistent catalog to queries.
//!
//! Progress and state live in the tables themselves. One flush commits the tables of a group one after the other, the
//! anchor last, each with the log offset it now stands at. If the process dies in between, the tables already committed
//! are ahead of the anchor; on restart exactly that stretch of the log is taken in again and only the tables that are
//! behind are committed. Nothing else is kept anywhere, so there is nothing else that could disagree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use arrow::array::{ArrayRef, AsArray, Int32Array, Int64Array, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::{Expr, JoinType};
use datafusion::prelude::{SessionContext, ident, lit};
use futures::StreamExt;
use url::Url;

pub use crate::catalog::Catalog;
use crate::catalog::{self, Overlay};
use crate::delta::{DataFile, DeltaStore};
use crate::error::{LakeError, Result};
use crate::exec::{self, Limits, run_windowed};
use crate::group::GroupState;
use crate::intake::Intake;
use crate::plan::{Group, Plan};
use crate::revision::revise;
use crate::table::{KEY, Layout, OFFSET, OPEN, PARTITION, SEGMENT, TableSpec};
use crate::window::{Segment, runs};

/// A group that saw nothing new still notes its progress when it is this many records behind.
const IDLE_PROGRESS: u64 = 1_000;

/// What a flush did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flushed {
    pub commits: u64,
    pub files_added: u64,
    pub bytes_added: u64,
}

/// The lake, opened for writing by one process.
pub struct Lake {
    plan: Plan,
    limits: Limits,
    runtime: Arc<RuntimeEnv>,
    stores: BTreeMap<String, DeltaStore>,
    /// Per raw table and log partition.
    states: BTreeMap<(String, u32), GroupState>,
    /// Windows recomputed and not committed: (windowed table, partition) → segment → rows, public columns.
    windows: BTreeMap<(String, u32), BTreeMap<i64, RecordBatch>>,
    published: Arc<RwLock<Arc<Catalog>>>,
    /// For tests: commits left until the next flush fails as if the process had died.
    interrupt_after: Option<u64>,
}

impl std::fmt::Debug for Lake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lake").field("tables", &self.stores.keys()).finish()
    }
}

/// Where queries get the newest catalog from.
#[derive(Debug, Clone)]
pub struct CatalogSource {
    published: Arc<RwLock<Arc<Catalog>>>,
}

impl CatalogSource {
    /// A catalog that does not change.
    pub fn fixed(catalog: Catalog) -> Self {
        Self { published: Arc::new(RwLock::new(Arc::new(catalog))) }
    }

    pub fn current(&self) -> Arc<Catalog> {
        Arc::clone(&self.published.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// The committed tables below `root`, for readers that do not write: no lock is taken and nothing is created.
pub async fn committed_catalog(root: &Url, plan: &Plan, limits: Limits) -> Result<Catalog> {
    let ctx = exec::session(&exec::runtime(limits)?, limits);
    let mut stored = Vec::new();
    for spec in plan.groups.iter().flat_map(Group::commit_order) {
        let store = DeltaStore::open(root, Arc::clone(&spec)).await?;
        let (provider, partitions) = match &store {
            Some(store) => (Some(store.provider().await?), partition_count(store)?),
            None => (None, 0),
        };
        let rows = catalog::with_overlay(&ctx, &spec, provider, Overlay::default())?;
        stored.push((spec, rows, partitions));
    }
    catalog::build(&ctx, plan, stored).await
}

/// Opens the tables of a group, creating all of them in a new lake. A single one that is missing is a pipeline that was
/// added later: started now it would only see new events, so that is refused.
async fn open_group(root: &Url, group: &Group) -> Result<Vec<(String, DeltaStore)>> {
    let mut found = Vec::new();
    for spec in group.commit_order() {
        found.push((Arc::clone(&spec), DeltaStore::open(root, spec).await?));
    }
    let in_use = found.iter().any(|(_, store)| store.as_ref().is_some_and(|s| s.version() > 0));
    let missing: Vec<&str> =
        found.iter().filter(|(_, store)| store.is_none()).map(|(spec, _)| spec.name.as_str()).collect();
    if in_use && !missing.is_empty() {
        return Err(LakeError::Refused(format!(
            "{} is new in this data folder, which holds history already; run `tidegate pipeline backfill` (with the same \
             --data and --pipelines) to compute every table from the log",
            missing.join(", ")
        )));
    }
    let mut stores = Vec::new();
    for (spec, store) in found {
        let store = match store {
            Some(store) => store,
            None => DeltaStore::open_or_create(root, Arc::clone(&spec)).await?,
        };
        stores.push((spec.name.clone(), store));
    }
    Ok(stores)
}

fn partition_count(store: &DeltaStore) -> Result<u32> {
    let files = store.files()?;
    let partitions: BTreeSet<&str> = files.iter().filter_map(|f| f.partition_value(PARTITION)).collect();
    Ok(partitions.len() as u32)
}

impl Lake {
    /// Opens every table below `root`, creating those that are missing.
    pub async fn open(root: &Url, plan: Plan, limits: Limits) -> Result<Self> {
        let mut stores = BTreeMap::new();
        for group in &plan.groups {
            stores.extend(open_group(root, group).await?);
        }
        let runtime = exec::runtime(limits)?;
        let mut lake = Self {
            plan,
            limits,
            runtime,
            stores,
            states: BTreeMap::new(),
            windows: BTreeMap::new(),
            published: Arc::default(),
            interrupt_after: None,
        };
        lake.publish().await?;
        Ok(lake)
    }

    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Where queries get their tables from.
    pub fn catalog(&self) -> CatalogSource {
        CatalogSource { published: Arc::clone(&self.published) }
    }

    /// State of the groups, for status displays.
    pub fn states(&self) -> impl Iterator<Item = &GroupState> {
        self.states.values()
    }

    /// The lake's own work runs on one thread per query: it costs the least CPU, which the jobs beside it get.
    fn session(&self) -> SessionContext {
        exec::session(&self.runtime, Limits { threads: 1, ..self.limits })
    }

    /// Makes ready to take in a log partition. Returns the offset to read from.
    pub async fn attach(&mut self, topic: &str, partition: u32) -> Result<u64> {
        let mut start = u64::MAX;
        for group in self.plan.groups.clone() {
            if group.raw.schema.topic() != topic {
                continue;
            }
            let mut progress = Vec::new();
            for spec in group.commit_order() {
                progress.push(self.store_mut(&spec.name).progress(partition).await?);
            }
            let anchor = *progress.last().expect("a group has a raw table");
            let furthest = progress.iter().copied().max().unwrap_or(anchor);
            let mut state =
                GroupState::new(group, partition, anchor, (furthest > anchor).then_some(furthest));
            self.load(&mut state).await?;
            start = start.min(anchor);
            self.states.insert((state.raw().spec.name.clone(), partition), state);
        }
        self.publish().await?;
        Ok(if start == u64::MAX { 0 } else { start })
    }

    /// Reads the state of a group back from its tables, as of the anchor's offset.
    async fn load(&self, state: &mut GroupState) -> Result<()> {
        if state.committed == 0 {
            return Ok(());
        }
        let ctx = self.session();
        let raw = &self.stores[&state.raw().spec.name];
        ctx.register_table("raw", raw.provider().await?)?;
        let committed = format!("{PARTITION} = {} AND {OFFSET} < {}", state.partition, state.committed);
        let watermarks =
            format!("SELECT cluster, max(event_time) AS at FROM raw WHERE {committed} GROUP BY cluster");
        for batch in ctx.sql(&watermarks).await?.collect().await? {
            let clusters = arrow::compute::cast(batch.column(0), &arrow::datatypes::DataType::Utf8View)?;
            let times = batch.column(1).as_primitive::<TimestampMicrosecondType>();
            for (cluster, time) in clusters.as_string_view().iter().zip(times) {
                state.remember_watermark(cluster.unwrap_or_default(), time.unwrap_or(i64::MIN));
            }
        }
        let mut keys =
            ctx.sql(&format!("SELECT {KEY} FROM raw WHERE {committed}")).await?.execute_stream().await?;
        while let Some(batch) = keys.next().await {
            batch?
                .column(0)
                .as_primitive::<Int64Type>()
                .iter()
                .flatten()
                .for_each(|key| state.remember_key(key));
        }
        if let Some(anchor) = state.group.stored_keyed().last() {
            ctx.register_table("anchor", self.stores[&anchor.spec.name].provider().await?)?;
            let open = format!("SELECT {KEY} FROM anchor WHERE {PARTITION} = {} AND {OPEN}", state.partition);
            let events = format!("SELECT * FROM raw WHERE {committed} AND {KEY} IN ({open})");
            for batch in ctx.sql(&events).await?.collect().await? {
                state.revive(crate::batch::conform(&batch, &state.raw().spec.full_schema())?, true);
            }
        }
        Ok(())
    }

    /// What takes in the decoded events of a log partition, to be handed to [`Self::absorb`].
    pub fn intake(&self, topic: &str, partition: u32) -> Intake {
        let here =
            self.states.values().filter(|s| s.partition == partition && s.raw().schema.topic() == topic);
        Intake::new(partition, here)
    }

    /// Takes in the records of a log partition up to `end`. Queries see them after [`Self::refresh`].
    pub fn absorb(&mut self, intake: Intake, end: u64) -> Result<()> {
        let partition = intake.partition;
        for (table, rows) in intake.finish() {
            let state =
                self.states.get_mut(&(table, partition)).expect("an intake is of attached partitions");
            for (batch, facts) in rows {
                state.absorb(batch, facts)?;
            }
            state.absorbed = state.absorbed.max(end);
        }
        Ok(())
    }

    /// Takes in events that waited because their keys may be finished and in the lake: those keys come back first.
    async fn absorb_waiting(&mut self) -> Result<()> {
        let waiting: Vec<(String, u32)> =
            self.states.iter().filter(|(_, s)| s.has_waiting()).map(|(name, _)| name.clone()).collect();
        for name in waiting {
            let state = &self.states[&name];
            let committed = self.committed_events(state, &state.waiting_keys()).await?;
            self.states.get_mut(&name).expect("just listed").absorb_waiting(committed)?;
        }
        Ok(())
    }

    /// Committed events of the keys.
    async fn committed_events(&self, state: &GroupState, keys: &BTreeSet<i64>) -> Result<Vec<RecordBatch>> {
        let ctx = self.session();
        let schema = state.raw().spec.full_schema();
        ctx.register_table("raw", self.stores[&state.raw().spec.name].provider().await?)?;
        // A join, not a list of literals: the scan turns a list into nested ORs, and thousands of them overflow the stack.
        let wanted: ArrayRef = Arc::new(keys.iter().copied().collect::<Int64Array>());
        let wanted = ctx.read_batch(RecordBatch::try_from_iter([("wanted", wanted)])?)?;
        let committed = ident(PARTITION)
            .eq(lit(state.partition as i32))
            .and(ident(OFFSET).lt(lit(state.committed as i64)));
        let rows = ctx
            .table("raw")
            .await?
            .filter(committed)?
            .join(wanted, JoinType::LeftSemi, &[KEY], &["wanted"], None)?
            .collect()
            .await?;
        rows.iter().map(|batch| Ok(crate::batch::conform(batch, &schema)?)).collect()
    }

    /// Folds what was taken in, recomputes the windows it touches, and shows the result to queries.
    pub async fn refresh(&mut self) -> Result<()> {
        self.absorb_waiting().await?;
        let ctx = self.session();
        let dirty: Vec<(String, u32)> =
            self.states.iter().filter(|(_, s)| s.changed).map(|(k, _)| k.clone()).collect();
        let started = std::time::Instant::now();
        for name in &dirty {
            self.states.get_mut(name).expect("just listed").fold(&ctx).await?;
        }
        let folded = started.elapsed();
        for name in &dirty {
            self.recompute_windows(name).await?;
        }
        let recomputed = started.elapsed();
        self.publish().await?;
        tracing::debug!(?folded, windows = ?(recomputed - folded), publish = ?(started.elapsed() - recomputed), "refreshed");
        Ok(())
    }

    async fn recompute_windows(&mut self, name: &(String, u32)) -> Result<()> {
        let state = &self.states[name];
        if state.dirty.iter().all(BTreeSet::is_empty) {
            return Ok(());
        }
        let (group, dirty, partition) = (state.group.clone(), state.dirty.clone(), state.partition);
        let sources = self.session();
        for spec in std::iter::once(&group.raw.spec).chain(group.stored_keyed().map(|p| &p.spec)) {
            self.register_partition(&sources, spec, partition).await?;
        }
        let views = self.plan.views.iter().filter(|v| v.root.as_ref() == Some(&group.raw.spec.name));
        catalog::register_views(&sources, views).await?;
        for (planned, dirty) in group.windowed.iter().zip(&dirty) {
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
        let rows = self.stored_rows(ctx, spec).await?;
        ctx.register_table(spec.name.as_str(), catalog::of_partition(rows, partition)?.into_view())?;
        Ok(())
    }

    /// Committed rows and rows in memory of a stored table, all columns.
    async fn stored_rows(
        &self,
        ctx: &SessionContext,
        spec: &Arc<TableSpec>,
    ) -> Result<datafusion::dataframe::DataFrame> {
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
                    // Rows of an interrupted flush are committed already and are taken in again right now.
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
                    let segment = windowed.pipeline.shape.segment().expect("windowed");
                    let names = segments.keys().map(|s| (state.partition as i32, segment.name(*s)));
                    overlay.hide_segments.extend(names);
                    for rows in segments.values() {
                        overlay.rows.push(windowed_full(spec, rows, state.partition)?);
                    }
                }
                Layout::Raw => {}
            }
        }
        Ok(overlay)
    }

    async fn publish(&mut self) -> Result<()> {
        // In the middle of repairing an interrupted flush the tables stand at two offsets; show none of that.
        if self.states.values().any(|s| s.changed && s.recover_to.is_some()) {
            return Ok(());
        }
        let ctx = self.session();
        let partitions = self.states.keys().map(|(_, p)| p + 1).max().unwrap_or(1);
        let mut stored = Vec::new();
        for group in &self.plan.groups {
            for spec in group.commit_order() {
                let rows = self.stored_rows(&ctx, &spec).await?;
                stored.push((spec, rows, partitions));
            }
        }
        let catalog = Arc::new(catalog::build(&ctx, &self.plan, stored).await?);
        *self.published.write().unwrap_or_else(std::sync::PoisonError::into_inner) = catalog;
        Ok(())
    }

    /// For tests of restarts: the next flush stops after this many commits, as if the process had died there. The lake
    /// must then be dropped and opened again.
    pub fn interrupt_flush_after(&mut self, commits: u64) {
        self.interrupt_after = Some(commits);
    }

    /// Commits everything that was taken in. Afterwards a crash costs nothing of it.
    pub async fn flush(&mut self) -> Result<Flushed> {
        let mut flushed = Flushed::default();
        if self.states.values().any(|s| s.changed || s.has_waiting()) {
            self.refresh().await?;
        }
        let started = std::time::Instant::now();
        let names: Vec<(String, u32)> = self.states.keys().cloned().collect();
        for name in names {
            let mut state = self.states.remove(&name).expect("just listed");
            let idle = state.absorbed - state.committed;
            // A group that repairs an interrupted flush commits only where that flush ended.
            let repairing = state.recover_to.is_some_and(|end| state.absorbed < end);
            let result =
                match (state.changed || state.recover_to.is_some() || idle > IDLE_PROGRESS) && !repairing {
                    true => self.flush_group(&mut state, &mut flushed).await,
                    false => Ok(()),
                };
            self.states.insert(name, state);
            result?;
        }
        if flushed.commits > 0 {
            self.publish().await?;
        }
        tracing::debug!(commits = flushed.commits, took = ?started.elapsed(), "flushed");
        Ok(flushed)
    }

    async fn flush_group(&mut self, state: &mut GroupState, flushed: &mut Flushed) -> Result<()> {
        let order = state.group.commit_order();
        for (place, spec) in order.iter().enumerate() {
            let progress = self.store_mut(&spec.name).progress(state.partition).await?;
            if progress >= state.absorbed {
                continue;
            }
            let (adds, removes) = match spec.layout {
                Layout::Raw => self.raw_files(state, progress).await?,
                Layout::Keyed => self.keyed_files(state, spec).await?,
                Layout::Windowed => self.windowed_files(state, spec).await?,
            };
            // A table to which nothing happened may stay behind; the anchor always says how far the group has come.
            if adds.is_empty() && removes.is_empty() && place + 1 < order.len() {
                continue;
            }
            if let Some(left) = &mut self.interrupt_after {
                if *left == 0 {
                    return Err(LakeError::Refused("interrupted for a test".into()));
                }
                *left -= 1;
            }
            flushed.commits += 1;
            flushed.files_added += adds.len() as u64;
            flushed.bytes_added += adds.iter().map(|f| f.size as u64).sum::<u64>();
            self.store_mut(&spec.name).commit(state.partition, state.absorbed, adds, removes).await?;
        }
        self.windows.retain(|(name, partition), _| {
            *partition != state.partition || !state.group.windowed.iter().any(|p| p.spec.name == *name)
        });
        state.seal()
    }

    async fn raw_files(&self, state: &GroupState, from: u64) -> Result<(Vec<DataFile>, Vec<DataFile>)> {
        let store = &self.stores[&state.raw().spec.name];
        let rows: Vec<RecordBatch> = state
            .raw_rows_from(from)?
            .iter()
            .map(|batch| Ok(crate::batch::conform(batch, &store.spec().file_schema())?))
            .collect::<Result<_>>()?;
        let partition = vec![(PARTITION, state.partition.to_string())];
        Ok((store.write(partition, &rows).await?.into_iter().collect(), Vec::new()))
    }

    async fn keyed_files(
        &self,
        state: &GroupState,
        spec: &TableSpec,
    ) -> Result<(Vec<DataFile>, Vec<DataFile>)> {
        let store = &self.stores[&spec.name];
        let (mut adds, mut removes) = (Vec::new(), Vec::new());
        if !state.changed {
            return Ok((adds, removes));
        }
        let index =
            state.group.keyed.iter().position(|p| p.spec.name == spec.name).expect("a table of this group");
        let values = |open: bool| vec![(PARTITION, state.partition.to_string()), (OPEN, open.to_string())];
        for file in store.files()? {
            if file.partition_value(PARTITION) != Some(&state.partition.to_string()) {
                continue;
            }
            if file.partition_value(OPEN) == Some("true") {
                removes.push(file);
            } else if !state.revived.is_empty()
                && let Some(rest) = store.without_keys(&file, &state.revived).await?
            {
                adds.extend(store.write(values(false), &rest).await?);
                removes.push(file);
            }
        }
        let (open, sealed) = state.split_output(index)?;
        adds.extend(store.write(values(false), &sealed).await?);
        adds.extend(store.write(values(true), &open).await?);
        Ok((adds, removes))
    }

    async fn windowed_files(
        &self,
        state: &GroupState,
        spec: &TableSpec,
    ) -> Result<(Vec<DataFile>, Vec<DataFile>)> {
        let store = &self.stores[&spec.name];
        let (mut adds, mut removes) = (Vec::new(), Vec::new());
        let Some(segments) = self.windows.get(&(spec.name.clone(), state.partition)) else {
            return Ok((adds, removes));
        };
        let planned =
            state.group.windowed.iter().find(|p| p.spec.name == spec.name).expect("a table of this group");
        let segment = planned.pipeline.shape.segment().expect("windowed");
        let mut committed: BTreeMap<String, Vec<DataFile>> = BTreeMap::new();
        for file in store
            .files()?
            .into_iter()
            .filter(|f| f.partition_value(PARTITION) == Some(&state.partition.to_string()))
        {
            committed
                .entry(file.partition_value(SEGMENT).unwrap_or_default().to_owned())
                .or_default()
                .push(file);
        }
        for (start, rows) in segments {
            let name = segment.name(*start);
            let old_files = committed.remove(&name).unwrap_or_default();
            let mut old = Vec::new();
            for file in &old_files {
                old.extend(store.read_file(file).await?);
            }
            let Some(rows) = revise(&planned.pipeline.shape, spec, rows, &old, state.closed_before)? else {
                continue;
            };
            let values = vec![(PARTITION, state.partition.to_string()), (SEGMENT, name)];
            adds.extend(store.write(values, &[rows]).await?);
            removes.extend(old_files);
        }
        Ok((adds, removes))
    }

    fn store_mut(&mut self, table: &str) -> &mut DeltaStore {
        self.stores.get_mut(table).expect("every table of the plan has a store")
    }

    /// Tables with their stores, for maintenance.
    pub(crate) fn stores_mut(&mut self) -> impl Iterator<Item = &mut DeltaStore> {
        self.stores.values_mut()
    }

    /// Shows what maintenance changed.
    pub(crate) async fn republish(&mut self) -> Result<()> {
        self.publish().await
    }
}

/// Cuts rows sorted by `window_start` into segments; a segment without rows gets an empty batch.
fn split_segments(
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

/// Window rows with their bookkeeping columns as queries on the full table see them before they are committed.
fn windowed_full(spec: &TableSpec, rows: &RecordBatch, partition: u32) -> Result<RecordBatch> {
    let mut columns = rows.columns().to_vec();
    let schema = spec.full_schema();
    columns.push(Arc::new(Int32Array::from_value(partition as i32, rows.num_rows())));
    for field in &schema.fields()[columns.len()..] {
        columns.push(arrow::array::new_null_array(field.data_type(), rows.num_rows()));
    }
    Ok(RecordBatch::try_new(schema, columns)?)
}
