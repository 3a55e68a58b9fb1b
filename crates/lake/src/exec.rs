//! Runs a pipeline's SQL over given rows. The same code serves streaming and history, so both give the same bytes.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::common::config::Dialect;
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::batch::{concat, conform};
use crate::error::Result;
use crate::functions;
use crate::pipeline::{Extent, Shape};
use crate::plan::Planned;
use crate::table::is_hidden;

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

/// PostgreSQL's dialect. The generic one takes a comma before a word like `cluster` for the end of the list (it allows
/// trailing commas, and `CLUSTER BY` is a clause), so a column of that name could not be selected.
pub const DIALECT: Dialect = Dialect::PostgreSQL;

/// Runtime that queries of one process share.
pub fn runtime(limits: Limits) -> Result<Arc<RuntimeEnv>> {
    let pool = Arc::new(FairSpillPool::new(limits.memory_bytes));
    Ok(RuntimeEnvBuilder::new().with_memory_pool(pool).build_arc()?)
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
    let result = ctx.sql(&planned.pipeline.sql).await?.collect().await?;
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
    // A windowed source has a window_start of its own, which the wider window replaces.
    let schema = source.schema();
    let columns =
        schema.fields().iter().map(|f| f.name().as_str()).filter(|n| !is_hidden(n) && *n != "window_start");
    let sql = windowed_source(&columns.collect::<Vec<_>>().join(", "), *width_ms, extent, low, high);
    ctx.register_table("all_rows", source)?;
    let view = ctx.sql(&sql).await?.into_view();
    ctx.register_table(name, view)?;
    let result = run_sorted(ctx, planned).await;
    ctx.deregister_table(name)?;
    ctx.deregister_table("all_rows")?;
    result
}

/// SQL that gives each source row once per window it belongs to, with `window_start` and, for intervals, the part of the
/// interval that is in the window. Rows are compared with the bounds first, so that files without such rows are skipped.
fn windowed_source(columns: &str, width_ms: i64, extent: &Extent, low: i64, high: i64) -> String {
    let at = |us: i64| format!("arrow_cast({us}, 'Timestamp(Microsecond, Some(\"UTC\"))')");
    let (low, high) = (at(low), at(high));
    match extent {
        Extent::Instant { time } => format!(
            "SELECT {columns}, window_of({time}, {width_ms}) AS window_start FROM all_rows \
             WHERE {time} >= {low} AND {time} < {high}"
        ),
        Extent::Interval { from, to } => format!(
            "SELECT *, greatest({from}, window_start) AS clip_from, least({to}, plus_ms(window_start, {width_ms})) AS clip_to \
             FROM (SELECT {columns}, unnest(window_starts({from}, {to}, {width_ms}, {low}, {high})) AS window_start \
                   FROM all_rows WHERE {from} < {high} AND {to} > {low})"
        ),
    }
}

async fn run_sorted(ctx: &SessionContext, planned: &Planned) -> Result<RecordBatch> {
    let order =
        planned.pipeline.key.iter().map(|k| format!("\"{k}\" NULLS FIRST")).collect::<Vec<_>>().join(", ");
    let sql = format!("SELECT * FROM (\n{}\n) ORDER BY {order}", planned.pipeline.sql);
    let batches = ctx.sql(&sql).await?.collect().await?;
    Ok(concat(&planned.spec.public_schema(), &batches)?)
}
