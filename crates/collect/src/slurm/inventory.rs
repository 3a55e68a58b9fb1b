//! Nodes, partitions, reservations and limits, and what changed of them.
//!
//! From the text of `scontrol show`, which all versions print alike; what users can write into it
//! (a node's reason) stands last.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, v1};
use v1::{CapacityEventKind, NodeEventKind};

use super::command::CommandError;
use super::spelling::{hosts, is_null, node_gpus, tres_gpus};
use super::states::node_state;

/// Who owns what belongs to all.
const EVERYBODY: &str = "total";

/// What was told of a cluster's capacity.
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

/// Answers of `scontrol --oneliner show node`, `… partition`, `… reservation`.
pub(super) struct Answers {
    pub nodes: String,
    pub partitions: String,
    pub reservations: String,
}

/// Fields of a line `Name=value Name=value …`. Values may hold blanks; a name is a word before the
/// first `=` after one.
pub fn fields(line: &str) -> BTreeMap<&str, &str> {
    let mut fields = BTreeMap::new();
    let mut rest = line.trim();
    while let Some((name, after)) = rest.split_once('=') {
        // A reason is the last that counts, and its text is anybody's.
        if name == "Reason" {
            fields.insert(name, after.trim());
            break;
        }
        let is_name = |word: &str| {
            word.split_once('=').is_some_and(|(name, _)| {
                !name.is_empty()
                    && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '/' | ':'))
            })
        };
        let end = after.match_indices(' ').map(|(at, _)| at).find(|at| {
            let next = after[*at..].trim_start();
            next.split(' ').next().is_some_and(is_name)
        });
        let end = end.unwrap_or(after.len());
        fields.entry(name).or_insert_with(|| after[..end].trim());
        rest = after[end..].trim_start();
    }
    fields
}

fn text(fields: &BTreeMap<&str, &str>, name: &str) -> Option<String> {
    fields.get(name).filter(|value| !is_null(value)).map(|value| (*value).to_owned())
}

fn seconds_ms(fields: &BTreeMap<&str, &str>, name: &str) -> Option<i64> {
    fields.get(name)?.parse::<i64>().ok().map(|seconds| seconds * 1000)
}

fn expanded(list: Option<String>) -> Option<String> {
    let mut names = String::new();
    hosts(&list?, &mut names).ok().map(|_| names)
}

/// Lines that begin with the name, of an answer that says that there are none, or none at all.
///
/// # Errors
/// It is anything else.
pub fn lines<'a>(answer: &'a str, program: &str, name: &str) -> Result<Vec<&'a str>, CommandError> {
    let lines: Vec<&str> = answer.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    if lines.len() == 1 && lines[0].starts_with("No ") {
        return Ok(Vec::new());
    }
    match lines.iter().find(|line| !line.starts_with(name)) {
        Some(line) => {
            Err(CommandError::unusable(program, format!("a line does not begin with {name}: {line:?}")))
        }
        None if lines.is_empty() => Err(CommandError::unusable(program, "it is empty")),
        None => Ok(lines),
    }
}

fn gpus_of(tres: Option<String>) -> Option<(u64, Option<String>)> {
    let tres = tres?;
    let gpus = tres_gpus(&tres).ok()?;
    let model = (!gpus.models.is_empty()).then(|| gpus.models.to_string());
    u64::try_from(gpus.gpus).ok().filter(|gpus| *gpus > 0).map(|gpus| (gpus * 1000, model))
}

impl Inventory {
    /// Takes in what is there now and tells what is other than it was.
    pub(super) fn update(&mut self, now_ms: i64, answers: &Answers) -> Result<Vec<Event>, CommandError> {
        let nodes = nodes(&answers.nodes)?;
        let partitions = partitions(&answers.partitions, &nodes)?;
        let reservations = reservations(&answers.reservations, &nodes)?;
        let mut events = Vec::new();
        changes(&self.nodes, &nodes, |name, old, new| node_events(now_ms, name, old, new, &mut events));
        changes(&self.partitions, &partitions, |name, _, new| {
            events.push(partition_event(now_ms, name, new))
        });
        changes(&self.reservations, &reservations, |name, old, new| {
            // Another owner is another key.
            if let Some(old) = old.filter(|old| new.is_none_or(|new| old.owner != new.owner)) {
                events.push(reservation_event(now_ms, name, old, true));
            }
            events.extend(new.map(|new| reservation_event(now_ms, name, new, false)));
        });
        (self.nodes, self.partitions, self.reservations) = (nodes, partitions, reservations);
        Ok(events)
    }

