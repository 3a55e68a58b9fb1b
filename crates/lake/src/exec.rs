//! Runs a pipeline's SQL over given rows. The same code serves streaming and history, so both give
//! the same bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringViewArray, TimestampMicrosecondArray};
use arrow::compute::concat_batches;
use arrow::datatypes::TimestampMicrosecondType;
use datafusion::catalog::TableProvider;
use datafusion::common::config::Dialect;
use datafusion::datasource::MemTable;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};

use crate::batch::conform;
use crate::carried::Ranks;
use crate::error::Result;
use crate::functions;
use crate::kept::Held;
use crate::memory::{Gauge, QueryPool};
use crate::pipeline::{Extent, Shape};
use crate::plan::{Planned, added_columns};
use crate::sorted::sorted;

/// Memory and threads that queries share.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that all running queries together may hold before they spill to disk or are refused.
    pub memory_bytes: usize,
    /// Threads a query may use.
    pub threads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Self { memory_bytes: 1 << 30, threads }
    }
}

/// PostgreSQL's dialect. The generic one takes a comma before a word like `cluster` for the end of
/// the list (it allows trailing commas, and `CLUSTER BY` is a clause), so a column of that name
/// could not be selected.
pub const DIALECT: Dialect = Dialect::PostgreSQL;

/// What is spilled takes at most so many times the memory limit on disk.
const SPILLED_TIMES: u64 = 16;

/// Runtime that queries of one process share.
pub fn runtime(limits: Limits) -> Result<Arc<RuntimeEnv>> {
    measured_runtime(limits, None)
}

/// A runtime whose memory limit holds for what the process measures, too.
pub fn measured_runtime(limits: Limits, gauge: Option<&'static dyn Gauge>) -> Result<Arc<RuntimeEnv>> {
    let pool = Arc::new(QueryPool::new(limits.memory_bytes, gauge));
    let spilled = (limits.memory_bytes as u64).saturating_mul(SPILLED_TIMES);
    Ok(RuntimeEnvBuilder::new().with_memory_pool(pool).with_max_temp_directory_size(spilled).build_arc()?)
}

/// A session with the lake's functions and no tables.
pub fn session(runtime: &Arc<RuntimeEnv>, limits: Limits) -> SessionContext {
    let mut config =
        SessionConfig::new().with_target_partitions(limits.threads).with_information_schema(true);
    let options = config.options_mut();
    options.execution.parquet.pushdown_filters = true;
    options.execution.parquet.reorder_filters = true;
    options.execution.time_zone = Some("+00:00".into());
    options.sql_parser.dialect = DIALECT;
    config.set_extension(Arc::new(Held::default()));
    let ctx = SessionContext::new_with_config_rt(config, Arc::clone(runtime));
    functions::register(&ctx);
    ctx
}

/// Runs a keyed pipeline over `sources` (table name, rows): all rows of every key it is run for.
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
    let (_, result) = planned.prepared.run(ctx, &planned.pipeline).await?;
    for name in &planned.pipeline.sources {
        ctx.deregister_table(name.as_str())?;
    }
    let schema = planned.spec.public_schema();
    Ok(result.iter().map(|batch| conform(batch, &schema)).collect::<Result<_, _>>()?)
}

/// Runs a windowed pipeline for the windows that begin in `[low, high)` (µs, on segment borders).
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
            (instants(ctx, planned, time, *width_ms, (low, high)).await?, Ranks::default())
        }
        Extent::Interval { from, to } => intervals(ctx, planned, (from, to), *width_ms, (low, high)).await?,
    };
    ctx.register_table(name, view.into_view())?;
    let result = run_sorted(ctx, planned, &ranks).await;
    ctx.deregister_table(name)?;
    ctx.deregister_table("all_rows")?;
    result
}

/// Runs a joined pipeline for the windows that begin in `[low, high)` (µs, on borders of windows).
/// Every interval ends where the observation of its cluster does (`observed`, µs), with or without
/// an end of its own; of a cluster that is not in there, it is left out.
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
    let (low, high) = (at(low), at(high));
    ctx.register_table("_observed", observed_table(observed)?)?;
    for (name, rows) in sources {
        let Some(extent) = extents.get(*name) else {
            ctx.register_table(*name, Arc::clone(rows))?;
            continue;
        };
        let all = format!("all_{name}");
        ctx.register_table(all.as_str(), Arc::clone(rows))?;
        let added = added_columns(extent);
        let schema = rows.schema();
        let own = schema.fields().iter().filter(|field| !added.contains(&field.name().as_str()));
        let own: String = own.map(|field| format!("\"{}\", ", field.name())).collect();
        let sql = match extent {
            Extent::Instant { time } => format!(
                "SELECT {own}window_of({time}, {width_ms}) AS window_start FROM {all} WHERE {time} >= {low} AND {time} < {high}"
            ),
            Extent::Interval { from, to } => format!(
                "SELECT {own}window_start, greatest(\"_from\", window_start) AS clip_from, \
                        least(\"_to\", plus_ms(window_start, {width_ms})) AS clip_to \
                 FROM (SELECT *, unnest(window_starts(\"_from\", \"_to\", {width_ms}, {low}, {high})) AS window_start \
                       FROM (SELECT {own}{from} AS \"_from\", least({to}, \"_until\") AS \"_to\" \
                             FROM {all} JOIN \"_observed\" ON \"_cluster\" = cluster \
                             WHERE {from} < {high} AND {from} <= \"_until\" AND least({to}, \"_until\") > {low}))"
            ),
        };
        ctx.register_table(*name, ctx.sql(&sql).await?.into_view())?;
    }
    run_sorted(ctx, planned, &Ranks::default()).await
}

