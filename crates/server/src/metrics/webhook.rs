//! Metrics of the webhook that findings are sent to.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Default)]
pub(super) struct Counters {
    pub messages: Counter,
    pub findings: Counter,
    pub failed: Counter,
    pub waiting: Gauge,
}

impl Counters {
    pub fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        let registry = registry.sub_registry_with_prefix("tidegate_webhook");
        registry.register("messages", "Messages that the webhook took", own.messages.clone());
        registry.register("findings", "Findings in these messages", own.findings.clone());
        registry.register("failed", "Messages that the webhook did not take", own.failed.clone());
        registry.register("waiting_findings", "Findings that hold and are not sent yet", own.waiting.clone());
        own
    }
}
