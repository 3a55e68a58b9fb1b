//! The threads that export: one for spans, one for metrics. Each waits only for its own collector.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::{ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;

use crate::client::{Client, NotTaken};
use crate::complaints::Complaints;
use crate::layer::nanos;
use crate::page;
use crate::queue::{self, Message, Queue};
use crate::resource::{resource, scope};
use crate::settings::{Protocol, Settings};

/// How often a batch of spans is tried.
const ATTEMPTS: u32 = 5;
/// Wait after the first failure; it doubles with each.
const RETRY: Duration = Duration::from_secs(1);
/// Longest wait that a collector may ask for.
const RETRY_MOST: Duration = Duration::from_secs(30);
/// How long the end of the process waits for what is queued.
const END: Duration = Duration::from_secs(5);

/// A running export. Dropped without [`Telemetry::end`], what is queued is lost.
#[derive(Debug)]
pub struct Telemetry {
    queue: Option<Arc<Queue>>,
    stop: Arc<Stop>,
    description: String,
    /// Closed once both threads have ended.
    ended: Receiver<()>,
}

/// The export does not start.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// A certificate or key cannot be used.
    #[error("the export over OTLP: {0}")]
    Client(String),
    /// The system grants no thread.
    #[error("start the threads that export over OTLP")]
    Thread(#[from] std::io::Error),
}

/// Says when to stop, to threads that wait.
#[derive(Debug, Default)]
struct Stop {
    stopped: Mutex<bool>,
    told: Condvar,
}

impl Stop {
    /// Waits this long; returns whether to stop.
    fn wait(&self, time: Duration) -> bool {
        let stopped = self.stopped.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.told.wait_timeout_while(stopped, time, |stopped| !*stopped);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn stop(&self) {
        *self.stopped.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.told.notify_all();
    }
}

impl Telemetry {
    /// Starts to export what `settings` say: spans of this process, and the figures of `page`, an
    /// OpenMetrics page, which is called at each interval.
    ///
    /// # Errors
    /// [`NotStarted`].
    pub fn start(settings: Settings, page: impl Fn() -> String + Send + 'static) -> Result<Self, NotStarted> {
        let (resource, description) = (resource(&settings.resource), settings.describe());
        let (stop, (alive, ended)) = (Arc::<Stop>::default(), channel());
        for signal in settings.traces.iter().chain(&settings.metrics).filter(|signal| signal.shows_headers())
        {
            tracing::warn!(
                "headers with keys cross the network in the clear to {}: name an address with https",
                signal.place()
            );
        }
        let traces = settings.traces.map(Client::new).transpose().map_err(NotStarted::Client)?;
        let metrics = settings.metrics.map(Client::new).transpose().map_err(NotStarted::Client)?;
        let mut queue = None;
        if let Some(client) = traces {
            let (sends, spans) = Queue::new(settings.queue_spans, settings.sampler, settings.query_texts);
            let sender = SpanSender {
                client,
                resource: resource.clone(),
                batch: settings.batch_spans,
                delay: settings.delay,
                stop: Arc::clone(&stop),
                complaints: Complaints::about("traces"),
                dropped: 0,
            };
            let alive = alive.clone();
            spawn("otlp-traces", move || {
                sender.run(&spans);
                drop(alive);
            })?;
            let sends = Arc::new(sends);
            queue::set_active(Some(Arc::clone(&sends)));
            queue = Some(sends);
        }
        if let Some(client) = metrics {
            let sender = MetricSender {
                client,
                resource,
                every: settings.metrics_every,
                stop: Arc::clone(&stop),
                complaints: Complaints::about("metrics"),
                began_ns: nanos(SystemTime::now()),
            };
            spawn("otlp-metrics", move || {
                sender.run(page);
                drop(alive);
            })?;
        }
        Ok(Self { queue, stop, description, ended })
    }

    /// What goes where, for people.
    pub fn describe(&self) -> &str {
        &self.description
    }

    /// Sends what is queued, and the figures once more, for five seconds at most.
    pub fn end(self) {
        queue::set_active(None);
        self.stop.stop();
        self.queue.iter().for_each(|queue| queue.stop());
        drop(self.queue);
        self.ended.recv_timeout(END).ok();
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).map(|_| ())
}

/// Sends spans in batches.
struct SpanSender {
    client: Client,
    resource: Resource,
    batch: usize,
    /// How long the first span of a batch waits for others.
    delay: Duration,
    stop: Arc<Stop>,
    complaints: Complaints,
    /// Dropped spans that were complained about.
    dropped: u64,
}

impl SpanSender {
    fn run(mut self, spans: &Receiver<Message>) {
        let mut goes_on = true;
        while goes_on {
            let (batch, more) = self.next_batch(spans);
            goes_on = more;
            if !batch.is_empty() {
                self.send(batch);
            }
            let dropped = queue::counts().dropped_spans;
            if dropped > self.dropped {
                self.complaints.failed(&format!("{} spans found the queue full", dropped - self.dropped));
                self.dropped = dropped;
            }
        }
    }