fn observed_table(observed: &BTreeMap<String, i64>) -> Result<Arc<dyn TableProvider>> {
    let clusters: ArrayRef = Arc::new(observed.keys().map(Some).collect::<StringViewArray>());
    let until = TimestampMicrosecondArray::from_iter_values(observed.values().copied());
    let until: ArrayRef = Arc::new(until.with_timezone("UTC"));
    let rows = RecordBatch::try_from_iter([("_cluster", clusters), ("_until", until)])?;
    Ok(Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?))
}

/// The smallest value of a time, µs; `None` if no row has one.
pub async fn first_time(
    ctx: &SessionContext,
    rows: &Arc<dyn TableProvider>,
    time: &str,
) -> Result<Option<i64>> {
    ctx.register_table("all_rows", Arc::clone(rows))?;
    let found = ctx.sql(&format!("SELECT min({time}) FROM all_rows")).await?.collect().await?;
    let times = found[0].column(0).as_primitive::<TimestampMicrosecondType>();
    Ok(times.is_valid(0).then(|| times.value(0)))
}

/// Runs a windowed pipeline over rows that are a part of their windows' rows.
///
/// The result has the pipeline's public columns, sorted by its key.
pub async fn run_part(
    ctx: &SessionContext,
    planned: &Planned,
    rows: Arc<dyn TableProvider>,
) -> Result<RecordBatch> {
    let Shape::Windowed { width_ms, extent: Extent::Instant { time }, .. } = &planned.pipeline.shape else {
        unreachable!("only such windows are kept in parts")
    };
    let name = planned.pipeline.sources[0].as_str();
    ctx.register_table("all_rows", rows)?;
    let sql = format!("SELECT {}window_of({time}, {width_ms}) AS window_start FROM all_rows", reads(planned));
    ctx.register_table(name, ctx.sql(&sql).await?.into_view())?;
    let result = run_sorted(ctx, planned, &Ranks::default()).await;
    ctx.deregister_table(name)?;
    ctx.deregister_table("all_rows")?;
    result
}

/// Each row of the source once, with the window it is in. Times are compared with the bounds as
/// they stand, so that files without such rows are skipped.
async fn instants(
    ctx: &SessionContext,
    planned: &Planned,
    time: &str,
    width_ms: i64,
    (low, high): (i64, i64),
) -> Result<DataFrame> {
    let sql = format!(
        "SELECT {}window_of({time}, {width_ms}) AS window_start FROM all_rows WHERE {time} >= {} AND {time} < {}",
        reads(planned),
        at(low),
        at(high)
    );
    Ok(ctx.sql(&sql).await?)
}

/// Each row of the source once per window it touches, with `window_start` and the part of the
/// interval inside the window.
///
/// The intervals are gathered in memory first: a week-long one becomes 168 rows, which cost least
/// where one thread adds them up from one place, instead of adding up every part of a union on its
/// own and then all of them together.
async fn intervals(
    ctx: &SessionContext,
    planned: &Planned,
    (from, to): (&str, &str),
    width_ms: i64,
    (low, high): (i64, i64),
) -> Result<(DataFrame, Ranks)> {
    let (reads, low, high) = (reads(planned), at(low), at(high));
    let touching = format!(
        "SELECT {reads}{from} AS \"_from\", {to} AS \"_to\" FROM all_rows WHERE {from} < {high} AND {to} > {low}"
    );
    let gathered = ctx.sql(&touching).await?;
    let schema = Arc::new(gathered.schema().as_arrow().clone());
    let rows = concat_batches(&schema, &gathered.collect().await?)?;
    let (rows, ranks) = Ranks::encode(&rows, &planned.carried)?;
    ctx.deregister_table("all_rows")?;
    ctx.register_table("all_rows", Arc::new(MemTable::try_new(rows.schema(), vec![vec![rows]])?))?;
    let sql = format!(
        "SELECT {reads}window_start, greatest(\"_from\", window_start) AS clip_from, \
                least(\"_to\", plus_ms(window_start, {width_ms})) AS clip_to \
         FROM (SELECT *, unnest(window_starts(\"_from\", \"_to\", {width_ms}, {low}, {high})) AS window_start FROM all_rows)"
    );
    Ok((ctx.sql(&sql).await?, ranks))
}

/// The source's columns that the pipeline reads, as the head of a select list.
fn reads(planned: &Planned) -> String {
    planned.reads.iter().map(|column| format!("\"{column}\", ")).collect()
}

fn at(us: i64) -> String {
    format!("arrow_cast({us}, 'Timestamp(Microsecond, Some(\"UTC\"))')")
}

async fn run_sorted(ctx: &SessionContext, planned: &Planned, ranks: &Ranks) -> Result<RecordBatch> {
    let (schema, rows) = planned.prepared.run(ctx, &planned.pipeline).await?;
    let rows = concat_batches(&schema, &rows)?;
    let rows = ranks.decode(&sorted(&rows, &planned.pipeline.key)?)?;
    Ok(conform(&rows, &planned.spec.public_schema())?)
}
