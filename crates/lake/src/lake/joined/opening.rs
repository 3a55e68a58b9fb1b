//! Opening balances: of all history, the rows that windows from some time on can depend on. The
//! newest windows are computed from these, so what they cost does not depend on how much there is.
//!
//! Jobs: those that are open or were sealed lately, of which memory has the events, and the few
//! sealed ones that still hold something. Nodes: what each node last reported before the time, and
//! everything since. Both are updated from files that are new; a start reads all of them once.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringViewArray};
use arrow::compute::{and, concat_batches, filter_record_batch, is_not_null, is_null, not};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use hashbrown::{HashMap, HashSet};

use crate::batch::{compact, concat, conform};
use crate::delta::{DataFile, DeltaStore};
use crate::error::Result;
use crate::pipeline::plan::{Plan, Planned};
use crate::state::{GroupState, RecentKeys, SEAL_AFTER_MS};
use crate::table::{KEY, OFFSET, OPEN, PARTITION};
use crate::window::{MICROS_PER_DAY, MICROS_PER_HOUR, MICROS_PER_MS, floor_to};

/// Raw table of nodes.
const NODES: &str = "node_events";
/// Raw table of jobs.
const JOBS: &str = "job_events";
/// Keyed tables of jobs with rows that last: they have `from_time` and `to_time`.
const OF_JOBS: [&str; 2] = ["attempts", "gpu_holds"];
/// View of the pools and models that attempts name, at any time.
const MODELS: &str = "attempt_models";
/// Rows of nodes held before those that are not needed are dropped.
const MAX_ROWS: usize = 200_000;

/// The rows that recent windows can depend on.
#[derive(Debug, Default)]
pub(in crate::lake) struct Opening {
    nodes: NodeReports,
    /// By keyed table and file.
    sealed: BTreeMap<&'static str, HashMap<String, SealedRows>>,
}

/// Tables that stand in for those of the full catalog.
#[derive(Debug, Clone, Default)]
pub(super) struct Balance {
    /// By name of a stored table or a view.
    pub tables: BTreeMap<String, Arc<dyn TableProvider>>,
    /// Windows that begin then or later depend on no other rows of nodes, µs.
    pub nodes_from: i64,
    /// As `nodes_from`, of jobs.
    pub jobs_from: i64,
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
        let mut balance = Balance { nodes_from: i64::MIN, jobs_from: i64::MIN, ..Balance::default() };
        if let Some(store) = stores.get(NODES) {
            balance.nodes_from = floor_to(watermark - MICROS_PER_HOUR, MICROS_PER_DAY);
            self.nodes.update(store, balance.nodes_from).await?;
            let schema = store.spec().public_schema();
            let rows = MemTable::try_new(schema, vec![self.nodes.rows.clone()])?;
            balance.tables.insert(NODES.into(), Arc::new(rows));
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
    /// Windows of a pipeline that begin then or later can be computed from the balance, µs; `None`
    /// if it says nothing of that in its header.
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
            if seen.insert(table) {
                open.extend(step.iter().flat_map(|step| step.pipeline.sources.clone()));
            }
        }
        let of_jobs = OF_JOBS.iter().chain([&JOBS]).any(|table| seen.contains(*table));
        Some(if of_jobs { self.nodes_from.max(self.jobs_from) } else { self.nodes_from })
    }
}

