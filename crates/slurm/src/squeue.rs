//! Jobs of the queue: `squeue --json`.
//!
//! slurmctld lists every job it knows, including those that ended within the last `MinJobAge`
//! seconds. This crate reads JSON and not the text of `scontrol show job`, in which a job's name
//! could pass for other fields. An answer counts only if it is complete.

use serde::Deserialize;

use crate::client::{CommandError, SlurmClient};
use crate::error::ParseError;
use crate::hostlist::HostList;
use crate::job_id::{array_tasks, without_limit};
use crate::job_state::{JobPhase, phase_in_queue};
use crate::json::{Exit, Number, Texts, check_errors};
use crate::spelling::{is_null, present};
use crate::tres::{Gpus, GresGpus, TresGpus};

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    errors: Vec<serde_json::Value>,
    meta: Option<serde_json::Value>,
    jobs: Option<Vec<RawJob>>,
}

/// The fields that are read. Fields of other versions are ignored; a field that a version lacks is
/// not known.
#[derive(Deserialize, Default)]
#[serde(default)]
struct RawJob {
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
    current_working_directory: Option<String>,
    job_state: Texts,
    state_reason: Option<String>,
    state_description: Option<String>,
    priority: Number,
    time_limit: Number,
    submit_time: Number,
    eligible_time: Number,
    start_time: Number,
    end_time: Number,
    resize_time: Number,
    suspend_time: Number,
    exit_code: Exit,
    restart_cnt: Number,
    requeue: Option<bool>,
    batch_host: Option<String>,
    nodes: Option<String>,
    node_count: Number,
    tasks: Number,
    gres_detail: Texts,
    tres_req_str: Option<String>,
    tres_alloc_str: Option<String>,
    tres_per_job: Option<String>,
    tres_per_node: Option<String>,
    tres_per_socket: Option<String>,
    tres_per_task: Option<String>,
}

/// One job, one task of an array, or one component of a heterogeneous job.
///
/// An array that still waits is one record in Slurm and one `JobRecord` for each of its tasks here.
#[derive(Debug, Clone)]
pub struct JobRecord {
    /// As `scontrol` and accounting spell it: `123`, `123_4`, `123+1`.
    pub id: String,
    /// Slurm's own number of the record, for messages.
    pub number: u64,
    /// Id of the whole array, for a task of one.
    pub array_job_id: Option<String>,
    /// Number of the task in its array.
    pub array_task_id: Option<i64>,
    /// Job name.
    pub name: Option<String>,
    /// Account.
    pub account: Option<String>,
    /// User.
    pub user: Option<String>,
    /// The user's group.
    pub group: Option<String>,
    /// Partition; while the job waits, all that it was submitted to, comma separated.
    pub partition: Option<String>,
    /// QOS.
    pub qos: Option<String>,
    /// `Comment`.
    pub comment: Option<String>,
    /// `AdminComment`.
    pub admin_comment: Option<String>,
    /// Working directory.
    pub working_directory: Option<String>,
    /// Phase, from all of its states.
    pub phase: JobPhase,
    /// Why it waits; after the end, why it ended.
    pub state_reason: Option<String>,
    /// Priority.
    pub priority: Option<i64>,
    /// Time limit, ms; `None`: it has none of its own.
    pub time_limit_ms: Option<u64>,
    /// Last submission, ms since 1970; a requeue counts as one.
    pub submit_ms: Option<i64>,
    /// When it became eligible, or will.
    pub eligible_ms: Option<i64>,
    /// Start; `None` while it waits, when Slurm shows the expected start.
    pub start_ms: Option<i64>,
    /// End; while the job runs, the end of its time limit.
    pub end_ms: Option<i64>,
    /// Last resize.
    pub resize_ms: Option<i64>,
    /// Last suspension or resumption.
    pub suspend_ms: Option<i64>,
    /// Exit code and signal.
    pub exit: Option<(i32, i32)>,
    /// How often it was requeued.
    pub restarts: Option<u32>,
    /// Whether it may be requeued.
    pub requeue: Option<bool>,
    /// Node on which the batch script runs.
    pub batch_host: Option<String>,
    /// Nodes it holds.
    pub nodes: Option<HostList>,
    /// GPUs on each node, in the order of `nodes`. Empty after the end, and for a moment after
    /// slurmctld has restarted: then also `gpu:h200:0(IDX:)`.
    pub gres_by_node: Vec<GresGpus>,
    state_description: Option<String>,
    node_count: Option<u64>,
    task_count: Option<u64>,
    requested_tres: Option<String>,
    allocated_tres: Option<String>,
    gres_per_job: Option<String>,
    gres_per_node: Option<String>,
    gres_per_socket: Option<String>,
    gres_per_task: Option<String>,
}

