//! The agent's local receiver: step reports of training jobs, holds reported by prologs, and the
//! agent's status.
//!
//! One thread serves a Unix socket and, if configured, a loopback TCP address. A connection to the
//! socket that begins with `{` carries JSON lines, each answered once its record is safe; anything
//! else is HTTP/1.1:
//!
//! | request | purpose |
//! |---|---|
//! | `POST /v1/steps` | step reports, one JSON object a line; fields in `deploy/clients/README.md` |
//! | `POST /v1/events` | holds and releases, one JSON object a line; Unix socket and authorised users only |
//! | `POST /v1/metrics` | step reports as OpenTelemetry metrics (OTLP/HTTP); see `deploy/clients/README.md` |
//! | `GET /v1/status` | status of the agent |
//!
//! Each line is accepted or refused on its own. A step report is taken from a process of its job,
//! from the job's owner and from the node's root ([`StepReports`]). Limits apply per user of the
//! node, so that no client slows the others.

mod admission;
mod answers;
mod batch;
mod connection;
mod hold;
mod http;
mod limits;
mod lines;
mod listen;
#[cfg(feature = "otlp")]
mod otlp;
mod reporter;
mod serve;
mod spread;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use tidegate_readings::step;
use tokio::sync::oneshot;

use crate::reading::Sink;
pub use hold::{GpuName, HoldEvent, HoldKind};
pub use limits::Limits;
pub use reporter::{NodeJobs, Reporter, Standing, StepReports};

/// Reads a step report in JSON as the receiver of `node` does. Its observation is now.
///
/// # Errors
/// Why the line is refused.
pub fn read_step(line: &str, node: &str) -> Result<tidegate_events::v1::StepReport, String> {
    let fields = serde_json::from_str(line).map_err(|error| format!("no JSON object: {error}"))?;
    step::from_json(fields, node, now_ms()).map(|(report, _)| report)
}

fn now_ms() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// Default socket of the agent.
pub const DEFAULT_SOCKET: &str = "/run/tidegate/agent.sock";

/// Where to listen, and whom to serve.
#[derive(Debug, Clone)]
pub struct ReceiverOptions {
    /// Path of the Unix socket; `None` for no socket.
    pub socket: Option<PathBuf>,
    /// Permissions of the socket. Jobs run as any user, so 0666 by default.
    pub mode: u32,
    /// Group that owns the socket.
    pub group: Option<String>,
    /// Loopback address for HTTP; none by default.
    pub tcp: Option<SocketAddr>,
    /// Name of this node: step reports that name another one are refused.
    pub node: String,
    /// Users that may report holds, beside root and the agent's own: a job must not be able to end
    /// another's hold.
    pub event_uids: Vec<u32>,
    /// Whose step reports are taken.
    pub step_reports: StepReports,
    /// Limits per user and in total.
    pub limits: Limits,
}

impl ReceiverOptions {
    /// Options with the default socket.
    pub fn new(node: impl Into<String>) -> Self {
        Self {
            socket: Some(DEFAULT_SOCKET.into()),
            mode: 0o666,
            group: None,
            tcp: None,
            node: node.into(),
            event_uids: Vec::new(),
            step_reports: StepReports::default(),
            limits: Limits::default(),
        }
    }
}

/// Takes holds and releases reported by prologs and epilogs.
pub trait HoldEvents: Send + Sync {
    /// Takes one hold or release and returns once it is safe.
    ///
    /// # Errors
    /// Why it cannot be used, for the sender.
    fn hold_event(&self, event: HoldEvent) -> Result<(), String>;
}

/// The agent's status, as a JSON object.
pub type StatusFn = Arc<dyn Fn() -> Value + Send + Sync>;

/// Consumers of received records, and the source of the status.
#[derive(Clone)]
pub struct ReceiverParts {
    /// Sink of step reports. It is asked to store once per read or request, before any line of it
    /// is acknowledged.
    pub sink: Arc<dyn Sink>,
    /// Consumer of holds; `None` refuses them.
    pub holds: Option<Arc<dyn HoldEvents>>,
    /// Knows the jobs on this node; `None` knows none.
    pub jobs: Option<Arc<dyn NodeJobs>>,
    /// Called for each status request.
    pub status: StatusFn,
}

