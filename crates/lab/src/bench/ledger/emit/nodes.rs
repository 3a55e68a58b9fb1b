//! Events of nodes, partitions, reservations and quotas (watcher), and of devices (agents).

use std::collections::BTreeMap;

use tidegate_events::{Event, v1};
use v1::{CapacityEventKind, NodeEventKind};

use super::{SEEN_MS, SourcedEvent, WATCHER, agent};
use crate::bench::ledger::day::{Day, Incident, Price};
use crate::bench::ledger::fleet::{BURST, GPUS_PER_NODE, MODEL, SHARED, Span, TRAIN};
use crate::bench::ledger::scenes::RESEARCH;

const MEMORY_BYTES: u64 = 2 << 40;
const CORES: u64 = 192;
/// Owner of partitions.
const EVERYBODY: &str = "total";

pub(super) fn events(day: &Day) -> Vec<SourcedEvent> {
    let mut said = Vec::new();
    for (place, node) in day.fleet.nodes.iter().enumerate() {
        let Span { from_ms, to_ms } = node.registered;
        said.push(watched(v1::NodeEvent {
            pool: Some(node.pool.into()),
            gpu_model: Some("h100".into()),
            gpus_milli: Some(GPUS_PER_NODE as u64 * 1_000),
            cpus_milli: Some(CORES * 1_000),
            memory_bytes: Some(MEMORY_BYTES),
            ..event(&node.name, NodeEventKind::NodeRegistered, from_ms)
        }));
        said.push(state(&node.name, from_ms, "UP", None));
        said.push(started(day, place, from_ms));
        let labeled = event(&node.name, NodeEventKind::NodeLabeled, from_ms);
        said.push(watched(v1::NodeEvent { rack: Some(node.rack.clone()), ..labeled }));
        if to_ms < day.span.to_ms {
            said.push(watched(event(&node.name, NodeEventKind::NodeRemoved, to_ms)));
        }
    }
    for condition in &day.conditions {
        let Span { from_ms, to_ms } = condition.span;
        match condition.what {
            Incident::Down(node) => {
                let name = &day.fleet.nodes[node].name;
                said.push(state(name, from_ms, "DOWN+NOT_RESPONDING", Some("Not responding")));
                said.push(state(name, to_ms, "UP", None));
                said.push(started(day, node, to_ms));
            }
            Incident::Drained(node) => {
                let name = &day.fleet.nodes[node].name;
                said.push(state(name, from_ms, "UP+DRAIN", Some("firmware")));
                said.push(state(name, to_ms, "UP", None));
            }
            Incident::Lost(node, gpu) => {
                said.push(device(day, node, gpu, NodeEventKind::DeviceLost, from_ms));
                said.push(device(day, node, gpu, NodeEventKind::DeviceFound, to_ms));
            }
            Incident::Silent(node) => said.push(started(day, node, to_ms)),
            Incident::Stranger(..) | Incident::Waits(..) => {}
        }
    }
    said
}

pub(super) fn capacity(day: &Day) -> Vec<SourcedEvent> {
    let set = CapacityEventKind::PartitionSet;
    let mut said: Vec<SourcedEvent> =
        [TRAIN, SHARED].map(|pool| partition(day, pool, set, day.span.from_ms)).into_iter().collect();
    let burst = day.fleet.nodes[day.fleet.of_pool(BURST)[0]].registered;
    said.push(partition(day, BURST, set, burst.from_ms));
    said.push(partition(day, BURST, CapacityEventKind::PartitionRemoved, burst.to_ms));
    said.push(of_capacity(v1::CapacityEvent {
        pool: Some(BURST.into()),
        gpus_milli: Some(GPUS_PER_NODE as u64 * 1_000),
        name: Some("burst-block".into()),
        start_ms: Some(day.reserved.from_ms),
        end_ms: Some(day.reserved.to_ms),
        accounts: Some(RESEARCH.into()),
        state: Some("ACTIVE".into()),
        ..capacity_event(CapacityEventKind::ReservationSet, RESEARCH, day.reserved.from_ms)
    }));
    said.extend(day.prices.iter().map(price));
    let mut quotas: Vec<_> = day.quotas.iter().collect();
    quotas.sort_by_key(|quota| quota.at_ms);
    let mut before = BTreeMap::new();
    for quota in quotas {
        if before.insert((quota.pool, quota.team), quota.gpus) != Some(quota.gpus) {
            said.push(of_capacity(v1::CapacityEvent {
                pool: Some(quota.pool.into()),
                gpus_milli: Some(quota.gpus as u64 * 1_000),
                ..capacity_event(CapacityEventKind::QuotaSet, quota.team, quota.at_ms)
            }));
        }
    }
    said
}

