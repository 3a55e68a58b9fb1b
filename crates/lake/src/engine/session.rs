//! Sessions in which SQL runs, and the memory and threads they share.

use std::sync::Arc;

use datafusion::common::config::Dialect;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::prelude::{SessionConfig, SessionContext};

use crate::engine::memory::{Gauge, QueryPool};
use crate::engine::view_cache::QueryViews;
use crate::error::Result;
use crate::functions;

/// Memory and threads that queries share.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that all running queries together may hold before they spill to disk or are refused.
    pub memory_bytes: usize,
    /// Threads that one query may use.
    pub threads: usize,
}

impl Default for Limits {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(2, usize::from);
        Self { memory_bytes: 1 << 30, threads }
    }
}

/// PostgreSQL's dialect. The generic one allows trailing commas and knows `CLUSTER BY`, so it ends
/// a list before the word `cluster`, and a column of that name could not be selected.
pub const DIALECT: Dialect = Dialect::PostgreSQL;

/// Spill files may take this many times the memory limit on disk.
const SPILL_FACTOR: u64 = 16;

/// Runtime that the queries of one process share.
pub fn runtime(limits: Limits) -> Result<Arc<RuntimeEnv>> {
    measured_runtime(limits, None)
}

/// As [`runtime`]; the limit also covers memory that `gauge` measures beyond the claims.
pub fn measured_runtime(limits: Limits, gauge: Option<&'static dyn Gauge>) -> Result<Arc<RuntimeEnv>> {
    let pool = Arc::new(QueryPool::new(limits.memory_bytes, gauge));
    let spilled = (limits.memory_bytes as u64).saturating_mul(SPILL_FACTOR);
    Ok(RuntimeEnvBuilder::new().with_memory_pool(pool).with_max_temp_directory_size(spilled).build_arc()?)
}

/// A session with the lake's functions and without tables.
pub fn session(runtime: &Arc<RuntimeEnv>, limits: Limits) -> SessionContext {
    let mut config =
        SessionConfig::new().with_target_partitions(limits.threads).with_information_schema(true);
    let options = config.options_mut();
    options.execution.parquet.pushdown_filters = true;
    options.execution.parquet.reorder_filters = true;
    options.execution.time_zone = Some("+00:00".into());
    options.sql_parser.dialect = DIALECT;
    config.set_extension(Arc::new(QueryViews::default()));
    let ctx = SessionContext::new_with_config_rt(config, Arc::clone(runtime));
    functions::register(&ctx);
    ctx
}