impl std::fmt::Debug for ReceiverParts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReceiverParts").field("holds", &self.holds.is_some()).finish_non_exhaustive()
    }
}

/// Why the receiver cannot start.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages describe the variants")]
pub enum ReceiverError {
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
        "{address} is no loopback address; jobs on this node reach 127.0.0.1, and other machines must not reach the agent"
    )]
    NotLoopback { address: SocketAddr },
    #[error("cannot listen on {address}: {source}")]
    Tcp { address: SocketAddr, source: std::io::Error },
    #[error("cannot start the receiver's thread: {0}")]
    Thread(std::io::Error),
}

/// Counts since the start.
#[derive(Debug, Default)]
struct Counts {
    pub steps: AtomicU64,
    pub holds: AtomicU64,
    pub refused_lines: AtomicU64,
    /// Reports for jobs that are not the reporter's.
    pub refused_reporters: AtomicU64,
    /// Reports of more jobs or ranks than a minute may have.
    pub refused_excess: AtomicU64,
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
            "refused_reporters": of(&self.refused_reporters),
            "refused_excess": of(&self.refused_excess),
            "refused_connections": of(&self.refused_connections),
            "timed_out_connections": of(&self.timed_out),
            "slowed": of(&self.slowed),
            "otlp_points_ignored": of(&self.otlp_ignored),
        })
    }
}

/// State shared by all connections.
struct Shared {
    pub node: String,
    pub event_uids: Vec<u32>,
    pub step_reports: StepReports,
    pub parts: ReceiverParts,
    pub counts: Counts,
    pub peers: limits::Peers,
    pub refusals: admission::Refusals,
}

impl Shared {
    /// The answer of `/v1/status`.
    pub fn status(&self) -> Value {
        let mut status = (self.parts.status)();
        if let Value::Object(fields) = &mut status {
            fields.insert("inlet".into(), self.counts.json());
        }
        status
    }
}

/// A running receiver. Dropping it stops it.
pub struct Receiver {
    shared: Arc<Shared>,
    tcp: Option<SocketAddr>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").field("tcp", &self.tcp).finish_non_exhaustive()
    }
}

/// How long stopping waits for answers in progress.
const STOP_GRACE: Duration = Duration::from_secs(1);

impl Receiver {
    /// Starts to listen. A socket that a dead agent left behind is replaced.
    ///
    /// # Errors
    /// [`ReceiverError`] if an address is not available.
    pub fn start(options: ReceiverOptions, parts: ReceiverParts) -> Result<Self, ReceiverError> {
        let listeners = listen::bind(&options)?;
        let tcp = listeners.tcp_address();
        let shared = Arc::new(Shared {
            node: options.node,
            event_uids: options.event_uids,
            step_reports: options.step_reports,
            parts,
            counts: Counts::default(),
            peers: limits::Peers::new(options.limits),
            refusals: admission::Refusals::default(),
        });
        // One thread for all connections, and at most two more that wait for the disk and end when
        // idle.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(2)
            .thread_keep_alive(Duration::from_secs(1))
            .thread_name("receiver-sink")
            .build()
            .map_err(ReceiverError::Thread)?;
        let (stop, stopped) = oneshot::channel();
        let for_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("receiver".into())
            .spawn(move || {
                runtime.block_on(serve::serve(for_thread, listeners, stopped));
                runtime.shutdown_timeout(STOP_GRACE);
            })
            .map_err(ReceiverError::Thread)?;
        Ok(Self { shared, tcp, stop: Some(stop), thread: Some(thread) })
    }

    /// The TCP address, with the actual port if 0 was asked for.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp
    }

    /// Counts of what was received and refused, as in `/v1/status`.
    pub fn counts(&self) -> Value {
        self.shared.counts.json()
    }

    /// Stops listening, removes the socket, and waits up to a second for answers in progress.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Sending fails only if the thread has already ended.
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the receiver's thread panicked");
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.end();
    }
}
