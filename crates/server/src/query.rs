//! Runs queries: read-only, on one consistent catalog each, within limits on memory, rows and time.

use std::sync::Arc;
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::error::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::physical_plan::memory::MemoryStream;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use futures::StreamExt;
use tidegate_lake::catalog::Catalog;
use tidegate_lake::catalog::CatalogSource;
use tidegate_lake::engine::memory::Gauge;
use tidegate_lake::engine::view_cache::{QueryGuard, QueryViews};
use tidegate_lake::engine::{self, Limits};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;

use crate::background;
use crate::cancellation::Stop;
use crate::error::QueryError;
use crate::memory_meter::{self, Meter};
use crate::planning::Planned;
use crate::question::{Description, Query};
use crate::{file_threads, reference, row_width};

/// Stack of a query thread: planning recurses over expressions as deep as admission lets them be.
/// Only what is used of it costs memory.
const STACK_BYTES: usize = 64 << 20;
/// Batches that wait for a slow reader before the query pauses.
const BATCHES_AHEAD: usize = 2;
/// A single step of an operator may make one part in so many of the memory limit, and no more than
/// the other bound.
const STEP_PART: usize = 16;
const STEP_BYTES: usize = 64 << 20;

/// What queries may use. Memory is shared by all running queries; the rest is per query.
#[derive(Debug, Clone, Copy)]
pub struct QueryLimits {
    /// Bytes that all running queries together may hold, rows kept for the next one included; what
    /// can be spilled goes to the temporary folder.
    pub memory_bytes: usize,
    /// Threads for all queries together.
    pub threads: usize,
    /// Queries that run at a time; others wait, within their time limit.
    pub concurrent: usize,
    /// Rows a query may return unless it asks for more itself.
    pub rows_max: u64,
    /// Time from the start of a query until its last row is taken.
    pub time_max: Duration,
}

impl Default for QueryLimits {
    fn default() -> Self {
        let Limits { memory_bytes, threads } = Limits::default();
        Self { memory_bytes, threads, concurrent: 16, rows_max: 1_000_000, time_max: Duration::from_secs(60) }
    }
}

impl QueryLimits {
    /// Bytes that a single step of an operator may make, and a single value have.
    fn step_bytes(self) -> usize {
        (self.memory_bytes / STEP_PART).min(STEP_BYTES)
    }
}

/// What one query asks for instead of the service's limits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Overrides {
    /// Rows: more or fewer; rows are streamed and cost no memory.
    pub rows_max: Option<u64>,
    /// Time: less only.
    pub time_max: Option<Duration>,
}

/// Runs SQL on the newest catalog. Clones share threads and memory.
#[derive(Debug, Clone)]
pub struct QueryService {
    source: CatalogSource,
    engine: Arc<Engine>,
}

/// The runtime of queries: separate threads, so that a heavy query delays neither ingest nor health
/// checks.
#[derive(Debug)]
struct Engine {
    limits: QueryLimits,
    memory: Arc<RuntimeEnv>,
    slots: Arc<Semaphore>,
    handle: Handle,
    threads: Option<Runtime>,
}

impl Engine {
    /// Leave to run a query, once it is its turn.
    async fn slot(&self) -> Result<OwnedSemaphorePermit, QueryError> {
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        slot.map_err(|e| QueryError::Internal(e.to_string()))
    }

