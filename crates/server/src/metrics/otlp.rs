//! Metrics of the export to an OpenTelemetry collector.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::registry::Registry;
use tidegate_telemetry::Counts;

#[derive(Default)]
pub(super) struct Counters {
    sent: Counter,
    dropped: Counter,
    lost: Counter,
    failed_metrics: Counter,
}

impl Counters {
    pub fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        let registry = registry.sub_registry_with_prefix("tidegate_otlp");
        registry.register("sent_spans", "Spans that the OpenTelemetry collector took", own.sent.clone());
        registry.register("dropped_spans", "Spans that found the queue full", own.dropped.clone());
        registry.register("lost_spans", "Spans that the collector did not take", own.lost.clone());
        let failed = "Exports of metrics that the collector did not take";
        registry.register("failed_metrics", failed, own.failed_metrics.clone());
        own
    }

    /// Exports these totals, which only grow.
    pub fn observe(&self, counts: &Counts) {
        for (counter, total) in [
            (&self.sent, counts.sent_spans),
            (&self.dropped, counts.dropped_spans),
            (&self.lost, counts.lost_spans),
            (&self.failed_metrics, counts.failed_metrics),
        ] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }
}
