//! Jobs of the queue, with everything that is needed to change them.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_autopilot::target::TargetError;
use tidegate_events::MilliGpus;
use tidegate_slurm::squeue::{GpuRequest, JobRecord};
use tidegate_slurm::{HostList, JobPhase};

use super::ask::{Slurm, unanswered, unknown};

/// A job, or one task of an array.
#[derive(Debug, Clone)]
pub(super) struct QueueJob {
    /// As `scontrol` takes it.
    pub id: String,
    pub name: String,
    pub account: String,
    pub user: String,
    pub group: String,
    /// While it waits, all that it was submitted to, comma separated.
    pub partition: String,
    pub qos: String,
    pub comment: String,
    pub admin_comment: String,
    pub phase: JobPhase,
    /// Why it waits.
    pub reason: String,
    /// Held by a person or a step of ours: it does not start by itself.
    pub held: bool,
    /// Held by `scontrol requeuehold`, as a step of ours does.
    pub requeued_held: bool,
    /// It waits for something that no GPU gives it: a person, another job, a time.
    pub waits_for_others: bool,
    pub priority: i64,
    pub since_ms: i64,
    pub start_ms: Option<i64>,
    /// End of its time limit; `None`: it does not run, or has no limit.
    pub limit_ms: Option<i64>,
    /// When it was last resized since it started.
    pub resized_ms: Option<i64>,
    pub restarts: u32,
    pub requeues: bool,
    pub batch_host: Option<String>,
    /// Nodes that it has.
    pub nodes: BTreeSet<String>,
    /// GPUs by node; `None`: it has nodes, but what it holds there is not known.
    pub placement: Option<BTreeMap<String, u32>>,
    /// GPUs requested; `None`: not known, as for GPUs by the socket where accounting does not track
    /// GPUs.
    pub asked_gpus: Option<u32>,
    /// GPUs requested on each node, if it requests them by the node.
    pub gpus_per_node: Option<u32>,
    /// The same as `sbatch --gres` takes it, e.g. `gpu:h200:8`; empty otherwise.
    pub gres_per_node: String,
    /// Working directory.
    pub folder: String,
}

impl QueueJob {
    /// Whether it has not ended.
    pub(super) fn is_open(&self) -> bool {
        !matches!(self.phase, JobPhase::Over(_))
    }

    /// Whether neither what it holds nor what it asks for is known.
    pub(super) fn has_unknown_size(&self) -> bool {
        self.asked_gpus.is_none() && self.placement.as_ref().is_none_or(BTreeMap::is_empty)
    }
}

/// All jobs of the queue.
pub(super) fn jobs(slurm: &Slurm) -> Result<Vec<QueueJob>, TargetError> {
    from_records(slurm.client.jobs().map_err(unanswered)?)
}

/// Parses an answer of squeue.
#[cfg(test)]
pub(super) fn read(answer: &[u8]) -> Result<Vec<QueueJob>, TargetError> {
    from_records(tidegate_slurm::squeue::parse_jobs(answer).map_err(unanswered)?)
}

pub(super) fn from_records(records: Vec<JobRecord>) -> Result<Vec<QueueJob>, TargetError> {
    records.into_iter().map(QueueJob::from_record).collect()
}

impl QueueJob {
    fn from_record(job: JobRecord) -> Result<Self, TargetError> {
        let since_ms = job.eligible_ms.or(job.submit_ms);
        let (held, requeued_held) = (job.is_held(), job.is_requeued_held());
        Ok(Self {
            held,
            requeued_held,
            waits_for_others: job.waits_for_others(),
            nodes: nodes(&job).into_iter().map(str::to_owned).collect(),
            placement: placement(&job),
            asked_gpus: asked(&job),
            gpus_per_node: gpus_per_node(&job),
            gres_per_node: job.gres_option(),
            since_ms: since_ms
                .ok_or_else(|| unknown(format!("squeue shows job {} without submit_time", job.number)))?,
            limit_ms: job.end_ms.filter(|_| job.phase == JobPhase::Running),
            resized_ms: job.resize_ms.filter(|at| job.start_ms.is_some_and(|start| start <= *at)),
            start_ms: job.start_ms,
            phase: job.phase,
            id: job.id,
            name: job.name.unwrap_or_default(),
            account: job.account.unwrap_or_default(),
            user: job.user.unwrap_or_default(),
            group: job.group.unwrap_or_default(),
            partition: job.partition.unwrap_or_default(),
            qos: job.qos.unwrap_or_default(),
            comment: job.comment.unwrap_or_default(),
            admin_comment: job.admin_comment.unwrap_or_default(),
            reason: job.state_reason.unwrap_or_default(),
            priority: job.priority.unwrap_or(0),
            restarts: job.restarts.unwrap_or(0),
            requeues: job.requeue.unwrap_or(true),
            batch_host: job.batch_host,
            folder: job.working_directory.unwrap_or_default(),
        })
    }
}

