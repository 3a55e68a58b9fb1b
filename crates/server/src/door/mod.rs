//! The door: a listener with the rules of who comes in, and the loop that serves it.

mod accept;
mod client;
mod guard;
mod limits;
mod names;
mod stream;
mod tls;
mod verifier;

use std::sync::Arc;

use axum::middleware;
use tokio::net::TcpListener;

pub use limits::ConnectionLimits;
pub use names::HostNames;
pub use tls::{ClientFiles, Tls, TlsError, TlsFiles};

use crate::access::Access;
use crate::answers::Answers;
use crate::audit::Auditor;
use crate::http::{self, Asked};
use crate::ingest::Ingest;
use crate::metrics::Metrics;
use accept::Accepting;
use guard::Guard;

/// A listener, and who comes in by it.
#[derive(Debug)]
pub struct Door {
    /// The address.
    pub listener: TcpListener,
    /// Whose requests are answered.
    pub access: Access,
    /// Names that requests may ask for.
    pub names: HostNames,
    /// TLS; `None` for plain HTTP.
    pub tls: Option<Tls>,
    /// Bounds of connections.
    pub limits: ConnectionLimits,
    /// Records what people do, before it is done; `None` in tests alone.
    pub audit: Option<Auditor>,
}

impl Door {
    /// A door open to everybody who reaches the address, without TLS: for loopback addresses.
    pub fn open(listener: TcpListener) -> Self {
        let limits = ConnectionLimits::of_process();
        Self { listener, access: Access::Open, names: HostNames::default(), tls: None, limits, audit: None }
    }

    /// Beginning of the address, for messages.
    pub fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }
}

/// Answers requests until `shutdown` resolves, then lets running responses end for at most five
/// seconds. No client and no shortage of descriptors ends it.
pub async fn serve(
    door: Door,
    answers: impl Into<Answers>,
    metrics: Arc<Metrics>,
    ingest: Option<Ingest>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) {
    let Door { listener, access, names, tls, limits, audit } = door;
    let asked = Asked { answers: answers.into(), audit: audit.clone() };
    let mut app = http::router(asked, Arc::clone(&metrics), access.clone());
    let guard = Arc::new(Guard::new(names, access, Arc::clone(&metrics), audit.clone()));
    if let Some(ingest) = ingest {
        app = app.merge(ingest.router(audit.clone()));
    }
    let app = app.layer(middleware::from_fn_with_state(guard, guard::guard));
    Accepting { listener, app, tls, limits, metrics }.run(shutdown).await;
    if let Some(audit) = audit {
        audit.flush().await;
    }
}
