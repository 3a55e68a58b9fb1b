//! Runs a pipeline's SQL over given rows. The same code serves streaming and history, so both give the same bytes.

use std::sync::Arc;

use arrow::array::RecordBatch;
use datafusion::catalog::TableProvider;
use datafusion::common::config::Dialect;
use datafusion::datasource::MemTable;
use datafusion::execution::memory_pool::FairSpillPool;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::batch::concat;
use crate::error::Result;
use crate::functions;
use crate::pipeline::{Extent, Shape};
use crate::plan::Planned;
use crate::table::TableSpec;

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
/// The result has the pipeline's public columns, sorted by its key.
pub async fn run_keyed(
    ctx: &SessionContext,
    planned: &Planned,
    sources: &[(&str, RecordBatch)],
) -> Result<RecordBatch> {
    for name in &planned.pipeline.sources {
        let rows = sources
            .iter()
            .find(|(source, _)| source == name)
            .map(|(_, rows)| rows.clone())
            .expect("planned source");
        ctx.register_table(name.as_str(), Arc::new(MemTable::try_new(rows.schema(), vec![slices(&rows)])?))?;
    }
    let result = run_sorted(ctx, planned).await;
    for name in &planned.pipeline.sources {
        ctx.deregister_table(name.as_str())?;
    }
    result
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
    let sql = windowed_source(*width_ms, extent, low, high);
    let view = ctx.sql(&sql).await?.into_view();
    ctx.register_table(name, view)?;
    let result = run_sorted(ctx, planned).await;
    ctx.deregister_table(name)?;
    ctx.deregister_table("all_rows")?;
    result
}

/// SQL that gives each source row once per window it belongs to, with `window_start` and, for intervals, the part of the
/// interval that is in the window.
fn windowed_source(width_ms: i64, extent: &Extent, low: i64, high: i64) -> String {
    let at = |us: i64| format!("arrow_cast({us}, 'Timestamp(Microsecond, Some(\"UTC\"))')");
    let (low, high) = (at(low), at(high));
    let (from, to) = match extent {
        Extent::Instant { time } => (time.clone(), format!("plus_ms({time}, 1)")),
        Extent::Interval { from, to } => (from.clone(), to.clone()),
    };
    // The row's own interval is compared with the bounds before it is unfolded, so that files without such rows are skipped.
    let within = match extent {
        Extent::Instant { time } => format!("{time} >= {low} AND {time} < {high}"),
        Extent::Interval { .. } => format!("{from} < {high} AND {to} > {low}"),
    };
    let unfolded = format!(
        "SELECT *, unnest(window_starts({from}, {to}, {width_ms}, {low}, {high})) AS window_start FROM all_rows WHERE {within}"
    );
    match extent {
        Extent::Instant { .. } => unfolded,
        Extent::Interval { .. } => format!(
            "SELECT *, greatest({from}, window_start) AS clip_from, least({to}, plus_ms(window_start, {width_ms})) AS clip_to \
             FROM ({unfolded})"
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

/// Cuts rows to batches of the size the engine likes, so that it can work on them in parallel.
fn slices(rows: &RecordBatch) -> Vec<RecordBatch> {
    const BATCH_ROWS: usize = 8192;
    (0..rows.num_rows())
        .step_by(BATCH_ROWS)
        .map(|at| rows.slice(at, BATCH_ROWS.min(rows.num_rows() - at)))
        .collect()
}

/// Columns of the spec, without bookkeeping.
pub fn public_columns(spec: &TableSpec) -> Vec<&str> {
    spec.columns.iter().map(|c| c.name.as_str()).collect()
}