/// GPUs that a job requests by `--gpus`, `--gpus-per-node` and the like.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GpuRequest {
    /// This many in total: GPUs, and their model if it is named. Zero if it requests none.
    Total(u64, Option<String>),
    /// By the socket: the total depends on the nodes that Slurm chooses.
    PerSocket,
    /// The total depends on a number of nodes or tasks that is not known, or overflows.
    Unknown,
}

impl GpuRequest {
    /// The total with thousandths of a GPU; `None` if it is not known.
    pub fn into_gpus(self) -> Option<Gpus> {
        match self {
            Self::Total(gpus, model) => Some(Gpus { milli: Some(gpus.checked_mul(1000)?), model }),
            Self::PerSocket | Self::Unknown => None,
        }
    }
}

impl JobRecord {
    /// Whether a person or a step of ours holds it: it does not start by itself.
    pub fn is_held(&self) -> bool {
        let held = |reason: &String| reason.starts_with("JobHeld");
        self.phase == JobPhase::Waiting
            && (self.priority == Some(0) || self.state_reason.as_ref().is_some_and(held))
    }

    /// Whether it is held because of `scontrol requeuehold`.
    pub fn is_requeued_held(&self) -> bool {
        let requeued = |text: &String| text.contains("requeued in held state");
        self.is_held() && self.state_description.as_ref().is_some_and(requeued)
    }

    /// Whether it waits for something that no GPU gives it: a person, another job, a time.
    pub fn waits_for_others(&self) -> bool {
        let reasons = ["Dependency", "DependencyNeverSatisfied", "BeginTime", "JobArrayTaskLimit"];
        self.is_held() || self.state_reason.as_deref().is_some_and(|reason| reasons.contains(&reason))
    }

    /// Whether TRES were ever allocated to it.
    pub fn has_allocation(&self) -> bool {
        self.allocated_tres.is_some()
    }

    /// GPUs of the requested TRES: none where `AccountingStorageTRES` does not list `gres/gpu`.
    ///
    /// # Errors
    /// A count of GPUs is not a number.
    pub fn requested_tres(&self) -> Result<Gpus, ParseError> {
        tres(self.requested_tres.as_deref())
    }

    /// GPUs of the allocated TRES: none where `AccountingStorageTRES` does not list `gres/gpu`.
    ///
    /// # Errors
    /// A count of GPUs is not a number.
    pub fn allocated_tres(&self) -> Result<Gpus, ParseError> {
        tres(self.allocated_tres.as_deref())
    }

    /// GPUs of the request itself, which TRES need not name.
    pub fn gpu_request(&self) -> GpuRequest {
        let read = |text: &Option<String>| GresGpus::parse(text.as_deref().unwrap_or_default());
        let (job, node, task) =
            (read(&self.gres_per_job), read(&self.gres_per_node), read(&self.gres_per_task));
        let (gpus, times) = match (job.count, node.count, task.count) {
            (1.., _, _) => (job, Some(1)),
            (_, 1.., _) => (node, self.node_count),
            (_, _, 1..) => (task, self.task_count),
            _ if read(&self.gres_per_socket).count > 0 => return GpuRequest::PerSocket,
            _ => (job, Some(1)),
        };
        match times.and_then(|times| gpus.count.checked_mul(times)) {
            Some(total) => GpuRequest::Total(total, gpus.model),
            None => GpuRequest::Unknown,
        }
    }

    /// GPUs requested on each node, for a job that requests them by the node.
    pub fn gpus_per_node(&self) -> Option<u64> {
        Some(GresGpus::parse(self.gres_per_node.as_deref()?).count).filter(|count| *count > 0)
    }

