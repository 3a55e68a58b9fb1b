//! A job as the queue or accounting shows it, in the form that both share.

use serde::{Deserialize, Serialize};
use tidegate_events::FinalState;
use tidegate_slurm::sacct::AttemptRecord;
use tidegate_slurm::squeue::JobRecord;
use tidegate_slurm::{CommandError, Gpus, HostList, JobPhase};

/// One attempt of a job, of a task of an array or of a component of a heterogeneous job; or a step
/// of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ObservedJob {
    /// As accounting spells it: `123`, `123_4`, `123+1`.
    pub job_id: String,
    pub step_id: Option<String>,
    pub array_job_id: Option<String>,
    pub array_task_id: Option<i64>,
    pub team: Option<String>,
    pub user_name: Option<String>,
    pub pool: Option<String>,
    pub qos: Option<String>,
    pub name: Option<String>,
    pub requested: Gpus,
    pub held: Gpus,
    /// Nodes requested and thousandths of a GPU on each; `None` where Slurm may choose.
    pub shape: Option<(u32, u64)>,
    /// Whether anything was ever allocated to it.
    pub allocated: bool,
    pub nodes: Option<HostList>,
    pub time_limit_ms: Option<u64>,
    pub reason: Option<String>,
    pub priority: Option<i64>,
    pub phase: JobPhase,
    pub submit_ms: i64,
    pub eligible_ms: Option<i64>,
    /// When this attempt began to hold its devices; a resize begins a new one.
    pub start_ms: Option<i64>,
    pub end_ms: Option<i64>,
    pub resized: bool,
    /// When it was last suspended or resumed.
    pub suspend_ms: Option<i64>,
    pub exit: Option<(i32, i32)>,
    pub cancelled_by: Option<String>,
    /// Indices of the devices on each node, where Slurm shows them.
    pub devices: Vec<(String, Vec<u32>)>,
}

/// How an attempt, or a job that never started, ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub at_ms: i64,
    pub state: String,
    pub exit: Option<(i32, i32)>,
    pub cancelled_by: Option<String>,
}

impl End {
    pub(super) fn unexplained(at_ms: i64, state: FinalState) -> Self {
        Self { at_ms, state: state.as_str().to_owned(), exit: None, cancelled_by: None }
    }
}

impl ObservedJob {
    /// From a job of the queue. `tracks_gpus`: whether TRES name GPUs; if not, the request and the
    /// devices on the nodes stand for them.
    ///
    /// # Errors
    /// Its GPUs or its submission cannot be read: then the answer of squeue cannot be used.
    pub(super) fn from_queue(job: JobRecord, tracks_gpus: bool) -> Result<Self, CommandError> {
        let unusable = |what: String| CommandError::unusable("squeue", format!("job {}: {what}", job.number));
        let phase = job.phase;
        let (requested, held) = if tracks_gpus {
            let requested = job.requested_tres().map_err(|error| unusable(error.message))?;
            (requested, job.allocated_tres().map_err(|error| unusable(error.message))?)
        } else {
            (job.gpu_request().into_gpus().unwrap_or_default(), gpus_on_nodes(&job))
        };
        let resize_ms = job.resize_ms.filter(|resize| job.start_ms.is_some_and(|start| start < *resize));
        Ok(Self {
            step_id: None,
            requested,
            held,
            shape: job.shape(),
            allocated: job.has_allocation(),
            devices: devices(&job),
            submit_ms: job.submit_ms.ok_or_else(|| unusable("it has no submit_time".to_owned()))?,
            job_id: job.id,
            array_job_id: job.array_job_id,
            array_task_id: job.array_task_id,
            team: job.account,
            user_name: job.user,
            pool: job.partition,
            qos: job.qos,
            name: job.name,
            nodes: job.nodes,
            time_limit_ms: job.time_limit_ms,
            // Later it is why the job ended.
            reason: job.state_reason.filter(|_| phase == JobPhase::Waiting),
            priority: job.priority,
            phase,
            eligible_ms: job.eligible_ms,
            start_ms: resize_ms.or(job.start_ms),
            // Of a running job it is the end of its time limit.
            end_ms: job.end_ms.filter(|_| matches!(phase, JobPhase::Over(_) | JobPhase::Ending)),
            resized: resize_ms.is_some(),
            suspend_ms: job.suspend_ms,
            exit: job.exit,
            cancelled_by: None,
        })
    }

