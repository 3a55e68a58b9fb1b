//! Restore: reads a group's state back from its tables on start, as of the anchor's offset. Of the
//! keys of all rows it reads those that came after they were last saved ([`super::saved_keys`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch};
use arrow::compute::{cast, filter_record_batch};
use arrow::datatypes::{DataType, Int64Type, TimestampMicrosecondType};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use futures::StreamExt;

use super::Lake;
use crate::batch::{compact, concat, conform};
use crate::error::Result;
use crate::state::dedup::DedupWindow;
use crate::state::{FoundKeys, GroupState, KnownKeys, recent_day};
use crate::table::{EVENT, KEY, OFFSET, OPEN, PARTITION};

impl Lake {
    pub(super) async fn restore(&mut self, state: &mut GroupState) -> Result<()> {
        if state.committed == 0 {
            return Ok(());
        }
        let known = match state.raw().has_dedup_window {
            true => None,
            false => self.load_keys(state).await?,
        };
        let ctx = self.session();
        let raw = &self.stores[&state.raw().spec.name];
        ctx.register_table("raw", raw.provider().await?)?;
        let committed = format!("{PARTITION} = {} AND {OFFSET} < {}", state.partition, state.committed);
        if state.raw().has_dedup_window {
            // Only the dedup window is read, not all history: file statistics have the offsets.
            let lately = format!("{committed} AND {OFFSET} >= {}", DedupWindow::horizon(state.committed));
            restore_dedup_window(&ctx, &lately, state).await?;
            if state.follows_steps() {
                restore_steps(&ctx, &lately, state).await?;
            }
            // Without windows the watermark is not needed.
            return match state.group.windowed.is_empty() {
                true => Ok(()),
                false => restore_watermarks(&ctx, &lately, state).await,
            };
        }
        let found = restore_keys(&ctx, &committed, known, state).await?;
        let mut keyed: Vec<_> = state.group.stored_keyed().collect();
        let Some(anchor) = keyed.pop() else { return Ok(()) };
        ctx.register_table("anchor", self.stores[&anchor.spec.name].provider().await?)?;
        let here = format!("{PARTITION} = {} AND {OPEN}", state.partition);
        let mut open = format!("SELECT {KEY} FROM anchor WHERE {here}");
        // Not every key has rows in the anchor: a pod has only devices it held. Another table may
        // be ahead of the anchor, and a key open there may have been sealed before. Then its events
        // are absorbed once more, and bring it back.
        for planned in keyed {
            let name = planned.spec.name.as_str();
            ctx.register_table(name, self.stores[name].provider().await?)?;
            open += &format!(
                " UNION SELECT {KEY} FROM {name} WHERE {here} AND {KEY} NOT IN \
                  (SELECT {KEY} FROM raw WHERE {PARTITION} = {} AND {OFFSET} >= {})",
                state.partition, state.committed
            );
        }
        let schema = state.raw().spec.full_schema();
        let events = events_of(&ctx, &committed, &open, &found).await?;
        let events: Vec<RecordBatch> =
            events.iter().map(|batch| conform(batch, &schema)).collect::<Result<_, _>>()?;
        state.restore_histories(&events)?;
        events.into_iter().for_each(|batch| state.restore_open(batch));
        restore_recent_keys(&ctx, &committed, &found, state).await
    }
}

/// Restores which keys there are, and watermarks: what was saved, and of the rows that came after
/// it their keys and times.
async fn restore_keys(
    ctx: &SessionContext,
    committed: &str,
    known: Option<KnownKeys>,
    state: &mut GroupState,
) -> Result<FoundKeys> {
    let mut found = FoundKeys::default();
    let (mut since, is_saved) = (committed.to_owned(), known.is_some());
    if let Some(known) = known {
        found = FoundKeys::of(&known);
        since += &format!(" AND {OFFSET} >= {}", known.offset);
        state.restore_known(known);
    }
    restore_watermarks(ctx, &since, state).await?;
    let mut keys = ctx.sql(&format!("SELECT {KEY} FROM raw WHERE {since}")).await?.execute_stream().await?;
    while let Some(batch) = keys.next().await {
        for key in batch?.column(0).as_primitive::<Int64Type>().iter().flatten() {
            if is_saved && !state.may_know(key) {
                found.add_new(key);
            }
            state.restore_key(key);
        }
    }
    Ok(found)
}

/// Restores the events of jobs that were sealed and held or waited for something on a recent day.
async fn restore_recent_keys(
    ctx: &SessionContext,
    committed: &str,
    found: &FoundKeys,
    state: &mut GroupState,
) -> Result<()> {
    let (true, Some(watermark)) = (state.group.feeds_joined, state.watermark()) else { return Ok(()) };
    let day = recent_day(watermark);
    let mut ended = Vec::new();
    for planned in state.group.stored_keyed() {
        let ends = ["to_time", "queued_to"]
            .iter()
            .filter(|name| planned.spec.columns.iter().any(|column| column.name == **name));
        let ends =
            ends.map(|name| format!("{name} >= arrow_cast({day}, 'Timestamp(Microsecond, Some(\"UTC\"))')"));
        let ends = ends.collect::<Vec<_>>().join(" OR ");
        if !ends.is_empty() {
            let table =
                if planned.spec.name == anchor_of(state) { "anchor" } else { planned.spec.name.as_str() };
            ended.push(format!(
                "SELECT {KEY} FROM {table} WHERE {PARTITION} = {} AND NOT {OPEN} AND ({ends})",
                state.partition
            ));
        }
    }
    let schema = state.raw().spec.full_schema();
    let mut events = Vec::new();
    if !ended.is_empty() {
        for batch in events_of(ctx, committed, &ended.join(" UNION ALL "), found).await? {
            let batch = conform(&batch, &schema)?;
            let keys = batch.column_by_name(KEY).expect("raw rows have keys").as_primitive::<Int64Type>();
            let is_open = |key: i64| state.keyed().is_some_and(|keyed| keyed.holds(key));
            let is_sealed: BooleanArray = keys.values().iter().map(|key| Some(!is_open(*key))).collect();
            events.push(filter_record_batch(&batch, &is_sealed)?);
        }
    }
    state.restore_recent_keys(compact(&concat(&schema, &events)?)?, day)
}

