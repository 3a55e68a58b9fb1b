//! A row about a job, an attempt or a step, as job events.

use std::borrow::Cow;

use tidegate_events::{Event, FinalState, v1};
use v1::JobEventKind as EventKind;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{ImportError, Reject, RejectCode};
use crate::mapping::{Decode, OnDuplicateId, Unit};
use crate::outbox::Outbox;
use crate::plan::{Context, Number, Resolver, State, Text, Time, missing};
use crate::row_plan::RowFacts;
use crate::rows::Rows;
use crate::slurm::{self, JobId, Task};

/// More GPUs than any cluster has: a wrong unit or a wrong column.
const MAX_GPUS_MILLI: i64 = 1_000_000_000;

/// A jobs mapping tied to one file.
pub(crate) struct JobPlan {
    cluster: Text,
    job_id: Text,
    step_id: Text,
    array_job_id: Text,
    array_task_id: Option<Number>,
    team: Text,
    user_name: Text,
    pool: Text,
    qos: Text,
    job_name: Text,
    gpus: Option<Number>,
    gpus_optional: bool,
    gpus_held: Option<Number>,
    gpu_model: Text,
    nodes: Text,
    node_count: Option<Number>,
    time_limit: Option<Number>,
    reason: Text,
    state: Text,
    exit_code: Option<Number>,
    priority: Option<Number>,
    attempt: Option<Number>,
    attempts: Option<Number>,
    submit_time: Time,
    eligible_time: Option<Time>,
    start_time: Option<Time>,
    end_time: Option<Time>,
    final_state: FinalState,
    non_final_state: Option<FinalState>,
    allow_start_before_submit: bool,
    on_duplicate_id: OnDuplicateId,
}

/// Buffers that are filled again for every row; one event of each kind, so that its texts keep their memory.
#[derive(Default)]
pub(crate) struct JobScratch {
    submitted: v1::JobEvent,
    eligible: v1::JobEvent,
    started: v1::JobEvent,
    ended: v1::JobEvent,
    hosts: String,
}

/// Devices as a row states them.
#[derive(Default)]
struct Gpus<'r> {
    milli: Option<u64>,
    model: Option<Cow<'r, str>>,
}

/// The row's times, checked against each other, and what became of its attempt.
struct Course {
    submit_ms: i64,
    eligible_ms: Option<i64>,
    start_ms: Option<i64>,
    /// When and how it ended; absent while it waits or runs.
    end: Option<(i64, FinalState)>,
}

/// Who the row is about: what every event of the row shares.
struct Subject<'r> {
    cluster: &'r str,
    job: &'r str,
    step: Option<&'r str>,
    attempt_id: Option<i64>,
}

impl JobPlan {
    pub(crate) fn new(resolver: &Resolver<'_>, cluster: Text) -> Result<Self, ImportError> {
        let mapping = resolver.mapping;
        let state = |name: &Option<String>| name.as_ref().and_then(|name| name.parse().ok());
        Ok(Self {
            cluster,
            job_id: resolver.text("job_id")?,
            step_id: resolver.text("step_id")?,
            array_job_id: resolver.text("array_job_id")?,
            array_task_id: resolver.number("array_task_id", Unit::Count)?,
            team: resolver.text("team")?,
            user_name: resolver.text("user_name")?,
            pool: resolver.text("pool")?,
            qos: resolver.text("qos")?,
            job_name: resolver.text("job_name")?,
            gpus: resolver.number("gpus", Unit::Gpus)?,
            gpus_optional: mapping.columns.get("gpus").is_some_and(|spec| spec.optional),
            gpus_held: resolver.number("gpus_held", Unit::Gpus)?,
            gpu_model: resolver.text("gpu_model")?,
            nodes: resolver.text("nodes")?,
            node_count: resolver.number("node_count", Unit::Count)?,
            time_limit: resolver.number("time_limit", Unit::S)?,
            reason: resolver.text("reason")?,
            state: resolver.text("state")?,
            exit_code: resolver.number("exit_code", Unit::Count)?,
            priority: resolver.number("priority", Unit::Count)?,
            attempt: resolver.number("attempt", Unit::Count)?,
            attempts: resolver.number("attempts", Unit::Count)?,
            submit_time: resolver.required_time("submit_time")?,
            eligible_time: resolver.time("eligible_time")?,
            start_time: resolver.time("start_time")?,
            end_time: resolver.time("end_time")?,
            final_state: state(&mapping.final_state).unwrap_or(FinalState::Unknown),
            non_final_state: state(&mapping.non_final_state),
            allow_start_before_submit: mapping.allow_start_before_submit,
            on_duplicate_id: mapping.on_duplicate_id,
        })
    }

