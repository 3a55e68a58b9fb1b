//! `squeue --json`: every job that slurmctld knows, the finished ones of the last `MinJobAge`
//! seconds too.
//!
//! JSON and not the text of `scontrol show job`, in which a job's name could pass for fields. An
//! answer counts only if it is whole: squeue ends with status 0 and an empty list when slurmctld is
//! away, and only `errors` tells.

use serde::Deserialize;

use super::command::CommandError;
use super::record::{Gpus, Record};
use super::spelling::{array_tasks, hosts, is_null, node_gpus, tres_gpus};
use super::states::{Phase, phase_in_queue};
use super::values::{Exit, Number, Texts};

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    errors: Vec<serde_json::Value>,
    meta: Option<serde_json::Value>,
    jobs: Option<Vec<Job>>,
}

/// What is read of a job; fields of other versions are ignored, those that a version lacks are not
/// known.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Job {
    job_id: Number,
    array_job_id: Number,
    array_task_id: Number,
    array_task_string: Option<String>,
    het_job_id: Number,
    het_job_offset: Number,
    account: Option<String>,
    user_name: Option<String>,
    partition: Option<String>,
    qos: Option<String>,
    name: Option<String>,
    job_state: Texts,
    state_reason: Option<String>,
    priority: Number,
    time_limit: Number,
    submit_time: Number,
    eligible_time: Number,
    start_time: Number,
    end_time: Number,
    resize_time: Number,
    suspend_time: Number,
    exit_code: Exit,
    tres_req_str: Option<String>,
    tres_alloc_str: Option<String>,
    gres_detail: Texts,
    tres_per_job: Option<String>,
    tres_per_node: Option<String>,
    tres_per_socket: Option<String>,
    tres_per_task: Option<String>,
    node_count: Number,
    tasks: Number,
    nodes: Option<String>,
}

impl Job {
    /// GPUs by the request alone, where TRES do not name them; none if how many that makes is not
    /// known.
    fn asked(&self) -> Option<Gpus> {
        let read = |text: &Option<String>| node_gpus(text.as_deref().unwrap_or_default());
        let (job, node, task) =
            (read(&self.tres_per_job), read(&self.tres_per_node), read(&self.tres_per_task));
        let (gpus, times) = match (job.count, node.count, task.count) {
            (1.., _, _) => (job, 1),
            (_, 1.., _) => (node, self.node_count.positive()?),
            (_, _, 1..) => (task, self.tasks.positive()?),
            _ if read(&self.tres_per_socket).count > 0 => return None,
            _ => (job, 1),
        };
        Some(Gpus { milli: gpus.count.checked_mul(times)?.checked_mul(1000), model: gpus.model })
    }

    /// Nodes and thousandths of a GPU on each; only who asks by the node, for one number of nodes,
    /// says so.
    fn shape(&self) -> Option<(u32, u64)> {
        let gpus = node_gpus(self.tres_per_node.as_deref()?).count;
        let nodes = u32::try_from(self.node_count.positive()?).ok()?;
        // Of a range `node_count` is the most, and the request names the fewest.
        let fewest = self
            .tres_req_str
            .as_deref()
            .unwrap_or_default()
            .split(',')
            .find_map(|tres| tres.strip_prefix("node="));
        let is_range = fewest.is_some_and(|fewest| fewest.parse() != Ok(nodes));
        (gpus > 0 && !is_range).then(|| Some((nodes, gpus.checked_mul(1000)?)))?
    }
}

/// How Slurm is set up, as far as answers depend on it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setup {
    /// Whether `gres/gpu` is among `AccountingStorageTRES`; without slurmdbd it cannot be. If it is
    /// not, TRES name no GPUs, and a job without any cannot be told from one with eight by them.
    pub gpus_tracked: bool,
}

