//! GPU metrics from a site's dcgm-exporter: fetches its page and emits readings.
//!
//! By default an exporter collects every 30 s and repeats itself in between. So a page is new only
//! if it differs from the one before; for a device with an energy counter, only if that counter
//! moved. The time between two different pages is the interval of the second. The first page of all
//! is emitted only once a second one differs: until then it may be the last page of a hanging
//! exporter (dcgm-exporter#164, gpu-monitoring-tools#188).
//!
//! Limits: an XID is the last code only, so repeats of a code, and all but the last between two
//! pages, are missed. ECC, PCIe and NVLink counters exist only if the site's exporter is configured
//! to write them. MIG instances have no UUID there and are named `MIG-<UUID of the GPU>/<GPU
//! instance>`.

mod watch;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use ureq::Agent;

use crate::reading::Sink;
use watch::{Moment, Watch};

/// Default address of a dcgm-exporter.
pub const DEFAULT_URL: &str = "http://localhost:9400/metrics";

/// What to fetch, and how often.
#[derive(Debug, Clone)]
pub struct DcgmOptions {
    /// Page of the exporter; http only.
    pub url: String,
    /// Time between two fetches. By default the exporter has new values every 30 s.
    pub every: Duration,
    /// Timeout of a fetch.
    pub patience: Duration,
    /// How long a device may have nothing new before it is stale; longer than the exporter's own
    /// interval.
    pub stale_after: Duration,
    /// Longest accepted page, bytes. Each GPU takes about 10 KiB.
    pub page_bytes: u64,
}

impl Default for DcgmOptions {
    fn default() -> Self {
        Self {
            url: DEFAULT_URL.into(),
            every: Duration::from_secs(10),
            patience: Duration::from_secs(5),
            stale_after: Duration::from_secs(90),
            page_bytes: 16 << 20,
        }
    }
}

/// State of the source, for the agent's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DcgmStatus {
    /// Whether the last page was usable.
    pub answering: bool,
    /// Pages read.
    pub pages: u64,
    /// Pages without news.
    pub repeated: u64,
    /// Fetches or pages that failed.
    pub failures: u64,
    /// Devices known, and how many of them are stale.
    pub devices: usize,
    /// See `devices`.
    pub stale: usize,
    /// On the last page: lines that are no samples, and lines of DCGM fields without a metric or
    /// device here.
    pub bad_lines: usize,
    /// See `bad_lines`.
    pub unused_lines: usize,
    /// Last failure, and how to mend it.
    pub last_failure: Option<String>,
}

/// Fetches pages until it is dropped.
pub struct Dcgm {
    status: Arc<Mutex<DcgmStatus>>,
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Dcgm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dcgm").field("status", &self.status()).finish_non_exhaustive()
    }
}

impl Dcgm {
    /// Starts to fetch on a thread of its own.
    ///
    /// # Errors
    /// The thread cannot be started. An absent exporter is no error: it may come.
    pub fn start(options: DcgmOptions, sink: Arc<dyn Sink>) -> std::io::Result<Self> {
        let status = Arc::new(Mutex::new(DcgmStatus::default()));
        let (stop, stopped) = mpsc::channel();
        let mut watch = Watch::new(sink, options.stale_after);
        let for_thread = Arc::clone(&status);
        let thread = std::thread::Builder::new().name("dcgm".into()).spawn(move || {
            let agent = agent(&options);
            let begun = Instant::now();
            let mut next = Duration::ZERO;
            loop {
                let fetched = fetch(&agent, &options);
                let now = Moment { tick_ms: now_ms(), elapsed: begun.elapsed() };
                match fetched.and_then(|page| watch.page(now, &page)) {
                    Ok(()) => {}
                    Err(what) => watch.failed(now, &format!("{}: {what}", options.url)),
                }
                for_thread.lock().unwrap_or_else(PoisonError::into_inner).clone_from(&watch.status);
                // A slow page does not make later ones come faster.
                next = (next + options.every).max(begun.elapsed());
                match stopped.recv_timeout(next.saturating_sub(begun.elapsed())) {
                    Err(RecvTimeoutError::Timeout) => {}
                    // Stopped, or the agent is gone.
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Self { status, stop: Some(stop), thread: Some(thread) })
    }

    /// The current state.
    pub fn status(&self) -> DcgmStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Dcgm {
    fn drop(&mut self) {
        // Dropping the sender stops the thread.
        self.stop = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that asks the dcgm-exporter panicked");
        }
    }
}

fn agent(options: &DcgmOptions) -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(options.patience))
        .http_status_as_error(false)
        .max_redirects(0)
        // The exporter is on this node, so the environment's proxy does not apply.
        .proxy(None)
        .user_agent("tidegate")
        .build();
    config.new_agent()
}

fn fetch(agent: &Agent, options: &DcgmOptions) -> Result<String, String> {
    if !options.url.starts_with("http://") {
        return Err("only http:// addresses can be read; the exporter is on this node".into());
    }
    let mut response = agent.get(&options.url).call().map_err(|error| {
        format!("{error}; is dcgm-exporter running, and is this its address (--dcgm-url)?")
    })?;
    if response.status() != 200 {
        return Err(format!("the answer is {}; a dcgm-exporter's page is /metrics", response.status()));
    }
    response.body_mut().with_config().limit(options.page_bytes).lossy_utf8(true).read_to_string().map_err(
        |error| match error {
            ureq::Error::BodyExceedsLimit(limit) => format!("the page is longer than {limit} bytes"),
            error => format!("the page broke off: {error}"),
        },
    )
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
