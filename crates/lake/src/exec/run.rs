//! Runs a pipeline's SQL over given rows. Streaming and backfill share this code, so both give the
//! same bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, RecordBatch, StringViewArray, TimestampMicrosecondArray};
use arrow::compute::{cast, concat_batches};
use arrow::datatypes::{DataType, SchemaRef, TimestampMicrosecondType};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::collect;
use datafusion::prelude::{DataFrame, SessionContext};

use crate::batch::conform;
use crate::batch::sort::sorted;
use crate::error::Result;
use crate::exec::dictionary::Dictionary;
use crate::exec::partial;
use crate::exec::summed::Summed;
use crate::pipeline::definition::{Extent, Shape};
use crate::pipeline::plan::{Planned, added_to_joined};

/// Runs a keyed pipeline over `sources` (table name and rows). They must hold all rows of every
/// key.
///
/// The result has the pipeline's public columns, in no particular order.
pub async fn run_keyed(
    ctx: &SessionContext,
    planned: &Planned,
    sources: &[(String, Vec<RecordBatch>)],
) -> Result<Vec<RecordBatch>> {
    for name in &planned.pipeline.sources {
        let (_, rows) =
            sources.iter().find(|(source, _)| source == name).expect("planned in order of dependency");
        let Some(first) = rows.first() else { return Ok(Vec::new()) };
        ctx.register_table(name.as_str(), Arc::new(MemTable::try_new(first.schema(), vec![rows.clone()])?))?;
    }
    let (_, result) = planned.plan_cache.run(ctx, &planned.pipeline).await?;
    for name in &planned.pipeline.sources {
        ctx.deregister_table(name.as_str())?;
    }
    let schema = planned.spec.public_schema();
    Ok(result.iter().map(|batch| conform(batch, &schema)).collect::<Result<_, _>>()?)
}

/// Runs a windowed pipeline for the windows that begin in `[low, high)` (µs, segment boundaries).
///
/// The result has the pipeline's public columns, sorted by its key.
pub async fn run_windowed(
    ctx: &SessionContext,
    planned: &Planned,
    source: Arc<dyn TableProvider>,
    (low, high): (i64, i64),
) -> Result<RecordBatch> {
    let Shape::Windowed { width_ms, extent, .. } = &planned.pipeline.shape else {
        unreachable!("planned as windowed")
    };
    let name = planned.pipeline.sources[0].as_str();
    ctx.register_table("all_rows", source)?;
    let (view, ranks) = match extent {
        Extent::Instant { time } => {
            (instants(ctx, planned, time, *width_ms, (low, high)).await?, Dictionary::default())
        }
        Extent::Interval { from, to } => intervals(ctx, planned, (from, to), *width_ms, (low, high)).await?,
    };
    ctx.register_table(name, view.into_view())?;
    let result = run_sorted(ctx, planned, &ranks).await;
    ctx.deregister_table(name)?;
    ctx.deregister_table("all_rows")?;
    result
}