    async fn plan(&self, catalog: &Catalog, query: &Query) -> Result<Planned, QueryError> {
        let ctx = engine::session(&self.memory, engine_limits(self.limits));
        Planned::new(ctx, catalog, query, self.limits.step_bytes()).await
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A runtime must not be waited for on a thread of another one, and the last clone may well
        // be dropped there.
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

impl QueryService {
    /// Starts the threads for queries. Fails if the system grants none, or on a temporary folder
    /// that cannot be used.
    pub fn new(source: CatalogSource, limits: QueryLimits) -> Result<Self, QueryError> {
        let mut threads = Builder::new_multi_thread();
        let threads = file_threads::configure(&mut threads, file_threads::count(limits.concurrent))
            .worker_threads(limits.threads.max(1))
            .thread_stack_size(STACK_BYTES)
            .thread_name("query")
            .on_thread_start(|| {
                memory_meter::gauge().into_iter().for_each(Gauge::adopt_thread);
                background::enlist_thread();
            })
            .enable_all()
            .build()
            .map_err(|e| QueryError::Internal(format!("start query threads: {e}")))?;
        let memory = engine::measured_runtime(engine_limits(limits), memory_meter::gauge())
            .map_err(|e| QueryError::Internal(e.to_string()))?;
        let slots = Arc::new(Semaphore::new(limits.concurrent.max(1)));
        let handle = threads.handle().clone();
        let engine = Engine { limits, memory, slots, handle, threads: Some(threads) };
        Ok(Self { source, engine: Arc::new(engine) })
    }

    pub(crate) fn limits(&self) -> &QueryLimits {
        &self.engine.limits
    }

    /// Starts all threads for file access now. Without this, they start when they are needed.
    ///
    /// # Errors
    /// The system does not grant them.
    pub(crate) async fn start_file_threads(&self) -> std::io::Result<()> {
        let count = file_threads::count(self.engine.limits.concurrent);
        file_threads::start(&self.engine.handle, count).await
    }

    /// The same threads and limits, with other tables.
    pub fn over(&self, source: CatalogSource) -> Self {
        Self { source, engine: Arc::clone(&self.engine) }
    }

    /// Whether any part of a query still runs, of one that was given up too.
    pub(crate) fn is_running(&self) -> bool {
        self.engine.handle.metrics().num_alive_tasks() > 0
    }

    /// Tables that a query would see now.
    pub fn catalog(&self) -> Arc<Catalog> {
        self.source.current()
    }

    /// Starts a query and waits until its columns are known. Dropping the future or the rows
    /// cancels the query.
    pub async fn query(&self, sql: &str, overrides: Overrides) -> Result<Rows, QueryError> {
        self.ask(Query::plain(sql), overrides).await
    }

    /// What a query takes and gives, without running it.
    pub(crate) async fn describe(
        &self,
        query: Query,
        overrides: Overrides,
    ) -> Result<Description, QueryError> {
        let stop = self.stop(overrides)?;
        let (engine, catalog) = (Arc::clone(&self.engine), self.source.current());
        let mut task = JoinSet::new();
        let described = async move {
            let _slot = engine.slot().await?;
            match reference::answer(&catalog, &query.sql)? {
                Some(rows) => {
                    Ok(Description { parameters: Arc::new(Schema::empty()), columns: rows.schema() })
                }
                None => engine.plan(&catalog, &query).await?.describe(),
            }
        };
        task.spawn_on(described, &self.engine.handle);
        match stop.within(task.join_next()).await? {
            Some(Ok(described)) => described,
            Some(Err(stopped)) => Err(QueryError::Internal(stopped.to_string())),
            None => Err(QueryError::Internal("nothing was planned".into())),
        }
    }

    /// When a query that starts now has to end.
    fn stop(&self, overrides: Overrides) -> Result<Stop, QueryError> {
        let most = self.engine.limits.time_max;
        match overrides.time_max.unwrap_or(most) {
            asked if asked > most => Err(QueryError::TimeNotAllowed { asked, most }),
            asked => Ok(Stop::after(asked)),
        }
    }

    /// The same for a query with parameters, or for a door with a dialect of its own.
    pub(crate) async fn ask(&self, query: Query, overrides: Overrides) -> Result<Rows, QueryError> {
        let limits = self.engine.limits;
        let stop = self.stop(overrides)?;
        let (schema_sender, schema) = oneshot::channel();
        let (batch_sender, batches) = mpsc::channel(BATCHES_AHEAD);
        let out = QueryOutput {
            schema: Some(schema_sender),
            rows: 0,
            batches: batch_sender,
            rows_max: overrides.rows_max.unwrap_or(limits.rows_max),
            stop: stop.clone(),
        };
        let work = run(Arc::clone(&self.engine), self.source.current(), query, out);
        let mut rows = Rows { schema: Arc::new(Schema::empty()), batches, task: JoinSet::new(), stop };
        // The limit holds inside the task too: a client that stalls must not hold the query's
        // memory.
        let stop = rows.stop.clone();
        rows.task.spawn_on(async move { stop.within(work).await? }, &self.engine.handle);
        match rows.stop.within(schema).await? {
            Ok(schema) => rows.schema = schema,
            Err(_ended_before) => rows.outcome().await?,
        }
        Ok(rows)
    }
}

fn engine_limits(limits: QueryLimits) -> Limits {
    Limits { memory_bytes: limits.memory_bytes, threads: limits.threads.max(1) }
}

/// Rows of a running query. Dropping them ends it.
#[derive(Debug)]
pub struct Rows {
    schema: SchemaRef,
    batches: mpsc::Receiver<RecordBatch>,
    /// Holds the query's one task; dropping the set ends the task where it pauses next.
    task: JoinSet<Result<(), QueryError>>,
    stop: Stop,
}

impl Drop for Rows {
    fn drop(&mut self) {
        self.stop.abandon();
    }
}

impl Rows {
    /// Columns of every batch.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The work's result if it comes within the query's time limit.
    pub(crate) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, QueryError> {
        self.stop.within(work).await
    }

    /// The next rows; `None` after the last ones. After an error nothing more comes.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>, QueryError> {
        match self.stop.within(self.batches.recv()).await? {
            Some(batch) => Ok(Some(batch)),
            None => self.outcome().await.map(|()| None),
        }
    }

    /// How the task ended, which it is about to.
    async fn outcome(&mut self) -> Result<(), QueryError> {
        match self.task.join_next().await {
            Some(Ok(outcome)) => outcome,
            Some(Err(stopped)) => Err(QueryError::Internal(stopped.to_string())),
            None => Ok(()),
        }
    }
}

/// Where a running query sends its rows.
struct QueryOutput {
    /// Taken by the first attempt that gets so far.
    schema: Option<oneshot::Sender<SchemaRef>>,
    batches: mpsc::Sender<RecordBatch>,
    rows: u64,
    rows_max: u64,
    stop: Stop,
}

async fn run(
    engine: Arc<Engine>,
    catalog: Arc<Catalog>,
    query: Query,
    mut out: QueryOutput,
) -> Result<(), QueryError> {
    let _slot = engine.slot().await?;
    if let Some(batch) = reference::answer(&catalog, &query.sql)? {
        return pass_on(memory_stream(batch)?, &catalog, &mut out).await;
    }
    let mut rows_at_a_time = row_width::BATCH_ROWS;
    loop {
        let attempt = match start(&engine, &catalog, &query, &out.stop, rows_at_a_time).await {
            Ok(stream) => pass_on(stream, &catalog, &mut out).await,
            Err(e) => Err(e),
        };
        match attempt {
            // No row was passed on yet, so the query can start again.
            Err(QueryError::RowsTooWide { bytes }) if out.rows == 0 && rows_at_a_time > 1 => {
                let fitting = engine.limits.step_bytes() / bytes.max(1);
                rows_at_a_time = fitting.clamp(1, rows_at_a_time / 2);
            }
            Err(e) => return Err(e),
            Ok(()) => break,
        }
    }
    // Hold the query's slot until its last rows are taken or its caller is gone: until then they
    // use memory.
    out.batches.reserve_many(BATCHES_AHEAD).await.ok();
    Ok(())
}

/// Sends rows to the client, which may be gone.
async fn pass_on(
    mut stream: SendableRecordBatchStream,
    catalog: &Catalog,
    out: &mut QueryOutput,
) -> Result<(), QueryError> {
    if let Some(schema) = out.schema.take()
        && schema.send(stream.schema()).is_err()
    {
        return Ok(());
    }
    while let Some(batch) = stream.next().await {
        let batch = batch.map_err(|e| match out.stop.is_due() {
            true => out.stop.error(),
            false => QueryError::from_engine(&e, catalog.tables.keys().cloned()),
        })?;
        if out.rows + batch.num_rows() as u64 > out.rows_max {
            return Err(QueryError::TooManyRows { limit: out.rows_max });
        }
        out.rows += batch.num_rows() as u64;
        if batch.num_rows() > 0 && out.batches.send(batch).await.is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn memory_stream(batch: RecordBatch) -> Result<SendableRecordBatchStream, QueryError> {
    let schema = batch.schema();
    let stream =
        MemoryStream::try_new(vec![batch], schema, None).map_err(|e| QueryError::Internal(e.to_string()))?;
    Ok(Box::pin(stream))
}

/// Plans a query and starts it.
async fn start(
    engine: &Engine,
    catalog: &Catalog,
    query: &Query,
    stop: &Stop,
    rows_at_a_time: usize,
) -> Result<SendableRecordBatchStream, QueryError> {
    let explain = |e| QueryError::from_engine(&e, catalog.tables.keys().cloned());
    let step_bytes = engine.limits.step_bytes();
    let Planned { ctx, plan } = engine.plan(catalog, query).await?.with_values(&query.parameters)?;
    let plan = ctx.state().optimize(&plan).map_err(explain)?;
    let batch_rows = row_width::batch_rows(&plan, step_bytes).map_err(explain)?.min(rows_at_a_time);
    let meter = Meter { pool: Arc::clone(&engine.memory.memory_pool), step_bytes, batch_rows };
    let watching = Watching { meter, stop: stop.clone() };
    {
        let state = ctx.state_ref();
        let mut state = state.write();
        let rows = ConfigNonZeroUsize::try_new(batch_rows).map_err(explain)?;
        let execution = &mut state.config_mut().options_mut().execution;
        execution.batch_size = rows;
        // Planning a stored table holds a file thread. One at a time leaves others for reading.
        execution.planning_concurrency = 1;
        state.config_mut().set_extension(Arc::new(QueryViews::guarded(watching.clone())));
    }
    let state = ctx.state();
    let plan = state.query_planner().create_physical_plan(&plan, &state).await;
    let plan = plan.and_then(|plan| watching.guard(plan)).map_err(explain)?;
    execute_stream(plan, ctx.task_ctx()).map_err(explain)
}

/// Time and memory of one query, in its own plan and in those of the views it reads.
#[derive(Debug, Clone)]
struct Watching {
    meter: Meter,
    stop: Stop,
}

impl QueryGuard for Watching {
    fn guard(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        self.meter.apply(self.stop.apply(plan)?)
    }
}
