//! `squeue --json`: jobs with all that is needed to change them. An answer counts whole or not at
//! all.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_autopilot::target::TargetError;
use tidegate_collect::slurm::read::{
    Number, Phase, Texts, array_tasks, hosts, is_null, node_gpus, phase_in_queue, tres_gpus,
};

use super::ask::{Slurm, unknown};

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    errors: Vec<serde_json::Value>,
    meta: Option<serde_json::Value>,
    jobs: Option<Vec<Told>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Told {
    job_id: Number,
    array_job_id: Number,
    array_task_id: Number,
    array_task_string: Option<String>,
    het_job_id: Number,
    het_job_offset: Number,
    name: Option<String>,
    account: Option<String>,
    user_name: Option<String>,
    group_name: Option<String>,
    partition: Option<String>,
    qos: Option<String>,
    comment: Option<String>,
    admin_comment: Option<String>,
    job_state: Texts,
    state_reason: Option<String>,
    state_description: Option<String>,
    priority: Number,
    submit_time: Number,
    eligible_time: Number,
    start_time: Number,
    end_time: Number,
    resize_time: Number,
    restart_cnt: Number,
    requeue: Option<bool>,
    batch_host: Option<String>,
    nodes: Option<String>,
    node_count: Number,
    tasks: Number,
    gres_detail: Texts,
    tres_req_str: Option<String>,
    tres_per_job: Option<String>,
    tres_per_node: Option<String>,
    tres_per_task: Option<String>,
    current_working_directory: Option<String>,
}

/// A job, or one task of an array.
#[derive(Debug, Clone)]
pub(super) struct QueueJob {
    /// As `scontrol` takes it.
    pub id: String,
    pub name: String,
    pub account: String,
    pub user: String,
    pub group: String,
    /// As asked for: several, comma separated, while it waits.
    pub partition: String,
    pub qos: String,
    pub comment: String,
    pub admin_comment: String,
    pub phase: Phase,
    /// Why it waits.
    pub reason: String,
    /// Nobody but a person, or whoever held it, lets it go.
    pub held: bool,
    /// Stopped and held in one, as a step of ours does.
    pub requeued_held: bool,
    pub priority: i64,
    pub since_ms: i64,
    pub start_ms: Option<i64>,
    /// When its time limit ends; `None`: it does not run, or has no limit.
    pub limit_ms: Option<i64>,
    /// When it was last resized since it started.
    pub resized_ms: Option<i64>,
    pub restarts: u32,
    pub requeues: bool,
    pub batch_host: Option<String>,
    /// GPUs by node; `None`: it has nodes, and what it holds there is not known.
    pub placement: Option<BTreeMap<String, u32>>,
    /// GPUs asked for; `None`: not known.
    pub asked_gpus: Option<u32>,
    /// GPUs asked for on each node, where it asks so.
    pub gpus_per_node: Option<u32>,
    /// The same as sbatch takes it, e.g. `gpu:h200:8`; empty where it does not ask so.
    pub gres_per_node: String,
    /// Where it was submitted.
    pub folder: String,
}

impl QueueJob {
    /// Whether it is there and has not ended.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.phase, Phase::Over(_))
    }

    /// Whether it waits for something that no GPU gives it: a person, another job, a time.
    pub(super) fn waits_for_others(&self) -> bool {
        let reasons = ["Dependency", "DependencyNeverSatisfied", "BeginTime", "JobArrayTaskLimit"];
        self.held || reasons.contains(&self.reason.as_str())
    }

    pub(super) fn nodes(&self) -> std::collections::BTreeSet<String> {
        self.placement.iter().flat_map(BTreeMap::keys).cloned().collect()
    }
}

/// All jobs of the queue.
pub(super) fn jobs(slurm: &Slurm) -> Result<Vec<QueueJob>, TargetError> {
    read(slurm.ask("squeue", &["--json"])?.as_bytes())
}