    /// From a record of accounting.
    pub(super) fn from_accounting(attempt: AttemptRecord) -> Self {
        Self {
            job_id: attempt.job_id,
            step_id: attempt.step_id,
            array_job_id: attempt.array_job_id,
            array_task_id: attempt.array_task_id,
            team: attempt.account,
            user_name: attempt.user,
            pool: attempt.partition,
            qos: attempt.qos,
            name: attempt.name,
            requested: attempt.requested,
            held: attempt.allocated,
            shape: None,
            allocated: attempt.has_allocation,
            nodes: attempt.nodes,
            time_limit_ms: attempt.time_limit_ms,
            reason: attempt.reason,
            priority: attempt.priority,
            phase: JobPhase::Over(attempt.final_state),
            submit_ms: attempt.submit_ms,
            eligible_ms: attempt.eligible_ms,
            start_ms: attempt.start_ms,
            end_ms: attempt.end_ms,
            resized: false,
            suspend_ms: None,
            exit: attempt.exit,
            cancelled_by: attempt.cancelled_by,
            devices: Vec::new(),
        }
    }

    /// The end, if there is one. How an attempt ended that still releases its devices is not known.
    pub(super) fn end(&self) -> Option<End> {
        let state = match self.phase {
            JobPhase::Over(state) => state,
            JobPhase::Ending => FinalState::Unknown,
            _ => return None,
        };
        let (exit, cancelled_by) = (self.exit, self.cancelled_by.clone());
        Some(End { at_ms: self.end_ms?, state: state.as_str().to_owned(), exit, cancelled_by })
    }

    /// The start of an attempt that held devices. Slurm gives a job that was cancelled while it
    /// waited a start equal to its end, and no devices.
    pub(super) fn started(&self) -> Option<i64> {
        self.start_ms.filter(|start_ms| self.allocated || self.end_ms != Some(*start_ms))
    }
}

/// GPUs that it holds on its nodes; none where Slurm shows none. Right after slurmctld has
/// restarted, a job shows `gpu:h200:0(IDX:)`: then the request stands.
fn gpus_on_nodes(job: &JobRecord) -> Gpus {
    let count: u64 = job.gres_by_node.iter().map(|node| node.count).sum();
    if count == 0 {
        return Gpus::default();
    }
    let model = job.gres_by_node.iter().find_map(|node| node.model.clone());
    Gpus { milli: Some(count * 1000), model }
}

/// Devices by node. Slurm lists one entry for each node, in the order of the job's nodes; with
/// another number of entries nobody knows which is whose.
fn devices(job: &JobRecord) -> Vec<(String, Vec<u32>)> {
    let names: Vec<&str> = job.nodes.iter().flat_map(HostList::iter).collect();
    if names.len() != job.gres_by_node.len() {
        return Vec::new();
    }
    let devices = names.into_iter().zip(&job.gres_by_node);
    devices
        .filter(|(_, gpus)| !gpus.indices.is_empty())
        .map(|(name, gpus)| (name.to_owned(), gpus.indices.clone()))
        .collect()
}

#[cfg(test)]
mod tests {
    use tidegate_slurm::squeue::parse_jobs;

    use super::*;

    /// As squeue of 22.05 writes a job, as far as it is read.
    fn held(gres_detail: &str, tres_per_node: &str) -> (Option<u64>, usize) {
        let answer = format!(
            r#"{{"meta": {{}}, "errors": [], "jobs": [{{"job_id": 8, "job_state": "RUNNING", "submit_time": 1795310010,
                "start_time": 1795310013, "tres_per_node": "{tres_per_node}", "gres_detail": [{gres_detail}],
                "tres_alloc_str": "cpu=1,mem=100M,node=1,billing=1", "node_count": 1, "nodes": "n1"}}]}}"#
        );
        let job = parse_jobs(answer.as_bytes()).unwrap().remove(0);
        let job = ObservedJob::from_queue(job, false).unwrap();
        (job.held.milli.or(job.requested.milli), job.devices.len())
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
}
