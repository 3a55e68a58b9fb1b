//! Events of an observed job.
//!
//! They equal those that the import of `sacct` output makes of the same job, field by field, so
//! that a job that was watched and is imported later is one job. `tests/slurm/accounting.rs`
//! compares the two.

use tidegate_events::{Event, v1};
use tidegate_slurm::{Gpus, HostList};
use v1::JobEventKind as Kind;

use super::observed::{End, ObservedJob};

impl ObservedJob {
    /// GPUs requested; those held where the request is not known.
    fn requested(&self) -> &Gpus {
        if self.requested.milli.is_none() { &self.held } else { &self.requested }
    }

    /// GPUs held; those requested where what it holds is not known.
    fn held(&self) -> &Gpus {
        if self.held.milli.is_none() { &self.requested } else { &self.held }
    }

    /// Its submission.
    pub(super) fn submitted(&self) -> Event {
        let mut job = event(&self.job_id, Kind::Submitted, self.submit_ms);
        job.array_job_id.clone_from(&self.array_job_id);
        job.array_task_id = self.array_task_id;
        self.describe(&mut job, Some(self.requested()));
        job.job_name.clone_from(&self.name);
        job.time_limit_ms = self.time_limit_ms;
        Event::Job(job)
    }

    /// When it became eligible; `None` if it was eligible at submission.
    pub(super) fn eligible(&self) -> Option<Event> {
        let at_ms = self.eligible_ms.filter(|at_ms| *at_ms > self.submit_ms)?;
        Some(Event::Job(event(&self.job_id, Kind::Eligible, at_ms)))
    }

    /// That it waits, and why.
    pub(super) fn waiting(&self, at_ms: i64) -> Event {
        let mut job = event(&self.job_id, Kind::Waiting, at_ms);
        job.reason.clone_from(&self.reason);
        job.priority = self.priority;
        // Not in SUBMITTED: accounting does not know the shape, and an import of accounting must
        // make the same event.
        job.asked_node_count = self.shape.map(|(nodes, _)| nodes);
        job.asked_gpus_per_node_milli = self.shape.map(|(_, gpus)| gpus);
        Event::Job(job)
    }

    /// The start of an attempt or a step.
    pub(super) fn start(&self, start_ms: i64) -> Event {
        let mut job = event(&self.job_id, Kind::Started, start_ms);
        job.attempt_id = Some(start_ms);
        job.step_id.clone_from(&self.step_id);
        // A step's devices are its job's. Without a number nobody can count them twice.
        let step = self.step_id.is_some();
        self.describe(&mut job, (!step).then_some(self.held()));
        job.job_name = self.name.clone().filter(|_| step);
        job.nodes = self.nodes.as_ref().map(|nodes| nodes.as_str().to_owned());
        job.node_count = self.nodes.as_ref().map(HostList::count);
        job.reason.clone_from(&self.reason);
        job.priority = self.priority;
        Event::Job(job)
    }

    /// Sets the fields that say whose a job is and how many GPUs it requests or holds.
    fn describe(&self, job: &mut v1::JobEvent, gpus: Option<&Gpus>) {
        job.team.clone_from(&self.team);
        job.user_name.clone_from(&self.user_name);
        job.pool.clone_from(&self.pool);
        job.qos.clone_from(&self.qos);
        job.gpus_milli = gpus.and_then(|gpus| gpus.milli);
        job.gpu_model = gpus.and_then(|gpus| gpus.model.clone());
    }
}

/// A job's event with its time. The watcher fills in the cluster.
pub(super) fn event(job_id: &str, kind: Kind, at_ms: i64) -> v1::JobEvent {
    let envelope = v1::Envelope { event_time_ms: at_ms, ..Default::default() };
    v1::JobEvent {
        envelope: Some(envelope),
        kind: kind.into(),
        job_id: job_id.to_owned(),
        ..Default::default()
    }
}

/// The end of an attempt, of a step, or, without a start, of a job that never started.
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

/// A suspension or resumption.
pub(super) fn paused(job_id: &str, start_ms: i64, kind: Kind, at_ms: i64) -> Event {
    let mut job = event(job_id, kind, at_ms);
    job.attempt_id = Some(start_ms);
    Event::Job(job)
}

/// One event of `kind` for each device of an attempt.
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