/// Reads an answer.
pub(super) fn read(answer: &[u8]) -> Result<Vec<QueueJob>, TargetError> {
    let answer: Answer = serde_json::from_slice(answer)
        .map_err(|error| unknown(format!("the answer of squeue is not the JSON expected: {error}")))?;
    if let Some(error) = answer.errors.first() {
        return Err(unknown(format!("the answer of squeue holds an error: {error}")));
    }
    let (Some(_), Some(told)) = (answer.meta, answer.jobs) else {
        return Err(unknown("the answer of squeue is not whole"));
    };
    let mut jobs = Vec::with_capacity(told.len());
    for job in &told {
        each(job, &mut jobs)
            .map_err(|what| unknown(format!("the answer of squeue makes no sense: {what}")))?;
    }
    Ok(jobs)
}

fn each(told: &Told, jobs: &mut Vec<QueueJob>) -> Result<(), String> {
    let id = told.job_id.positive().ok_or("a job has no job_id")?;
    let mut job = one(told, id)?;
    let tasks = told.array_task_string.as_deref().filter(|text| !is_null(text));
    match (told.array_job_id.positive(), told.array_task_id.0, tasks) {
        (Some(array), Some(task), _) => job.id = format!("{array}_{task}"),
        (Some(array), None, Some(list)) => {
            let list = list.split_once('%').map_or(list, |(list, _)| list);
            let tasks = array_tasks(list).map_err(|_| format!("job {id}: tasks {list:?}"))?;
            jobs.extend(tasks.iter().map(|task| QueueJob { id: format!("{array}_{task}"), ..job.clone() }));
            return Ok(());
        }
        _ => {
            if let (Some(leader), Some(offset)) = (told.het_job_id.positive(), told.het_job_offset.0) {
                job.id = format!("{leader}+{offset}");
            }
        }
    }
    jobs.push(job);
    Ok(())
}

fn one(told: &Told, id: u64) -> Result<QueueJob, String> {
    let text = |value: &Option<String>| value.clone().filter(|text| !is_null(text)).unwrap_or_default();
    let phase = phase_in_queue(&told.job_state.0);
    let mut names = String::new();
    let list = text(&told.nodes);
    if !list.is_empty() {
        hosts(&list, &mut names).map_err(|_| format!("job {id}: nodes {list:?}"))?;
    }
    let nodes: Vec<&str> = names.split(',').filter(|name| !name.is_empty()).collect();
    let priority = told.priority.0;
    let reason = text(&told.state_reason);
    let held = phase == Phase::Waiting && (priority == Some(0) || reason.starts_with("JobHeld"));
    let start_ms = told.start_time.time_ms().filter(|_| phase != Phase::Waiting);
    Ok(QueueJob {
        id: id.to_string(),
        name: text(&told.name),
        account: text(&told.account),
        user: text(&told.user_name),
        group: text(&told.group_name),
        partition: text(&told.partition),
        qos: text(&told.qos),
        comment: text(&told.comment),
        admin_comment: text(&told.admin_comment),
        phase,
        reason,
        held,
        requeued_held: held && text(&told.state_description).contains("requeued in held state"),
        priority: priority.and_then(|priority| i64::try_from(priority).ok()).unwrap_or(0),
        since_ms: told
            .eligible_time
            .time_ms()
            .or(told.submit_time.time_ms())
            .ok_or_else(|| format!("job {id} has no submit_time"))?,
        start_ms,
        limit_ms: told.end_time.time_ms().filter(|_| phase == Phase::Running),
        resized_ms: told.resize_time.time_ms().filter(|at| start_ms.is_some_and(|start| start <= *at)),
        restarts: told.restart_cnt.0.and_then(|count| u32::try_from(count).ok()).unwrap_or(0),
        requeues: told.requeue.unwrap_or(true),
        batch_host: Some(text(&told.batch_host)).filter(|host| !host.is_empty()),
        placement: placement(told, &nodes),
        asked_gpus: asked(told),
        gpus_per_node: per_node(told),
        gres_per_node: gres(&text(&told.tres_per_node)),
        folder: text(&told.current_working_directory),
    })
}

/// `gres:gpu:h200:8` as `gpu:h200:8`.
fn gres(tres: &str) -> String {
    let each = tres.split(',').map(|one| one.trim_start_matches("gres").trim_start_matches([':', '/']));
    each.collect::<Vec<_>>().join(",")
}

fn per_node(told: &Told) -> Option<u32> {
    u32::try_from(node_gpus(told.tres_per_node.as_deref()?).count).ok().filter(|count| *count > 0)
}

