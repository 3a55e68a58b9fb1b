//! Tracks jobs: events from what queue and accounting show at different times.
//!
//! The queue shows at once that an attempt is over, but not always when it ended: a requeued job
//! shows only its new wait. Accounting has the exact end a little later. So where there is
//! accounting, an end is emitted when accounting confirms it, and as the queue shows it only if
//! accounting stays silent. Each end is emitted once, and `OBSERVED` does not pass it before.

use std::collections::HashSet;

use tidegate_events::{Event, FinalState, v1};
use tidegate_slurm::JobPhase as Phase;
use v1::JobEventKind as Kind;

use super::events;
use super::observed::{End, ObservedJob};
use super::state::{Attempt, Job, Missing, Over, ReportedEnd, State};

/// How long an end that the queue shows waits for accounting: while it answers, and while it does
/// not.
const CONFIRM_MS: i64 = 60_000;
const CONFIRM_AWAY_MS: i64 = 300_000;
/// How long a job may be missing from good answers before it is given up: one answer is not enough.
const MISSING_MS: i64 = 120_000;
/// Emitted ends are remembered at least this long. Accounting is asked for ends of at most half
/// this age.
const REMEMBER_MS: i64 = 3_600_000;
/// How far slurmctld's clock may be ahead of ours.
const CLOCKS_MS: i64 = 60_000;
/// Each query of accounting reaches back this far before the last one.
pub(super) const OVERLAP_MS: i64 = 600_000;
/// How often accounting is queried while the queue shows no end.
pub(super) const ACCOUNT_EVERY_MS: i64 = 60_000;

/// Compares observations with its state and collects events.
#[derive(Debug)]
pub(super) struct Tracker {
    pub state: State,
    accounting: bool,
    devices: bool,
    out: Vec<Event>,
}

impl Tracker {
    /// `accounting`: it confirms ends. `devices`: emit each device of an attempt.
    pub(super) fn new(state: State, accounting: bool, devices: bool) -> Self {
        Self { state, accounting, devices, out: Vec::new() }
    }

