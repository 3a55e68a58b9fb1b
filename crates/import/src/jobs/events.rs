//! Builds the events of a job row, in buffers that are reused from row to row.

use tidegate_events::{Event, FinalState, v1};
use tidegate_slurm::ArrayTask;
use v1::JobEventKind as EventKind;

use super::{Attempt, Gpus, JobMapper, Timeline, count};
use crate::error::{Reject, RejectCode};
use crate::fields::Row;
use crate::mapping::Decode;
use crate::outbox::Outbox;

/// One event of each kind, so that strings of each kind stay allocated.
#[derive(Default)]
pub(crate) struct JobScratch {
    submitted: v1::JobEvent,
    eligible: v1::JobEvent,
    waiting: v1::JobEvent,
    started: v1::JobEvent,
    ended: v1::JobEvent,
    hosts: String,
}

impl JobMapper {
    pub(super) fn submit(
        &self,
        row: Row<'_>,
        attempt: &Attempt<'_>,
        gpus: &Gpus<'_>,
        scratch: &mut JobScratch,
        out: &mut Outbox<'_>,
    ) -> Result<(), Reject> {
        let (id, timeline) = (&attempt.id, &attempt.timeline);
        let tasks = match id.task {
            ArrayTask::Pending(list) => tidegate_slurm::array_tasks(list)?,
            _ => Vec::new(),
        };
        let event = &mut scratch.submitted;
        attempt.begin(event, EventKind::Submitted, timeline.submit_ms);
        event.attempt_id = None;
        let array_job = self.array_job_id.read(row);
        set(&mut event.array_job_id, id.array_job.or(array_job.as_deref()));
        event.array_task_id = match id.task {
            ArrayTask::One(task) => Some(task),
            _ => count(self.array_task_id.as_ref(), row)?,
        };
        self.describe(row, event, Some(gpus));
        set(&mut event.job_name, self.job_name.read(row).as_deref());
        event.time_limit_ms = self.time_limit_ms(row)?;
        // Reason and priority change while a job waits. They have events of their own, so that
        // exports made before and after the start agree on the submission.
        add_for_tasks(event, attempt, &tasks, out)?;
        if let Some(eligible_ms) = timeline.eligible_ms {
            let event = &mut scratch.eligible;
            attempt.begin(event, EventKind::Eligible, eligible_ms);
            event.attempt_id = None;
            add_for_tasks(event, attempt, &tasks, out)?;
        }
        self.wait(row, attempt, &tasks, &mut scratch.waiting, out)
    }

    /// Adds the reason and priority of the wait. Adds nothing if the job never waited or neither is
    /// known.
    ///
    /// A row has one reason for the whole wait, without its start. A reason that keeps a job from
    /// being eligible is assumed to hold from the submission, any other one from when the job
    /// became eligible.
    fn wait(
        &self,
        row: Row<'_>,
        attempt: &Attempt<'_>,
        tasks: &[i64],
        event: &mut v1::JobEvent,
        out: &mut Outbox<'_>,
    ) -> Result<(), Reject> {
        let Timeline { submit_ms, eligible_ms, start_ms, end, .. } = attempt.timeline;
        let until_ms = start_ms.or(end.map(|(end_ms, _)| end_ms)).unwrap_or(i64::MAX);
        let eligible_ms = eligible_ms.filter(|eligible_ms| *eligible_ms < until_ms);
        let reason = self.reason.read(row);
        let priority = count(self.priority.as_ref(), row)?;
        let early = reason.as_deref().is_some_and(|reason| self.before_eligible(reason));
        let (from_ms, later_ms) =
            if early { (submit_ms, eligible_ms) } else { (eligible_ms.unwrap_or(submit_ms), None) };
        if from_ms >= until_ms || (reason.is_none() && priority.is_none()) {
            return Ok(());
        }
        for (at_ms, reason) in [(Some(from_ms), reason.as_deref()), (later_ms, None)] {
            let Some(at_ms) = at_ms else { continue };
            attempt.begin(event, EventKind::Waiting, at_ms);
            event.attempt_id = None;
            set(&mut event.reason, reason);
            event.priority = priority;
            add_for_tasks(event, attempt, tasks, out)?;
        }
        Ok(())
    }

    fn before_eligible(&self, reason: &str) -> bool {
        self.reasons_before_eligible.iter().any(|early| early == reason)
    }

    /// Sets the owner of a job and the devices that it requests or holds.
    fn describe(&self, row: Row<'_>, event: &mut v1::JobEvent, gpus: Option<&Gpus<'_>>) {
        set(&mut event.team, self.team.read(row).as_deref());
        set(&mut event.user_name, self.user_name.read(row).as_deref());
        set(&mut event.pool, self.pool.read(row).as_deref());
        set(&mut event.qos, self.qos.read(row).as_deref());
        event.gpus_milli = gpus.and_then(|gpus| gpus.milli);
        set(&mut event.gpu_model, gpus.and_then(|gpus| gpus.model.as_deref()));
    }

