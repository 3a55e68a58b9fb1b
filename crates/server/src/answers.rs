//! Where queries over HTTP are run: in this process, or in workers.

use std::sync::Arc;
use std::time::Duration;

use tidegate_lake::catalog::{Catalog, CatalogSource, Sight};

use crate::encode::Encoded;
use crate::error::QueryError;
use crate::query::{Overrides, QueryService};
use crate::question::Question;
use crate::workers::{WorkerAnswer, Workers};

/// What answers queries over HTTP.
#[derive(Debug, Clone)]
pub enum Answers {
    /// This process itself: for tests, and where nothing else runs in it.
    Here(QueryService),
    /// Processes of their own.
    Workers(Workers),
}

impl From<QueryService> for Answers {
    fn from(service: QueryService) -> Self {
        Self::Here(service)
    }
}

impl From<Workers> for Answers {
    fn from(workers: Workers) -> Self {
        Self::Workers(workers)
    }
}

impl Answers {
    /// Tables that a query would see now.
    ///
    /// # Errors
    /// They cannot be cut to what the reader sees.
    pub(crate) fn catalog(&self) -> Result<Arc<Catalog>, QueryError> {
        match self {
            Self::Here(service) => Ok(service.catalog()),
            Self::Workers(workers) => workers.catalog(),
        }
    }

    /// The longest time that a query may take.
    pub(crate) fn time_max(&self) -> Duration {
        match self {
            Self::Here(service) => service.limits().time_max,
            Self::Workers(workers) => workers.limits().time_max,
        }
    }

    /// The same for a reader who sees so much.
    ///
    /// # Errors
    /// The tables cannot be cut to that.
    pub(crate) fn seen_with(&self, sight: Sight) -> Result<Self, QueryError> {
        Ok(match self {
            Self::Here(service) => {
                let catalog = service.catalog().seen_with(&sight);
                let catalog = catalog.map_err(|e| QueryError::Internal(e.to_string()))?;
                Self::Here(service.over(CatalogSource::fixed(catalog)))
            }
            Self::Workers(workers) => Self::Workers(workers.seen_with(sight)),
        })
    }

    /// Starts a query. Dropping the future or the answer ends it.
    pub(crate) async fn answer(
        &self,
        question: &Question,
        overrides: Overrides,
    ) -> Result<Answer, QueryError> {
        let Question { query, encoding, only_describe } = question;
        Ok(match self {
            Self::Workers(workers) => Answer::Worker(Box::new(workers.answer(question, overrides).await?)),
            Self::Here(service) if *only_describe => {
                let described = service.describe(query.clone(), overrides).await?;
                Answer::Described(described.encoded(question)?)
            }
            Self::Here(service) => {
                let rows = service.ask(query.clone(), overrides).await?;
                Answer::Here(Box::new(Encoded::of(rows, encoding.clone())?))
            }
        })
    }
}

/// The bytes of an answer, piece by piece.
pub(crate) enum Answer {
    Here(Box<Encoded>),
    /// A description, until it is taken.
    Described(Vec<u8>),
    Worker(Box<WorkerAnswer>),
}

impl Answer {
    /// The next piece, never empty; `None` after the last one. After an error nothing more comes.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<u8>>, QueryError> {
        match self {
            Self::Here(encoded) => encoded.next().await,
            Self::Described(bytes) => Ok(Some(std::mem::take(bytes)).filter(|bytes| !bytes.is_empty())),
            Self::Worker(answer) => answer.next().await,
        }
    }

    /// Rows of the answer; `None` until it is whole.
    pub(crate) fn rows(&self) -> Option<u64> {
        match self {
            Self::Here(encoded) => Some(encoded.rows_written()),
            Self::Described(_) => Some(0),
            Self::Worker(answer) => answer.rows(),
        }
    }

    /// The result of the work, if it is done within the query's time limit.
    pub(crate) async fn in_time<T>(&self, work: impl Future<Output = T>) -> Result<T, QueryError> {
        match self {
            Self::Here(encoded) => encoded.in_time(work).await,
            Self::Described(_) => Ok(work.await),
            Self::Worker(answer) => answer.in_time(work).await,
        }
    }
}
