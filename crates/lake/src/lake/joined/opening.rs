//! Opening balances: of all history, the rows that windows from some time on can depend on. The
//! newest windows are computed from these, so what they cost does not depend on how much there is.
//!
//! Jobs: those that are open or were sealed lately, of which memory has the events, and the few
//! sealed ones that still hold something. Nodes: see [`NodeReports`]. Both are updated from files
//! that are new; a start reads all of them once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringViewArray};
use arrow::compute::{and, filter_record_batch, is_not_null, is_null, not, or};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use hashbrown::{HashMap, HashSet};

use super::super::late_nodes::READERS;
use super::node_reports::NodeReports;
use crate::batch::{compact, conform};
use crate::delta::{DataFile, DeltaStore};
use crate::error::Result;
use crate::pipeline::plan::{Plan, Planned};
use crate::state::{GroupState, RecentKeys, SEAL_AFTER_MS};
use crate::table::{KEY, OFFSET, OPEN};
use crate::window::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MS, Span, floor_to};

/// Raw table of nodes.
pub(super) const NODES: &str = "node_events";
/// Raw table of jobs.
pub(super) const JOBS: &str = "job_events";
/// Keyed tables of jobs with rows that last: they have `from_time` and `to_time`.
pub(super) const OF_JOBS: [&str; 2] = ["attempts", "gpu_holds"];
/// View of the pools and models that attempts name, at any time.
pub(super) const MODELS: &str = "attempt_models";

/// The rows that recent windows can depend on.
#[derive(Debug, Default)]
pub(in crate::lake) struct Opening {
    nodes: NodeReports,
    /// By keyed table and file.
    sealed: BTreeMap<&'static str, HashMap<String, SealedRows>>,
}

/// Tables that stand in for those of the full catalog.
#[derive(Debug, Clone)]
pub(super) struct Balance {
    /// By name of a stored table or a view.
    pub tables: BTreeMap<String, Arc<dyn TableProvider>>,
    /// Windows that begin then or later depend on no other rows of nodes, µs.
    pub nodes_from: i64,
    /// As `nodes_from`, of jobs.
    pub jobs_from: i64,
    /// Windows that end later may depend on other rows, µs.
    pub until: i64,
}

impl Opening {
    /// Brings the balance up to date with what is committed. `watermark` is that of all raw tables,
    /// µs. Other processes must not write to this lake: their open jobs are not in memory.
    pub(super) async fn update(
        &mut self,
        plan: &Plan,
        stores: &BTreeMap<String, DeltaStore>,
        states: &BTreeMap<(String, u32), GroupState>,
        watermark: i64,
    ) -> Result<Balance> {
        let mut balance = Balance::of((i64::MIN, i64::MAX));
        if let Some(store) = stores.get(NODES) {
            let horizon = floor_to(watermark - MICROS_PER_HOUR, MICROS_PER_DAY);
            self.nodes.update(store, horizon).await?;
            balance.nodes_from = match self.nodes.rows() {
                Some(rows) => {
                    let rows = MemTable::try_new(store.spec().public_schema(), vec![rows.to_vec()])?;
                    balance.tables.insert(NODES.into(), Arc::new(rows));
                    horizon
                }
                None => i64::MAX,
            };
        }
        let jobs: Vec<&GroupState> = states.values().filter(|state| state.raw().spec.name == JOBS).collect();
        let Some(raw) = stores.get(JOBS) else { return Ok(balance) };
        let closed = jobs.iter().filter_map(|state| state.closed_before).max();
        let closed = closed.map_or(i64::MIN, |at| at - SEAL_AFTER_MS * MICROS_PER_MS);
        let recent = || jobs.iter().filter_map(|state| state.keyed()?.recent());
        let day = recent().map(RecentKeys::from).max().unwrap_or(i64::MAX);
        balance.jobs_from = closed.min(day);
        let mut events = Vec::new();
        let sealed = recent().flat_map(RecentKeys::events).cloned();
        for rows in sealed {
            events.push(conform(&rows, &raw.spec().public_schema())?);
        }
        for state in &jobs {
            for rows in state.raw_rows_from(0)? {
                let offsets = rows.column_by_name(OFFSET).expect("raw rows have offsets");
                let offsets = offsets.as_primitive::<Int64Type>().values();
                let committed: BooleanArray =
                    offsets.iter().map(|offset| Some((*offset as u64) < state.committed)).collect();
                events.push(conform(&filter_record_batch(&rows, &committed)?, &raw.spec().public_schema())?);
            }
        }
        balance
            .tables
            .insert(JOBS.into(), Arc::new(MemTable::try_new(raw.spec().public_schema(), vec![events])?));
        let mut models = BTreeSet::new();
        for name in OF_JOBS {
            let Some(store) = stores.get(name) else { continue };
            let (mut rows, mut here) = (Vec::new(), HashMap::new());
            let known = self.sealed.entry(name).or_default();
            for file in store.files()? {
                let mut found = match known.remove(&file.path) {
                    Some(found) => found,
                    None => SealedRows::read(store, &file, day).await?,
                };
                found.forget_before(day)?;
                rows.extend(found.rows.clone());
                for recent in &found.recent {
                    rows.push(conform(recent, &store.spec().public_schema())?);
                }
                models.extend(found.models.iter().cloned());
                if found.has_waits {
                    // Its events are not in memory.
                    balance.jobs_from = i64::MAX;
                }
                here.insert(file.path, found);
            }
            *known = here;
            let table = MemTable::try_new(store.spec().public_schema(), vec![rows])?;
            balance.tables.insert(name.into(), Arc::new(table));
        }
        if let Some(view) = plan.views.iter().find(|view| view.spec.name == MODELS) {
            balance.tables.insert(MODELS.into(), models_table(view, &models)?);
        }
        Ok(balance)
    }
}