fn anchor_of(state: &GroupState) -> &str {
    state.group.stored_keyed().last().map_or("", |planned| planned.spec.name.as_str())
}

/// Events of the keys that the query `keys` returns.
///
/// The keys are collected first, so that the planner knows how few they are and builds the hash
/// table from them. Without that it may build it from the events, which are all of history.
async fn events_of(
    ctx: &SessionContext,
    rows: &str,
    keys: &str,
    found: &FoundKeys,
) -> Result<Vec<RecordBatch>> {
    let mut by_start: BTreeMap<u64, BTreeSet<i64>> = BTreeMap::new();
    for batch in ctx.sql(keys).await?.collect().await? {
        for key in batch.column(0).as_primitive::<Int64Type>().iter().flatten() {
            by_start.entry(found.rows_from(key)).or_default().insert(key);
        }
    }
    let mut events = Vec::new();
    for (from, keys) in by_start {
        let keys: ArrayRef = Arc::new(keys.into_iter().collect::<Int64Array>());
        let keys = RecordBatch::try_from_iter([(KEY, keys)])?;
        ctx.register_table("wanted", Arc::new(MemTable::try_new(keys.schema(), vec![vec![keys]])?))?;
        let sql = format!(
            "SELECT * FROM raw WHERE {rows} AND {OFFSET} >= {from} AND {KEY} IN (SELECT {KEY} FROM wanted)"
        );
        events.extend(ctx.sql(&sql).await?.collect().await?);
        ctx.deregister_table("wanted")?;
    }
    Ok(events)
}

/// Restores the watermark of each cluster, by the rule of [`crate::raw::facts::Facts::observed`].
async fn restore_watermarks(ctx: &SessionContext, rows: &str, state: &mut GroupState) -> Result<()> {
    let is_entered = state.raw().spec.columns.iter().any(|column| column.name == "entered_time");
    let observed = if is_entered { "least(event_time, entered_time)" } else { "event_time" };
    let sql = format!("SELECT cluster, max({observed}) AS at FROM raw WHERE {rows} GROUP BY cluster");
    for batch in ctx.sql(&sql).await?.collect().await? {
        let clusters = cast(batch.column(0), &DataType::Utf8View)?;
        let times = batch.column(1).as_primitive::<TimestampMicrosecondType>();
        for (cluster, time) in clusters.as_string_view().iter().zip(times) {
            state.restore_watermark(cluster.unwrap_or_default(), time.unwrap_or(i64::MIN));
        }
    }
    Ok(())
}

/// Restores until when the recent steps of each job reach.
async fn restore_steps(ctx: &SessionContext, rows: &str, state: &mut GroupState) -> Result<()> {
    let sql = format!(
        "SELECT cluster, job_id, max(arrow_cast(event_time, 'Int64') + coalesce(duration_us, 0)) AS reach \
         FROM raw WHERE {rows} GROUP BY cluster, job_id"
    );
    for batch in ctx.sql(&sql).await?.collect().await? {
        let [clusters, jobs] = [0, 1].map(|column| cast(batch.column(column), &DataType::Utf8View));
        let (clusters, jobs) = (clusters?, jobs?);
        let reaches = batch.column(2).as_primitive::<Int64Type>();
        for ((cluster, job), reach) in
            clusters.as_string_view().iter().zip(jobs.as_string_view()).zip(reaches)
        {
            state.restore_step(
                cluster.unwrap_or_default(),
                job.unwrap_or_default(),
                reach.unwrap_or(i64::MIN),
            );
        }
    }
    Ok(())
}

/// Fills the dedup window with recent events or batches of samples.
async fn restore_dedup_window(ctx: &SessionContext, rows: &str, state: &mut GroupState) -> Result<()> {
    let sql = format!("SELECT {OFFSET}, {KEY}, {EVENT} FROM raw WHERE {rows}");
    let mut stream = ctx.sql(&sql).await?.execute_stream().await?;
    let mut batches = Vec::new();
    while let Some(rows) = stream.next().await {
        let rows = rows?;
        let [offsets, keys, events] =
            [0, 1, 2].map(|column| rows.column(column).as_primitive::<Int64Type>().values());
        for ((offset, key), event) in offsets.iter().zip(keys).zip(events) {
            let batch = (*offset as u64, (*key, *event));
            // The rows of a batch come in runs.
            if batches.last() != Some(&batch) {
                batches.push(batch);
            }
        }
    }
    state.restore_recent(batches);
    Ok(())
}
