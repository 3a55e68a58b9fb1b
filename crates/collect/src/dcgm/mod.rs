//! GPU metrics from a dcgm-exporter that a site has already: its page is fetched and told as
//! readings.
//!
//! An exporter collects each 30 s by default and answers in between with what it has. So a page
//! says something new only if it differs from the one before; a device with an energy counter, only
//! if that moved. The time between two pages that differ is the interval of the second. The first
//! page of all is told when a second differs from it: until then it might be the last of an
//! exporter that hangs (dcgm-exporter#164, gpu-monitoring-tools#188).
//!
//! What it cannot do: an XID is the code of the last one, so repeats of a code and all but the last
//! between two pages are not seen; ECC, PCIe and NVLink counters only as far as the site's exporter
//! is configured to write them; MIG instances have no UUID there and are named `MIG-<UUID of the
//! GPU>/<GPU instance>`.

mod devices;
mod fields;
mod page;
mod watch;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use ureq::Agent;

use crate::reading::Sink;
use watch::{Moment, Watch};

/// Where a dcgm-exporter listens unless configured otherwise.
pub const DEFAULT_URL: &str = "http://localhost:9400/metrics";

/// What to fetch, and how often.
#[derive(Debug, Clone)]
pub struct DcgmOptions {
    /// Page of the exporter; http only.
    pub url: String,
    /// How often to fetch it. The exporter has something new each 30 s unless configured otherwise.
    pub every: Duration,
    /// How long an answer may take.
    pub patience: Duration,
    /// For how long a device may have nothing new before it is stale. Above the exporter's own
    /// interval.
    pub stale_after: Duration,
    /// Longest page that is read, bytes. Each GPU takes some 10 KiB.
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

/// How it goes, for the agent's status.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct DcgmStatus {
    /// Whether the last page could be used.
    pub answering: bool,
    pub pages: u64,
    /// Pages that said nothing new.
    pub repeated: u64,
    pub failures: u64,
    /// Devices known, and how many of them are stale.
    pub devices: usize,
    pub stale: usize,
    /// Of the last page: lines that are no samples, and lines of DCGM's fields that have no metric
    /// or device here.
    pub bad_lines: usize,
    pub unused_lines: usize,
    /// What went wrong last, and how to mend it.
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
    /// Fetches from now on, on a thread of its own.
    ///
    /// # Errors
    /// If the thread cannot be had. An absent exporter is no error: it may come.
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
                // A page that took longer than the interval does not make the next ones come
                // faster.
                next = (next + options.every).max(begun.elapsed());
                match stopped.recv_timeout(next.saturating_sub(begun.elapsed())) {
                    Err(RecvTimeoutError::Timeout) => {}
                    // Told to stop, or the agent is gone.
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        })?;
        Ok(Self { status, stop: Some(stop), thread: Some(thread) })
    }

    pub fn status(&self) -> DcgmStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Dcgm {
    fn drop(&mut self) {
        // The thread sees that the sender is gone.
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
        // The exporter is on this node; a proxy of the environment is for elsewhere.
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