    /// Spans that ended within the delay, and whether there may be more.
    fn next_batch(&self, spans: &Receiver<Message>) -> (Vec<Span>, bool) {
        let mut batch = Vec::new();
        let mut until = None;
        while batch.len() < self.batch {
            let left = until.map(|until: Instant| until.saturating_duration_since(Instant::now()));
            let message = match left {
                None => spans.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(left) => spans.recv_timeout(left),
            };
            match message {
                Ok(Message::Ended(span)) => {
                    batch.push(*span);
                    // Once it is told to stop, it waits for nothing.
                    let delay = if self.stop.wait(Duration::ZERO) { Duration::ZERO } else { self.delay };
                    until = Some(until.unwrap_or_else(|| Instant::now() + delay));
                }
                Ok(Message::Stop) | Err(RecvTimeoutError::Disconnected) => return (batch, false),
                Err(RecvTimeoutError::Timeout) => break,
            }
        }
        (batch, true)
    }

    fn send(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let scope_spans = vec![ScopeSpans { scope: Some(scope()), spans, ..ScopeSpans::default() }];
        let resource = Some(self.resource.clone());
        let resource_spans = vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        let request = ExportTraceServiceRequest { resource_spans };
        for attempt in 1.. {
            let refused = match self.client.send(&request) {
                Ok(answer) => return self.taken(count, &answer),
                Err(refused) => refused,
            };
            self.complaints.failed(&refused.why);
            if !refused.is_passing || attempt == ATTEMPTS || self.stop.wait(pause(attempt, &refused)) {
                queue::count_lost(count);
                return;
            }
        }
    }

    /// Some of the spans may have been rejected all the same.
    fn taken(&self, count: u64, answer: &[u8]) {
        let partial = match self.client.protocol() {
            Protocol::Protobuf => ExportTraceServiceResponse::decode(answer).ok(),
            Protocol::Json => serde_json::from_slice(answer).ok(),
        };
        let partial = partial.and_then(|answer| answer.partial_success);
        let rejected =
            partial.as_ref().map_or(0, |partial| u64::try_from(partial.rejected_spans).unwrap_or(0));
        queue::count_lost(rejected.min(count));
        queue::count_sent(count.saturating_sub(rejected));
        match partial.filter(|_| rejected > 0) {
            Some(partial) => self.complaints.failed(&rejection(rejected, &partial.error_message)),
            None => self.complaints.taken(),
        }
    }
}

/// The wait after a failure: what the collector asks for, or twice as long each time, and a part
/// that differs from process to process.
fn pause(attempt: u32, refused: &NotTaken) -> Duration {
    let usual = RETRY.saturating_mul(1 << attempt.min(16).saturating_sub(1));
    let jitter = 0.75 + 0.5 * rand::random::<f64>();
    refused.wait.unwrap_or_else(|| usual.mul_f64(jitter)).min(RETRY_MOST)
}

fn rejection(count: u64, why: &str) -> String {
    let why: String = why.chars().filter(|letter| !letter.is_control()).take(200).collect();
    format!("the collector rejects {count}: {why:?}")
}

/// Sends the figures of a page at an interval.
struct MetricSender {
    client: Client,
    resource: Resource,
    every: Duration,
    stop: Arc<Stop>,
    complaints: Complaints,
    /// Since when counters count, nanoseconds since 1970.
    began_ns: u64,
}

impl MetricSender {
    fn run(self, page: impl Fn() -> String) {
        loop {
            let stopped = self.stop.wait(self.every);
            self.send(&page());
            if stopped {
                return;
            }
        }
    }

    /// Sums are cumulative, so an export that fails is made good by the next.
    fn send(&self, page: &str) {
        let span = page::Span { began_ns: self.began_ns, read_ns: nanos(SystemTime::now()) };
        let metrics = page::metrics(page, span);
        if metrics.is_empty() {
            return;
        }
        let scope_metrics = vec![ScopeMetrics { scope: Some(scope()), metrics, ..ScopeMetrics::default() }];
        let resource = Some(self.resource.clone());
        let resource_metrics =
            vec![ResourceMetrics { resource, scope_metrics, ..ResourceMetrics::default() }];
        match self.client.send(&ExportMetricsServiceRequest { resource_metrics }) {
            Ok(answer) => self.taken(&answer),
            Err(refused) => {
                queue::count_failed_metrics();
                self.complaints.failed(&refused.why);
            }
        }
    }

    fn taken(&self, answer: &[u8]) {
        let partial = match self.client.protocol() {
            Protocol::Protobuf => ExportMetricsServiceResponse::decode(answer).ok(),
            Protocol::Json => serde_json::from_slice(answer).ok(),
        };
        let partial = partial.and_then(|answer| answer.partial_success);
        match partial.filter(|partial| partial.rejected_data_points > 0) {
            Some(partial) => {
                queue::count_failed_metrics();
                let rejected = u64::try_from(partial.rejected_data_points).unwrap_or(0);
                self.complaints.failed(&rejection(rejected, &partial.error_message));
            }
            None => self.complaints.taken(),
        }
    }
}