    /// Takes in the limits of QOSes (`Name|GrpTRES` a line) and of accounts
    /// (`Account|User|Partition|GrpTRES`).
    pub(super) fn limits(&mut self, now_ms: i64, qos: &str, accounts: &str) -> Vec<Event> {
        let limit = |tres: &str| {
            let part = tres.split(',').find_map(|part| part.strip_prefix("gres/gpu="))?;
            part.parse::<u64>().ok().map(|gpus| gpus * 1000)
        };
        let mut now = BTreeMap::new();
        for line in qos.lines() {
            if let Some((name, tres)) = line.split_once('|') {
                now.insert(format!("qos/{name}"), limit(tres));
            }
        }
        for line in accounts.lines() {
            if let [account, "", "", tres] = line.split('|').collect::<Vec<_>>()[..] {
                now.insert(account.to_owned(), limit(tres));
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

/// Calls `tell` with each name whose value is another than before, or is gone.
fn changes<T: PartialEq>(
    before: &BTreeMap<String, T>,
    now: &BTreeMap<String, T>,
    mut tell: impl FnMut(&str, Option<&T>, Option<&T>),
) {
    for name in before.keys().filter(|name| !now.contains_key(*name)) {
        tell(name, before.get(name), None);
    }
    for (name, value) in now.iter().filter(|(name, value)| before.get(*name) != Some(*value)) {
        tell(name, before.get(name), Some(value));
    }
}

fn nodes(answer: &str) -> Result<BTreeMap<String, Node>, CommandError> {
    let mut nodes = BTreeMap::new();
    for line in lines(answer, "scontrol show node", "NodeName=")? {
        let fields = fields(line);
        let gres = node_gpus(fields.get("Gres").copied().unwrap_or_default());
        let tres = gpus_of(text(&fields, "CfgTRES"));
        let (gpus_milli, model) = tres.unwrap_or((gres.count * 1000, None));
        let number = |name: &str| fields.get(name).and_then(|value| value.parse::<u64>().ok());
        // Who set the reason and when follows it in brackets.
        let reason = text(&fields, "Reason").map(|reason| match reason.rsplit_once(" [") {
            Some((reason, _)) => reason.to_owned(),
            None => reason,
        });
        let node = Node {
            pool: text(&fields, "Partitions"),
            gpu_model: model.or(gres.model),
            gpus_milli,
            cpus_milli: number("CPUTot").map(|cpus| cpus * 1000),
            memory_bytes: number("RealMemory").map(|mebibytes| mebibytes << 20),
            state: node_state(fields.get("State").copied().unwrap_or("UNKNOWN")),
            reason,
        };
        nodes.insert(text(&fields, "NodeName").unwrap_or_default(), node);
    }
    Ok(nodes)
}

fn partitions(
    answer: &str,
    nodes: &BTreeMap<String, Node>,
) -> Result<BTreeMap<String, Partition>, CommandError> {
    let mut partitions = BTreeMap::new();
    for line in lines(answer, "scontrol show partition", "PartitionName=")? {
        let fields = fields(line);
        let names = expanded(text(&fields, "Nodes"));
        let (gpus_milli, gpu_model) =
            gpus_of(text(&fields, "TRES")).unwrap_or_else(|| sum(names.as_deref(), nodes));
        let partition = Partition { state: text(&fields, "State"), gpus_milli, gpu_model, nodes: names };
        partitions.insert(text(&fields, "PartitionName").unwrap_or_default(), partition);
    }
    Ok(partitions)
}

fn reservations(
    answer: &str,
    nodes: &BTreeMap<String, Node>,
) -> Result<BTreeMap<String, Reservation>, CommandError> {
    let mut reservations = BTreeMap::new();
    for line in lines(answer, "scontrol show reservation", "ReservationName=")? {
        let fields = fields(line);
        let names = expanded(text(&fields, "Nodes"));
        // Reservations of whole nodes name no GPUs.
        let (gpus_milli, _) = gpus_of(text(&fields, "TRES")).unwrap_or_else(|| sum(names.as_deref(), nodes));
        let (accounts, users) = (text(&fields, "Accounts"), text(&fields, "Users"));
        let reservation = Reservation {
            owner: accounts.clone().or_else(|| users.clone()).unwrap_or_else(|| EVERYBODY.to_owned()),
            pool: text(&fields, "PartitionName"),
            gpus_milli,
            start_ms: seconds_ms(&fields, "StartTime"),
            end_ms: seconds_ms(&fields, "EndTime"),
            nodes: names,
            accounts,
            users,
            flags: text(&fields, "Flags"),
            state: text(&fields, "State"),
        };
        reservations.insert(text(&fields, "ReservationName").unwrap_or_default(), reservation);
    }
    Ok(reservations)
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
