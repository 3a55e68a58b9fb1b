//! Queries of users in processes of their own.
//!
//! Whatever a query does, it does it to its worker: a process of this program with hard limits on
//! memory and time, which opens the tables read-only ([`work`]). It is told where they are, and
//! asks for the rows that are not committed, so that it sees what the serving process would see. A
//! worker runs one query at a time and is kept for the next one; one that does not end with its
//! query is killed and replaced, and so is one with little address space left.
//!
//! Most queries need little memory. Half of what queries may hold is divided among the small
//! workers; the other half is that of one large worker, which takes the queries that were too large
//! for their share, one after the other.

mod allowance;
mod answer;
mod frame;
mod limits;
mod link;
mod message;
mod process;
mod remote_rows;
mod tail;
mod work;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_lake::catalog::{Catalog, CatalogSource, Sight};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use self::allowance::Allowance;
pub use self::answer::WorkerAnswer;
pub use self::limits::{run_in_background, yield_to_others};
pub use self::process::Program;
use self::process::Worker;
pub use self::work::{runtime, work};
use crate::error::QueryError;
use crate::query::{Overrides, QueryLimits};
use crate::question::Question;

/// Queries that may wait for a worker; more are refused at once. Two hundred dashboards must fit,
/// of which each asks one question.
const WAITING_MAX: usize = 256;
/// Small workers, at least and at most; as many as processors in between.
const SMALL: std::ops::RangeInclusive<usize> = 2..=8;

/// The workers of a serving process. Clones share them.
#[derive(Clone)]
pub struct Workers {
    source: CatalogSource,
    limits: QueryLimits,
    small: Arc<Pool>,
    large: Arc<Pool>,
    waiting: Arc<AtomicUsize>,
    /// How much queries see.
    sight: Sight,
    published: Arc<Mutex<Numbered>>,
}

impl std::fmt::Debug for Workers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Workers").field("limits", &self.limits).finish_non_exhaustive()
    }
}

/// The newest catalog that a query was started on, and its number.
#[derive(Debug, Default)]
struct Numbered {
    number: u64,
    catalog: Arc<Catalog>,
}

impl Workers {
    /// Starts the workers.
    ///
    /// # Errors
    /// The system grants no process, socket or temporary folder.
    pub fn start(source: CatalogSource, limits: QueryLimits, program: Program) -> std::io::Result<Self> {
        let many = limits.threads.clamp(*SMALL.start(), *SMALL.end());
        let half = limits.memory_bytes / 2;
        let allowance = Arc::new(Allowance::new(limits.threads));
        let small = Pool::start(&program, &allowance, many, half / many)?;
        let large = Pool::start(&program, &allowance, 1, half)?;
        let (waiting, published) = Default::default();
        Ok(Self { source, limits, small, large, waiting, sight: Sight::Whole, published })
    }

    pub(crate) fn limits(&self) -> &QueryLimits {
        &self.limits
    }

    /// Tables that a query would see now.
    ///
    /// # Errors
    /// They cannot be cut to what the reader sees.
    pub fn catalog(&self) -> Result<Arc<Catalog>, QueryError> {
        let whole = self.source.current();
        if self.sight == Sight::Whole {
            return Ok(whole);
        }
        whole.seen_with(&self.sight).map(Arc::new).map_err(|e| QueryError::Internal(e.to_string()))
    }

    /// The same workers, for queries of a reader who sees so much.
    #[must_use]
    pub fn seen_with(&self, sight: Sight) -> Self {
        Self { sight, ..self.clone() }
    }

    /// Runs a query, and waits until the first bytes of the answer are there. Dropping the future
    /// or the answer ends the query.
    ///
    /// # Errors
    /// The query is refused or fails, or its process ends.
    pub(crate) async fn answer(
        &self,
        question: &Question,
        overrides: Overrides,
    ) -> Result<WorkerAnswer, QueryError> {
        let time_max = overrides.time_max.unwrap_or(self.limits.time_max);
        if time_max > self.limits.time_max {
            return Err(QueryError::TimeNotAllowed { asked: time_max, most: self.limits.time_max });
        }
        let asked = Asked {
            question,
            sight: &self.sight,
            rows_max: overrides.rows_max.unwrap_or(self.limits.rows_max),
            time_max,
            deadline: Instant::now() + time_max,
        };
        match self.attempt(&self.small, &asked).await {
            Err(QueryError::OutOfMemory(_) | QueryError::RowsTooWide { .. }) => {
                self.attempt(&self.large, &asked).await
            }
            answered => answered,
        }
    }