/// All jobs of an answer; an array that still waits is one record for each of its tasks.
pub(super) fn read(answer: &[u8], setup: Setup) -> Result<Vec<Record>, CommandError> {
    let unusable = |what: String| CommandError::unusable("squeue", what);
    let answer: Answer = serde_json::from_slice(answer)
        .map_err(|error| unusable(format!("it is not the JSON expected: {error}")))?;
    if let Some(error) = answer.errors.first() {
        let text = |name: &str| error.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
        let what = text("description").or_else(|| text("error")).unwrap_or_else(|| error.to_string());
        return Err(unusable(format!("it holds an error: {what}")));
    }
    if answer.meta.is_none() {
        return Err(unusable("it has no `meta`".to_owned()));
    }
    let jobs = answer.jobs.ok_or_else(|| unusable("it has no `jobs`".to_owned()))?;
    let mut records = Vec::with_capacity(jobs.len());
    for job in &jobs {
        records_of(job, setup, &mut records).map_err(unusable)?;
    }
    Ok(records)
}

fn records_of(job: &Job, setup: Setup, records: &mut Vec<Record>) -> Result<(), String> {
    let id = job.job_id.positive().ok_or("a job has no job_id")?;
    let array = job.array_job_id.positive();
    let tasks = job.array_task_string.as_deref().filter(|text| !is_null(text));
    let mut record = record(job, id, setup)?;
    match (array, job.array_task_id.0, tasks) {
        (Some(array), Some(task), _) => {
            record.job_id = format!("{array}_{task}");
            record.array_job_id = Some(array.to_string());
            record.array_task_id = i64::try_from(task).ok();
        }
        (Some(array), None, Some(list)) => {
            let list = list.split_once('%').map_or(list, |(list, _at_once)| list);
            for task in array_tasks(list).map_err(|reject| format!("job {id}: {}", reject.reason))? {
                records.push(Record {
                    job_id: format!("{array}_{task}"),
                    array_job_id: Some(array.to_string()),
                    array_task_id: Some(task),
                    ..record.clone()
                });
            }
            return Ok(());
        }
        _ => {
            if let (Some(leader), Some(offset)) = (job.het_job_id.positive(), job.het_job_offset.0) {
                record.job_id = format!("{leader}+{offset}");
            }
        }
    }
    records.push(record);
    Ok(())
}

