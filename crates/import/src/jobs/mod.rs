//! Maps a row about a job, an attempt or a step to job events.

use std::borrow::Cow;

use tidegate_events::FinalState;
use tidegate_slurm::{ArrayTask, JobId, TresGpus};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::accepted_row::AcceptedRow;
use crate::error::{ImportError, Reject, RejectCode};
use crate::fields::{ColumnBinder, NumberField, Row, State, TextField, TimeField, missing};
use crate::mapping::{OnDuplicateId, Unit};
use crate::outbox::Outbox;
use crate::time::TimeReader;

mod events;
pub(crate) use events::JobScratch;

/// More GPUs than any cluster has; a larger number means a wrong unit or column.
const MAX_GPUS_MILLI: i64 = 1_000_000_000;

/// A jobs mapping bound to the columns of one file.
pub(crate) struct JobMapper {
    cluster: TextField,
    job_id: TextField,
    step_id: TextField,
    array_job_id: TextField,
    array_task_id: Option<NumberField>,
    team: TextField,
    user_name: TextField,
    pool: TextField,
    qos: TextField,
    job_name: TextField,
    gpus: Option<NumberField>,
    gpus_optional: bool,
    gpus_held: Option<NumberField>,
    gpu_model: TextField,
    nodes: TextField,
    node_count: Option<NumberField>,
    time_limit: Option<NumberField>,
    reason: TextField,
    reasons_before_eligible: Vec<String>,
    state: TextField,
    exit_code: Option<NumberField>,
    priority: Option<NumberField>,
    attempt: Option<NumberField>,
    attempts: Option<NumberField>,
    submit_time: TimeField,
    eligible_time: Option<TimeField>,
    start_time: Option<TimeField>,
    end_time: Option<TimeField>,
    final_state: FinalState,
    non_final_state: Option<FinalState>,
    allow_start_before_submit: bool,
    on_duplicate_id: OnDuplicateId,
}

/// Devices of a row.
#[derive(Default)]
struct Gpus<'r> {
    milli: Option<u64>,
    model: Option<Cow<'r, str>>,
}

/// Checked times and final state of the row's attempt.
struct Timeline<'r> {
    submit_ms: i64,
    eligible_ms: Option<i64>,
    start_ms: Option<i64>,
    /// End and final state; `None` while it waits or runs.
    end: Option<(i64, FinalState)>,
    /// Rest of the state's name after a prefix in `[states]`.
    cancelled_by: Option<&'r str>,
}

/// The attempt of a row, shared by its events.
struct Attempt<'r> {
    cluster: &'r str,
    id: JobId<'r>,
    attempt_id: Option<i64>,
    timeline: Timeline<'r>,
}

impl JobMapper {
    pub(crate) fn new(binder: &ColumnBinder<'_>, cluster: TextField) -> Result<Self, ImportError> {
        let mapping = binder.mapping;
        let state = |name: &Option<String>| name.as_ref().and_then(|name| name.parse().ok());
        Ok(Self {
            cluster,
            job_id: binder.text("job_id")?,
            step_id: binder.text("step_id")?,
            array_job_id: binder.text("array_job_id")?,
            array_task_id: binder.number("array_task_id", Unit::Count)?,
            team: binder.text("team")?,
            user_name: binder.text("user_name")?,
            pool: binder.text("pool")?,
            qos: binder.text("qos")?,
            job_name: binder.text("job_name")?,
            gpus: binder.number("gpus", Unit::Gpus)?,
            gpus_optional: mapping.columns.get("gpus").is_some_and(|spec| spec.optional),
            gpus_held: binder.number("gpus_held", Unit::Gpus)?,
            gpu_model: binder.text("gpu_model")?,
            nodes: binder.text("nodes")?,
            node_count: binder.number("node_count", Unit::Count)?,
            time_limit: binder.number("time_limit", Unit::S)?,
            reason: binder.text("reason")?,
            reasons_before_eligible: mapping.reasons_before_eligible.clone(),
            state: binder.text("state")?,
            exit_code: binder.number("exit_code", Unit::Count)?,
            priority: binder.number("priority", Unit::Count)?,
            attempt: binder.number("attempt", Unit::Count)?,
            attempts: binder.number("attempts", Unit::Count)?,
            submit_time: binder.required_time("submit_time")?,
            eligible_time: binder.time("eligible_time")?,
            start_time: binder.time("start_time")?,
            end_time: binder.time("end_time")?,
            final_state: state(&mapping.final_state).unwrap_or(FinalState::Unknown),
            non_final_state: state(&mapping.non_final_state),
            allow_start_before_submit: mapping.allow_start_before_submit,
            on_duplicate_id: mapping.on_duplicate_id,
        })
    }

