//! The answer of a worker, as the serving process takes it.

use std::sync::Arc;
use std::time::Duration;

use tidegate_lake::catalog::Catalog;
use tidegate_lake::catalog::pinned::Place;
use tokio::time::timeout_at;

use super::frame::Kind;
use super::message::{Ask, Needed, Places, WantedTail};
use super::process::Worker;
use super::{Asked, Lease, tail};
use crate::error::QueryError;

/// A worker that has not said at its deadline how its query ended is ended after this time.
const GRACE: Duration = Duration::from_millis(250);

/// Bytes of an answer that a worker makes. Dropping them ends the query.
pub struct WorkerAnswer {
    /// Present until the query has ended.
    running: Option<Running>,
    /// What came before [`Self::next`] was called.
    first: Option<Vec<u8>>,
    /// Rows of the answer, once it is whole.
    rows: Option<u64>,
    time_max: Duration,
    deadline: tokio::time::Instant,
}

impl std::fmt::Debug for WorkerAnswer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkerAnswer").field("running", &self.running.is_some()).finish_non_exhaustive()
    }
}

struct Running {
    lease: Lease,
    /// Held until the end: the files of a catalog in use are not deleted.
    catalog: Arc<Catalog>,
}

impl WorkerAnswer {
    /// Sends a query to a worker, and waits for the first bytes.
    pub(super) async fn start(
        lease: Lease,
        catalog: Arc<Catalog>,
        number: u64,
        asked: &Asked<'_>,
    ) -> Result<Self, QueryError> {
        let left = asked.deadline.saturating_duration_since(tokio::time::Instant::now());
        let ask = Ask {
            catalog: number,
            question: asked.question.clone(),
            sight: asked.sight.clone(),
            rows_max: asked.rows_max,
            time_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
        };
        let ask = serde_json::to_vec(&ask).map_err(|e| QueryError::Internal(e.to_string()))?;
        let (time_max, deadline) = (asked.time_max, asked.deadline);
        let running = Some(Running { lease, catalog });
        let mut answer = Self { running, first: None, rows: None, time_max, deadline };
        answer.first = answer.converse(Some(ask)).await?;
        Ok(answer)
    }

    /// The next piece, never empty; `None` after the last one. After an error nothing more comes.
    ///
    /// # Errors
    /// The query fails, or its process ends.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, QueryError> {
        match self.first.take() {
            Some(piece) => Ok(Some(piece)),
            None => self.converse(None).await,
        }
    }

    /// Rows of the answer; `None` until it is whole.
    pub(crate) fn rows(&self) -> Option<u64> {
        self.rows
    }

    /// The result of the work, if it is done within the query's time limit.
    pub(crate) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, QueryError> {
        timeout_at(self.deadline, work).await.map_err(|_| QueryError::TooSlow { limit: self.time_max })
    }

    /// Gives the worker what it asks for, until it gives a piece.
    async fn converse(&mut self, ask: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, QueryError> {
        let Some(running) = &mut self.running else { return Ok(None) };
        let Some(worker) = &mut running.lease.worker else { return Ok(None) };
        let until = self.deadline + GRACE;
        let said = timeout_at(until, next_message(worker, &running.catalog, ask)).await;
        match said {
            Ok(Ok(WorkerMessage::Piece(piece))) => Ok(Some(piece)),
            Ok(Ok(WorkerMessage::Whole(rows))) => {
                self.running = None;
                self.rows = Some(rows);
                Ok(None)
            }
            Ok(Ok(WorkerMessage::Failed(error))) => {
                self.running = None;
                Err(self.in_terms_of_the_query(error))
            }
            Err(_late) => {
                // It does not listen any more, or is in the background and has not heard of it yet.
                running.lease.worker.take_if(|worker| !worker.yields());
                self.running = None;
                Err(QueryError::TooSlow { limit: self.time_max })
            }
            Ok(Err(gone)) => {
                let memory_bytes = running.lease.pool.memory_bytes;
                let worker = running.lease.worker.take();
                self.running = None;
                Err(match worker {
                    Some(worker) => worker.cause_of_death(memory_bytes, self.time_max),
                    None => QueryError::Died(gone.to_string()),
                })
            }
        }
    }

    /// The worker knows only of the time that was left.
    fn in_terms_of_the_query(&self, error: QueryError) -> QueryError {
        match error {
            QueryError::TooSlow { .. } => QueryError::TooSlow { limit: self.time_max },
            error => error,
        }
    }
}

/// What a worker says that concerns the client.
enum WorkerMessage {
    Piece(Vec<u8>),
    /// After the last piece: how many rows there were.
    Whole(u64),
    Failed(QueryError),
}

async fn next_message(
    worker: &mut Worker,
    catalog: &Catalog,
    ask: Option<Vec<u8>>,
) -> std::io::Result<WorkerMessage> {
    if let Some(ask) = ask {
        worker.ask(&ask).await?;
    }
    loop {
        let Some(frame) = worker.read().await? else { return Err(std::io::Error::other("it ended")) };
        match frame.kind {
            Kind::Piece if !frame.bytes.is_empty() => return Ok(WorkerMessage::Piece(frame.bytes)),
            Kind::Whole => return Ok(WorkerMessage::Whole(frame.message()?)),
            Kind::Failed => return Ok(WorkerMessage::Failed(frame.message()?)),
            Kind::Need => {
                let needed: Needed = frame.message()?;
                let stored = catalog.stored.iter().filter(|(name, _)| needed.contains(*name));
                let stored = stored.map(|(name, stored)| (name.clone(), Place::from(stored))).collect();
                let places = Places { stored, lag: catalog.lag.clone() };
                let places = serde_json::to_vec(&places).map_err(std::io::Error::other)?;
                worker.write(Kind::Places, &places).await?;
            }
            Kind::WantTail => {
                let wanted: WantedTail = frame.message()?;
                tail::send(worker, catalog, &wanted).await?;
            }
            kind => return Err(std::io::Error::other(format!("it said {kind:?} out of turn"))),
        }
    }
}
