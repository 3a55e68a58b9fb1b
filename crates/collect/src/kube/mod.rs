//! Kubernetes holds: which pod holds which GPU, from the kubelet's pod-resources API (gRPC over a
//! Unix socket).
//!
//! The kubelet names pods by namespace and name, not by uid, so a job is `NAMESPACE/POD`. A hold
//! begins when a poll first sees it and ends when a poll first misses it: up to
//! [`KubeOptions::every`] late.
//!
//! A kubelet that does not answer ends no hold. Nor does one that just came back: until it has
//! heard of its pods again, it may list none of them.

mod devices;
mod tracker;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};

pub use devices::{PodDevice, PodHold, Quality, ReplicaCounts, pod_holds};
pub use tracker::Tracker;

/// Generated messages of the pod-resources API.
#[allow(missing_docs, missing_debug_implementations, clippy::all, clippy::pedantic)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/client/v1.rs"));
}

use v1::pod_resources_lister_client::PodResourcesListerClient;

/// Socket of the kubelet. A container must mount its folder, not the socket: a restarted kubelet
/// makes a new one.
pub const DEFAULT_SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// Name of this source in [`Observation`] and `hold_evidence`.
pub const SOURCE: &str = "pod_resources";
/// Longest accepted answer, the same as the kubelet's own limit.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// How to poll the kubelet.
#[derive(Debug, Clone)]
pub struct KubeOptions {
    /// The kubelet's socket.
    pub socket: PathBuf,
    /// Time between two polls.
    pub every: Duration,
    /// Timeout of a poll.
    pub patience: Duration,
    /// How long after a new connection missing holds are not taken as ended.
    pub settling: Duration,
}

impl Default for KubeOptions {
    fn default() -> Self {
        Self {
            socket: DEFAULT_SOCKET.into(),
            every: Duration::from_secs(10),
            patience: Duration::from_secs(5),
            settling: Duration::from_secs(60),
        }
    }
}

/// All holds that a source saw at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// The source; it has no say about other sources' holds.
    pub source: &'static str,
    /// Time of the poll, ms since the epoch.
    pub at_ms: i64,
    /// The holds.
    pub holds: Vec<PodHold>,
    /// Whether holds missing from `holds` have ended.
    pub complete: bool,
}

/// Takes observations of holds.
pub trait HoldObserver: Send + Sync {
    /// Takes one observation.
    fn observe(&self, observation: Observation);
}

/// State of the source, for the agent's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KubeStatus {
    /// Whether the last poll was answered.
    pub answering: bool,
    /// Time of the last answer, ms since the epoch.
    pub answered_ms: Option<i64>,
    /// Number of devices held by pods then.
    pub held: usize,
    /// Polls answered.
    pub answers: u64,
    /// Polls failed.
    pub failures: u64,
    /// Last failure, and how to mend it.
    pub last_failure: Option<String>,
}

/// Polls the kubelet until it is dropped.
pub struct KubeWatch {
    status: Arc<Mutex<KubeStatus>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for KubeWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KubeWatch").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl KubeWatch {
    /// Starts to poll on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started. An absent kubelet is no error: it may come.
    pub fn start(options: KubeOptions, observer: Arc<dyn HoldObserver>) -> std::io::Result<Self> {
        let status = Arc::new(Mutex::new(KubeStatus::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = oneshot::channel();
        let poller = Poller {
            options,
            observer,
            status: Arc::clone(&status),
            client: None,
            replicas: None,
            settled_at: None,
        };
        let thread = std::thread::Builder::new().name("kube".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = poller.run() => {}
                    // The sender is dropped without a message only if the agent is gone.
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { status, stop: Some(stop), thread: Some(thread) })
    }

    /// The current state.
    pub fn status(&self) -> KubeStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for KubeWatch {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Sending fails only if the thread has already ended.
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that polls the kubelet panicked");
        }
    }
}

struct Poller {
    options: KubeOptions,
    observer: Arc<dyn HoldObserver>,
    status: Arc<Mutex<KubeStatus>>,
    client: Option<PodResourcesListerClient<Channel>>,
    /// Replicas of each shared device; queried once per connection.
    replicas: Option<ReplicaCounts>,
    /// When missing holds count as ended on this connection.
    settled_at: Option<Instant>,
}

impl Poller {
    async fn run(mut self) {
        let mut ticks = tokio::time::interval(self.options.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let answer = tokio::time::timeout(self.options.patience, self.poll()).await;
            match answer {
                Ok(Ok(held)) => self.answered(held),
                Ok(Err(what)) => self.failed(what),
                Err(_) => self.failed(format!("no answer within {:?}", self.options.patience)),
            }
        }
    }

    async fn poll(&mut self) -> Result<Vec<PodHold>, String> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => self.connect().await?,
        };
        let list = client
            .list(v1::ListPodResourcesRequest {})
            .await
            .map_err(|status| status.message().to_owned())?;
        let pods = list.into_inner().pod_resources;
        if self.replicas.is_none() && devices::any_replica(&pods) {
            // If the kubelet does not answer this, shares stay unknown.
            let all = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await;
            self.replicas =
                Some(all.map(|all| ReplicaCounts::count(&all.into_inner().devices)).unwrap_or_default());
        }
        self.client = Some(client);
        Ok(pod_holds(&pods, self.replicas.as_ref().unwrap_or(&ReplicaCounts::default())))
    }

    async fn connect(&mut self) -> Result<PodResourcesListerClient<Channel>, String> {
        let socket = self.options.socket.display();
        let endpoint = Endpoint::from_shared(format!("unix:{socket}")).map_err(|error| error.to_string())?;
        let channel = endpoint
            .connect()
            .await
            .map_err(|error| format!("cannot connect to {socket}: {}", root(&error)))?;
        self.replicas = None;
        self.settled_at = Some(Instant::now() + self.options.settling);
        Ok(PodResourcesListerClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES))
    }

    fn answered(&mut self, held: Vec<PodHold>) {
        let at_ms = now_ms();
        let again = {
            let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
            status.answers += 1;
            status.answered_ms = Some(at_ms);
            status.held = held.len();
            !std::mem::replace(&mut status.answering, true) && status.failures > 0
        };
        if again {
            tracing::info!("the kubelet answers again");
        }
        let complete = self.settled_at.is_some_and(|at| Instant::now() >= at);
        self.observer.observe(Observation { source: SOURCE, at_ms, holds: held, complete });
    }

    fn failed(&mut self, what: String) {
        // Reconnect for the next poll: a restarted kubelet has a new socket.
        self.client = None;
        let what = format!(
            "the kubelet does not answer: {what}; holds of pods stay as they were. {}",
            self.advice()
        );
        let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        status.failures += 1;
        if status.answering || status.failures == 1 {
            tracing::warn!("{what}");
        }
        status.answering = false;
        status.last_failure = Some(what);
    }

    fn advice(&self) -> &'static str {
        match self.options.socket.try_exists() {
            Ok(true) => {
                "The socket is there: the agent needs to be root, or to have it made readable and writable"
            }
            _ => {
                "The socket is not there: mount the folder /var/lib/kubelet/pod-resources, not the socket alone"
            }
        }
    }
}

/// The innermost error: the outer ones only say "transport error".
fn root(error: &dyn std::error::Error) -> String {
    let mut error = error;
    while let Some(source) = error.source() {
        error = source;
    }
    error.to_string()
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
