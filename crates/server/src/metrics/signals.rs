//! Metrics of the signals: the memory of their state, and what was left out for its sake.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use serde::{Deserialize, Serialize};

/// Memory of the signals' state, and totals since they were opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SignalsMemory {
    /// Bytes that jobs, nodes and waiting events take, by estimate.
    pub held_bytes: u64,
    /// Of these, bytes of waiting events.
    pub waiting_bytes: u64,
    /// Bytes that they may take.
    pub limit_bytes: u64,
    /// Jobs forgotten over the limit.
    pub evicted_jobs: u64,
    /// Nodes forgotten over the limit.
    pub evicted_nodes: u64,
    /// Events left out over the limit.
    pub refused: u64,
    /// Events of jobs, nodes and prices applied over the limit before their turn.
    pub early: u64,
    /// Step reports of jobs that neither a scheduler nor a hold has named.
    pub unknown_jobs: u64,
}

#[derive(Default)]
pub(super) struct Gauges {
    held: Gauge,
    waiting: Gauge,
    limit: Gauge,
    evicted_jobs: Counter,
    evicted_nodes: Counter,
    refused: Counter,
    early: Counter,
    unknown_jobs: Counter,
}

impl Gauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let own = Self::default();
        let registry = registry.sub_registry_with_prefix("tidegate_signals");
        registry.register("held_bytes", "Memory of jobs, nodes and waiting events", own.held.clone());
        registry.register("waiting_bytes", "Of these, memory of waiting events", own.waiting.clone());
        registry.register("limit_bytes", "Memory that they may take", own.limit.clone());
        let mut counter = |name: &str, help: &str, counter: &Counter| {
            registry.register(name, help, counter.clone());
        };
        counter("evicted_jobs", "Jobs forgotten over the limit of memory", &own.evicted_jobs);
        counter("evicted_nodes", "Nodes forgotten over the limit of memory", &own.evicted_nodes);
        counter("refused", "Events left out over the limit of memory", &own.refused);
        counter("applied_early", "Events applied over the limit of memory before their turn", &own.early);
        counter(
            "unknown_jobs",
            "Step reports of jobs that neither a scheduler nor a hold has named",
            &own.unknown_jobs,
        );
        own
    }

    /// Exports `memory`. Totals that begin again, as after a lost log, add nothing until they have
    /// passed what was exported.
    pub(super) fn observe(&self, memory: &SignalsMemory) {
        self.held.set(i64::try_from(memory.held_bytes).unwrap_or(i64::MAX));
        self.waiting.set(i64::try_from(memory.waiting_bytes).unwrap_or(i64::MAX));
        self.limit.set(i64::try_from(memory.limit_bytes).unwrap_or(i64::MAX));
        for (counter, total) in [
            (&self.evicted_jobs, memory.evicted_jobs),
            (&self.evicted_nodes, memory.evicted_nodes),
            (&self.refused, memory.refused),
            (&self.early, memory.early),
            (&self.unknown_jobs, memory.unknown_jobs),
        ] {
            counter.inc_by(total.saturating_sub(counter.get()));
        }
    }
}
