//! The scheduler's answers, as Slurm's programs print them.

use serde_json::{Value, json};
use tidegate_collect::slurm::Capacity;
use tidegate_events::FinalState;
use tidegate_slurm::sacct::AttemptRecord;
use tidegate_slurm::scontrol::{ConfiguredNode, PartitionRecord, ReservationRecord};
use tidegate_slurm::{Gpus, HostList, NodeState, sacctmgr};

use crate::plan::{GPUS_PER_NODE, HOUR_MS, NODES, POOLS, Times, node_name, pool_of};
use crate::queue::{Ended, Hold, Job, Queue};

const CORES: u64 = 192;
const MEMORY_MIB: u64 = 2 << 20;
/// GPUs that are reserved and not there yet.
const ORDERED: (&str, u64) = ("burst", 16);

/// What the scheduler knows of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NodeShown {
    pub pool: &'static str,
    pub state: &'static str,
    pub reason: Option<String>,
}

/// GPUs that each team may hold, where it has a limit.
pub(crate) type Limits = Vec<(String, Option<u32>)>;

/// The answer of `squeue --all --states=all --json`. `limits`: of each team that has one, GPUs.
pub(crate) fn queue(queue: &Queue, limits: &[(String, Option<u32>)]) -> Vec<u8> {
    let mut waiting: Vec<(i64, u64)> =
        queue.jobs().filter(|(_, job)| job.hold.is_none()).map(|(id, job)| (-job.priority, id)).collect();
    waiting.sort_unstable();
    let reason = |id: u64, job: &Job| {
        let limit = limits.iter().find(|(team, _)| *team == job.team).and_then(|(_, limit)| *limit);
        let room = limit.map(|limit| (limit as usize).saturating_sub(queue.held_by(&job.team)));
        let is_first = |(_, first): &&(i64, u64)| *first == id;
        match room {
            Some(room) if room < job.gpus as usize => "AssocGrpGRES",
            _ if waiting.first().filter(is_first).is_some() => "Resources",
            _ => "Priority",
        }
    };
    let jobs: Vec<Value> = queue.jobs().map(|(id, job)| shown(id, job, reason(id, job))).collect();
    json!({ "meta": {}, "errors": [], "jobs": jobs }).to_string().into_bytes()
}

fn shown(id: u64, job: &Job, reason: &str) -> Value {
    let (nodes, each) = shape(job.gpus);
    let mut shown = json!({
        "job_id": id,
        "name": job.name,
        "account": job.team,
        "user_name": job.user,
        "partition": job.pool,
        "qos": "normal",
        "job_state": "PENDING",
        "state_reason": reason,
        "priority": job.priority,
        "time_limit": job.limit_ms / 60_000,
        "submit_time": job.submit_ms / 1_000,
        "eligible_time": job.submit_ms / 1_000,
        "node_count": nodes,
        "tres_req_str": format!("node={nodes},billing={},gres/gpu={}", job.gpus, job.gpus),
        "tres_per_node": format!("gres:gpu:{each}"),
    });
    let Some(hold) = &job.hold else { return shown };
    let devices = |gpus: &[u32]| {
        let indices: Vec<String> = gpus.iter().map(u32::to_string).collect();
        format!("gpu:h100:{}(IDX:{})", gpus.len(), indices.join(","))
    };
    let shown_devices: Vec<String> =
        hold.on.iter().filter(|_| hold.shows_devices).map(|on| devices(&on.gpus)).collect();
    let gpus = if hold.shows_devices { hold.gpus() as u32 } else { job.gpus };
    for (name, value) in [
        ("job_state", json!("RUNNING")),
        ("state_reason", json!("None")),
        ("start_time", json!(hold.first_ms / 1_000)),
        ("end_time", json!((hold.first_ms + job.limit_ms) / 1_000)),
        ("nodes", json!(host_names(hold))),
        ("node_count", json!(hold.on.len())),
        ("gres_detail", json!(shown_devices)),
        ("tres_alloc_str", json!(format!("node={},billing={gpus},gres/gpu={gpus}", hold.on.len()))),
    ] {
        shown[name] = value;
    }
    if hold.start_ms != hold.first_ms {
        shown["resize_time"] = json!(hold.start_ms / 1_000);
    }
    shown
}

/// Nodes, and GPUs on each, that a job asks for.
fn shape(gpus: u32) -> (u32, u32) {
    let nodes = gpus.div_ceil(GPUS_PER_NODE).max(1);
    (nodes, gpus.div_ceil(nodes))
}

fn host_names(hold: &Hold) -> String {
    hold.on.iter().map(|on| node_name(on.node)).collect::<Vec<_>>().join(",")
}