    /// The request by the node as `sbatch --gres` takes it, e.g. `gpu:h200:8`; empty without one.
    pub fn gres_option(&self) -> String {
        let text = self.gres_per_node.as_deref().filter(|text| !is_null(text)).unwrap_or_default();
        let each = text.split(',').map(|one| one.trim_start_matches("gres").trim_start_matches([':', '/']));
        each.collect::<Vec<_>>().join(",")
    }

    /// Nodes and thousandths of a GPU on each; `None` unless the job requests GPUs by the node, on
    /// a fixed number of nodes.
    pub fn shape(&self) -> Option<(u32, u64)> {
        let gpus = self.gpus_per_node()?;
        let nodes = u32::try_from(self.node_count?).ok()?;
        // Of a range `node_count` is the most, and the requested TRES name the fewest.
        let tres = self.requested_tres.as_deref().unwrap_or_default();
        let fewest = tres.split(',').find_map(|tres| tres.strip_prefix("node="));
        let is_range = fewest.is_some_and(|fewest| fewest.parse() != Ok(nodes));
        (!is_range).then(|| Some((nodes, gpus.checked_mul(1000)?)))?
    }
}

fn tres(text: Option<&str>) -> Result<Gpus, ParseError> {
    text.map_or_else(|| Ok(Gpus::default()), |text| TresGpus::parse(text).map(TresGpus::into_gpus))
}

impl SlurmClient {
    /// The jobs that `squeue` shows without filters.
    ///
    /// # Errors
    /// squeue failed, or its answer cannot be read.
    pub fn jobs(&self) -> Result<Vec<JobRecord>, CommandError> {
        parse_jobs(self.text("squeue", &["--json"])?.as_bytes())
    }

    /// The jobs of all states and all partitions. Unlike [`Self::jobs`], it fails if a name holds
    /// bytes that are not UTF-8.
    ///
    /// # Errors
    /// squeue failed, or its answer cannot be read.
    pub fn all_jobs(&self) -> Result<Vec<JobRecord>, CommandError> {
        parse_jobs(&self.run("squeue", &["--all", "--states=all", "--json"])?)
    }
}

/// Parses the answer of `squeue --json`. Bytes that are not UTF-8 are replaced: squeue prints those
/// of a job's name as they are, and no name makes the whole answer unusable.
///
/// # Errors
/// The answer is not complete, or a job in it cannot be read: then nothing of it counts.
pub fn parse_jobs(answer: &[u8]) -> Result<Vec<JobRecord>, CommandError> {
    let unusable = |what: String| CommandError::unusable("squeue", what);
    let answer: Answer = serde_json::from_str(&String::from_utf8_lossy(answer))
        .map_err(|error| unusable(format!("it is not the JSON expected: {error}")))?;
    check_errors("squeue", &answer.errors)?;
    if answer.meta.is_none() {
        return Err(unusable("it has no `meta`".to_owned()));
    }
    let jobs = answer.jobs.ok_or_else(|| unusable("it has no `jobs`".to_owned()))?;
    let mut records = Vec::with_capacity(jobs.len());
    for job in jobs {
        expand(job, &mut records).map_err(unusable)?;
    }
    Ok(records)
}

/// Adds the records of one entry: of a waiting array one for each task.
fn expand(raw: RawJob, records: &mut Vec<JobRecord>) -> Result<(), String> {
    let number = raw.job_id.positive().ok_or("a job has no job_id")?;
    let (array, task) = (raw.array_job_id.positive(), raw.array_task_id.0);
    let leader = raw.het_job_id.positive().zip(raw.het_job_offset.0);
    let tasks = raw.array_task_string.clone().filter(|text| !is_null(text));
    let mut record = record(raw, number)?;
    match (array, task, tasks) {
        (Some(array), Some(task), _) => {
            record.id = format!("{array}_{task}");
            record.array_job_id = Some(array.to_string());
            record.array_task_id = i64::try_from(task).ok();
        }
        (Some(array), None, Some(list)) => {
            let tasks =
                array_tasks(without_limit(&list)).map_err(|error| format!("job {number}: {error}"))?;
            records.extend(tasks.into_iter().map(|task| JobRecord {
                id: format!("{array}_{task}"),
                array_job_id: Some(array.to_string()),
                array_task_id: Some(task),
                ..record.clone()
            }));
            return Ok(());
        }
        _ => {
            if let Some((leader, offset)) = leader {
                record.id = format!("{leader}+{offset}");
            }
        }
    }
    records.push(record);
    Ok(())
}

