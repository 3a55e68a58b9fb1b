//! Nodes, partitions, reservations and limits: events for what changed since the last look.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, v1};
use tidegate_slurm::HostList;
use tidegate_slurm::sacctmgr::{AssociationRecord, QosRecord};
use tidegate_slurm::scontrol::{ConfiguredNode, PartitionRecord, ReservationRecord};
use v1::{CapacityEventKind, NodeEventKind};

/// Owner of partitions, and of reservations open to all.
const EVERYBODY: &str = "total";

/// What was last reported of a cluster's capacity.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Inventory {
    nodes: BTreeMap<String, Node>,
    partitions: BTreeMap<String, Partition>,
    reservations: BTreeMap<String, Reservation>,
    /// By owner.
    limits: BTreeMap<String, Option<u64>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Node {
    pool: Option<String>,
    gpu_model: Option<String>,
    gpus_milli: u64,
    cpus_milli: Option<u64>,
    memory_bytes: Option<u64>,
    state: String,
    reason: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Partition {
    state: Option<String>,
    gpus_milli: u64,
    gpu_model: Option<String>,
    nodes: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Reservation {
    owner: String,
    pool: Option<String>,
    gpus_milli: u64,
    start_ms: Option<i64>,
    end_ms: Option<i64>,
    nodes: Option<String>,
    accounts: Option<String>,
    users: Option<String>,
    flags: Option<String>,
    state: Option<String>,
}

/// What Slurm shows of nodes, partitions and reservations at one time.
pub(super) struct Answers {
    pub nodes: Vec<ConfiguredNode>,
    pub partitions: Vec<PartitionRecord>,
    pub reservations: Vec<ReservationRecord>,
}

/// What slurmdbd shows of limits at one time.
pub(super) struct Limits<'a> {
    pub qos: &'a [QosRecord],
    pub associations: &'a [AssociationRecord],
    /// Whether every line could be read.
    pub complete: bool,
}

impl Inventory {
    /// Takes in what is there now; returns events for what differs from before.
    pub(super) fn update(&mut self, now_ms: i64, answers: Answers) -> Vec<Event> {
        let nodes = nodes(answers.nodes);
        let partitions = partitions(answers.partitions, &nodes);
        let reservations = reservations(answers.reservations, &nodes);
        let mut events = Vec::new();
        changes(&self.nodes, &nodes, |name, old, new| node_events(now_ms, name, old, new, &mut events));
        changes(&self.partitions, &partitions, |name, _, new| {
            events.push(partition_event(now_ms, name, new))
        });
        changes(&self.reservations, &reservations, |name, old, new| {
            // The owner is part of the key: another owner is another reservation.
            if let Some(old) = old.filter(|old| new.is_none_or(|new| old.owner != new.owner)) {
                events.push(reservation_event(now_ms, name, old, true));
            }
            events.extend(new.map(|new| reservation_event(now_ms, name, new, false)));
        });
        (self.nodes, self.partitions, self.reservations) = (nodes, partitions, reservations);
        events
    }

    /// Takes in the limits of QOS and accounts; returns events for those that changed.
    pub(super) fn limits(&mut self, now_ms: i64, limits: &Limits<'_>) -> Vec<Event> {
        let limit = |gpus: Option<u64>| gpus.map(|gpus| gpus * 1000);
        let mut now = BTreeMap::new();
        for record in limits.qos {
            now.insert(format!("qos/{}", record.name), limit(record.limit.untyped_gpus()));
        }
        for record in limits.associations.iter().filter(|record| record.is_account()) {
            now.insert(record.account.clone(), limit(record.limit.untyped_gpus()));
        }
        if !limits.complete {
            // Whose line could not be read keeps its limit.
            let known = self.limits.iter().filter(|(_, gpus)| gpus.is_some());
            for (owner, gpus) in known {
                now.entry(owner.clone()).or_insert(*gpus);
            }
        }
        let mut events = Vec::new();
        for owner in now.keys().chain(self.limits.keys().filter(|owner| !now.contains_key(*owner))) {
            let (before, after) =
                (self.limits.get(owner).copied().flatten(), now.get(owner).copied().flatten());
            if before != after {
                let mut event = capacity(now_ms, CapacityEventKind::LimitSet, owner);
                event.gpus_milli = after;
                events.push(Event::Capacity(event));
            }
        }
        self.limits = now;
        events
    }
}

/// Calls `emit` with each name whose value differs from before, or is gone.
fn changes<T: PartialEq>(
    before: &BTreeMap<String, T>,
    now: &BTreeMap<String, T>,
    mut emit: impl FnMut(&str, Option<&T>, Option<&T>),
) {
    for name in before.keys().filter(|name| !now.contains_key(*name)) {
        emit(name, before.get(name), None);
    }
    for (name, value) in now.iter().filter(|(name, value)| before.get(*name) != Some(*value)) {
        emit(name, before.get(name), Some(value));
    }
}

fn nodes(records: Vec<ConfiguredNode>) -> BTreeMap<String, Node> {
    let node = |record: ConfiguredNode| {
        let node = Node {
            pool: record.partitions,
            gpu_model: record.gpu_model,
            gpus_milli: record.gpus * 1000,
            cpus_milli: record.cpus.map(|cpus| cpus * 1000),
            memory_bytes: record.memory_mib.map(|mebibytes| mebibytes << 20),
            state: record.state.administrative(),
            reason: record.reason,
        };
        (record.name, node)
    };
    records.into_iter().map(node).collect()
}

fn partitions(records: Vec<PartitionRecord>, nodes: &BTreeMap<String, Node>) -> BTreeMap<String, Partition> {
    let partition = |record: PartitionRecord| {
        let names = record.nodes.map(HostList::into_string);
        let gpus = record.gpus.map(|(gpus, model)| (gpus * 1000, model));
        let (gpus_milli, gpu_model) = gpus.unwrap_or_else(|| sum(names.as_deref(), nodes));
        (record.name, Partition { state: record.state, gpus_milli, gpu_model, nodes: names })
    };
    records.into_iter().map(partition).collect()
}

fn reservations(
    records: Vec<ReservationRecord>,
    nodes: &BTreeMap<String, Node>,
) -> BTreeMap<String, Reservation> {
    let joined = |list: Vec<String>| (!list.is_empty()).then(|| list.join(","));
    let reservation = |record: ReservationRecord| {
        // A list that cannot be read is shown as no nodes.
        let names = record.nodes.ok().flatten().map(HostList::into_string);
        // Reservations of whole nodes name no GPUs.
        let gpus_milli = record.gpus.map_or_else(|| sum(names.as_deref(), nodes).0, |gpus| gpus * 1000);
        let (accounts, users) = (joined(record.accounts), joined(record.users));
        let reservation = Reservation {
            owner: accounts.clone().or_else(|| users.clone()).unwrap_or_else(|| EVERYBODY.to_owned()),
            pool: record.partition,
            gpus_milli,
            start_ms: record.start_s.map(|seconds| seconds * 1000),
            end_ms: record.end_s.map(|seconds| seconds * 1000),
            nodes: names,
            accounts,
            users,
            flags: joined(record.flags),
            state: record.state,
        };
        (record.name.unwrap_or_default(), reservation)
    };
    records.into_iter().map(reservation).collect()
}

/// GPUs of these nodes, and their model if they have one in common.
fn sum(names: Option<&str>, nodes: &BTreeMap<String, Node>) -> (u64, Option<String>) {
    let found: Vec<&Node> = names.unwrap_or_default().split(',').filter_map(|name| nodes.get(name)).collect();
    let mut models: Vec<_> = found.iter().filter_map(|node| node.gpu_model.clone()).collect();
    models.sort_unstable();
    models.dedup();
    (found.iter().map(|node| node.gpus_milli).sum(), (!models.is_empty()).then(|| models.join(",")))
}

fn node_events(now_ms: i64, name: &str, old: Option<&Node>, new: Option<&Node>, events: &mut Vec<Event>) {
    let base = |kind: NodeEventKind| v1::NodeEvent {
        envelope: Some(v1::Envelope { event_time_ms: now_ms, ..Default::default() }),
        kind: kind.into(),
        node: name.to_owned(),
        evidence: Some("slurm".to_owned()),
        ..Default::default()
    };
    let Some(new) = new else {
        events.push(Event::Node(base(NodeEventKind::NodeRemoved)));
        return;
    };
    let state = |node: &Node| (node.state.clone(), node.reason.clone());
    let without_state = |node: &Node| Node { state: String::new(), reason: None, ..node.clone() };
    if old.map(without_state) != Some(without_state(new)) {
        events.push(Event::Node(v1::NodeEvent {
            pool: new.pool.clone(),
            gpu_model: new.gpu_model.clone(),
            gpus_milli: Some(new.gpus_milli),
            cpus_milli: new.cpus_milli,
            memory_bytes: new.memory_bytes,
            ..base(NodeEventKind::NodeRegistered)
        }));
    }
    if old.map(state) != Some(state(new)) {
        events.push(Event::Node(v1::NodeEvent {
            state: Some(new.state.clone()),
            reason: new.reason.clone(),
            ..base(NodeEventKind::StateChanged)
        }));
    }
}

fn capacity(now_ms: i64, kind: CapacityEventKind, owner: &str) -> v1::CapacityEvent {
    v1::CapacityEvent {
        envelope: Some(v1::Envelope { event_time_ms: now_ms, ..Default::default() }),
        kind: kind.into(),
        owner: owner.to_owned(),
        ..Default::default()
    }
}

fn partition_event(now_ms: i64, name: &str, new: Option<&Partition>) -> Event {
    let kind =
        if new.is_some() { CapacityEventKind::PartitionSet } else { CapacityEventKind::PartitionRemoved };
    let mut event = capacity(now_ms, kind, EVERYBODY);
    event.pool = Some(name.to_owned());
    if let Some(partition) = new {
        event.gpus_milli = Some(partition.gpus_milli);
        event.gpu_model.clone_from(&partition.gpu_model);
        event.nodes.clone_from(&partition.nodes);
        event.state.clone_from(&partition.state);
    }
    Event::Capacity(event)
}

fn reservation_event(now_ms: i64, name: &str, reservation: &Reservation, removed: bool) -> Event {
    let kind =
        if removed { CapacityEventKind::ReservationRemoved } else { CapacityEventKind::ReservationSet };
    let mut event = capacity(now_ms, kind, &reservation.owner);
    event.name = Some(name.to_owned());
    if !removed {
        event.pool.clone_from(&reservation.pool);
        event.gpus_milli = Some(reservation.gpus_milli);
        (event.start_ms, event.end_ms) = (reservation.start_ms, reservation.end_ms);
        event.nodes.clone_from(&reservation.nodes);
        event.accounts.clone_from(&reservation.accounts);
        event.users.clone_from(&reservation.users);
        event.flags.clone_from(&reservation.flags);
        event.state.clone_from(&reservation.state);
    }
    Event::Capacity(event)
}
