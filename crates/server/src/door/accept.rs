//! The accept loop: as many connections as fit, each with deadlines, whatever clients do.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use futures::FutureExt;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinSet};

use super::client::ClientCertificate;
use super::limits::{ConnectionLimits, HEAD_BYTES};
use super::stream::{HoldingBody, TimedBody, Unstalled};
use super::tls::Tls;
use crate::audit::Peer;
use crate::metrics::Metrics;

/// How long running responses may go on after the stop signal.
const GRACE: Duration = Duration::from_secs(5);
/// Pause after a failed accept: most often descriptors or memory are short, and pass.
const PAUSE: Duration = Duration::from_millis(100);
/// Failed accepts are logged this often at most.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// A connection that is answering a request.
const BUSY: u64 = u64::MAX;
/// Set in the idle time of a connection that has sent a request before, so that those that never
/// did sort before it.
const HAS_ASKED: u64 = 1 << 63;

/// Accepts connections and answers their requests.
pub(super) struct Accepting {
    pub listener: TcpListener,
    pub app: Router,
    pub tls: Option<Tls>,
    pub limits: ConnectionLimits,
    pub metrics: Arc<Metrics>,
}

impl Accepting {
    /// Runs until `shutdown` resolves, then lets running responses end for at most five seconds.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let began = Instant::now();
        let mut shutdown = std::pin::pin!(shutdown.fuse());
        let (stop, stopped) = watch::channel(false);
        let mut connections = Connections { tasks: JoinSet::new(), open: HashMap::new() };
        let mut logged: Option<Instant> = None;
        loop {
            self.metrics.observe_connections(connections.open.len());
            let is_full = connections.open.len() >= self.limits.connections;
            let has_room = !is_full || connections.idle_longest().is_some();
            let accepted = tokio::select! {
                () = &mut shutdown => break,
                Some(ended) = connections.tasks.join_next_with_id() => {
                    connections.forget(ended);
                    continue;
                }
                accepted = self.listener.accept(), if has_room => accepted,
            };
            match accepted {
                Ok((socket, peer)) => {
                    if is_full && connections.shed() {
                        self.metrics.count_shed();
                    }
                    let idle = Idle { since_ms: Arc::new(AtomicU64::new(0)), began };
                    idle.begin(0);
                    let since_ms = Arc::clone(&idle.since_ms);
                    connections.add(since_ms, self.connection(socket, Peer(peer), idle, stopped.clone()));
                }
                Err(error) => {
                    if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
                        logged = Some(Instant::now());
                        tracing::error!("a connection cannot be accepted: {error}");
                    }
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(self.listener);
        stop.send_replace(true);
        let all = async { while connections.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(GRACE, all).await.is_err() {
            tracing::debug!(
                "requests were still running after {} s; their connections are cut",
                GRACE.as_secs()
            );
        }
    }

    /// One connection, from its handshake to its end. What goes wrong on it is its client's affair.
    fn connection(
        &self,
        socket: TcpStream,
        peer: Peer,
        idle: Idle,
        stopped: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (app, limits) = (self.app.clone(), self.limits);
        let tls = self.tls.clone();
        let metrics = Arc::clone(&self.metrics);
        async move {
            // Small answers are sent at once; a socket that refuses the option still works.
            socket.set_nodelay(true).ok();
            let Some(tls) = tls else { return serve(socket, peer, app, None, limits, idle, stopped).await };
            match tokio::time::timeout(limits.head, tls.acceptor().accept(socket)).await {
                Ok(Ok(socket)) => {
                    let shown = socket.get_ref().1.peer_certificates().unwrap_or_default();
                    let client = ClientCertificate::new(shown, tls).map(Arc::new);
                    serve(socket, peer, app, client, limits, idle, stopped).await;
                }
                Ok(Err(error)) => {
                    if refuses_certificate(&error) {
                        metrics.count_refused_certificate();
                    }
                    tracing::debug!("a TLS handshake failed: {error}");
                }
                Err(_) => tracing::debug!("a TLS handshake took too long"),
            }
        }
    }
}

/// Whether a handshake failed for the client's certificate.
fn refuses_certificate(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    peer: Peer,
    app: Router,
    client: Option<Arc<ClientCertificate>>,
    limits: ConnectionLimits,
    idle: Idle,
    mut stopped: watch::Receiver<bool>,
) {
    let app = TowerToHyperService::new(app);
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        if let Some(client) = &client {
            request.extensions_mut().insert(Arc::clone(client));
        }
        let (app, idle) = (app.clone(), idle.clone());
        async move {
            let busy = idle.interrupt();
            let mut request = request.map(|body| Body::new(TimedBody::new(body, limits.body)));
            request.extensions_mut().insert::<Peer>(peer);
            let answer = app.call(request).await;
            answer.map(|response| response.map(|body| HoldingBody { body, _held: busy }))
        }
    });
    let stream = TokioIo::new(Unstalled::new(stream, limits.stalled));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(HEAD_BYTES)
        .serve_connection(stream, service);
    let mut connection = std::pin::pin!(connection);
    let stopped = async { stopped.wait_for(|stop| *stop).await.map_or((), |_| ()) };
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = stopped => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection ended: {error}");
    }
}

/// Since when a connection sends no request, ms after the loop began, with [`HAS_ASKED`];
/// [`BUSY`] while one is answered.
#[derive(Clone)]
struct Idle {
    since_ms: Arc<AtomicU64>,
    began: Instant,
}

impl Idle {
    fn begin(&self, has_asked: u64) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(0);
        self.since_ms.store(now | has_asked, Ordering::Relaxed);
    }

    /// Not idle until the guard is dropped.
    fn interrupt(self) -> Busy {
        self.since_ms.store(BUSY, Ordering::Relaxed);
        Busy(self)
    }
}

struct Busy(Idle);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.begin(HAS_ASKED);
    }
}

struct Connections {
    tasks: JoinSet<()>,
    /// Those that were not shed, each with the time since which it is idle.
    open: HashMap<Id, (Arc<AtomicU64>, AbortHandle)>,
}

impl Connections {
    fn add(&mut self, idle: Arc<AtomicU64>, connection: impl Future<Output = ()> + Send + 'static) {
        let handle = self.tasks.spawn(connection);
        self.open.insert(handle.id(), (idle, handle));
    }

    fn forget(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => error.id(),
        };
        self.open.remove(&id);
    }

    /// The connection to close first: of those that never sent a request the oldest, else the one
    /// that has sent none for longest. `None` if all are answering one.
    fn idle_longest(&self) -> Option<Id> {
        let since = |(id, (since_ms, _)): (&Id, &(Arc<AtomicU64>, AbortHandle))| {
            (since_ms.load(Ordering::Relaxed), *id)
        };
        let (since_ms, id) = self.open.iter().map(since).min_by_key(|(since_ms, _)| *since_ms)?;
        (since_ms != BUSY).then_some(id)
    }

    /// Closes that connection, so that clients that send requests get through a flood of those that
    /// do not. Returns whether there was one.
    fn shed(&mut self) -> bool {
        let shed = self.idle_longest().and_then(|id| self.open.remove(&id));
        shed.inspect(|(_, handle)| handle.abort()).is_some()
    }
}