    async fn attempt(&self, pool: &Arc<Pool>, asked: &Asked<'_>) -> Result<WorkerAnswer, QueryError> {
        let lease = {
            let _waits = Waits::begin(&self.waiting)?;
            let lease = timeout_at(asked.deadline, pool.lease());
            lease.await.map_err(|_| QueryError::TooSlow { limit: asked.time_max })??
        };
        let (number, catalog) = self.numbered();
        WorkerAnswer::start(lease, catalog, number, asked).await
    }

    /// The newest catalog and its number, which grows with each new one.
    fn numbered(&self) -> (u64, Arc<Catalog>) {
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        let current = self.source.current();
        if !Arc::ptr_eq(&published.catalog, &current) {
            *published = Numbered { number: published.number + 1, catalog: current };
        }
        (published.number, Arc::clone(&published.catalog))
    }
}

/// A query as it was asked.
struct Asked<'a> {
    question: &'a Question,
    sight: &'a Sight,
    rows_max: u64,
    time_max: std::time::Duration,
    deadline: Instant,
}

/// Counts a query that waits for a worker.
struct Waits<'a>(&'a AtomicUsize);

impl<'a> Waits<'a> {
    fn begin(waiting: &'a AtomicUsize) -> Result<Self, QueryError> {
        let waits = Self(waiting);
        match waiting.fetch_add(1, Ordering::Relaxed) {
            before if before < WAITING_MAX => Ok(waits),
            waiting => Err(QueryError::Busy { waiting }),
        }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Workers whose queries may hold the same memory.
struct Pool {
    program: Program,
    allowance: Arc<Allowance>,
    memory_bytes: usize,
    idle: Mutex<Vec<Worker>>,
    slots: Arc<Semaphore>,
}

impl Pool {
    fn start(
        program: &Program,
        allowance: &Arc<Allowance>,
        workers: usize,
        memory_bytes: usize,
    ) -> std::io::Result<Arc<Self>> {
        let pool = Self {
            program: Arc::clone(program),
            allowance: Arc::clone(allowance),
            memory_bytes,
            idle: Mutex::default(),
            slots: Arc::new(Semaphore::new(workers)),
        };
        for _ in 0..workers {
            let worker = pool.start_worker()?;
            pool.idle().push(worker);
        }
        Ok(Arc::new(pool))
    }

    fn start_worker(&self) -> std::io::Result<Worker> {
        Worker::start(&self.program, self.memory_bytes, Arc::clone(&self.allowance))
    }

    /// A worker, once one is free. The longest waiting query gets it.
    async fn lease(self: &Arc<Self>) -> Result<Lease, QueryError> {
        let slot = Arc::clone(&self.slots).acquire_owned().await;
        let slot = slot.map_err(|e| QueryError::Internal(e.to_string()))?;
        let alive = std::iter::from_fn(|| self.idle().pop()).find_map(Worker::alive);
        let worker = match alive {
            Some(worker) => worker,
            // Somebody killed it, or the system refused to replace one; by now it may not.
            None => self
                .start_worker()
                .map_err(|e| QueryError::Internal(format!("start a process for the query: {e}")))?,
        };
        Ok(Lease { pool: Arc::clone(self), worker: Some(worker), slot: Some(slot) })
    }

    /// Replaces idle workers that run in the background, once the allowance has grown again.
    fn restore(&self) {
        let mut idle = self.idle();
        if !idle.iter().any(Worker::yields) || !self.allowance.has_recovered() {
            return;
        }
        for worker in idle.iter_mut().filter(|worker| worker.yields()) {
            match self.start_worker() {
                Ok(started) => *worker = started,
                Err(error) => return tracing::warn!(%error, "no process for queries could be started"),
            }
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Worker>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker that runs a query.
struct Lease {
    pool: Arc<Pool>,
    worker: Option<Worker>,
    slot: Option<OwnedSemaphorePermit>,
}

impl Drop for Lease {
    /// Ends the query, and gives back the worker, or another one in its place.
    fn drop(&mut self) {
        let (pool, worker, slot) = (Arc::clone(&self.pool), self.worker.take(), self.slot.take());
        // At the end of the serving process nothing is replaced.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let settled = match worker {
                Some(worker) => worker.settled().await,
                None => None,
            };
            let free = settled.map_or_else(|| pool.start_worker(), Ok);
            match free {
                Ok(worker) => {
                    pool.idle().push(worker);
                    pool.restore();
                }
                Err(error) => tracing::warn!(%error, "no process for queries could be started"),
            }
            drop(slot);
        });
    }
}