/// What `sacct` has of an attempt that ended: the attempt, its script and its tasks.
pub(crate) fn accounted(ended: &Ended) -> Vec<AttemptRecord> {
    let Ended { id, job, hold, end_ms, state } = ended;
    let held = if hold.shows_devices { hold.gpus() as u32 } else { job.gpus };
    let gpus = |count: u32| Gpus { milli: Some(u64::from(count) * 1_000), model: None };
    let exit = match state {
        FinalState::Completed | FinalState::Resized => (0, 0),
        FinalState::Cancelled | FinalState::Preempted => (0, 15),
        _ => (1, 0),
    };
    let record = |step_id: Option<&str>| AttemptRecord {
        job_id: id.to_string(),
        step_id: step_id.map(str::to_owned),
        array_job_id: None,
        array_task_id: None,
        name: Some(match step_id {
            None => job.name.clone(),
            Some("batch") => "batch".to_owned(),
            Some(_) => "python".to_owned(),
        }),
        user: Some(job.user.clone()),
        account: Some(job.team.clone()),
        partition: Some(job.pool.to_owned()),
        qos: Some("normal".to_owned()),
        submit_ms: job.submit_ms,
        eligible_ms: Some(job.submit_ms),
        start_ms: Some(hold.start_ms),
        end_ms: Some(*end_ms),
        final_state: *state,
        exit: Some(exit),
        cancelled_by: None,
        requested: gpus(job.gpus),
        allocated: gpus(held),
        has_allocation: true,
        nodes: HostList::parse(&host_names(hold)).ok(),
        time_limit_ms: Some(job.limit_ms.unsigned_abs()),
        reason: None,
        priority: Some(job.priority),
    };
    [None, Some("batch"), Some("0")].map(record).into()
}

/// What `scontrol show` and `sacctmgr show` print of the site.
pub(crate) fn capacity(
    nodes: &[NodeShown],
    limits: &[(String, Option<u32>)],
    times: &Times,
    now_ms: i64,
) -> Capacity {
    let node = |(n, shown): (usize, &NodeShown)| ConfiguredNode {
        name: node_name(n),
        state: NodeState::parse(shown.state),
        gpus: u64::from(GPUS_PER_NODE),
        gpu_model: Some("h100".into()),
        partitions: Some(shown.pool.into()),
        cpus: Some(CORES),
        memory_mib: Some(MEMORY_MIB),
        reason: shown.reason.clone(),
    };
    let associations: Vec<String> = limits
        .iter()
        .map(|(team, limit)| {
            format!("{team}|||{}", limit.map_or_else(String::new, |gpus| format!("gres/gpu={gpus}")))
        })
        .collect();
    Capacity {
        nodes: nodes.iter().enumerate().map(node).collect(),
        partitions: partitions(),
        reservations: reservations(times, now_ms),
        qos: sacctmgr::parse_qos("normal|").into_iter().flatten().collect(),
        associations: sacctmgr::parse_associations(associations.iter().map(String::as_str))
            .into_iter()
            .flatten()
            .collect(),
    }
}

fn partitions() -> Vec<PartitionRecord> {
    let all = 0..NODES.iter().sum();
    let partition = |(pool, name): (usize, &&str)| {
        let names: Vec<String> = all.clone().filter(|node| pool_of(*node) == pool).map(node_name).collect();
        PartitionRecord {
            name: (*name).into(),
            state: Some("UP".into()),
            gpus: Some((names.len() as u64 * u64::from(GPUS_PER_NODE), Some("h100".into()))),
            nodes: HostList::parse(&names.join(",")).ok(),
        }
    };
    POOLS.iter().enumerate().map(partition).collect()
}

/// A reservation to come, and one of GPUs that are ordered and not delivered.
fn reservations(times: &Times, now_ms: i64) -> Vec<ReservationRecord> {
    let since_ms = times.present_ms - 72 * HOUR_MS;
    let ordered = ReservationRecord {
        name: Some("burst-block".into()),
        nodes: Ok(None),
        gpus: Some(ORDERED.1),
        accounts: vec!["research".into()],
        users: Vec::new(),
        flags: Vec::new(),
        start_s: Some(since_ms / 1_000),
        end_s: None,
        partition: Some(ORDERED.0.into()),
        state: Some("ACTIVE".into()),
    };
    let course = ReservationRecord {
        name: Some("gpu-course".into()),
        nodes: HostList::parse(&node_name(NODES[0] - 1)).map(Some),
        gpus: None,
        accounts: vec!["vision".into()],
        start_s: Some((times.present_ms + 50 * HOUR_MS) / 1_000),
        end_s: Some((times.present_ms + 58 * HOUR_MS) / 1_000),
        partition: Some(POOLS[0].into()),
        state: Some("INACTIVE".into()),
        ..ordered.clone()
    };
    if now_ms < since_ms { Vec::new() } else { vec![ordered, course] }
}