    /// Adds the row's events to the outbox.
    pub(crate) fn row<'r>(
        &'r self,
        row: Row<'r>,
        times: &mut TimeReader,
        scratch: &mut JobScratch,
        out: &mut Outbox<'_>,
    ) -> Result<AcceptedRow<'r>, Reject> {
        let cluster = self.cluster.required("cluster", row)?;
        let id_text = self.job_id.required("job_id", row)?;
        let mut id = match self.job_id.decode {
            Some(_) => JobId::parse(&id_text)?,
            None => JobId { job: &id_text, step: None, array_job: None, task: ArrayTask::None },
        };
        let step = self.step_id.read(row);
        id.step = id.step.or(step.as_deref());
        let requested = self.gpus(self.gpus.as_ref(), row)?;
        let held = self.gpus(self.gpus_held.as_ref(), row)?;
        let allocated = self.gpus_held.as_ref().map(|_| held.milli.is_some());
        // If only one of the two is given, it serves for both.
        let (requested, held) = match (requested.milli, held.milli) {
            (None, Some(_)) => (&held, &held),
            (_, None) => (&requested, &requested),
            _ => (&requested, &held),
        };
        if requested.milli.is_none() && !self.gpus_optional {
            return Err(missing("gpus"));
        }
        let state = self.state.read(row);
        let timeline = self.timeline(row, times, state.as_deref(), allocated)?;
        let number = count(self.attempt.as_ref(), row)?;
        let attempt_id = timeline.start_ms.map(|start_ms| number.unwrap_or(start_ms));
        let attempt = Attempt { cluster: &cluster, id, attempt_id, timeline };
        if attempt.id.step.is_none() {
            self.submit(row, &attempt, requested, scratch, out)?;
        }
        if let Some(start_ms) = attempt.timeline.start_ms {
            self.start(row, &attempt, start_ms, held, scratch, out)?;
        }
        if let Some((end_ms, state)) = attempt.timeline.end {
            self.end(row, &attempt, end_ms, state, scratch, out)?;
        }
        let identity = self.identity(&attempt, number);
        let Timeline { submit_ms, start_ms, end, .. } = attempt.timeline;
        Ok(AcceptedRow {
            first_ms: submit_ms,
            last_ms: end.map(|(end_ms, _)| end_ms).max(start_ms).unwrap_or(submit_ms),
            cluster,
            identity,
            unique: self.on_duplicate_id == OnDuplicateId::Reject,
        })
    }

    /// Hash of what the row describes.
    fn identity(&self, attempt: &Attempt<'_>, number: Option<i64>) -> u64 {
        let row_id = match self.on_duplicate_id {
            OnDuplicateId::Reject => number,
            OnDuplicateId::Attempt => number.or(attempt.timeline.start_ms),
        };
        let seed = xxh3_64_with_seed(attempt.cluster.as_bytes(), row_id.map_or(u64::MAX, i64::cast_unsigned));
        let job = xxh3_64_with_seed(attempt.id.job.as_bytes(), seed);
        attempt.id.step.map_or(job, |step| xxh3_64_with_seed(step.as_bytes(), job))
    }

    /// `allocated`: whether the row says that anything was allocated; `None` where the mapping has
    /// no such column.
    fn timeline<'s>(
        &self,
        row: Row<'_>,
        times: &mut TimeReader,
        name: Option<&'s str>,
        allocated: Option<bool>,
    ) -> Result<Timeline<'s>, Reject> {
        let mut read = |time: Option<&TimeField>| time.map_or(Ok(None), |time| time.read(row, times));
        let submit_ms = read(Some(&self.submit_time))?.ok_or_else(|| missing("submit_time"))?;
        let eligible_ms = read(self.eligible_time.as_ref())?.filter(|eligible_ms| *eligible_ms > submit_ms);
        let (start_ms, end_ms) = (read(self.start_time.as_ref())?, read(self.end_time.as_ref())?);
        let (state, cancelled_by) = match name {
            Some(name) => row.context.state(name)?,
            None => (self.state_without_name(row, start_ms, end_ms)?, None),
        };
        let without =
            |what: &str| missing(&format!("{what} of a job in state {}", name.unwrap_or("UNKNOWN")));
        let (start_ms, end) = match state {
            // Slurm undid its start, because another component of the job could not start.
            State::Pending if allocated == Some(true) && start_ms.is_some() && end_ms.is_some() => {
                (start_ms, end_ms.map(|end_ms| (end_ms, FinalState::Requeued)))
            }
            State::Pending => (None, None),
            State::Running => (Some(start_ms.ok_or_else(|| without("start_time"))?), None),
            State::Final(state) => {
                let end_ms = end_ms.ok_or_else(|| without("end_time"))?;
                // Slurm records a job cancelled in the queue with a start equal to its end, and
                // without devices.
                let start_ms = start_ms.filter(|start_ms| allocated != Some(false) || *start_ms != end_ms);
                (start_ms, Some((end_ms, state)))
            }
        };
        check_order(submit_ms, start_ms, end.map(|(end_ms, _)| end_ms), self.allow_start_before_submit)?;
        Ok(Timeline { submit_ms, eligible_ms, start_ms, end, cancelled_by })
    }

    /// State of a row without a state name, from its times and attempt numbers.
    fn state_without_name(
        &self,
        row: Row<'_>,
        start_ms: Option<i64>,
        end_ms: Option<i64>,
    ) -> Result<State, Reject> {
        if end_ms.is_none() {
            return Ok(if start_ms.is_some() { State::Running } else { State::Pending });
        }
        let attempt = count(self.attempt.as_ref(), row)?;
        let attempts = count(self.attempts.as_ref(), row)?;
        let followed = attempt.zip(attempts).is_some_and(|(attempt, attempts)| attempt + 1 < attempts);
        Ok(State::Final(self.non_final_state.filter(|_| followed).unwrap_or(self.final_state)))
    }

    fn gpus<'r>(&'r self, number: Option<&NumberField>, row: Row<'r>) -> Result<Gpus<'r>, Reject> {
        let Some(number) = number else {
            return Ok(Gpus::default());
        };
        let model = self.gpu_model.read(row);
        let (milli, model) = match number.decode {
            Some(_) => match number.raw_text(row) {
                None => (None, model),
                Some(text) => {
                    let tres = TresGpus::parse(text)?;
                    let typed = (!tres.models.is_empty()).then_some(tres.models);
                    (tres.gpus.checked_mul(1000), model.or(typed))
                }
            },
            None => (number.read(row)?, model),
        };
        Ok(Gpus { milli: milli.map(checked_gpus).transpose()?, model })
    }
}

