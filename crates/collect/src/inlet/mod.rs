//! The agent's local way in: step reports of training jobs, holds told by prologs, and the agent's
//! status.
//!
//! One thread serves a Unix socket and, where asked for, a loopback TCP address. A connection of
//! the socket that begins with `{` speaks JSON lines, each answered when its record is safe;
//! anything else is HTTP/1.1:
//!
//! | request | what |
//! |---|---|
//! | `POST /v1/steps` | step reports, one JSON object a line ([`step`](self) fields in `deploy/clients/README.md`) |
//! | `POST /v1/events` | holds and releases, one JSON object a line; the Unix socket only, from users that may |
//! | `POST /v1/metrics` | the same step reports as OpenTelemetry metrics (OTLP/HTTP), see `deploy/clients/README.md` |
//! | `GET /v1/status` | what the agent knows of itself |
//!
//! A line is taken or refused on its own. Each user of the node has limits of his own, so that no
//! client holds others up.

mod held;
mod http;
mod limits;
mod lines;
mod listen;
#[cfg(feature = "otlp")]
mod otlp;
mod serve;
mod step;
mod take;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::reading::Sink;
pub use held::{GpuName, HoldEvent, HoldKind};
pub use limits::Limits;

/// Where the agent listens unless told otherwise.
pub const DEFAULT_SOCKET: &str = "/run/tidegate/agent.sock";

/// Where and for whom to listen.
#[derive(Debug, Clone)]
pub struct InletOptions {
    /// Path of the Unix socket; none for none.
    pub socket: Option<PathBuf>,
    /// Permissions of the socket. Jobs run as any user, so 0666 by default.
    pub mode: u32,
    /// Group that owns the socket.
    pub group: Option<String>,
    /// Loopback address for HTTP; none by default.
    pub tcp: Option<SocketAddr>,
    /// Name of this node, for step reports that name none.
    pub node: String,
    /// Users that may tell of holds, beside root and the agent's own: a job must not be able to end
    /// another's hold.
    pub event_uids: Vec<u32>,
    pub limits: Limits,
}

impl InletOptions {
    /// Listens on the default socket.
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            socket: Some(DEFAULT_SOCKET.into()),
            mode: 0o666,
            group: None,
            tcp: None,
            node: node.into(),
            event_uids: Vec::new(),
            limits: Limits::default(),
        }
    }
}

/// Takes what prologs and epilogs tell.
pub trait HoldEvents: Send + Sync {
    /// Takes one hold or release. Returns when it is safe.
    ///
    /// # Errors
    /// Why it cannot be used, for whoever sent it.
    fn hold_event(&self, event: HoldEvent) -> Result<(), String>;
}

/// Says what the agent knows of itself, as a JSON object.
pub type StatusFn = Arc<dyn Fn() -> Value + Send + Sync>;

/// Whom the inlet tells and asks.
#[derive(Clone)]
pub struct InletParts {
    /// Made to store once for the lines of a read or a request, before any of them is acknowledged.
    pub sink: Arc<dyn Sink>,
    /// None: holds are refused.
    pub holds: Option<Arc<dyn HoldEvents>>,
    pub status: StatusFn,
}

impl std::fmt::Debug for InletParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InletParts").field("holds", &self.holds.is_some()).finish_non_exhaustive()
    }
}

/// Why the inlet cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum InletError {
    #[error("another agent listens on {path}; stop it, or give this one another --socket")]
    InUse { path: PathBuf },
    #[error("{path} is there and is no socket; remove it, or give another --socket")]
    NotASocket { path: PathBuf },
    #[error(
        "cannot listen on {path}: {source}; the folder must exist and be writable (systemd: RuntimeDirectory=tidegate)"
    )]
    Socket { path: PathBuf, source: std::io::Error },
    #[error("cannot give {path} to group {group}: {what}; the agent must be a member of it, or root")]
    Group { path: PathBuf, group: String, what: String },
    #[error(
        "{address} is no loopback address; jobs on this node reach 127.0.0.1, and nobody else should reach the agent"
    )]
    NotLoopback { address: SocketAddr },
    #[error("cannot listen on {address}: {source}")]
    Tcp { address: SocketAddr, source: std::io::Error },
    #[error("cannot start the inlet's thread: {0}")]
    Thread(std::io::Error),
}

/// What came in so far. All are totals since the start.
#[derive(Debug, Default)]
struct Counts {
    pub steps: AtomicU64,
    pub holds: AtomicU64,
    pub refused_lines: AtomicU64,
    pub refused_connections: AtomicU64,
    pub timed_out: AtomicU64,
    pub slowed: AtomicU64,
    pub otlp_ignored: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64, amount: usize) {
        counter.fetch_add(amount as u64, Ordering::Relaxed);
    }

    fn json(&self) -> Value {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "steps": of(&self.steps),
            "holds": of(&self.holds),
            "refused_lines": of(&self.refused_lines),
            "refused_connections": of(&self.refused_connections),
            "timed_out_connections": of(&self.timed_out),
            "slowed": of(&self.slowed),
            "otlp_points_ignored": of(&self.otlp_ignored),
        })
    }
}

/// What all connections share.
struct Shared {
    pub node: String,
    pub event_uids: Vec<u32>,
    pub parts: InletParts,
    pub counts: Counts,
    pub peers: limits::Peers,
}

impl Shared {
    /// The status as `/v1/status` gives it.
    pub fn status(&self) -> Value {
        let mut status = (self.parts.status)();
        if let Value::Object(fields) = &mut status {
            fields.insert("inlet".into(), self.counts.json());
        }
        status
    }
}

/// The running inlet. It stops when it is dropped.
pub struct Inlet {
    shared: Arc<Shared>,
    tcp: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Inlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inlet").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

/// How long stopping waits for answers that are under way.
const STOP_GRACE: Duration = Duration::from_secs(1);

impl Inlet {
    /// Listens from now on. A socket that a dead agent left behind is replaced.
    ///
    /// # Errors
    /// [`InletError`] if an address cannot be had.
    pub fn start(options: InletOptions, parts: InletParts) -> Result<Self, InletError> {
        let listeners = listen::bind(&options)?;
        let tcp = listeners.tcp_address();
        let shared = Arc::new(Shared {
            node: options.node,
            event_uids: options.event_uids,
            parts,
            counts: Counts::default(),
            peers: limits::Peers::new(options.limits),
        });
        // One thread for all connections, and at most two more that wait for the disk; they end
        // when idle.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(2)
            .thread_keep_alive(Duration::from_secs(1))
            .thread_name("inlet-sink")
            .build()
            .map_err(InletError::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("inlet".into())
            .spawn(move || {
                runtime.block_on(serve::serve(for_thread, listeners, stopped));
                runtime.shutdown_timeout(STOP_GRACE);
            })
            .map_err(InletError::Thread)?;
        Ok(Self { shared, tcp, stop: Some(stop), thread: Some(thread) })
    }

    /// The TCP address, with the port that was given for 0.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// What came in and what was refused, as in `/v1/status`.
    pub fn counts(&self) -> Value {
        self.shared.counts.json()
    }

    /// Stops listening, removes the socket and waits for answers under way, a second at most.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread is gone already if nobody takes it.
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the inlet's thread panicked");
        }
    }
}

impl Drop for Inlet {
    fn drop(&mut self) {
        self.end();
    }
}