/// One detail a node, in the order of the nodes. Where Slurm has just come back it tells none, and
/// what was asked for by the node stands.
fn placement(told: &Told, nodes: &[&str]) -> Option<BTreeMap<String, u32>> {
    let details: Vec<u64> = told.gres_detail.0.iter().map(|text| node_gpus(text).count).collect();
    let told_whole = details.len() == nodes.len() && details.iter().sum::<u64>() > 0;
    let each = |at: usize| -> Option<u32> {
        if told_whole { u32::try_from(details[at]).ok() } else { per_node(told) }
    };
    if !nodes.is_empty() && !told_whole && asked(told) == Some(0) {
        return Some(nodes.iter().map(|name| ((*name).to_owned(), 0)).collect());
    }
    nodes.iter().enumerate().map(|(at, name)| Some(((*name).to_owned(), each(at)?))).collect()
}

fn asked(told: &Told) -> Option<u32> {
    let tres = told.tres_req_str.as_deref().unwrap_or_default();
    let by_tres = tres_gpus(tres).ok()?.gpus;
    if by_tres > 0 {
        return u32::try_from(by_tres).ok();
    }
    let count = |text: &Option<String>| node_gpus(text.as_deref().unwrap_or_default()).count;
    let gpus = match (count(&told.tres_per_job), count(&told.tres_per_node), count(&told.tres_per_task)) {
        (gpus @ 1.., _, _) => gpus,
        (_, gpus @ 1.., _) => gpus.checked_mul(told.node_count.positive()?)?,
        (_, _, gpus @ 1..) => gpus.checked_mul(told.tasks.positive()?)?,
        _ => 0,
    };
    u32::try_from(gpus).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As squeue of 22.05 writes a job that was shrunk, as far as it is read.
    const SHRUNK: &str = r#"{"meta": {}, "errors": [], "jobs": [{"account": "research", "batch_host": "n1", "job_id": 1,
        "gres_detail": ["gpu:h200:8(IDX:0-7)", "gpu:h200:4(IDX:0-3)"], "job_state": "RUNNING", "nodes": "n[1,3]",
        "node_count": 2, "priority": 4294901759, "requeue": true, "resize_time": 1795366002, "start_time": 1795365812,
        "submit_time": 1795365812, "tres_per_node": "gres:gpu:8", "tres_req_str": "cpu=3,node=3,gres/gpu=24"}]}"#;

    #[test]
    fn a_job_holds_what_its_nodes_say() {
        let job = read(SHRUNK.as_bytes()).unwrap().remove(0);
        assert_eq!(job.placement, Some([("n1".to_owned(), 8), ("n3".to_owned(), 4)].into()));
        assert_eq!((job.resized_ms, job.restarts, job.gpus_per_node), (Some(1_795_366_002_000), 0, Some(8)));
        assert_eq!((gres("gres:gpu:h200:8").as_str(), job.gres_per_node.as_str()), ("gpu:h200:8", "gpu:8"));
        assert!(job.requeues && !job.held && job.batch_host.as_deref() == Some("n1"));
        let untold = SHRUNK.replace(r#""gpu:h200:8(IDX:0-7)", "gpu:h200:4(IDX:0-3)""#, "");
        let job = read(untold.as_bytes()).unwrap().remove(0);
        assert_eq!(
            job.placement,
            Some([("n1".to_owned(), 8), ("n3".to_owned(), 8)].into()),
            "by the request"
        );
        let per_job = untold.replace("tres_per_node", "tres_per_socket");
        assert_eq!(read(per_job.as_bytes()).unwrap()[0].placement, None, "nobody knows");
    }

    #[test]
    fn an_answer_that_is_not_whole_is_no_empty_cluster() {
        for answer in [
            "",
            "{}",
            r#"{"meta": {}, "errors": [{"error": "Unspecified error"}], "jobs": []}"#,
            r#"{"meta": {}, "errors": [], "jobs": [{"job_state": "RUNNING"}]}"#,
        ] {
            assert!(matches!(read(answer.as_bytes()), Err(TargetError::Unknown { .. })), "{answer}");
        }
    }
}