/// The number, if mapping and row have it.
fn count(number: Option<&NumberField>, row: Row<'_>) -> Result<Option<i64>, Reject> {
    number.map_or(Ok(None), |number| number.read(row))
}

fn checked_gpus(milli: i64) -> Result<u64, Reject> {
    match u64::try_from(milli) {
        Err(_) => Err(Reject::new(
            RejectCode::NegativeGpus,
            format!("a job cannot have {milli} thousandths of a GPU"),
        )),
        Ok(_) if milli > MAX_GPUS_MILLI => Err(Reject::new(
            RejectCode::TooManyGpus,
            format!("{} GPUs are more than any cluster has; is the unit right?", milli / 1000),
        )),
        Ok(milli) => Ok(milli),
    }
}

fn check_order(
    submit_ms: i64,
    start_ms: Option<i64>,
    end_ms: Option<i64>,
    start_before_submit: bool,
) -> Result<(), Reject> {
    if let (Some(end_ms), begin_ms) = (end_ms, start_ms.unwrap_or(submit_ms))
        && end_ms < begin_ms
        && (start_ms.is_some() || !start_before_submit)
    {
        let gap_ms = begin_ms - end_ms;
        return Err(Reject::new(
            RejectCode::EndBeforeStart,
            format!("the end is {gap_ms} ms before the start"),
        ));
    }
    if let Some(start_ms) = start_ms.filter(|start_ms| *start_ms < submit_ms && !start_before_submit) {
        let gap_ms = submit_ms - start_ms;
        return Err(Reject::new(
            RejectCode::StartBeforeSubmit,
            format!(
                "the start is {gap_ms} ms before the submission; allow_start_before_submit in the mapping admits it"
            ),
        ));
    }
    Ok(())
}
