//! Which tables changed, told to pages that stay open: server-sent events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde_json::{Value, json};
use tidegate_lake::catalog::Catalog;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout_at};

use crate::access::Principal;
use crate::answers::Answers;
use crate::error::QueryError;
use crate::lasting::{Admission, Stopping};

/// Streams at a time. Each is a connection; those of queries and agents need the others.
const STREAMS_MAX: usize = 128;
/// How often a stream looks for commits, and whether its principal may still come in.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// A client that hears nothing for longer has lost its connection.
const HEARD_WITHIN: Duration = Duration::from_secs(15);
/// A stream ends after this time, and the client opens another one: a client that is gone without
/// a word takes a place no longer.
const LASTS: Duration = Duration::from_secs(600);

/// Why there is no stream.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotStreamed {
    /// Every place is taken.
    #[error("{STREAMS_MAX} pages are told of changes already; ask the tables now and then")]
    TooMany,
    /// The tables cannot be cut to what the principal sees.
    #[error(transparent)]
    Query(#[from] QueryError),
}

/// Places for streams; clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Places(Arc<Semaphore>);

impl Default for Places {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(STREAMS_MAX)))
    }
}

/// A stream of events: `principal` first, then `tables` with the names of those that were committed
/// anew since the last one, among those that the principal sees.
///
/// # Errors
/// Every place is taken, or the tables cannot be cut to what the principal sees.
pub(crate) fn stream(
    answers: Answers,
    principal: Principal,
    admission: Admission,
    stopping: Stopping,
    places: Places,
) -> Result<Response, NotStreamed> {
    let place = places.0.try_acquire_owned().map_err(|_| NotStreamed::TooMany)?;
    let seen = answers.seen_with(principal.sight())?.catalog()?;
    let whole = answers.catalog()?;
    let mut versions = versions(&whole);
    versions.retain(|name, _| seen.tables.contains_key(name));
    let hello = event("principal", &json!({"principal": principal.id, "role": principal.role.name()}));
    let changes =
        Changes { answers, versions, admission, stopping, ends: Instant::now() + LASTS, _place: place };
    let rest = stream::unfold(changes, async |mut changes| {
        let told = changes.next().await?;
        Some((told, changes))
    });
    let events = futures::StreamExt::chain(stream::iter([hello]), rest);
    let body = Body::from_stream(futures::StreamExt::map(events, Ok::<Bytes, std::convert::Infallible>));
    Ok(([(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-store")], body).into_response())
}

/// One open stream.
struct Changes {
    answers: Answers,
    /// The version of each table that was told of.
    versions: BTreeMap<String, i64>,
    admission: Admission,
    stopping: Stopping,
    ends: Instant,
    _place: OwnedSemaphorePermit,
}

impl Changes {
    /// The next event, or a comment where nothing happened; `None` when the stream is over.
    async fn next(&mut self) -> Option<Bytes> {
        let silent = Instant::now() + HEARD_WITHIN;
        let mut ticks = interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while Instant::now() < silent {
            let stops = timeout_at(ticks.tick().await + LOOK_EVERY, self.stopping.stops()).await.is_ok();
            if stops || Instant::now() >= self.ends || !self.admission.lasts() {
                return None;
            }
            let newest = self.answers.catalog().ok()?;
            let changed = self.changed(&newest);
            if !changed.is_empty() {
                return Some(event("tables", &json!({"tables": changed})));
            }
        }
        Some(Bytes::from_static(b": nothing new\n\n"))
    }

    /// Tables with another version than was told of last.
    fn changed(&mut self, catalog: &Catalog) -> Vec<String> {
        let newest = versions(catalog);
        let mut changed = Vec::new();
        for (name, told) in &mut self.versions {
            if let Some(version) = newest.get(name).filter(|version| **version != *told) {
                *told = *version;
                changed.push(name.clone());
            }
        }
        changed
    }
}

fn versions(catalog: &Catalog) -> BTreeMap<String, i64> {
    catalog.stored.iter().map(|(name, stored)| (name.clone(), stored.version)).collect()
}

fn event(name: &str, data: &Value) -> Bytes {
    // JSON has no line breaks of its own.
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}