impl Balance {
    /// Of a span, without rows yet.
    pub fn of((from, until): Span) -> Self {
        Self { tables: BTreeMap::new(), nodes_from: from, jobs_from: from, until }
    }

    /// Windows of a pipeline that begin then or later, and end by `until`, can be computed from the
    /// balance, µs; `None` if its header does not allow it, or if it reads events of nodes in ways
    /// that are not known.
    pub fn covers_from(&self, plan: &Plan, planned: &Planned) -> Option<i64> {
        if !planned.pipeline.opening {
            return None;
        }
        let (mut seen, mut open) = (BTreeSet::new(), planned.pipeline.sources.clone());
        while let Some(table) = open.pop() {
            let step = plan.joined.iter().chain(&plan.views).find(|step| {
                step.spec.name == table
                    && table != MODELS
                    && !plan.stored_joined().any(|p| p.spec.name == table)
            });
            let sources = step.map_or(&[][..], |step| &step.pipeline.sources);
            if sources.iter().any(|source| source == NODES) && !READERS.contains(&table.as_str()) {
                return None;
            }
            if seen.insert(table) {
                open.extend(sources.iter().cloned());
            }
        }
        if planned.pipeline.sources.iter().any(|source| source == NODES) {
            return None;
        }
        let of_jobs = OF_JOBS.iter().chain([&JOBS]).any(|table| seen.contains(*table));
        Some(if of_jobs { self.nodes_from.max(self.jobs_from) } else { self.nodes_from })
    }
}

/// A pool and a model of a cluster.
pub(super) type Model = (String, Option<String>, Option<String>);

/// What matters of a file of a keyed table.
#[derive(Debug)]
struct SealedRows {
    /// All rows of keys that are open. Of sealed keys only those without an end: a pod holds its
    /// devices although nothing more is expected of it. Public columns.
    rows: Vec<RecordBatch>,
    /// All other rows of sealed keys that have one that ends on `day` or later. With the key.
    recent: Vec<RecordBatch>,
    /// µs.
    day: i64,
    models: BTreeSet<Model>,
    /// A sealed job seems to wait still: the source did not say how an attempt of it ended.
    has_waits: bool,
}

impl SealedRows {
    /// Columns that decide which rows of a file are kept.
    const COLUMNS: [&str; 8] =
        [KEY, "cluster", "pool", "gpu_model", "from_time", "to_time", "queued_from", "queued_to"];
    /// Rows that are decoded at a time.
    const ROWS: usize = 8 * 1024;

    async fn read(store: &DeltaStore, file: &DataFile, day: i64) -> Result<Self> {
        let schema = store.spec().public_schema();
        let mut found =
            Self { rows: Vec::new(), recent: Vec::new(), day, models: BTreeSet::new(), has_waits: false };
        let columns = store.read_columns(file, &Self::COLUMNS).await?;
        for batch in &columns {
            found.models.extend(models_of(&conform(batch, &schema)?)?);
        }
        if file.partition_value(OPEN) == Some("true") {
            for batch in store.read_file(file).await? {
                found.rows.push(conform(&batch, &schema)?);
            }
            return Ok(found);
        }
        for batch in &columns {
            if let (Some(from), Some(to)) =
                (batch.column_by_name("queued_from"), batch.column_by_name("queued_to"))
            {
                found.has_waits |= and(&is_not_null(from)?, &is_null(to)?)?.true_count() > 0;
            }
        }
        // Files of past days have hardly a row to keep; the others are not decoded.
        let ended = columns.iter().map(|batch| Ok(filter_record_batch(batch, &not(&lasts(batch)?)?)?));
        let recent = ended_since(&ended.collect::<Result<Vec<_>>>()?, day);
        let matters = columns.iter().map(|batch| Ok(or(&lasts(batch)?, &have_key_in(batch, &recent))?));
        let matters: Vec<BooleanArray> = matters.collect::<Result<_>>()?;
        if matters.iter().all(|batch| batch.true_count() == 0) {
            return Ok(found);
        }
        for batch in store.wanted_rows_of(file, &matters, Self::ROWS).await? {
            let batch = batch?;
            let lasts = lasts(&batch)?;
            let rows = filter_record_batch(&batch, &lasts)?;
            if rows.num_rows() > 0 {
                found.rows.push(compact(&conform(&rows, &schema)?)?);
            }
            let ended = filter_record_batch(&batch, &not(&lasts)?)?;
            if ended.num_rows() > 0 {
                found.recent.push(compact(&ended)?);
            }
        }
        Ok(found)
    }