    /// Puts the row's events into the outbox.
    pub(crate) fn row<'r>(
        &'r self,
        context: &mut Context,
        rows: &'r dyn Rows,
        scratch: &mut JobScratch,
        out: &mut Outbox<'_>,
    ) -> Result<RowFacts<'r>, Reject> {
        let cluster = self.cluster.required("cluster", context, rows)?;
        let id_text = self.job_id.required("job_id", context, rows)?;
        let id = match self.job_id.decode {
            Some(_) => slurm::job_id(&id_text)?,
            None => JobId { job: &id_text, step: None, array_job: None, task: Task::None },
        };
        let step = self.step_id.read(context, rows);
        let step = id.step.or(step.as_deref());
        let requested = self.gpus(self.gpus.as_ref(), context, rows)?;
        let held = self.gpus(self.gpus_held.as_ref(), context, rows)?;
        let nothing_held = self.gpus_held.is_some() && held.milli.is_none();
        let state_text = self.state.read(context, rows);
        let (course, captured) = self.course(context, rows, state_text.as_deref(), nothing_held)?;
        let attempt = self.count(self.attempt.as_ref(), context, rows)?;
        let subject = Subject {
            cluster: &cluster,
            job: id.job,
            step,
            attempt_id: course.start_ms.map(|start_ms| attempt.unwrap_or(start_ms)),
        };
        // Where only one of the two is given, a job is taken to hold what it asked for.
        let (requested, held) = match (requested.milli, held.milli) {
            (None, Some(_)) => (None, Some(held)),
            (_, None) => (Some(requested), None),
            _ => (Some(requested), Some(held)),
        };
        let asked = requested.as_ref().or(held.as_ref());
        if asked.is_none_or(|gpus| gpus.milli.is_none()) && !self.gpus_optional {
            return Err(missing("gpus"));
        }
        if step.is_none() {
            self.submit(context, rows, scratch, out, &subject, &id, &course, asked)?;
        }
        if course.start_ms.is_some() {
            self.start(context, rows, scratch, out, &subject, &course, held.as_ref().or(asked))?;
        }
        if course.end.is_some() {
            self.end(context, rows, scratch, out, &subject, &course, captured)?;
        }
        let identity = self.identity(&subject, attempt, &course);
        Ok(RowFacts {
            first_ms: course.submit_ms,
            last_ms: course.end.map(|(end_ms, _)| end_ms).max(course.start_ms).unwrap_or(course.submit_ms),
            cluster,
            identity,
            unique: self.on_duplicate_id == OnDuplicateId::Reject,
        })
    }

    /// Rows with the same number are about the same thing.
    fn identity(&self, subject: &Subject<'_>, attempt: Option<i64>, course: &Course) -> u64 {
        let row_id = match self.on_duplicate_id {
            OnDuplicateId::Reject => attempt,
            OnDuplicateId::Attempt => attempt.or(course.start_ms),
        };
        let seed = xxh3_64_with_seed(subject.cluster.as_bytes(), row_id.map_or(u64::MAX, i64::cast_unsigned));
        let job = xxh3_64_with_seed(subject.job.as_bytes(), seed);
        subject.step.map_or(job, |step| xxh3_64_with_seed(step.as_bytes(), job))
    }

    fn course(
        &self,
        context: &mut Context,
        rows: &dyn Rows,
        state: Option<&str>,
        nothing_held: bool,
    ) -> Result<(Course, Option<usize>), Reject> {
        let mut read = |time: Option<&Time>| time.map_or(Ok(None), |time| time.read(context, rows));
        let submit_ms = read(Some(&self.submit_time))?.ok_or_else(|| missing("submit_time"))?;
        let eligible_ms = read(self.eligible_time.as_ref())?.filter(|eligible_ms| *eligible_ms > submit_ms);
        let (start_ms, end_ms) = (read(self.start_time.as_ref())?, read(self.end_time.as_ref())?);
        let (state, captured) = match state {
            Some(name) => context.state(name)?,
            None => (self.state_without_name(context, rows, start_ms, end_ms)?, None),
        };
        let without = |what: &str| missing(&format!("{what} of a job in state {state:?}"));
        let (start_ms, end) = match state {
            State::Pending => (None, None),
            State::Running => (Some(start_ms.ok_or_else(|| without("start_time"))?), None),
            State::Final(state) => {
                let end_ms = end_ms.ok_or_else(|| without("end_time"))?;
                // Slurm gives a job that was cancelled while it waited a start equal to its end, and no devices.
                let start_ms = start_ms.filter(|start_ms| !(nothing_held && *start_ms == end_ms));
                (start_ms, Some((end_ms, state)))
            }
        };
        check_order(submit_ms, start_ms, end.map(|(end_ms, _)| end_ms), self.allow_start_before_submit)?;
        Ok((Course { submit_ms, eligible_ms, start_ms, end }, captured))
    }

    /// What a row without a state name says by its times and attempt numbers.
    fn state_without_name(
        &self,
        context: &Context,
        rows: &dyn Rows,
        start_ms: Option<i64>,
        end_ms: Option<i64>,
    ) -> Result<State, Reject> {
        if end_ms.is_none() {
            return Ok(if start_ms.is_some() { State::Running } else { State::Pending });
        }
        let attempt = self.count(self.attempt.as_ref(), context, rows)?;
        let attempts = self.count(self.attempts.as_ref(), context, rows)?;
        let followed = attempt.zip(attempts).is_some_and(|(attempt, attempts)| attempt + 1 < attempts);
        Ok(State::Final(self.non_final_state.filter(|_| followed).unwrap_or(self.final_state)))
    }

    fn count(
        &self,
        number: Option<&Number>,
        context: &Context,
        rows: &dyn Rows,
    ) -> Result<Option<i64>, Reject> {
        number.map_or(Ok(None), |number| number.read(context, rows))
    }

    fn gpus<'r>(
        &'r self,
        number: Option<&Number>,
        context: &Context,
        rows: &'r dyn Rows,
    ) -> Result<Gpus<'r>, Reject> {
        let Some(number) = number else {
            return Ok(Gpus::default());
        };
        let model = self.gpu_model.read(context, rows);
        let (milli, model) = match number.decode {
            Some(_) => match number.raw_text(context, rows) {
                None => (None, model),
                Some(text) => {
                    let tres = slurm::tres_gpus(text)?;
                    let typed = (!tres.models.is_empty()).then_some(Cow::Owned(tres.models));
                    (tres.gpus.checked_mul(1000), model.or(typed))
                }
            },
            None => (number.read(context, rows)?, model),
        };
        Ok(Gpus { milli: milli.map(checked_gpus).transpose()?, model })
    }

    #[allow(clippy::too_many_arguments, reason = "the row, its parts, and where they go")]
    fn submit(
        &self,
        context: &Context,
        rows: &dyn Rows,
        scratch: &mut JobScratch,
        out: &mut Outbox<'_>,
        subject: &Subject<'_>,
        id: &JobId<'_>,
        course: &Course,
        gpus: Option<&Gpus<'_>>,
    ) -> Result<(), Reject> {
        let event = &mut scratch.submitted;
        subject.begin(event, EventKind::Submitted, course.submit_ms);
        event.attempt_id = None;
        let array_job = self.array_job_id.read(context, rows);
        set(&mut event.array_job_id, id.array_job.or(array_job.as_deref()));
        event.array_task_id = match id.task {
            Task::One(task) => Some(task),
            _ => self.count(self.array_task_id.as_ref(), context, rows)?,
        };
        self.describe(context, rows, event, gpus);
        set(&mut event.qos, self.qos.read(context, rows).as_deref());
        set(&mut event.job_name, self.job_name.read(context, rows).as_deref());
        event.time_limit_ms = self.time_limit_ms(context, rows)?;
        // Reason and priority change while a job waits. On a started job they belong to the start, so that exports made
        // before and after it agree on the submission.
        let waiting = course.start_ms.is_none();
        set(&mut event.reason, self.reason.read(context, rows).as_deref().filter(|_| waiting));
        event.priority = self.count(self.priority.as_ref(), context, rows)?.filter(|_| waiting);
        let tasks = match id.task {
            Task::Pending(list) => slurm::array_tasks(list)?,
            _ => Vec::new(),
        };
        if tasks.is_empty() {
            send(out, event)?;
        }
        for task in &tasks {
            set_pending_task(event, id, *task);
            send(out, event)?;
        }
        let Some(eligible_ms) = course.eligible_ms else {
            return Ok(());
        };
        let event = &mut scratch.eligible;
        subject.begin(event, EventKind::Eligible, eligible_ms);
        event.attempt_id = None;
        if tasks.is_empty() {
            send(out, event)?;
        }
        for task in tasks {
            set_pending_task(event, id, task);
            event.array_job_id = None;
            event.array_task_id = None;
            send(out, event)?;
        }
        Ok(())
    }

    /// What tells whose a job is and what it asks for or holds.
    fn describe(
        &self,
        context: &Context,
        rows: &dyn Rows,
        event: &mut v1::JobEvent,
        gpus: Option<&Gpus<'_>>,
    ) {
        set(&mut event.team, self.team.read(context, rows).as_deref());
        set(&mut event.user_name, self.user_name.read(context, rows).as_deref());
        set(&mut event.pool, self.pool.read(context, rows).as_deref());
        event.gpus_milli = gpus.and_then(|gpus| gpus.milli);
        set(&mut event.gpu_model, gpus.and_then(|gpus| gpus.model.as_deref()));
    }

    #[allow(clippy::too_many_arguments, reason = "the row, its parts, and where they go")]
    fn start(
        &self,
        context: &Context,
        rows: &dyn Rows,
        scratch: &mut JobScratch,
        out: &mut Outbox<'_>,
        subject: &Subject<'_>,
        course: &Course,
        gpus: Option<&Gpus<'_>>,
    ) -> Result<(), Reject> {
        let event = &mut scratch.started;
        subject.begin(event, EventKind::Started, course.start_ms.unwrap_or(course.submit_ms));
        // A step's devices are its job's. Without a number nobody can add them up a second time.
        self.describe(context, rows, event, gpus.filter(|_| subject.step.is_none()));
        set(&mut event.qos, self.qos.read(context, rows).as_deref());
        let step_name = self.job_name.read(context, rows).filter(|_| subject.step.is_some());
        set(&mut event.job_name, step_name.as_deref());
        let nodes = self.nodes.read(context, rows);
        let listed = match (nodes.as_deref(), self.nodes.decode) {
            (None, _) => None,
            (Some(list), Some(Decode::SlurmHostlist)) => Some(slurm::hosts(list, &mut scratch.hosts)?),
            (Some(list), _) => {
                let quotes: &[char] =
                    if self.nodes.decode.is_some() { &['[', ']', '\'', '"', ' '] } else { &[] };
                scratch.hosts.clear();
                scratch.hosts.extend(list.split(quotes));
                Some(list.split(',').count() as u32)
            }
        };
        set(&mut event.nodes, listed.map(|_| scratch.hosts.as_str()));
        let counted = self.count(self.node_count.as_ref(), context, rows)?;
        event.node_count = counted.and_then(|count| u32::try_from(count).ok()).or(listed);
        set(&mut event.reason, self.reason.read(context, rows).as_deref());
        event.priority = self.count(self.priority.as_ref(), context, rows)?;
        send(out, event)
    }

    #[allow(clippy::too_many_arguments, reason = "the row, its parts, and where they go")]
    fn end(
        &self,
        context: &Context,
        rows: &dyn Rows,
        scratch: &mut JobScratch,
        out: &mut Outbox<'_>,
        subject: &Subject<'_>,
        course: &Course,
        captured: Option<usize>,
    ) -> Result<(), Reject> {
        let Some((end_ms, state)) = course.end else {
            return Ok(());
        };
        let event = &mut scratch.ended;
        subject.begin(event, EventKind::Ended, end_ms);
        set(&mut event.final_state, Some(state.as_str()));
        let name = self.state.read(context, rows);
        let cancelled_by = captured.and_then(|from| name.as_deref()?.get(from..));
        set(&mut event.cancelled_by, cancelled_by.filter(|who| !who.is_empty()));
        let exit = self.exit(context, rows)?;
        event.exit_code = exit.map(|(code, _)| code);
        event.exit_signal = exit.map(|(_, signal)| signal).filter(|signal| *signal != 0);
        send(out, event)
    }

    fn exit(&self, context: &Context, rows: &dyn Rows) -> Result<Option<(i32, i32)>, Reject> {
        let Some(number) = &self.exit_code else {
            return Ok(None);
        };
        if number.decode == Some(Decode::SlurmExitCode) {
            return number.raw_text(context, rows).map(slurm::exit_code).transpose();
        }
        let Some(code) = number.read(context, rows)? else {
            return Ok(None);
        };
        let code = i32::try_from(code)
            .map_err(|_| Reject::new(RejectCode::BadNumber, format!("exit_code {code} is out of range")))?;
        // The low seven bits of a wait status are the signal, the second byte is the code.
        let wait_status = number.decode == Some(Decode::WaitStatus);
        Ok(Some(if wait_status { (code >> 8, code & 0x7f) } else { (code, 0) }))
    }

    fn time_limit_ms(&self, context: &Context, rows: &dyn Rows) -> Result<Option<u64>, Reject> {
        let limit_ms = match &self.time_limit {
            Some(number) if number.decode.is_some() => match number.raw_text(context, rows) {
                Some(text) => slurm::time_limit_ms(text)?,
                None => None,
            },
            number => self.count(number.as_ref(), context, rows)?,
        };
        Ok(limit_ms.and_then(|limit_ms| u64::try_from(limit_ms).ok()))
    }
}

impl Subject<'_> {
    fn begin(&self, event: &mut v1::JobEvent, kind: EventKind, event_time_ms: i64) {
        event.kind = kind.into();
        refill(&mut event.job_id, self.job);
        event.attempt_id = self.attempt_id;
        set(&mut event.step_id, self.step);
        let envelope = event.envelope.get_or_insert_default();
        refill(&mut envelope.cluster, self.cluster);
        envelope.event_time_ms = event_time_ms;
    }
}

/// One task of an array that Slurm shows as a single record while it waits; later it has the same id in a record of its own.
fn set_pending_task(event: &mut v1::JobEvent, id: &JobId<'_>, task: i64) {
    event.job_id = format!("{}_{task}", id.array_job.unwrap_or(id.job));
    event.array_task_id = Some(task);
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

/// Sends the event and keeps its memory for the next one.
fn send(out: &mut Outbox<'_>, job: &mut v1::JobEvent) -> Result<(), Reject> {
    let mut event = Event::Job(std::mem::take(job));
    let sent = out.add(&mut event);
    if let Event::Job(back) = event {
        *job = back;
    }
    sent
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