fn record(raw: RawJob, number: u64) -> Result<JobRecord, String> {
    let phase = phase_in_queue(&raw.job_state.0);
    let nodes = present(raw.nodes).map(|list| HostList::parse(&list)).transpose();
    Ok(JobRecord {
        id: number.to_string(),
        number,
        array_job_id: None,
        array_task_id: None,
        name: present(raw.name),
        account: present(raw.account),
        user: present(raw.user_name),
        group: present(raw.group_name),
        partition: present(raw.partition),
        qos: present(raw.qos),
        comment: present(raw.comment),
        admin_comment: present(raw.admin_comment),
        working_directory: present(raw.current_working_directory),
        phase,
        state_reason: present(raw.state_reason),
        priority: raw.priority.0.and_then(|priority| i64::try_from(priority).ok()),
        time_limit_ms: raw.time_limit.positive().and_then(|minutes| minutes.checked_mul(60_000)),
        submit_ms: raw.submit_time.time_ms(),
        eligible_ms: raw.eligible_time.time_ms(),
        start_ms: raw.start_time.time_ms().filter(|_| phase != JobPhase::Waiting),
        end_ms: raw.end_time.time_ms(),
        resize_ms: raw.resize_time.time_ms(),
        suspend_ms: raw.suspend_time.time_ms(),
        exit: raw.exit_code.0,
        restarts: raw.restart_cnt.0.and_then(|count| u32::try_from(count).ok()),
        requeue: raw.requeue,
        batch_host: present(raw.batch_host),
        nodes: nodes.map_err(|error| format!("job {number}: {error}"))?,
        gres_by_node: raw.gres_detail.0.iter().map(|text| GresGpus::parse(text)).collect(),
        state_description: present(raw.state_description),
        node_count: raw.node_count.positive(),
        task_count: raw.tasks.positive(),
        requested_tres: present(raw.tres_req_str),
        allocated_tres: present(raw.tres_alloc_str),
        gres_per_job: raw.tres_per_job,
        gres_per_node: raw.tres_per_node,
        gres_per_socket: raw.tres_per_socket,
        gres_per_task: raw.tres_per_task,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As squeue of 22.05 showed jobs that waited.
    #[test]
    fn the_shape_is_what_is_asked_for_by_the_node() {
        let shape = |node_count: u32, per: &str, requested: &str| {
            let answer = format!(
                r#"{{"meta": {{}}, "errors": [], "jobs": [{{"job_id": 8, "job_state": "PENDING", "state_reason": "Resources",
                    "submit_time": 1795310010, {per}, "tres_req_str": "{requested}", "node_count": {node_count}}}]}}"#
            );
            parse_jobs(answer.as_bytes()).unwrap()[0].shape()
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

    /// As squeue of 22.05 prints `sbatch -J $'a\xff\n\x1f"'`.
    #[test]
    fn a_name_of_any_bytes_is_a_name() {
        let answer =
            b"{\"meta\": {}, \"errors\": [], \"jobs\": [{\"job_id\": 8, \"name\": \"a\xff\\n\\u001f\\\"\"}]}";
        let jobs = parse_jobs(answer).unwrap();
        assert_eq!(jobs[0].name.as_deref(), Some("a\u{fffd}\n\u{1f}\""));
    }

    #[test]
    fn an_answer_that_is_not_whole_is_no_empty_cluster() {
        for answer in [
            "",
            "{}",
            r#"{"meta": {}, "errors": [{"error": "Unspecified error"}], "jobs": []}"#,
            r#"{"meta": {}, "errors": [], "jobs": [{"job_state": "RUNNING"}]}"#,
        ] {
            let error = parse_jobs(answer.as_bytes());
            assert!(matches!(error, Err(CommandError::Unusable { .. })), "{answer}");
        }
    }
}