/// Runs a joined pipeline for the windows that begin in `[low, high)` (µs, window boundaries).
/// Intervals are cut at the watermark of their cluster (`observed`, µs), whether or not they have
/// ended. Intervals of a cluster without a watermark are left out.
///
/// The result has the pipeline's public columns, sorted by its key.
pub async fn run_joined(
    ctx: &SessionContext,
    planned: &Planned,
    sources: &[(&str, Arc<dyn TableProvider>)],
    (low, high): (i64, i64),
    observed: &BTreeMap<String, i64>,
) -> Result<RecordBatch> {
    let Shape::Joined { width_ms, extents, .. } = &planned.pipeline.shape else {
        unreachable!("planned as joined")
    };
    let (low, high) = (timestamp(low), timestamp(high));
    ctx.register_table("_observed", watermarks_table(observed)?)?;
    for (name, rows) in sources {
        let Some(extent) = extents.get(*name) else {
            ctx.register_table(*name, Arc::clone(rows))?;
            continue;
        };
        let all = format!("all_{name}");
        ctx.register_table(all.as_str(), Arc::clone(rows))?;
        let added = added_to_joined(extent);
        let schema = rows.schema();
        let own = schema.fields().iter().filter(|field| !added.contains(&field.name().as_str()));
        let own: String = own.map(|field| format!("\"{}\", ", field.name())).collect();
        let sql = match extent {
            Extent::Instant { time } => format!(
                "SELECT {own}window_of({time}, {width_ms}) AS window_start FROM {all} WHERE {time} >= {low} AND {time} < {high}"
            ),
            Extent::Interval { from, to } => format!(
                "SELECT {own}window_start, greatest(\"_from\", window_start) AS clip_from, \
                        least(\"_to\", plus_ms(window_start, {width_ms})) AS clip_to, \
                        CASE WHEN \"_to\" >= plus_ms(window_start, {width_ms}) THEN plus_ms(window_start, {width_ms}) \
                             WHEN \"_end\" <= \"_to\" THEN \"_to\" END AS clip_end \
                 FROM (SELECT *, unnest(window_starts(\"_from\", \"_to\", {width_ms}, {low}, {high})) AS window_start \
                       FROM (SELECT {own}{from} AS \"_from\", least({to}, \"_until\") AS \"_to\", {to} AS \"_end\" \
                             FROM \"_observed\" JOIN {all} ON \"_cluster\" = cluster \
                             WHERE {from} < {high} AND ({to} IS NULL OR {to} > {low}) \
                               AND {from} <= \"_until\" AND least({to}, \"_until\") > {low}))"
            ),
        };
        ctx.register_table(*name, ctx.sql(&sql).await?.into_view())?;
    }
    run_sorted(ctx, planned, &Dictionary::default()).await
}

fn watermarks_table(observed: &BTreeMap<String, i64>) -> Result<Arc<dyn TableProvider>> {
    let clusters: ArrayRef = Arc::new(observed.keys().map(Some).collect::<StringViewArray>());
    let until = TimestampMicrosecondArray::from_iter_values(observed.values().copied());
    let until: ArrayRef = Arc::new(until.with_timezone("UTC"));
    let rows = RecordBatch::try_from_iter([("_cluster", clusters), ("_until", until)])?;
    Ok(Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?))
}

/// The smallest value of a time column of each cluster, µs.
pub async fn first_times(
    ctx: &SessionContext,
    rows: &Arc<dyn TableProvider>,
    time: &str,
) -> Result<BTreeMap<String, i64>> {
    ctx.register_table("all_rows", Arc::clone(rows))?;
    let sql = format!(
        "SELECT CAST(cluster AS TEXT), min({time}) FROM all_rows WHERE {time} IS NOT NULL GROUP BY cluster"
    );
    let mut first = BTreeMap::new();
    for batch in ctx.sql(&sql).await?.collect().await? {
        let clusters = cast(batch.column(0), &DataType::Utf8View)?;
        let clusters = clusters.as_string_view();
        let times = batch.column(1).as_primitive::<TimestampMicrosecondType>();
        first.extend((0..batch.num_rows()).map(|row| (clusters.value(row).to_owned(), times.value(row))));
    }
    Ok(first)
}

/// Runs a windowed pipeline over some of its windows' rows, for partial aggregates.
///
/// The result has the pipeline's public columns, sorted by its key.
pub async fn run_partial(
    ctx: &SessionContext,
    planned: &Planned,
    rows: Arc<dyn TableProvider>,
) -> Result<RecordBatch> {
    let Shape::Windowed { width_ms, extent: Extent::Instant { time }, .. } = &planned.pipeline.shape else {
        unreachable!("only such windows are partial aggregates")
    };
    let name = planned.pipeline.sources[0].as_str();
    ctx.register_table("all_rows", rows)?;
    let sql =
        format!("SELECT {}window_of({time}, {width_ms}) AS window_start FROM all_rows", select_list(planned));
    ctx.register_table(name, ctx.sql(&sql).await?.into_view())?;
    let (schema, plan) = planned.plan_cache.execution(ctx, &planned.pipeline).await?;
    let result = match partial::aggregate(ctx, &plan, &planned.pipeline.key).await? {
        Some(rows) => Ok(conform(&rows, &planned.spec.public_schema())?),
        None => {
            let rows = collect(plan, ctx.task_ctx()).await?;
            sorted_rows(planned, &schema, &rows, &Dictionary::default())
        }
    };
    ctx.deregister_table(name)?;
    ctx.deregister_table("all_rows")?;
    result
}

