//! A worker: answers the queries of the serving process, one at a time.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tidegate_lake::catalog::pinned::PinnedLake;
use tidegate_lake::catalog::{Catalog, CatalogSource, Sight};
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;

use super::frame::{Kind, MAX_FROM_WORKER};
use super::limits::{self, Confined};
use super::link::{Link, Order};
use super::message::Ask;
use super::remote_rows::RemoteRows;
use crate::background::{Background, enlist_thread};
use crate::encode::Encoded;
use crate::error::QueryError;
use crate::query::{Overrides, QueryLimits, QueryService};
use crate::question::Question;
use crate::{file_threads, planning};

/// How often a worker looks whether its last query still runs.
const LOOK_EVERY: Duration = Duration::from_millis(3);

/// The runtime of a worker: it talks to the serving process and opens tables. Queries have threads
/// of their own.
///
/// # Errors
/// The system grants no threads.
pub fn runtime() -> io::Result<Runtime> {
    let mut threads = Builder::new_multi_thread();
    file_threads::configure(&mut threads, file_threads::count(1))
        .worker_threads(1)
        .on_thread_start(enlist_thread)
        .enable_all()
        .build()
}

/// Answers queries until the serving process ends, with these limits; the memory is also a hard
/// limit of this process from now on. To be run on [`runtime`]. Returns where the process should
/// end: threads may still run what a query left.
///
/// # Errors
/// The system refuses threads or limits.
pub async fn work(stream: UnixStream, lake: PinnedLake, limits: QueryLimits) -> Result<(), QueryError> {
    let limits = QueryLimits { concurrent: 1, ..limits };
    enlist_thread();
    let background = Background::start().map_err(|e| QueryError::Internal(format!("start a thread: {e}")))?;
    let service = QueryService::new(CatalogSource::fixed(Catalog::default()), limits)?;
    let confined = async {
        file_threads::start(&Handle::current(), file_threads::count(1)).await?;
        service.start_file_threads().await?;
        Confined::confine(&limits)
    };
    let confined = confined.await.map_err(|e| QueryError::Internal(format!("limit the process: {e}")))?;
    let (link, mut orders) = Link::over(stream, background);
    let mut worker = WorkerState { link, lake, limits, confined, service, opened: Opened::default() };
    while let Some(order) = orders.recv().await {
        if let Order::Ask(frame) = order {
            let ask: Ask = frame.message().map_err(|e| QueryError::Internal(e.to_string()))?;
            if worker.answer(&ask, &mut orders).await.is_err() {
                // Nobody is there to be told.
                break;
            }
        }
    }
    Ok(())
}

struct WorkerState {
    link: Arc<Link>,
    lake: PinnedLake,
    limits: QueryLimits,
    confined: Confined,
    service: QueryService,
    opened: Opened,
}

/// The catalog of the last query, and which stored tables can be read in it.
#[derive(Default)]
struct Opened {
    number: u64,
    tables: BTreeSet<String>,
    catalog: Option<CatalogSource>,
}

impl WorkerState {
    /// Runs a query to its end, or until it is cancelled.
    async fn answer(&mut self, ask: &Ask, orders: &mut mpsc::UnboundedReceiver<Order>) -> io::Result<()> {
        self.link.begin_query();
        let link = Arc::clone(&self.link);
        let (cancelled, ended) = tokio::select! {
            ended = self.run(ask) => (false, ended),
            order = orders.recv() => match order {
                Some(_) => (true, Ok(0)),
                None => return Err(io::Error::other("the serving process has ended")),
            },
        };
        match ended {
            _ if cancelled => {}
            Ok(rows) => link.send(Kind::Whole, serde_json::to_vec(&rows)?).await?,
            Err(error) => link.send(Kind::Failed, serde_json::to_vec(&error)?).await?,
        }
        while self.service.is_running() {
            if orders.is_closed() {
                return Err(io::Error::other("the serving process has ended"));
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let rest = if self.confined.is_worn()? { Kind::Worn } else { Kind::Idle };
        link.send(rest, Vec::new()).await
    }

    /// Runs a query; returns how many rows it gave.
    async fn run(&mut self, ask: &Ask) -> Result<u64, QueryError> {
        let time_max = Duration::from_millis(ask.time_ms);
        limits::allow_cpu(time_max, self.limits.threads)
            .map_err(|e| QueryError::Internal(format!("limit the process: {e}")))?;
        let mut catalog = self.catalog(ask).await?;
        if ask.sight != Sight::Whole {
            let cut = catalog.current().seen_with(&ask.sight);
            catalog = CatalogSource::fixed(cut.map_err(|e| QueryError::Storage(causes(&e)))?);
        }
        let overrides = Overrides { rows_max: Some(ask.rows_max), time_max: Some(time_max) };
        let service = self.service.over(catalog);
        let Question { query, encoding, only_describe } = &ask.question;
        if *only_describe {
            let described = service.describe(query.clone(), overrides).await?.encoded(&ask.question)?;
            self.send(&described).await?;
            return Ok(0);
        }
        let rows = service.ask(query.clone(), overrides).await?;
        let mut encoded = Encoded::of(rows, encoding.clone())?;
        while let Some(piece) = encoded.next().await? {
            self.send(&piece).await?;
        }
        Ok(encoded.rows_written())
    }

    /// Sends bytes of an answer.
    async fn send(&self, piece: &[u8]) -> Result<(), QueryError> {
        for part in piece.chunks(MAX_FROM_WORKER) {
            let sent = self.link.send(Kind::Piece, part.to_vec()).await;
            sent.map_err(|e| QueryError::Internal(e.to_string()))?;
        }
        Ok(())
    }

    /// The catalog of the query's number, with the tables it reads opened.
    async fn catalog(&mut self, ask: &Ask) -> Result<CatalogSource, QueryError> {
        // A text that names no tables is refused later, or describes them.
        let named = planning::tables_named(&ask.question.query.sql).unwrap_or_default();
        let mut needed = self.lake.stored_behind(named);
        let same = self.opened.number == ask.catalog;
        if let Some(catalog) = self.opened.catalog.as_ref()
            && same
            && needed.is_subset(&self.opened.tables)
        {
            return Ok(catalog.clone());
        }
        if same {
            needed.append(&mut self.opened.tables);
        }
        self.opened = Opened::default();
        let places = self.link.places(&needed).await.map_err(|e| QueryError::Internal(e.to_string()))?;
        let link = &self.link;
        let tail = |spec: &tidegate_lake::table::TableSpec| {
            let (link, table, schema) = (Arc::clone(link), spec.name.clone(), spec.full_schema());
            Arc::new(RemoteRows { link, table, schema }) as _
        };
        let catalog = self.lake.catalog(&places.stored, places.lag, tail).await;
        let catalog = catalog.map_err(|e| QueryError::Storage(causes(&e)))?;
        let catalog = CatalogSource::fixed(catalog);
        self.opened = Opened { number: ask.catalog, tables: needed, catalog: Some(catalog.clone()) };
        Ok(catalog)
    }
}

/// An error with its causes.
fn causes(error: &dyn std::error::Error) -> String {
    let all = std::iter::successors(Some(error), |error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}