    /// Drops rows of sealed keys that ended before this day, µs.
    fn forget_before(&mut self, day: i64) -> Result<()> {
        if day <= self.day {
            return Ok(());
        }
        self.day = day;
        self.keep_recent()
    }

    fn keep_recent(&mut self) -> Result<()> {
        let recent = ended_since(&self.recent, self.day);
        let mut kept = Vec::new();
        for batch in self.recent.drain(..) {
            let is_kept = have_key_in(&batch, &recent);
            if is_kept.true_count() > 0 {
                kept.push(compact(&filter_record_batch(&batch, &is_kept)?)?);
            }
        }
        self.recent = kept;
        Ok(())
    }
}

/// Which rows have begun and have no end.
fn lasts(rows: &RecordBatch) -> Result<BooleanArray> {
    let column = |name: &str| rows.column_by_name(name).expect("keyed tables of jobs have it");
    Ok(and(&is_not_null(column("from_time"))?, &is_null(column("to_time"))?)?)
}

/// Keys with a row that ended, or stopped waiting, on this day or later, µs.
fn ended_since(rows: &[RecordBatch], day: i64) -> HashSet<i64> {
    let mut keys = HashSet::new();
    for batch in rows {
        for ends in ["to_time", "queued_to"].iter().filter_map(|name| batch.column_by_name(name)) {
            let ends = ends.as_primitive::<TimestampMicrosecondType>();
            let recent = keys_of(batch).iter().zip(ends).filter(|(_, end)| end.is_some_and(|end| end >= day));
            keys.extend(recent.map(|(key, _)| *key));
        }
    }
    keys
}

fn have_key_in(rows: &RecordBatch, keys: &HashSet<i64>) -> BooleanArray {
    keys_of(rows).iter().map(|key| Some(keys.contains(key))).collect()
}

fn keys_of(rows: &RecordBatch) -> &[i64] {
    let keys = rows.column_by_name(KEY).expect("files of keyed tables have the key");
    keys.as_primitive::<Int64Type>().values()
}

/// Pools and models of attempts that ran.
pub(super) fn models_of(attempts: &RecordBatch) -> Result<BTreeSet<Model>> {
    let (Some(pools), Some(models)) = (attempts.column_by_name("pool"), attempts.column_by_name("gpu_model"))
    else {
        return Ok(BTreeSet::new());
    };
    let (pools, models) = (pools.as_string_view(), models.as_string_view());
    let column = |name: &str| attempts.column_by_name(name).expect("keyed tables of jobs have it");
    let (clusters, begun) = (column("cluster").as_string_view(), is_not_null(column("from_time"))?);
    let text = |of: &StringViewArray, row| of.is_valid(row).then(|| of.value(row).to_owned());
    let begun = (0..attempts.num_rows()).filter(|row| begun.value(*row));
    Ok(begun.map(|row| (clusters.value(row).to_owned(), text(pools, row), text(models, row))).collect())
}

pub(super) fn models_table(view: &Planned, models: &BTreeSet<Model>) -> Result<Arc<dyn TableProvider>> {
    let columns: [StringViewArray; 3] = [
        models.iter().map(|(cluster, ..)| Some(cluster)).collect(),
        models.iter().map(|(_, pool, _)| pool.as_ref()).collect(),
        models.iter().map(|(.., model)| model.as_ref()).collect(),
    ];
    let names = ["cluster", "pool", "gpu_model"];
    let rows = RecordBatch::try_from_iter(
        names.into_iter().zip(columns.map(|column| Arc::new(column) as ArrayRef)),
    )?;
    let schema = view.spec.public_schema();
    Ok(Arc::new(MemTable::try_new(Arc::clone(&schema), vec![vec![conform(&rows, &schema)?]])?))
}