fn record(job: &Job, id: u64, setup: Setup) -> Result<Record, String> {
    let text = |value: &Option<String>| value.clone().filter(|text| !is_null(text));
    let of_job = |reject: crate::error::Reject| format!("job {id}: {}", reject.reason);
    let phase = phase_in_queue(&job.job_state.0);
    let start_ms = job.start_time.time_ms().filter(|_| phase != Phase::Waiting);
    let resize_ms =
        job.resize_time.time_ms().filter(|resize_ms| start_ms.is_some_and(|start| start < *resize_ms));
    let mut names = String::new();
    let nodes = match text(&job.nodes) {
        Some(list) => {
            let count = hosts(&list, &mut names).map_err(of_job)?;
            Some((names, count))
        }
        None => None,
    };
    let gpus = |tres: &Option<String>| match text(tres) {
        None => Ok(Gpus::default()),
        Some(_) if !setup.gpus_tracked => Ok(Gpus::default()),
        Some(tres) => tres_gpus(&tres).map_err(of_job).map(|gpus| Gpus {
            milli: u64::try_from(gpus.gpus).ok().and_then(|gpus| gpus.checked_mul(1000)),
            model: (!gpus.models.is_empty()).then(|| gpus.models.into_owned()),
        }),
    };
    let (mut requested, mut held) = (gpus(&job.tres_req_str)?, gpus(&job.tres_alloc_str)?);
    let details: Vec<_> = job.gres_detail.0.iter().map(|text| node_gpus(text)).collect();
    if !setup.gpus_tracked {
        requested = job.asked().unwrap_or_default();
        // What starts right after slurmctld did shows `gpu:h200:0(IDX:)` for what it was given:
        // then the request stands.
        let count: u64 = details.iter().map(|node| node.count).sum();
        if count > 0 {
            let model = details.iter().find_map(|node| node.model.clone());
            held = Gpus { milli: Some(count * 1000), model };
        }
    }
    // One entry a node, in the order of the job's nodes; with another number nobody knows which is
    // whose.
    let names = nodes.as_ref().map_or(Vec::new(), |(names, _)| names.split(',').map(str::to_owned).collect());
    let named = names.len() == details.len();
    let devices = names.into_iter().zip(details).filter(|_| named).map(|(name, gpus)| (name, gpus.indices));
    Ok(Record {
        job_id: id.to_string(),
        step_id: None,
        array_job_id: None,
        array_task_id: None,
        team: text(&job.account),
        user_name: text(&job.user_name),
        pool: text(&job.partition),
        qos: text(&job.qos),
        name: text(&job.name),
        requested,
        held,
        shape: job.shape(),
        allocated: text(&job.tres_alloc_str).is_some(),
        devices: devices.filter(|(_, indices)| !indices.is_empty()).collect(),
        nodes,
        time_limit_ms: job.time_limit.positive().map(|minutes| minutes * 60_000),
        // Later it is why the job ended.
        reason: text(&job.state_reason).filter(|_| phase == Phase::Waiting),
        priority: job.priority.0.and_then(|priority| i64::try_from(priority).ok()),
        phase,
        submit_ms: job.submit_time.time_ms().ok_or_else(|| format!("job {id} has no submit_time"))?,
        eligible_ms: job.eligible_time.time_ms(),
        start_ms: resize_ms.or(start_ms),
        // Of a job that runs it is when its time limit ends.
        end_ms: job.end_time.time_ms().filter(|_| matches!(phase, Phase::Over(_) | Phase::Ending)),
        resized: resize_ms.is_some(),
        suspend_ms: job.suspend_time.time_ms(),
        exit: job.exit_code.0,
        cancelled_by: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As squeue of 22.05 writes a job, as far as it is read.
    fn held(gres_detail: &str, tres_per_node: &str) -> (Option<u64>, usize) {
        let answer = format!(
            r#"{{"meta": {{}}, "errors": [], "jobs": [{{"job_id": 8, "job_state": "RUNNING", "submit_time": 1795310010,
                "start_time": 1795310013, "tres_per_node": "{tres_per_node}", "gres_detail": [{gres_detail}],
                "tres_alloc_str": "cpu=1,mem=100M,node=1,billing=1", "node_count": 1, "nodes": "n1"}}]}}"#
        );
        let records = read(answer.as_bytes(), Setup { gpus_tracked: false }).unwrap();
        (records[0].held.milli.or(records[0].requested.milli), records[0].devices.len())
    }

    #[test]
    fn gpus_are_those_of_the_nodes_or_else_those_asked_for() {
        assert_eq!(held(r#""gpu:h200:2(IDX:1-2)""#, "gres:gpu:2"), (Some(2000), 1));
        assert_eq!(held("", "gres:gpu:2"), (Some(2000), 0), "a job that ended");
        assert_eq!(
            held(r#""gpu:h200:0(IDX:)""#, "gres:gpu:2"),
            (Some(2000), 0),
            "slurmctld has just come back"
        );
        assert_eq!(held("", ""), (Some(0), 0));
    }

    /// As squeue of 22.05 showed jobs that waited.
    #[test]
    fn the_shape_is_what_is_asked_for_by_the_node() {
        let shape = |node_count: u32, per: &str, requested: &str| {
            let answer = format!(
                r#"{{"meta": {{}}, "errors": [], "jobs": [{{"job_id": 8, "job_state": "PENDING", "state_reason": "Resources",
                    "submit_time": 1795310010, {per}, "tres_req_str": "{requested}", "node_count": {node_count}}}]}}"#
            );
            read(answer.as_bytes(), Setup { gpus_tracked: false }).unwrap()[0].shape
        };
        assert_eq!(
            shape(2, r#""tres_per_node": "gres:gpu:h200:4""#, "cpu=2,mem=200M,node=2,billing=2"),
            Some((2, 4000))
        );
        assert_eq!(
            shape(3, r#""tres_per_node": "gres:gpu:2""#, "cpu=1,mem=100M,node=1,billing=1"),
            None,
            "-N1-3"
        );
        assert_eq!(shape(2, r#""tres_per_job": "gres:gpu:12""#, "cpu=1,mem=100M,node=1,billing=1"), None);
        assert_eq!(shape(1, r#""tres_per_task": "gres:gpu:2""#, "cpu=4,mem=400M,node=1,billing=4"), None);
    }
}
