//! All doors of a process, until it stops.

use std::sync::Arc;

use axum::middleware;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::answers::Answers;
use crate::asked::Asked;
use crate::door::Door;
use crate::door::accept::Accepting;
use crate::door::guard::{self, Guard};
use crate::door::http1::Http1;
use crate::door::http2::Http2;
use crate::flight::service;
use crate::http;
use crate::ingest::Ingest;
use crate::metrics::{DoorName, Metrics};
use crate::metrics_door;
use crate::page_door;
use crate::postgres::sessions::Sessions;

/// A door beside HTTP takes one part in so many of its connections: each may hold a worker.
const BESIDE_PART: usize = 4;

/// Answers requests until `shutdown` resolves, then lets running responses end for at most five
/// seconds. No client and no shortage of descriptors ends it.
pub async fn serve(
    door: Door,
    answers: impl Into<Answers>,
    metrics: Arc<Metrics>,
    ingest: Option<Ingest>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let Door { listener, access, names, tls, limits, audit, steering, rehearsal, postgres, flight } = door;
    let asked = Asked { answers: answers.into(), audit: audit.clone() };
    let (stop, stopped) = watch::channel(false);
    let until = |mut stopped: watch::Receiver<bool>| async move {
        stopped.wait_for(|stop| *stop).await.map_or((), |_| ())
    };
    let mut beside = JoinSet::new();
    let connections = limits.connections / BESIDE_PART;
    if let Some(listener) = postgres {
        let metrics = Arc::clone(&metrics);
        let protocol =
            Sessions::new(asked.clone(), access.clone(), tls.clone(), limits, Arc::clone(&metrics));
        let accepting = Accepting { listener, protocol, connections, door: DoorName::Postgres, metrics };
        beside.spawn(accepting.run(until(stopped.clone())));
    }
    if let Some(listener) = flight {
        let metrics = Arc::clone(&metrics);
        let app = service::router(asked.clone(), access.clone());
        let protocol = Http2 { app, tls: tls.clone(), limits, metrics: Arc::clone(&metrics) };
        let accepting = Accepting { listener, protocol, connections, door: DoorName::Flight, metrics };
        beside.spawn(accepting.run(until(stopped.clone())));
    }
    let simulated = steering.as_ref().is_some_and(|steering| steering.is_simulated());
    let told = page_door::router(asked.answers.clone());
    let scraped = metrics_door::router(Arc::clone(&metrics), asked.answers.clone());
    let mut app = http::router(asked, Arc::clone(&metrics), access.clone(), steering, rehearsal)
        .merge(told)
        .merge(scraped);
    let guard = Arc::new(Guard::new(names, access, Arc::clone(&metrics), audit.clone(), simulated));
    if let Some(ingest) = ingest {
        app = app.merge(ingest.router(audit.clone()));
    }
    let app = app.layer(middleware::from_fn_with_state(guard, guard::guard));
    let protocol = Http1 { app, tls, limits, metrics: Arc::clone(&metrics) };
    let connections = limits.connections;
    Accepting { listener, protocol, connections, door: DoorName::Http, metrics }.run(shutdown).await;
    stop.send_replace(true);
    while let Some(ended) = beside.join_next().await {
        ended.unwrap_or_else(|error| tracing::error!("a door failed: {error}"));
    }
    if let Some(audit) = audit {
        audit.flush().await;
    }
}
