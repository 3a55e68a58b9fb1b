//! The accept loop: as many connections as fit, whatever clients do. What is said on them is its
//! [`Protocol`]'s affair.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, Id, JoinSet};

use crate::audit::Peer;
use crate::metrics::{DoorName, Metrics};

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

/// What is said on a connection.
pub(crate) trait Protocol {
    /// One connection, from its handshake to its end. It sets itself busy while it answers, and
    /// ends soon after `stopped` says so.
    fn connection(
        &self,
        socket: TcpStream,
        peer: Peer,
        idle: Idle,
        stopped: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static;
}

/// Accepts connections.
pub(crate) struct Accepting<P> {
    pub listener: TcpListener,
    pub protocol: P,
    /// Connections at a time.
    pub connections: usize,
    /// Name in metrics.
    pub door: DoorName,
    pub metrics: Arc<Metrics>,
}

impl<P: Protocol> Accepting<P> {
    /// Runs until `shutdown` resolves, then lets running responses end for at most five seconds.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let began = Instant::now();
        let mut shutdown = std::pin::pin!(shutdown.fuse());
        let (stop, stopped) = watch::channel(false);
        let mut connections = Connections { tasks: JoinSet::new(), open: HashMap::new() };
        let mut logged: Option<Instant> = None;
        loop {
            self.metrics.observe_connections(self.door, connections.open.len());
            let is_full = connections.open.len() >= self.connections;
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
                        self.metrics.count_shed(self.door);
                    }
                    let idle = Idle { since_ms: Arc::default(), began, running: Arc::default() };
                    idle.begin(0);
                    let since_ms = Arc::clone(&idle.since_ms);
                    // Small answers are sent at once; a socket that refuses the option still works.
                    socket.set_nodelay(true).ok();
                    let connection = self.protocol.connection(socket, Peer(peer), idle, stopped.clone());
                    connections.add(since_ms, connection);
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
}

/// Since when a connection sends no request, ms after the loop began, with [`HAS_ASKED`];
/// [`BUSY`] while one is answered.
#[derive(Clone)]
pub(crate) struct Idle {
    since_ms: Arc<AtomicU64>,
    began: Instant,
    /// Requests that are being answered: over HTTP/2 several at a time.
    running: Arc<AtomicUsize>,
}

impl Idle {
    fn begin(&self, has_asked: u64) {
        let now = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(0);
        self.since_ms.store(now | has_asked, Ordering::Relaxed);
    }

    /// Not idle until the guard is dropped.
    pub fn interrupt(self) -> Busy {
        self.running.fetch_add(1, Ordering::Relaxed);
        self.since_ms.store(BUSY, Ordering::Relaxed);
        Busy(self)
    }
}

pub(crate) struct Busy(Idle);

impl Drop for Busy {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.begin(HAS_ASKED);
        }
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