/// A pool and a model of a cluster.
type Model = (String, Option<String>, Option<String>);

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
    async fn read(store: &DeltaStore, file: &DataFile, day: i64) -> Result<Self> {
        let is_open = file.partition_value(OPEN) == Some("true");
        let mut found =
            Self { rows: Vec::new(), recent: Vec::new(), day, models: BTreeSet::new(), has_waits: false };
        for batch in store.read_file(file).await? {
            let column = |name: &str| batch.column_by_name(name).expect("keyed tables of jobs have it");
            let begun = is_not_null(column("from_time"))?;
            if let (Some(pools), Some(models)) =
                (batch.column_by_name("pool"), batch.column_by_name("gpu_model"))
            {
                let (clusters, pools, models) =
                    (column("cluster").as_string_view(), pools.as_string_view(), models.as_string_view());
                let text = |of: &StringViewArray, row| of.is_valid(row).then(|| of.value(row).to_owned());
                for row in (0..batch.num_rows()).filter(|row| begun.value(*row)) {
                    let model = (clusters.value(row).to_owned(), text(pools, row), text(models, row));
                    found.models.insert(model);
                }
            }
            if let (false, Some(from), Some(to)) =
                (is_open, batch.column_by_name("queued_from"), batch.column_by_name("queued_to"))
            {
                found.has_waits |= and(&is_not_null(from)?, &is_null(to)?)?.true_count() > 0;
            }
            let rows = match is_open {
                true => batch,
                false => {
                    let lasts = and(&begun, &is_null(column("to_time"))?)?;
                    found.recent.push(filter_record_batch(&batch, &not(&lasts)?)?);
                    compact(&filter_record_batch(&batch, &lasts)?)?
                }
            };
            if rows.num_rows() > 0 {
                found.rows.push(conform(&rows, &store.spec().public_schema())?);
            }
        }
        found.keep_recent()?;
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
        let keys = |batch: &RecordBatch| -> Vec<i64> {
            let keys = batch.column_by_name(KEY).expect("files of keyed tables have the key");
            keys.as_primitive::<Int64Type>().values().to_vec()
        };
        let mut recent = HashSet::new();
        for batch in &self.recent {
            for ends in ["to_time", "queued_to"].iter().filter_map(|name| batch.column_by_name(name)) {
                let ends = ends.as_primitive::<TimestampMicrosecondType>();
                let is_recent = |(_, end): &(i64, Option<i64>)| end.is_some_and(|end| end >= self.day);
                recent.extend(keys(batch).into_iter().zip(ends).filter(is_recent).map(|(key, _)| key));
            }
        }
        let mut kept = Vec::new();
        for batch in self.recent.drain(..) {
            let is_kept: BooleanArray = keys(&batch).iter().map(|key| Some(recent.contains(key))).collect();
            if is_kept.true_count() > 0 {
                kept.push(compact(&filter_record_batch(&batch, &is_kept)?)?);
            }
        }
        self.recent = kept;
        Ok(())
    }
}