/// Each source row once, with its window. The time column is compared with the bounds directly, so
/// that files without matching rows are skipped.
async fn instants(
    ctx: &SessionContext,
    planned: &Planned,
    time: &str,
    width_ms: i64,
    (low, high): (i64, i64),
) -> Result<DataFrame> {
    let sql = format!(
        "SELECT {}window_of({time}, {width_ms}) AS window_start FROM all_rows WHERE {time} >= {} AND {time} < {}",
        select_list(planned),
        timestamp(low),
        timestamp(high)
    );
    Ok(ctx.sql(&sql).await?)
}

/// Each source row once per window it overlaps, with `window_start` and the part of the interval
/// inside the window.
///
/// The intervals are collected in memory first. A week-long one becomes 168 rows, and one thread
/// aggregating them from one place is cheaper than aggregating every part of a union and then their
/// results.
async fn intervals(
    ctx: &SessionContext,
    planned: &Planned,
    (from, to): (&str, &str),
    width_ms: i64,
    (low, high): (i64, i64),
) -> Result<(DataFrame, Dictionary)> {
    let (reads, low, high) = (select_list(planned), timestamp(low), timestamp(high));
    let touching = format!(
        "SELECT {reads}{from} AS \"_from\", {to} AS \"_to\" FROM all_rows WHERE {from} < {high} AND {to} > {low}"
    );
    let gathered = ctx.sql(&touching).await?;
    let schema = Arc::new(gathered.schema().as_arrow().clone());
    let rows = concat_batches(&schema, &gathered.collect().await?)?;
    let (rows, ranks) = Dictionary::encode(&rows, &planned.pass_through)?;
    ctx.deregister_table("all_rows")?;
    ctx.register_table("all_rows", Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?))?;
    let sql = format!(
        "SELECT {reads}window_start, greatest(\"_from\", window_start) AS clip_from, \
                least(\"_to\", plus_ms(window_start, {width_ms})) AS clip_to \
         FROM (SELECT *, unnest(window_starts(\"_from\", \"_to\", {width_ms}, {low}, {high})) AS window_start FROM all_rows)"
    );
    Ok((ctx.sql(&sql).await?, ranks))
}

/// The source's columns that the pipeline reads, as the start of a select list.
fn select_list(planned: &Planned) -> String {
    planned.columns_read.iter().map(|column| format!("\"{column}\", ")).collect()
}

fn timestamp(us: i64) -> String {
    format!("arrow_cast({us}, 'Timestamp(Microsecond, Some(\"UTC\"))')")
}

async fn run_sorted(ctx: &SessionContext, planned: &Planned, ranks: &Dictionary) -> Result<RecordBatch> {
    let (schema, mut plan) = planned.plan_cache.execution(ctx, &planned.pipeline).await?;
    if let Some(summed) = Summed::of(&plan, &planned.pipeline.key)? {
        if let Some(rows) = summed.rows(ctx).await? {
            return Ok(conform(&rows, &planned.spec.public_schema())?);
        }
        // Its operators have run and cannot run again.
        (_, plan) = planned.plan_cache.execution(ctx, &planned.pipeline).await?;
    }
    let rows = collect(plan, ctx.task_ctx()).await?;
    sorted_rows(planned, &schema, &rows, ranks)
}

fn sorted_rows(
    planned: &Planned,
    schema: &SchemaRef,
    rows: &[RecordBatch],
    ranks: &Dictionary,
) -> Result<RecordBatch> {
    let rows = concat_batches(schema, rows)?;
    let rows = ranks.decode(&sorted(&rows, &planned.pipeline.key)?)?;
    Ok(conform(&rows, &planned.spec.public_schema())?)
}
