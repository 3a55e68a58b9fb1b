//! Which pod holds which GPU, as the kubelet of this node says: its pod-resources API, gRPC over a
//! Unix socket.
//!
//! The kubelet names pods by namespace and name and not by their uid, so a job is `NAMESPACE/POD`.
//! A hold begins when it is first seen and ends when it is first missed, which is up to
//! [`KubeOptions::every`] late.
//!
//! A kubelet that does not answer ends no hold. Nor does one that was away and has just come back:
//! until it has heard of its pods again it may list none of them.

mod devices;
mod tracker;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::oneshot;
use tonic::transport::{Channel, Endpoint};

pub use devices::{Held, HeldDevice, Quality, ReplicaCounts, held};
pub use tracker::Tracker;

/// Messages of the pod-resources API.
#[allow(missing_docs, missing_debug_implementations, clippy::all, clippy::pedantic)]
pub mod v1 {
    include!(concat!(env!("OUT_DIR"), "/client/v1.rs"));
}

use v1::pod_resources_lister_client::PodResourcesListerClient;

/// Where the kubelet listens. A container must mount the folder, not the socket: a restarted
/// kubelet makes a new one.
pub const DEFAULT_SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";
/// Name of this source in [`Observation`] and `hold_evidence`.
pub const SOURCE: &str = "pod_resources";
/// Longest answer that is taken, as the kubelet's own limit.
const MAX_ANSWER_BYTES: usize = 16 << 20;

/// How to ask the kubelet.
#[derive(Debug, Clone)]
pub struct KubeOptions {
    pub socket: PathBuf,
    /// How often to ask.
    pub every: Duration,
    /// How long an answer may take.
    pub patience: Duration,
    /// How long a kubelet that came back is not believed about what is gone.
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

/// Everything a source saw held at one time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// Who saw it; holds of other sources are none of its business.
    pub source: &'static str,
    /// When, ms since the epoch.
    pub at_ms: i64,
    pub held: Vec<Held>,
    /// Whether what is not in `held` is held no more.
    pub complete: bool,
}

/// Keeps account of holds.
pub trait Holds: Send + Sync {
    /// Takes what a source saw.
    fn observe(&self, seen: Observation);
}

/// How it goes, for the agent's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KubeStatus {
    /// Whether the last question was answered.
    pub answering: bool,
    /// Last answer, ms since the epoch.
    pub answered_ms: Option<i64>,
    /// Devices held by pods then.
    pub held: usize,
    pub answers: u64,
    pub failures: u64,
    /// What went wrong last, and how to mend it.
    pub last_failure: Option<String>,
}

/// Asks the kubelet until it is dropped.
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
    /// Asks from now on, on a thread of its own.
    ///
    /// # Errors
    /// If the thread cannot be had. An absent kubelet is no error: it may come.
    pub fn start(options: KubeOptions, holds: Arc<dyn Holds>) -> std::io::Result<Self> {
        let status = Arc::new(Mutex::new(KubeStatus::default()));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let (stop, stopped) = oneshot::channel();
        let asker = Asker {
            options,
            holds,
            status: Arc::clone(&status),
            client: None,
            replicas: None,
            settled_at: None,
        };
        let thread = std::thread::Builder::new().name("kube".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = asker.run() => {}
                    // The sender is dropped without a word only if the agent is gone.
                    _ = stopped => {}
                }
            });
        })?;
        Ok(Self { status, stop: Some(stop), thread: Some(thread) })
    }

    pub fn status(&self) -> KubeStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for KubeWatch {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // The thread is gone already if nobody takes it.
            stop.send(()).ok();
        }
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that asks the kubelet panicked");
        }
    }
}

struct Asker {
    options: KubeOptions,
    holds: Arc<dyn Holds>,
    status: Arc<Mutex<KubeStatus>>,
    client: Option<PodResourcesListerClient<Channel>>,
    /// How many replicas each shared device has; asked anew with each connection.
    replicas: Option<ReplicaCounts>,
    /// From when on this connection's kubelet is believed about what is gone.
    settled_at: Option<Instant>,
}

impl Asker {
    async fn run(mut self) {
        let mut ticks = tokio::time::interval(self.options.every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let answer = tokio::time::timeout(self.options.patience, self.ask()).await;
            match answer {
                Ok(Ok(held)) => self.answered(held),
                Ok(Err(what)) => self.failed(what),
                Err(_) => self.failed(format!("no answer within {:?}", self.options.patience)),
            }
        }
    }

    async fn ask(&mut self) -> Result<Vec<Held>, String> {
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
            // A kubelet that does not say how many there are leaves the share unknown.
            let all = client.get_allocatable_resources(v1::AllocatableResourcesRequest {}).await;
            self.replicas =
                Some(all.map(|all| ReplicaCounts::of(&all.into_inner().devices)).unwrap_or_default());
        }
        self.client = Some(client);
        Ok(held(&pods, self.replicas.as_ref().unwrap_or(&ReplicaCounts::default())))
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

    fn answered(&mut self, held: Vec<Held>) {
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
        self.holds.observe(Observation { source: SOURCE, at_ms, held, complete });
    }

    fn failed(&mut self, what: String) {
        // The next question goes to a new connection: a restarted kubelet has a new socket.
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

/// The innermost reason: the outer ones only say "transport error".
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