fn models_table(view: &Planned, models: &BTreeSet<Model>) -> Result<Arc<dyn TableProvider>> {
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

/// Rows of `node_events` that windows from the horizon on can depend on.
#[derive(Debug)]
struct NodeReports {
    /// Public columns.
    rows: Vec<RecordBatch>,
    /// By log partition: rows below this offset were read.
    read_to: BTreeMap<String, i64>,
    /// Files that were read, of those that there are.
    files: HashSet<String>,
    /// Rows before it are only those that are still in force, µs.
    horizon: i64,
}

impl Default for NodeReports {
    fn default() -> Self {
        Self { rows: Vec::new(), read_to: BTreeMap::new(), files: HashSet::new(), horizon: i64::MIN }
    }
}

impl NodeReports {
    /// Reads new rows, of any time.
    async fn update(&mut self, store: &DeltaStore, horizon: i64) -> Result<()> {
        let schema = store.spec().public_schema();
        let (mut reached, mut files) = (self.read_to.clone(), HashSet::new());
        for file in store.files()? {
            let is_read = self.files.contains(&file.path);
            files.insert(file.path.clone());
            let partition = file.partition_value(PARTITION).unwrap_or_default().to_owned();
            let from = self.read_to.get(&partition).copied().unwrap_or(0);
            // A compacted file has rows that were read in others.
            if is_read || file.largest(OFFSET).is_some_and(|last| last < from) {
                continue;
            }
            for rows in store.read_file(&file).await? {
                let offsets = rows.column_by_name(OFFSET).expect("raw files have offsets");
                let offsets = offsets.as_primitive::<Int64Type>().values();
                let fresh: BooleanArray = offsets.iter().map(|offset| Some(*offset >= from)).collect();
                let next = offsets.iter().max().map_or(from, |last| last + 1);
                let reached = reached.entry(partition.clone()).or_insert(0);
                *reached = next.max(*reached);
                self.rows.push(conform(&filter_record_batch(&rows, &fresh)?, &schema)?);
            }
            if self.rows.iter().map(RecordBatch::num_rows).sum::<usize>() > MAX_ROWS {
                self.rows = vec![in_force(&concat_batches(&schema, &self.rows)?, horizon)?];
            }
        }
        (self.read_to, self.files) = (reached, files);
        if horizon > self.horizon {
            self.rows = vec![in_force(&concat(&schema, &self.rows)?, horizon)?];
            self.horizon = horizon;
        }
        Ok(())
    }
}

/// The rows from the horizon on, and before it: what each node last said of everything it says, the
/// first agent of each cluster, and one row for each pool and model.
fn in_force(rows: &RecordBatch, horizon: i64) -> Result<RecordBatch> {
    let column = |name: &str| rows.column_by_name(name).expect("a column of node_events");
    let times = column("event_time").as_primitive::<TimestampMicrosecondType>().values();
    let text = |name| column(name).as_string_view();
    let (clusters, nodes, kinds) = (text("cluster"), text("node"), text("kind"));
    let (pools, models, states) = (text("pool"), text("gpu_model"), text("state"));
    let (gpus, uuids, migs) = (column("gpus_milli"), text("gpu_uuid"), text("mig_uuid"));
    // What a row says, and how it ranks among rows that say the same.
    let said = |row: usize| -> Vec<(String, i64)> {
        let (cluster, node, time) = (clusters.value(row), nodes.value(row), times[row]);
        let of_node = |what: &str| (format!("{what}\0{cluster}\0{node}"), time);
        let mut said = Vec::new();
        match kinds.value(row) {
            "NODE_REGISTERED" => {
                said.push(of_node("exists"));
                said.extend(pools.is_valid(row).then(|| of_node("pool")));
                said.extend(models.is_valid(row).then(|| of_node("model")));
                said.extend(gpus.is_valid(row).then(|| of_node("gpus")));
            }
            "NODE_REMOVED" => said.push(of_node("exists")),
            "STATE_CHANGED" => said.extend(states.is_valid(row).then(|| of_node("state"))),
            "DEVICE_LOST" | "DEVICE_FOUND" | "DEVICE_STALE" | "DEVICE_ANSWERS" => {
                let value = |of: &StringViewArray| {
                    if of.is_valid(row) { of.value(row).to_owned() } else { String::new() }
                };
                said.push((format!("device\0{cluster}\0{node}\0{}\0{}", value(uuids), value(migs)), time));
            }
            "COLLECTOR_STARTED" => said.push((format!("watched\0{cluster}"), -time)),
            _ => {}
        }
        if pools.is_valid(row) || models.is_valid(row) {
            let value = |of: &StringViewArray| of.is_valid(row).then(|| of.value(row).to_owned());
            said.push((format!("named\0{cluster}\0{:?}\0{:?}", value(pools), value(models)), -time));
        }
        said
    };
    let mut best: HashMap<String, i64> = HashMap::new();
    for row in (0..rows.num_rows()).filter(|row| times[*row] < horizon) {
        for (what, rank) in said(row) {
            let best = best.entry(what).or_insert(rank);
            *best = rank.max(*best);
        }
    }
    let is_best = |(what, rank): (String, i64)| best.get(&what) == Some(&rank);
    let keep: BooleanArray = (0..rows.num_rows())
        .map(|row| Some(times[row] >= horizon || said(row).into_iter().any(is_best)))
        .collect();
    Ok(compact(&filter_record_batch(rows, &keep)?)?)
}