    pub(super) fn start(
        &self,
        row: Row<'_>,
        attempt: &Attempt<'_>,
        start_ms: i64,
        gpus: &Gpus<'_>,
        scratch: &mut JobScratch,
        out: &mut Outbox<'_>,
    ) -> Result<(), Reject> {
        let event = &mut scratch.started;
        attempt.begin(event, EventKind::Started, start_ms);
        // A step's devices are its job's. Without a number they cannot be added up twice.
        let step = attempt.id.step.is_some();
        self.describe(row, event, (!step).then_some(gpus));
        let step_name = self.job_name.read(row).filter(|_| step);
        set(&mut event.job_name, step_name.as_deref());
        let nodes = self.nodes.read(row);
        let listed = match (nodes.as_deref(), self.nodes.decode) {
            (None, _) => None,
            (Some(list), Some(Decode::SlurmHostlist)) => {
                Some(tidegate_slurm::expand_hosts(list, &mut scratch.hosts)?)
            }
            (Some(list), _) => {
                let quotes: &[char] =
                    if self.nodes.decode.is_some() { &['[', ']', '\'', '"', ' '] } else { &[] };
                scratch.hosts.clear();
                scratch.hosts.extend(list.split(quotes));
                Some(list.split(',').count() as u32)
            }
        };
        set(&mut event.nodes, listed.map(|_| scratch.hosts.as_str()));
        let counted = count(self.node_count.as_ref(), row)?;
        event.node_count = counted.and_then(|count| u32::try_from(count).ok()).or(listed);
        set(&mut event.reason, self.reason.read(row).as_deref());
        event.priority = count(self.priority.as_ref(), row)?;
        add(out, event)
    }

    pub(super) fn end(
        &self,
        row: Row<'_>,
        attempt: &Attempt<'_>,
        end_ms: i64,
        state: FinalState,
        scratch: &mut JobScratch,
        out: &mut Outbox<'_>,
    ) -> Result<(), Reject> {
        let event = &mut scratch.ended;
        attempt.begin(event, EventKind::Ended, end_ms);
        set(&mut event.final_state, Some(state.as_str()));
        set(&mut event.cancelled_by, attempt.timeline.cancelled_by);
        let exit = self.exit(row)?;
        event.exit_code = exit.map(|(code, _)| code);
        event.exit_signal = exit.map(|(_, signal)| signal).filter(|signal| *signal != 0);
        add(out, event)
    }

    fn exit(&self, row: Row<'_>) -> Result<Option<(i32, i32)>, Reject> {
        let Some(number) = &self.exit_code else {
            return Ok(None);
        };
        if number.decode == Some(Decode::SlurmExitCode) {
            return Ok(number.raw_text(row).map(tidegate_slurm::exit_code).transpose()?);
        }
        let Some(code) = number.read(row)? else {
            return Ok(None);
        };
        let code = i32::try_from(code)
            .map_err(|_| Reject::new(RejectCode::BadNumber, format!("exit_code {code} is out of range")))?;
        // The low seven bits of a wait status are the signal, the second byte is the code.
        let wait_status = number.decode == Some(Decode::WaitStatus);
        Ok(Some(if wait_status { (code >> 8, code & 0x7f) } else { (code, 0) }))
    }

    fn time_limit_ms(&self, row: Row<'_>) -> Result<Option<u64>, Reject> {
        let limit_ms = match &self.time_limit {
            Some(number) if number.decode.is_some() => match number.raw_text(row) {
                Some(text) => tidegate_slurm::time_limit_ms(text)?,
                None => None,
            },
            number => count(number.as_ref(), row)?,
        };
        Ok(limit_ms.and_then(|limit_ms| u64::try_from(limit_ms).ok()))
    }
}

impl Attempt<'_> {
    fn begin(&self, event: &mut v1::JobEvent, kind: EventKind, event_time_ms: i64) {
        event.kind = kind.into();
        refill(&mut event.job_id, self.id.job);
        event.attempt_id = self.attempt_id;
        set(&mut event.step_id, self.id.step);
        let envelope = event.envelope.get_or_insert_default();
        refill(&mut envelope.cluster, self.cluster);
        envelope.event_time_ms = event_time_ms;
    }
}

/// Adds the event, or one per task of an array that Slurm shows as one record while it waits. Later
/// records of the tasks use the same ids.
fn add_for_tasks(
    event: &mut v1::JobEvent,
    attempt: &Attempt<'_>,
    tasks: &[i64],
    out: &mut Outbox<'_>,
) -> Result<(), Reject> {
    if tasks.is_empty() {
        return add(out, event);
    }
    let array_job = attempt.id.array_job.unwrap_or(attempt.id.job);
    for task in tasks {
        event.job_id = format!("{array_job}_{task}");
        if event.kind() == EventKind::Submitted {
            event.array_task_id = Some(*task);
        }
        add(out, event)?;
    }
    Ok(())
}

/// Adds the event and keeps its memory for the next one.
fn add(out: &mut Outbox<'_>, job: &mut v1::JobEvent) -> Result<(), Reject> {
    let mut event = Event::Job(std::mem::take(job));
    let added = out.add(&mut event);
    if let Event::Job(back) = event {
        *job = back;
    }
    added
}

fn set(slot: &mut Option<String>, value: Option<&str>) {
    match (slot.as_mut(), value) {
        (Some(text), Some(value)) => refill(text, value),
        (_, value) => *slot = value.map(str::to_owned),
    }
}

fn refill(text: &mut String, value: &str) {
    text.clear();
    text.push_str(value);
}
