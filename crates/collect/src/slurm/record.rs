//! One job as the queue or accounting tells it, and the events that say so.
//!
//! The events are those that the import of `sacct` output makes of the same record, field by field,
//! so that a job that was watched and is imported later is one job. `tests/slurm/same_events.rs`
//! compares the two.

use tidegate_events::{Event, FinalState, v1};
use v1::JobEventKind as Kind;

use super::states::Phase;

/// Devices asked for or held.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Gpus {
    pub milli: Option<u64>,
    pub model: Option<String>,
}

/// A job, one task of an array or one component of a heterogeneous job, in one of its attempts; or
/// a step of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
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
    /// Nodes asked for and thousandths of a GPU on each; none where Slurm is free to choose.
    pub shape: Option<(u32, u64)>,
    /// Whether it was ever given anything.
    pub allocated: bool,
    /// Expanded, comma separated, and how many.
    pub nodes: Option<(String, u32)>,
    pub time_limit_ms: Option<u64>,
    pub reason: Option<String>,
    pub priority: Option<i64>,
    pub phase: Phase,
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
    /// Numbers of the devices on each node, where Slurm says them.
    pub devices: Vec<(String, Vec<u32>)>,
}

/// How an attempt, or a job that never started, ended.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
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

impl Record {
    /// The end, if there is one: how an attempt ended that still gives its devices back is not
    /// known.
    pub(super) fn end(&self) -> Option<End> {
        let state = match self.phase {
            Phase::Over(state) => state,
            Phase::Ending => FinalState::Unknown,
            _ => return None,
        };
        let (exit, cancelled_by) = (self.exit, self.cancelled_by.clone());
        Some(End { at_ms: self.end_ms?, state: state.as_str().to_owned(), exit, cancelled_by })
    }

    /// Slurm gives a job that was cancelled while it waited a start equal to its end, and no
    /// devices.
    pub(super) fn started(&self) -> Option<i64> {
        self.start_ms.filter(|start_ms| self.allocated || self.end_ms != Some(*start_ms))
    }

    /// Of the two, where only one is told, it stands for both.
    fn requested(&self) -> &Gpus {
        if self.requested.milli.is_none() { &self.held } else { &self.requested }
    }

    fn held(&self) -> &Gpus {
        if self.held.milli.is_none() { &self.requested } else { &self.held }
    }

    pub(super) fn submitted(&self) -> Event {
        let mut job = event(&self.job_id, Kind::Submitted, self.submit_ms);
        job.array_job_id.clone_from(&self.array_job_id);
        job.array_task_id = self.array_task_id;
        self.describe(&mut job, Some(self.requested()));
        job.job_name.clone_from(&self.name);
        job.time_limit_ms = self.time_limit_ms;
        Event::Job(job)
    }

    /// Absent if nothing kept it from being eligible when it was submitted.
    pub(super) fn eligible(&self) -> Option<Event> {
        let at_ms = self.eligible_ms.filter(|at_ms| *at_ms > self.submit_ms)?;
        Some(Event::Job(event(&self.job_id, Kind::Eligible, at_ms)))
    }

    pub(super) fn waiting(&self, at_ms: i64) -> Event {
        let mut job = event(&self.job_id, Kind::Waiting, at_ms);
        job.reason.clone_from(&self.reason);
        job.priority = self.priority;
        // Not in SUBMITTED: accounting does not know it, and the import of it must tell the same
        // event.
        job.asked_node_count = self.shape.map(|(nodes, _)| nodes);
        job.asked_gpus_per_node_milli = self.shape.map(|(_, gpus)| gpus);
        Event::Job(job)
    }

    pub(super) fn start(&self, start_ms: i64) -> Event {
        let mut job = event(&self.job_id, Kind::Started, start_ms);
        job.attempt_id = Some(start_ms);
        job.step_id.clone_from(&self.step_id);
        // A step's devices are its job's. Without a number nobody can add them up a second time.
        let step = self.step_id.is_some();
        self.describe(&mut job, (!step).then_some(self.held()));
        job.job_name = self.name.clone().filter(|_| step);
        job.nodes = self.nodes.as_ref().map(|(names, _)| names.clone());
        job.node_count = self.nodes.as_ref().map(|(_, count)| *count);
        job.reason.clone_from(&self.reason);
        job.priority = self.priority;
        Event::Job(job)
    }

    /// What tells whose a job is and what it asks for or holds.
    fn describe(&self, job: &mut v1::JobEvent, gpus: Option<&Gpus>) {
        job.team.clone_from(&self.team);
        job.user_name.clone_from(&self.user_name);
        job.pool.clone_from(&self.pool);
        job.qos.clone_from(&self.qos);
        job.gpus_milli = gpus.and_then(|gpus| gpus.milli);
        job.gpu_model = gpus.and_then(|gpus| gpus.model.clone());
    }
}

/// An event of a job with its time; the watcher fills in the cluster.
pub(super) fn event(job_id: &str, kind: Kind, at_ms: i64) -> v1::JobEvent {
    let envelope = v1::Envelope { event_time_ms: at_ms, ..Default::default() };
    v1::JobEvent {
        envelope: Some(envelope),
        kind: kind.into(),
        job_id: job_id.to_owned(),
        ..Default::default()
    }
}

/// The end of an attempt, of a step of it, or without a start of a job that never had one.
pub(super) fn ended(job_id: &str, step_id: Option<&str>, start_ms: Option<i64>, end: &End) -> Event {
    let mut job = event(job_id, Kind::Ended, end.at_ms);
    job.attempt_id = start_ms;
    job.step_id = step_id.map(str::to_owned);
    job.final_state = Some(end.state.clone());
    job.cancelled_by.clone_from(&end.cancelled_by);
    job.exit_code = end.exit.map(|(code, _)| code);
    job.exit_signal = end.exit.map(|(_, signal)| signal).filter(|signal| *signal != 0);
    Event::Job(job)
}

/// Suspended, or resumed.
pub(super) fn paused(job_id: &str, start_ms: i64, kind: Kind, at_ms: i64) -> Event {
    let mut job = event(job_id, kind, at_ms);
    job.attempt_id = Some(start_ms);
    Event::Job(job)
}

/// The devices of an attempt on its nodes, each as one event of `kind`.
///
/// `hold_id` is `slurm/JOB/START/NODE/INDEX`. The index is Slurm's, in the order of the node's
/// gres.conf.
pub(super) fn devices(
    job_id: &str,
    start_ms: i64,
    devices: &[(String, Vec<u32>)],
    kind: Kind,
    at_ms: i64,
) -> impl Iterator<Item = Event> {
    let each = devices.iter().flat_map(|(node, indices)| indices.iter().map(move |index| (node, *index)));
    each.map(move |(node, index)| {
        let mut job = event(job_id, kind, at_ms);
        job.attempt_id = Some(start_ms);
        job.hold_id = Some(format!("slurm/{job_id}/{start_ms}/{node}/{index}"));
        job.node = Some(node.clone());
        job.gpu_index = Some(index);
        job.hold_quality = Some("EXACT".to_owned());
        job.hold_evidence = Some("slurm".to_owned());
        Event::Job(job)
    })
}