fn event(node: &str, kind: NodeEventKind, at_ms: i64) -> v1::NodeEvent {
    let envelope = Some(v1::Envelope { event_time_ms: at_ms, ..Default::default() });
    v1::NodeEvent { envelope, kind: kind.into(), node: node.into(), ..Default::default() }
}

fn watched(event: v1::NodeEvent) -> SourcedEvent {
    let event = Event::Node(v1::NodeEvent { evidence: Some("slurm".into()), ..event });
    SourcedEvent { source: WATCHER.into(), at_ms: event.event_time_ms() + SEEN_MS, event }
}

fn state(node: &str, at_ms: i64, state: &str, reason: Option<&str>) -> SourcedEvent {
    watched(v1::NodeEvent {
        state: Some(state.into()),
        reason: reason.map(str::to_owned),
        ..event(node, NodeEventKind::StateChanged, at_ms)
    })
}

/// Start of the node's agent.
fn started(day: &Day, node: usize, at_ms: i64) -> SourcedEvent {
    let event = Event::Node(v1::NodeEvent {
        program_version: Some(env!("CARGO_PKG_VERSION").into()),
        ..event(&day.fleet.nodes[node].name, NodeEventKind::CollectorStarted, at_ms)
    });
    SourcedEvent { source: agent(day, node), at_ms, event }
}

fn device(day: &Day, node: usize, gpu: usize, kind: NodeEventKind, at_ms: i64) -> SourcedEvent {
    let device = &day.fleet.nodes[node].gpus[gpu].device;
    let event = Event::Node(v1::NodeEvent {
        gpu_uuid: Some(device.uuid.clone()),
        gpu_index: Some(device.index),
        gpu_model: Some(MODEL.into()),
        evidence: Some("nvml".into()),
        ..event(&day.fleet.nodes[node].name, kind, at_ms)
    });
    SourcedEvent { source: agent(day, node), at_ms, event }
}

fn capacity_event(kind: CapacityEventKind, owner: &str, at_ms: i64) -> v1::CapacityEvent {
    let envelope = Some(v1::Envelope { event_time_ms: at_ms, ..Default::default() });
    v1::CapacityEvent { envelope, kind: kind.into(), owner: owner.into(), ..Default::default() }
}

fn price(price: &Price) -> SourcedEvent {
    let event = capacity_event(CapacityEventKind::PriceSet, EVERYBODY, price.from_ms);
    of_capacity(v1::CapacityEvent {
        pool: Some(price.pool.into()),
        contract: Some("reserved".into()),
        currency: Some("EUR".into()),
        price_micros_per_gpu_hour: Some(price.micros.unsigned_abs()),
        entered_ms: Some(price.from_ms),
        ..event
    })
}

fn of_capacity(event: v1::CapacityEvent) -> SourcedEvent {
    let event = Event::Capacity(event);
    SourcedEvent { source: WATCHER.into(), at_ms: event.event_time_ms() + SEEN_MS, event }
}

fn partition(day: &Day, pool: &str, kind: CapacityEventKind, at_ms: i64) -> SourcedEvent {
    let is_set = kind == CapacityEventKind::PartitionSet;
    let gpus_milli = (day.fleet.of_pool(pool).len() * GPUS_PER_NODE * 1_000) as u64;
    of_capacity(v1::CapacityEvent {
        pool: Some(pool.into()),
        gpus_milli: is_set.then_some(gpus_milli),
        gpu_model: is_set.then(|| "h100".into()),
        nodes: is_set.then(|| names(day, pool)),
        state: is_set.then(|| "UP".into()),
        ..capacity_event(kind, EVERYBODY, at_ms)
    })
}

fn names(day: &Day, pool: &str) -> String {
    let names: Vec<&str> =
        day.fleet.of_pool(pool).into_iter().map(|node| day.fleet.nodes[node].name.as_str()).collect();
    names.join(",")
}
