//! Metrics of a process that maintains tables, in the OpenMetrics text format.

mod autopilot;
mod doors;
mod otlp;
mod plain_text;
mod signals;
mod webhook;

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tidegate_events::{Millis, SchemaId};
use tidegate_lake::runner::{PartitionProgress, Progress};

pub use autopilot::{AutopilotKept, ObjectiveKept};
pub(crate) use doors::DoorName;
pub(crate) use plain_text::as_plain_text;
pub use signals::SignalsMemory;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Partition {
    topic: String,
    partition: u32,
}

/// Metrics of one runner, as [`Metrics::observe`] last saw it.
pub struct Metrics {
    registry: Registry,
    /// The runner reports totals; Prometheus counters only grow, so the difference is added.
    last: Mutex<Progress>,
    records: Counter,
    undecodable: Counter,
    misplaced: Counter,
    commits: Counter,
    rebalances: Counter,
    fenced: Counter,
    partitions: Gauge,
    lag: Family<Partition, Gauge>,
    offset: Family<Partition, Gauge>,
    watermark: Family<Partition, Gauge>,
    autopilot: autopilot::Gauges,
    signals: signals::Gauges,
    doors: doors::Doors,
    webhook: webhook::Counters,
    otlp: otlp::Counters,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut whole = Registry::default();
        let autopilot = autopilot::Gauges::register(&mut whole);
        let signals = signals::Gauges::register(&mut whole);
        let doors = doors::Doors::register(&mut whole);
        let webhook = webhook::Counters::register(&mut whole);
        let otlp = otlp::Counters::register(&mut whole);
        let registry = whole.sub_registry_with_prefix("tidegate_pipeline");
        let mut counter = |name: &str, help: &str| {
            let counter = Counter::default();
            registry.register(name, help, counter.clone());
            counter
        };
        let records = counter("records", "Records of the log that were taken in");
        let undecodable = counter("undecodable", "Records that became dead letters");
        let misplaced =
            counter("misplaced", "Records that were passed on to the partition that their key belongs to");
        let commits = counter("commits", "Commits to tables");
        let rebalances = counter("rebalances", "Times that partitions came to this process, or went");
        let fenced = counter("fenced", "Commits refused because another process had taken over");
        let partitions = Gauge::default();
        registry.register("partitions", "Log partitions that this process keeps", partitions.clone());
        let mut gauges = |name: &str, help: &str| {
            let family = Family::<Partition, Gauge>::default();
            registry.register(name, help, family.clone());
            family
        };
        let lag = gauges("lag_records", "Records of the partition that are not taken in yet");
        let offset = gauges("offset", "Offset up to which the partition is taken in");
        let watermark = gauges("watermark_seconds", "Newest event time taken in, seconds since the epoch");
        Self {
            autopilot,
            signals,
            doors,
            webhook,
            otlp,
            registry: whole,
            last: Mutex::default(),
            records,
            undecodable,
            misplaced,
            commits,
            rebalances,
            fenced,
            partitions,
            lag,
            offset,
            watermark,
        }
    }
}

impl Metrics {
    /// Exports the autopilot's metrics from now on.
    pub fn observe_autopilot(&self, kept: &AutopilotKept) {
        self.autopilot.observe(kept);
    }

    /// Exports the memory of the signals from now on.
    pub fn observe_signals(&self, memory: &SignalsMemory) {
        self.signals.observe(memory);
    }

    /// Counts a request refused with this status.
    pub(crate) fn count_refused(&self, status: u16) {
        self.doors.refused.get_or_create(&doors::Refused { status }).inc();
    }

    /// Counts a client's certificate that a handshake refused.
    pub(crate) fn count_refused_certificate(&self) {
        self.doors.certificates_refused.inc();
    }

    /// Counts a session or statement that Postgres' door refused.
    pub(crate) fn count_refused_by_postgres(&self) {
        self.doors.postgres_refused.inc();
    }

    /// Exports how many findings are not sent to the webhook yet.
    pub fn observe_webhook_waiting(&self, findings: usize) {
        self.webhook.waiting.set(i64::try_from(findings).unwrap_or(i64::MAX));
    }

    /// Counts a message that the webhook took, with the findings in it; so many wait still.
    pub fn count_webhook_sent(&self, findings: usize, waiting: usize) {
        self.webhook.messages.inc();
        self.webhook.findings.inc_by(findings as u64);
        self.observe_webhook_waiting(waiting);
    }

    /// Counts a message that the webhook did not take.
    pub fn count_webhook_failed(&self) {
        self.webhook.failed.inc();
    }

    /// Exports the number of open connections.
    pub(crate) fn observe_connections(&self, of: DoorName, open: usize) {
        self.doors.connections(of).open.set(i64::try_from(open).unwrap_or(i64::MAX));
    }

    /// Counts a connection closed to make room.
    pub(crate) fn count_shed(&self, of: DoorName) {
        self.doors.connections(of).shed.inc();
    }

    /// Exports the runner's progress from now on, but for audit records: how many there are says
    /// how many queries others asked.
    pub fn observe(&self, progress: &Progress) {
        let mut progress = progress.clone();
        progress.partitions.retain(|kept| kept.at.topic != SchemaId::AuditEvent.topic());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        self.records.inc_by(progress.records - last.records);
        self.undecodable.inc_by(progress.undecodable - last.undecodable);
        self.misplaced.inc_by(progress.misplaced - last.misplaced);
        self.commits.inc_by(progress.commits - last.commits);
        self.rebalances.inc_by(progress.rebalances - last.rebalances);
        self.fenced.inc_by(progress.fenced - last.fenced);
        if progress.partitions != last.partitions {
            self.partitions.set(progress.partitions.len() as i64);
            [&self.lag, &self.offset, &self.watermark].iter().for_each(|family| family.clear());
            for kept in &progress.partitions {
                let label = Partition { topic: kept.at.topic.clone(), partition: kept.at.partition };
                self.lag.get_or_create(&label).set(kept.end.saturating_sub(kept.next) as i64);
                self.offset.get_or_create(&label).set(kept.next as i64);
                if let Some(watermark_ms) = kept.watermark_ms {
                    self.watermark.get_or_create(&label).set(Millis(watermark_ms).floor_secs());
                }
            }
        }
        *last = progress;
    }

    /// What was last observed, as JSON.
    pub(crate) fn status(&self) -> Value {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let partition = |kept: &PartitionProgress| {
            let lag = kept.end.saturating_sub(kept.next);
            json!({"topic": kept.at.topic, "partition": kept.at.partition, "next": kept.next, "end": kept.end, "lag": lag,
                   "watermark_ms": kept.watermark_ms})
        };
        let partitions: Vec<Value> = last.partitions.iter().map(partition).collect();
        json!({"records": last.records, "undecodable": last.undecodable, "misplaced": last.misplaced,
               "commits": last.commits, "rebalances": last.rebalances, "fenced": last.fenced, "partitions": partitions})
    }

    /// What gives all metrics as text, whenever it is called.
    pub fn page(self: &Arc<Self>) -> impl Fn() -> String + Send + 'static + use<> {
        let metrics = Arc::clone(self);
        move || metrics.text()
    }

    /// All metrics as text, in OpenMetrics' format.
    pub(crate) fn text(&self) -> String {
        self.otlp.observe(&tidegate_telemetry::counts());
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes any text");
        text
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}