fn gpus_per_node(job: &JobRecord) -> Option<u32> {
    u32::try_from(job.gpus_per_node()?).ok()
}

fn nodes(job: &JobRecord) -> Vec<&str> {
    job.nodes.iter().flat_map(HostList::iter).filter(|name| !name.is_empty()).collect()
}

/// GPUs by node. Slurm lists one entry for each node, in the order of the nodes. Right after
/// slurmctld has restarted it lists none: then the request by the node stands.
fn placement(job: &JobRecord) -> Option<BTreeMap<String, u32>> {
    let nodes = nodes(job);
    let on_nodes: Vec<u64> = job.gres_by_node.iter().map(|gpus| gpus.count).collect();
    let is_complete = on_nodes.len() == nodes.len() && on_nodes.iter().sum::<u64>() > 0;
    let each = |at: usize| -> Option<u32> {
        if is_complete { u32::try_from(on_nodes[at]).ok() } else { gpus_per_node(job) }
    };
    if !nodes.is_empty() && !is_complete && asked(job) == Some(0) {
        return Some(nodes.iter().map(|name| ((*name).to_owned(), 0)).collect());
    }
    nodes.iter().enumerate().map(|(at, name)| Some(((*name).to_owned(), each(at)?))).collect()
}

/// GPUs requested: by TRES, or where they name none by the request itself.
fn asked(job: &JobRecord) -> Option<u32> {
    let by_tres = MilliGpus(job.requested_tres().ok()?.milli.unwrap_or(0)).whole_gpus()?;
    if by_tres > 0 {
        return u32::try_from(by_tres).ok();
    }
    match job.gpu_request() {
        GpuRequest::Total(gpus, _) => u32::try_from(gpus).ok(),
        // How many sockets, Slurm says only once it has chosen the nodes.
        GpuRequest::PerSocket | GpuRequest::Unknown => None,
    }
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
        let typed = read(SHRUNK.replace("gres:gpu:8", "gres:gpu:h200:8").as_bytes()).unwrap().remove(0);
        assert_eq!((typed.gres_per_node.as_str(), job.gres_per_node.as_str()), ("gpu:h200:8", "gpu:8"));
        assert!(job.requeues && !job.held && job.batch_host.as_deref() == Some("n1"));
        let without_devices = SHRUNK.replace(r#""gpu:h200:8(IDX:0-7)", "gpu:h200:4(IDX:0-3)""#, "");
        let job = read(without_devices.as_bytes()).unwrap().remove(0);
        assert_eq!(
            job.placement,
            Some([("n1".to_owned(), 8), ("n3".to_owned(), 8)].into()),
            "by the request"
        );
        let per_socket = without_devices.replace("tres_per_node", "tres_per_socket");
        assert_eq!(read(per_socket.as_bytes()).unwrap()[0].placement, None, "nobody knows");
    }

    /// As squeue writes `--gpus-per-socket` where `AccountingStorageTRES` does not list `gres/gpu`.
    fn by_socket(rest: &str) -> QueueJob {
        let answer = format!(
            r#"{{"meta": {{}}, "errors": [], "jobs": [{{"job_id": 1, "submit_time": 5,
                "tres_per_socket": "gres:gpu:4", "tres_req_str": "cpu=3,node=1", {rest}}}]}}"#
        );
        read(answer.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn gpus_by_the_socket_are_not_known_until_slurm_shows_them() {
        let waits = by_socket(r#""job_state": "PENDING""#);
        assert_eq!((waits.asked_gpus, waits.placement.clone()), (None, Some(BTreeMap::new())));
        assert!(waits.has_unknown_size());

        let runs =
            by_socket(r#""job_state": "RUNNING", "nodes": "n1", "gres_detail": ["gpu:h200:8(IDX:0-7)"]"#);
        assert_eq!((runs.asked_gpus, runs.placement.clone()), (None, Some([("n1".to_owned(), 8)].into())));
        assert!(!runs.has_unknown_size());

        // Right after slurmctld has restarted.
        let not_shown = by_socket(r#""job_state": "RUNNING", "nodes": "n1", "gres_detail": []"#);
        assert_eq!((not_shown.asked_gpus, not_shown.placement.clone()), (None, None));
        assert_eq!(not_shown.nodes, ["n1".to_owned()].into(), "that it has the node is known");
        assert!(not_shown.has_unknown_size());
    }
}