    /// Takes the events collected since the last call.
    pub(super) fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.out)
    }

    /// Appends events from elsewhere.
    pub(super) fn emit(&mut self, events: Vec<Event>) {
        self.out.extend(events);
    }

    /// Sets whether accounting confirms ends from now on.
    pub(super) fn set_accounting(&mut self, accounting: bool) {
        self.accounting = accounting;
    }

    /// Sets whether each device of an attempt is emitted from now on.
    pub(super) fn set_devices(&mut self, devices: bool) {
        self.devices = devices;
    }

    /// Takes in all jobs of the queue.
    pub(super) fn queue(&mut self, now_ms: i64, records: &[ObservedJob]) {
        let present: HashSet<&str> = records.iter().map(|record| record.job_id.as_str()).collect();
        for record in records {
            self.queued(now_ms, record);
        }
        let seen_ms = self.state.polled_ms.unwrap_or(now_ms);
        for (id, job) in &mut self.state.jobs {
            if present.contains(id.as_str()) {
                job.missing = None;
                continue;
            }
            job.missing.get_or_insert(Missing { since_ms: now_ms, seen_ms });
            for attempt in &mut job.attempts {
                attempt.over.get_or_insert(Over::new(now_ms, seen_ms, None));
            }
        }
        let keep_from = now_ms - REMEMBER_MS;
        self.state.reported.retain(|id, ends| {
            ends.retain(|end| end.end_ms >= keep_from || present.contains(id.as_str()));
            !ends.is_empty()
        });
        self.state.polled_ms = Some(now_ms);
    }

    fn queued(&mut self, now_ms: i64, record: &ObservedJob) {
        let id = &record.job_id;
        let over = matches!(record.phase, Phase::Over(_));
        if over && self.was_reported(id, record.started(), record.end_ms) {
            if self.state.jobs.get(id).is_some_and(|job| job.attempts.is_empty()) {
                self.state.jobs.remove(id);
            }
            return;
        }
        let mut job = self.state.jobs.remove(id).unwrap_or_default();
        self.introduce(now_ms, &mut job, record);
        let seen_ms = self.state.polled_ms.unwrap_or(now_ms);
        let ending = record.phase == Phase::Ending;
        // A job being requeued shows the time of the requeue as its start, until it is back in the
        // queue.
        let known = |start_ms: &i64| job.attempts.iter().any(|attempt| attempt.start_ms == *start_ms);
        let current = record.started().filter(|start_ms| !ending || known(start_ms));
        let current = current.filter(|_| record.phase != Phase::Waiting);
        for attempt in job.attempts.iter_mut().filter(|attempt| Some(attempt.start_ms) != current) {
            let over = attempt.over.get_or_insert(Over::new(now_ms, seen_ms, None));
            if !ending && (over.hint.is_none() || over.giving_back) {
                (over.hint, over.giving_back) = (Some(end_of_former(attempt.start_ms, record)), false);
            }
        }
        job.waits = matches!(record.phase, Phase::Waiting | Phase::Starting);
        match (record.phase, current) {
            (Phase::Waiting, _) if record.reason.is_some() && record.reason != job.reason => {
                self.out.push(record.waiting(now_ms / 1000 * 1000));
                job.reason.clone_from(&record.reason);
            }
            (Phase::Running | Phase::Suspended | Phase::Ending | Phase::Over(_), Some(start_ms)) => {
                job.reason = None;
                self.holds(now_ms, &mut job, record, start_ms);
            }
            (Phase::Over(_), None) => {
                if let Some(end) = record.end() {
                    self.gave_up(id, &end);
                }
            }
            _ => {}
        }
        if !(over && job.attempts.is_empty()) {
            self.state.jobs.insert(id.clone(), job);
        }
    }

    /// Emits submission and eligibility, each once.
    fn introduce(&mut self, now_ms: i64, job: &mut Job, record: &ObservedJob) {
        if job.submit_ms != Some(record.submit_ms) {
            job.submit_ms = Some(record.submit_ms);
            (job.eligible_ms, job.reason) = (None, None);
            self.out.push(record.submitted());
        }
        if let Some(event) = record.eligible().filter(|event| event.event_time_ms() <= now_ms)
            && job.eligible_ms != record.eligible_ms
        {
            job.eligible_ms = record.eligible_ms;
            self.out.push(event);
        }
    }

    /// Emits what is new of the job's present attempt.
    fn holds(&mut self, now_ms: i64, job: &mut Job, record: &ObservedJob, start_ms: i64) {
        let id = &record.job_id;
        if self.was_reported(id, Some(start_ms), None) {
            return;
        }
        let place =
            job.attempts.iter().position(|attempt| attempt.start_ms == start_ms).unwrap_or_else(|| {
                self.out.push(record.start(start_ms));
                job.attempts.push(Attempt { start_ms, suspended: false, devices: Vec::new(), over: None });
                job.attempts.len() - 1
            });
        let attempt = &mut job.attempts[place];
        if self.devices && attempt.devices.is_empty() && !record.devices.is_empty() {
            attempt.devices.clone_from(&record.devices);
            self.out.extend(events::devices(id, start_ms, &record.devices, Kind::DeviceHeld, start_ms));
        }
        let paused = record.phase == Phase::Suspended;
        if matches!(record.phase, Phase::Running | Phase::Suspended) {
            attempt.over = None;
            if paused != attempt.suspended {
                let kind = if paused { Kind::Suspended } else { Kind::Resumed };
                let at_ms =
                    record.suspend_ms.filter(|at_ms| *at_ms >= start_ms).unwrap_or(now_ms / 1000 * 1000);
                self.out.push(events::paused(id, start_ms, kind, at_ms));
                attempt.suspended = paused;
            }
            return;
        }
        let seen_ms = self.state.polled_ms.unwrap_or(now_ms);
        let over = attempt.over.get_or_insert(Over::new(now_ms, seen_ms, None));
        over.giving_back = record.phase == Phase::Ending;
        // An end in the future is the end of the time limit.
        over.hint = record.end().filter(|end| start_ms <= end.at_ms && end.at_ms <= now_ms + CLOCKS_MS);
    }

    /// Takes in records of accounting.
    pub(super) fn accounting(&mut self, now_ms: i64, records: &[ObservedJob]) {
        let mut confirmed = Vec::new();
        for record in records.iter().filter(|record| record.step_id.is_none()) {
            let Some(end) = record.end() else {
                continue;
            };
            let start_ms = record.started();
            // Resized in the second in which it started: the next record starts then too and covers
            // the time.
            let nothing = start_ms == Some(end.at_ms) && end.state == FinalState::Resized.as_str();
            if nothing || self.was_reported(&record.job_id, start_ms, Some(end.at_ms)) {
                continue;
            }
            match start_ms {
                Some(start_ms) => self.confirm(now_ms, record, start_ms, &end),
                None => self.given_up(now_ms, record, &end),
            }
            confirmed.push(record);
        }
        for step in records.iter().filter(|record| record.step_id.is_some()) {
            let within = |job: &&ObservedJob| job.start_ms <= step.start_ms && step.start_ms <= job.end_ms;
            let of_confirmed = confirmed.iter().any(|job| job.job_id == step.job_id && within(job));
            if let (Some(start_ms), Some(end), true) = (step.start_ms, step.end(), of_confirmed) {
                self.out.push(step.start(start_ms));
                self.out.push(events::ended(&step.job_id, step.step_id.as_deref(), Some(start_ms), &end));
            }
        }
        self.state.accounted_ms = Some(now_ms);
    }

    fn confirm(&mut self, now_ms: i64, record: &ObservedJob, start_ms: i64, end: &End) {
        let id = &record.job_id;
        let tracked = self.state.jobs.contains_key(id);
        let mut job = self.state.jobs.remove(id).unwrap_or_default();
        if let Some(place) = job.attempts.iter().position(|attempt| attempt.start_ms == start_ms) {
            let attempt = job.attempts.swap_remove(place);
            self.ended(id, &attempt, end);
        } else {
            // Attempts of a job do not overlap: one that does began at another time, and did not
            // happen as it was emitted.
            let moved = |attempt: &mut Attempt| {
                let seen_ms = attempt.over.as_ref().map_or(i64::MIN, |over| over.seen_ms);
                start_ms + 1000 < seen_ms && attempt.start_ms < end.at_ms
            };
            for attempt in job.attempts.extract_if(.., moved) {
                self.ended(id, &attempt, &End::unexplained(attempt.start_ms, FinalState::Unknown));
            }
            // Its submission may be before the one emitted last.
            if !tracked || job.submit_ms.is_none_or(|known| known < record.submit_ms) {
                self.introduce(now_ms, &mut job, record);
            } else if job.submit_ms != Some(record.submit_ms) {
                self.out.push(record.submitted());
                self.out.extend(record.eligible());
            }
            self.out.push(record.start(start_ms));
            self.out.push(events::ended(id, None, Some(start_ms), end));
            self.remember(id, Some(start_ms), end.at_ms);
        }
        // A job that goes on is removed when the queue drops it.
        if tracked && (!job.attempts.is_empty() || job.missing.is_none()) {
            self.state.jobs.insert(id.clone(), job);
        }
    }

    /// A job that ended without ever starting. Accounting has one record for all such tasks of an
    /// array.
    fn given_up(&mut self, now_ms: i64, record: &ObservedJob, end: &End) {
        let id = &record.job_id;
        let tasks = format!("{id}_");
        let waits = |job: &Job| job.attempts.is_empty() && job.waits;
        let waiting: Vec<String> = self
            .state
            .jobs
            .iter()
            .filter(|(other, job)| (*other == id || other.starts_with(&tasks)) && waits(job))
            .map(|(other, _)| other.clone())
            .collect();
        let next = self.state.reported.range(tasks.clone()..).next();
        let known = next.is_some_and(|(other, _)| other.starts_with(&tasks));
        if waiting.is_empty() && !known && !self.state.jobs.contains_key(id) {
            self.introduce(now_ms, &mut Job::default(), record);
            self.gave_up(id, end);
        }
        for id in waiting {
            self.state.jobs.remove(&id);
            self.gave_up(&id, end);
        }
    }

    /// Emits ends that were not confirmed in time. `answered`: accounting answered this time.
    pub(super) fn settle(&mut self, now_ms: i64, answered: bool) {
        let patience_ms = match (self.accounting, answered) {
            (false, _) => 0,
            (true, true) => CONFIRM_MS,
            (true, false) => CONFIRM_AWAY_MS,
        };
        let (mut ends, mut gone) = (Vec::new(), Vec::new());
        for (id, job) in &mut self.state.jobs {
            let missing = job.missing.is_some();
            let due = |attempt: &mut Attempt| {
                let Some(over) = &attempt.over else {
                    return false;
                };
                let wait_ms = match (&over.hint, over.giving_back) {
                    (Some(_), false) => patience_ms,
                    (Some(_), true) => patience_ms + CONFIRM_AWAY_MS,
                    (None, _) if missing => patience_ms + MISSING_MS,
                    (None, _) => return false,
                };
                now_ms - over.since_ms >= wait_ms
            };
            ends.extend(job.attempts.extract_if(.., due).map(|attempt| (id.clone(), attempt)));
            let lost = |missing: &Missing| now_ms - missing.since_ms >= patience_ms + MISSING_MS;
            if let Some(missing) = job.missing.filter(|missing| job.attempts.is_empty() && lost(missing)) {
                gone.push((id.clone(), job.waits.then_some(missing.seen_ms)));
            }
        }
        for (id, attempt) in ends {
            let hint = attempt.over.as_ref().and_then(|over| over.hint.clone());
            let seen_ms = attempt.over.as_ref().map_or(attempt.start_ms, |over| over.seen_ms);
            let end = hint.unwrap_or_else(|| {
                tracing::warn!(
                    job = id,
                    "Slurm does not know how it ended; the end is recorded at the time it was last seen"
                );
                End::unexplained(seen_ms.max(attempt.start_ms), FinalState::Unknown)
            });
            self.ended(&id, &attempt, &end);
        }
        for (id, seen_ms) in gone {
            self.state.jobs.remove(&id);
            if let Some(seen_ms) = seen_ms {
                tracing::warn!(job = id, "it waited, and Slurm does not know it any more");
                self.gave_up(&id, &End::unexplained(seen_ms, FinalState::Unknown));
            }
        }
    }

    /// Whether there is something to confirm, or accounting was not queried for a while.
    pub(super) fn wants_accounting(&self, now_ms: i64) -> bool {
        let lately = self.state.accounted_ms.is_some_and(|asked_ms| now_ms - asked_ms < ACCOUNT_EVERY_MS);
        let open =
            |job: &Job| job.missing.is_some() || job.attempts.iter().any(|attempt| attempt.over.is_some());
        self.accounting && (!lately || self.state.jobs.values().any(open))
    }

    /// Whether a component of a heterogeneous job waits or runs. Only of those does Slurm undo a
    /// start, see [`undone_starts`](tidegate_slurm::SlurmClient::undone_starts).
    pub(super) fn has_heterogeneous_jobs(&self) -> bool {
        self.state.jobs.keys().any(|id| id.contains('+'))
    }

    /// Time from which on accounting is queried.
    pub(super) fn account_since_ms(&self, now_ms: i64) -> i64 {
        let asked_ms = self.state.accounted_ms.unwrap_or(now_ms);
        let overs = self
            .state
            .jobs
            .values()
            .flat_map(|job| &job.attempts)
            .filter_map(|attempt| attempt.over.as_ref());
        let missing = self.state.jobs.values().filter_map(|job| job.missing).map(|missing| missing.seen_ms);
        overs.map(|over| over.seen_ms).chain(missing).fold(asked_ms, i64::min) - OVERLAP_MS
    }

    /// Emits `OBSERVED`: everything up to the last answer, or up to the first uncertain end, is
    /// known.
    pub(super) fn observe(&mut self) {
        let Some(polled_ms) = self.state.polled_ms else {
            return;
        };
        let overs = self
            .state
            .jobs
            .values()
            .flat_map(|job| &job.attempts)
            .filter_map(|attempt| attempt.over.as_ref());
        let open = overs.map(|over| over.hint.as_ref().map_or(over.seen_ms, |end| end.at_ms.min(polled_ms)));
        let missing = self.state.jobs.values().filter_map(|job| job.missing).map(|missing| missing.seen_ms);
        // Slurm counts whole seconds, and dates its actions from the start of a scheduling cycle.
        let upto_ms = open.chain(missing).fold(polled_ms, i64::min) / 1000 * 1000 - 1000;
        if self.state.observed_ms.is_none_or(|last_ms| upto_ms > last_ms) {
            self.state.observed_ms = Some(upto_ms);
            self.out.push(Event::Job(events::event("", Kind::Observed, upto_ms)));
        }
    }

    fn ended(&mut self, id: &str, attempt: &Attempt, end: &End) {
        let start_ms = attempt.start_ms;
        self.out.extend(events::devices(id, start_ms, &attempt.devices, Kind::DeviceReleased, end.at_ms));
        self.out.push(events::ended(id, None, Some(start_ms), end));
        self.remember(id, Some(start_ms), end.at_ms);
    }

    fn gave_up(&mut self, id: &str, end: &End) {
        self.out.push(events::ended(id, None, None, end));
        self.remember(id, None, end.at_ms);
    }

    fn remember(&mut self, id: &str, start_ms: Option<i64>, end_ms: i64) {
        self.state.reported.entry(id.to_owned()).or_default().push(ReportedEnd { start_ms, end_ms });
    }

    /// Whether the end of this attempt was emitted; without a start, whether an end at that time
    /// was.
    fn was_reported(&self, id: &str, start_ms: Option<i64>, end_ms: Option<i64>) -> bool {
        let same = |end: &ReportedEnd| {
            end.start_ms == start_ms && (start_ms.is_some() || Some(end.end_ms) == end_ms)
        };
        self.state.reported.get(id).is_some_and(|ends| ends.iter().any(same))
    }
}

/// How an attempt ended, if the queue shows only what followed.
fn end_of_former(start_ms: i64, next: &ObservedJob) -> End {
    match next.start_ms {
        Some(resize_ms) if next.resized && resize_ms > start_ms => {
            End::unexplained(resize_ms, FinalState::Resized)
        }
        // A requeued job is submitted anew at the moment of its end.
        _ if next.submit_ms >= start_ms => End::unexplained(next.submit_ms, FinalState::Requeued),
        // It began at another time than was shown first: the emitted attempt did not happen.
        _ => End::unexplained(start_ms, FinalState::Unknown),
    }
}
