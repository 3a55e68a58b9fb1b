//! Tracks which event-time spans new events invalidate. Joined tables recompute their windows.
//!
//! An event in order changes nothing before its own time. An event that is late, or that changes
//! what was known about its job, invalidates the job's whole life. What an event says about a node
//! or a quota holds from its time on.
//!
//! When a job starts, its wait gets the number of the attempt that ended it. Only some tables show
//! that number, so these spans are recorded separately and the other tables skip them.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use hashbrown::HashMap;
use tidegate_events::SchemaId;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::raw::facts::{Facts, key_hash};
use crate::window::{InvalidatedSpans, MICROS_PER_HOUR, Span, merge_spans};

/// Spans kept before neighbours are merged.
const MAX_SPANS: usize = 4_096;
/// Jobs whose last step is remembered.
const MAX_STEPPING_JOBS: usize = 100_000;
/// A job's first step tells what the job did before it. It invalidates at most this long, µs.
const MAX_STARTUP_US: i64 = 6 * MICROS_PER_HOUR;
/// Columns of a job that windows show beside its times. A value that arrives late holds from the
/// job's beginning.
const ATTRIBUTES: [&str; 10] = [
    "team",
    "user_name",
    "pool",
    "qos",
    "asked_node_count",
    "asked_gpus_per_node_milli",
    "nodes",
    "node_count",
    "gpu_model",
    "gpus_milli",
];
/// The first of [`ATTRIBUTES`] that each start says anew: it holds for that attempt.
const FIRST_OF_ATTEMPT: usize = 6;
/// A request for more GPUs than this has a shape, thousandths.
const ONE_GPU_MILLI: i64 = 1_000;

/// What earlier events of a key said.
#[derive(Debug, Clone, Copy, Default)]
struct KeyHistory {
    /// Time of its last event, µs.
    last: i64,
    /// When the job, or an attempt of it, ended, µs; 0 if it has not.
    ended: i64,
    /// When anything but the scheduler first saw it on a device, µs; `None` if nothing has.
    seen: Option<i64>,
    /// GPUs it was submitted with, thousandths; `None` if that is not known.
    asked_milli: Option<i64>,
    /// Whether the scheduler reported the shape it asked for.
    has_shape: bool,
    /// Hash of each of [`ATTRIBUTES`]; 0 for one without a value.
    attributes: [u64; ATTRIBUTES.len()],
    /// Of each attribute whether an attempt started without it: such an attempt takes the value of
    /// later ones.
    lacks_own: [bool; ATTRIBUTES.len()],
}

impl KeyHistory {
    /// Takes over attributes, by their hashes. Returns whether one of them holds for earlier times.
    fn learn(&mut self, attributes: [u64; ATTRIBUTES.len()], is_start: bool) -> bool {
        let mut holds_earlier = false;
        for (place, new) in attributes.into_iter().enumerate() {
            let of_attempt = is_start && place >= FIRST_OF_ATTEMPT;
            let (known, lacks_own) = (&mut self.attributes[place], &mut self.lacks_own[place]);
            holds_earlier |= new != 0 && new != *known && (!of_attempt || *lacks_own);
            *lacks_own |= of_attempt && new == 0;
            *known = if new == 0 { *known } else { new };
        }
        holds_earlier
    }

    /// Whether a start says nothing new of what the job asked for while it waited.
    fn knows_request(&self) -> bool {
        self.asked_milli.is_some_and(|asked| asked <= ONE_GPU_MILLI || self.has_shape)
    }
}

/// Spans invalidated since the last commit.
#[derive(Debug, Default)]
pub struct Invalidation {
    spans: Vec<Span>,
    waits: Vec<Span>,
    histories: HashMap<i64, KeyHistory>,
}

impl Invalidation {
    /// Invalidates a span.
    pub fn add(&mut self, span: Span) {
        push(&mut self.spans, span);
    }

    /// Invalidates what new events change; there is one fact per row. `watermarks` has the earlier
    /// watermark of each row's cluster, µs; `first` returns a key's first event time, µs.
    pub fn record(
        &mut self,
        schema: SchemaId,
        batch: &RecordBatch,
        facts: &[Facts],
        watermarks: &[i64],
        first: impl Fn(i64) -> i64,
    ) {
        match schema {
            SchemaId::JobEvent => self.record_jobs(batch, facts, watermarks, first),
            SchemaId::StepReport => self.record_steps(batch, facts, watermarks),
            // Found at the commit, from what is committed: see `lake/late_nodes.rs`.
            SchemaId::NodeEvent => {}
            SchemaId::CapacityEvent => {
                facts
                    .iter()
                    .map(|fact| fact.time)
                    .min()
                    .into_iter()
                    .for_each(|from| self.add((from, i64::MAX)));
            }
            // A late sample holds until the next one.
            _ => facts
                .iter()
                .zip(watermarks)
                .for_each(|(fact, watermark)| self.add((fact.time, fact.reach.max(*watermark)))),
        }
    }

    /// On start: learns what these events of jobs said, in order of their times, and invalidates
    /// nothing.
    pub fn restore_jobs(&mut self, events: &RecordBatch, facts: &[Facts]) {
        let watermarks = vec![i64::MIN; facts.len()];
        self.record_jobs(events, facts, &watermarks, |_| i64::MIN);
        self.spans.clear();
        self.waits.clear();
    }

    fn record_jobs(
        &mut self,
        batch: &RecordBatch,
        facts: &[Facts],
        watermarks: &[i64],
        first: impl Fn(i64) -> i64,
    ) {
        let column = |name| batch.column_by_name(name).expect("a column of job_events");
        let (columns, kinds) = (ATTRIBUTES.map(column), column("kind").as_string_view());
        let [gpus, nodes, per_node] = ["gpus_milli", "asked_node_count", "asked_gpus_per_node_milli"]
            .map(|name| column(name).as_primitive::<Int64Type>());
        let (evidence, steps) = (column("hold_evidence").as_string_view(), column("step_id"));
        for (row, (fact, watermark)) in facts.iter().zip(watermarks).enumerate() {
            let begin = first(fact.key);
            let is_new = !self.histories.contains_key(&fact.key);
            let history = self.histories.entry(fact.key).or_default();
            let kind = match kinds.value(row) {
                // A step holds nothing of its own, and says nothing about its job.
                "SUBMITTED" | "WAITING" | "STARTED" | "ENDED" if steps.is_valid(row) => "STEP",
                kind => kind,
            };
            let is_news =
                kind != "STEP" && history.learn(columns.map(|column| hash(column, row)), kind == "STARTED");
            // A key without a history may have had one that was dropped.
            let in_order = fact.time >= history.last && if is_new { begin == fact.time } else { !is_news };
            history.last = history.last.max(fact.time);
            let to = fact.reach.max(*watermark).max(history.last);
            let is_schedulers = evidence.is_valid(row) && evidence.value(row) == "slurm";
            let from = match kind {
                // Until then the job was counted as waiting for GPUs, and it was not.
                "ELIGIBLE" => begin,
                // From now on it is known which attempt the wait led to.
                "STARTED" if history.ended == 0 && history.knows_request() => {
                    push(&mut self.waits, (begin, to));
                    fact.time
                }
                "STARTED" if history.ended == 0 => begin,
                // A hold from the scheduler overrides what agents saw of the device before.
                "DEVICE_HELD" if is_schedulers => history.seen.unwrap_or(fact.time).min(fact.time),
                // From the end on, the device counted as free and the job as gone. This event says
                // that the device was held until now, or that the job waits or runs again.
                "DEVICE_RELEASED" | "SUBMITTED" | "WAITING" | "STARTED" | "ENDED" if history.ended > 0 => {
                    history.ended.min(fact.time)
                }
                _ => fact.time,
            };
            match kind {
                "SUBMITTED" if gpus.is_valid(row) => history.asked_milli = Some(gpus.value(row)),
                "WAITING" => history.has_shape |= nodes.is_valid(row) && per_node.is_valid(row),
                "DEVICE_HELD" if !is_schedulers => {
                    history.seen = Some(history.seen.unwrap_or(fact.time).min(fact.time));
                }
                "ENDED" => history.ended = fact.time,
                _ => {}
            }
            self.add((if in_order { from } else { from.min(begin) }, to));
        }
    }

    fn record_steps(&mut self, batch: &RecordBatch, facts: &[Facts], watermarks: &[i64]) {
        if self.histories.len() > MAX_STEPPING_JOBS {
            self.histories.clear();
        }
        let text = |name| batch.column_by_name(name).expect("a column of steps").as_string_view();
        let (clusters, jobs) = (text("cluster"), text("job_id"));
        for (row, (fact, watermark)) in facts.iter().zip(watermarks).enumerate() {
            let job = key_hash(clusters.value(row), jobs.value(row));
            let last = self.histories.get(&job).map_or(fact.time - MAX_STARTUP_US, |history| history.last);
            let from = last.max(fact.time - MAX_STARTUP_US).min(fact.time);
            self.histories.entry(job).or_default().last = last.max(fact.reach);
            self.add((from, fact.reach.max(*watermark)));
        }
    }

    /// On start: the committed steps of a job reach until then, µs.
    pub fn restore_step(&mut self, cluster: &str, job_id: &str, reach: i64) {
        self.histories.entry(key_hash(cluster, job_id)).or_default().last = reach;
    }

    /// After a commit: drops all spans, and the histories of finished jobs.
    pub fn clear_committed(&mut self, is_open: impl Fn(i64) -> bool, schema: SchemaId) {
        self.spans.clear();
        self.waits.clear();
        if schema == SchemaId::JobEvent {
            self.histories.retain(|key, _| is_open(*key));
        }
    }

    /// All spans, sorted and disjoint.
    pub fn spans(&self) -> InvalidatedSpans {
        let [all, waits] = [&self.spans, &self.waits].map(|spans| merge_spans(spans.clone(), 0));
        InvalidatedSpans { all, waits }
    }
}

fn push(spans: &mut Vec<Span>, span: Span) {
    spans.push(span);
    if spans.len() > MAX_SPANS {
        *spans = merge_spans(std::mem::take(spans), 0);
    }
}

/// Hash of a value; 0 for NULL.
fn hash(column: &ArrayRef, row: usize) -> u64 {
    if column.is_null(row) {
        return 0;
    }
    let hash = match column.as_string_view_opt() {
        Some(text) => xxh3_64(text.value(row).as_bytes()),
        None => xxh3_64_with_seed(&column.as_primitive::<Int64Type>().value(row).to_le_bytes(), 1),
    };
    hash.max(1)
}

#[cfg(test)]
mod tests {
    use tidegate_events::Event;
    use tidegate_events::v1::{Envelope, JobEvent, JobEventKind, StepReport};

    use super::*;
    use crate::raw::raw_tables;
    use crate::raw::rows::RawRows;
    use crate::window::MICROS_PER_MS;

    const MINUTE: i64 = 60_000_000;

    fn envelope(minute: i64) -> Option<Envelope> {
        let event_time_ms = minute * MINUTE / MICROS_PER_MS;
        Some(Envelope { cluster: "c".into(), event_time_ms, ..Envelope::default() })
    }

    fn job(kind: JobEventKind, minute: i64) -> Event {
        Event::Job(JobEvent {
            envelope: envelope(minute),
            kind: kind.into(),
            job_id: "j".into(),
            ..JobEvent::default()
        })
    }

    fn step(minute: i64) -> Event {
        let duration_us = MINUTE.unsigned_abs();
        Event::Step(StepReport {
            envelope: envelope(minute),
            job_id: "j".into(),
            duration_us,
            ..StepReport::default()
        })
    }

    /// Minutes that these events invalidate, of a job whose first event was at minute 0.
    fn invalidated(invalidation: &mut Invalidation, events: &[Event]) -> Vec<Span> {
        let schema = events[0].schema();
        let mut rows =
            RawRows::new(raw_tables().into_iter().find(|table| table.schema == schema).unwrap(), 0);
        events.iter().for_each(|event| rows.push(0, event));
        let (batch, facts) = rows.finish();
        invalidation.record(schema, &batch, &facts, &vec![0; facts.len()], |_| 0);
        let spans =
            invalidation.spans().all.into_iter().map(|(from, to)| (from / MINUTE, to / MINUTE)).collect();
        invalidation.clear_committed(|_| true, schema);
        spans
    }

    #[test]
    fn a_first_step_invalidates_the_startup_before_it() {
        let mut invalidation = Invalidation::default();
        assert_eq!(invalidated(&mut invalidation, &[step(1000)]), [(1000 - 360, 1001)]);
        assert_eq!(
            invalidated(&mut invalidation, &[step(1003)]),
            [(1001, 1004)],
            "a later step covers the time since the one before"
        );
        let mut restored = Invalidation::default();
        restored.restore_step("c", "j", 1004 * MINUTE);
        assert_eq!(invalidated(&mut restored, &[step(1005)]), [(1004, 1006)], "also over a restart");
    }

    #[test]
    fn a_shape_that_arrives_late_holds_from_the_beginning() {
        use JobEventKind::{Submitted, Waiting};
        let waiting = |minute, gpus_per_node| {
            let Event::Job(waiting) = job(Waiting, minute) else { unreachable!() };
            Event::Job(JobEvent { asked_gpus_per_node_milli: gpus_per_node, ..waiting })
        };
        let mut invalidation = Invalidation::default();
        invalidated(&mut invalidation, &[job(Submitted, 0)]);
        assert_eq!(invalidated(&mut invalidation, &[waiting(5, None)]), [(5, 5)]);
        assert_eq!(invalidated(&mut invalidation, &[waiting(9, Some(8_000))]), [(0, 9)]);
        assert_eq!(
            invalidated(&mut invalidation, &[waiting(12, Some(8_000))]),
            [(12, 12)],
            "the same value as before"
        );
    }

    /// Spans of minutes that one event invalidates: of all tables, and of waits.
    fn both(invalidation: &mut Invalidation, event: JobEvent) -> [Vec<Span>; 2] {
        let mut rows = RawRows::new(
            raw_tables().into_iter().find(|table| table.schema == SchemaId::JobEvent).unwrap(),
            0,
        );
        rows.push(0, &Event::Job(event));
        let (batch, facts) = rows.finish();
        invalidation.record(SchemaId::JobEvent, &batch, &facts, &[0], |_| 0);
        let InvalidatedSpans { all, waits } = invalidation.spans();
        invalidation.clear_committed(|_| true, SchemaId::JobEvent);
        [all, waits].map(|spans| spans.into_iter().map(|(from, to)| (from / MINUTE, to / MINUTE)).collect())
    }

    fn of(kind: JobEventKind, minute: i64, more: JobEvent) -> JobEvent {
        let Event::Job(event) = job(kind, minute) else { unreachable!() };
        JobEvent { envelope: event.envelope, kind: event.kind, job_id: event.job_id, ..more }
    }

    fn gpus(gpus: u64) -> JobEvent {
        JobEvent { gpus_milli: Some(gpus * 1_000), ..JobEvent::default() }
    }

    #[test]
    fn a_start_invalidates_the_wait_only_where_it_tells_what_was_asked_for() {
        use JobEventKind::{Started, Submitted, Waiting};
        let placed = JobEvent { nodes: Some("a,b".into()), node_count: Some(2), ..gpus(16) };
        let shape = JobEvent {
            asked_node_count: Some(2),
            asked_gpus_per_node_milli: Some(8_000),
            ..JobEvent::default()
        };
        let start = |submitted: JobEvent, waiting: JobEvent, started: JobEvent| {
            let mut invalidation = Invalidation::default();
            both(&mut invalidation, of(Submitted, 0, submitted));
            both(&mut invalidation, of(Waiting, 1, waiting));
            both(&mut invalidation, of(Started, 40, started))
        };
        let (whole, now, wait) = (vec![(0, 40)], vec![(40, 40)], vec![(0, 40)]);
        let known = start(gpus(16), shape.clone(), placed.clone());
        assert_eq!(known, [now.clone(), wait.clone()], "the shape was reported");
        assert_eq!(start(gpus(1), JobEvent::default(), gpus(1)), [now, wait], "a GPU has one shape");
        let without_shape = start(gpus(16), JobEvent::default(), placed.clone());
        assert_eq!(without_shape, [whole.clone(), vec![]], "the nodes tell the shape");
        let half = JobEvent { asked_gpus_per_node_milli: None, ..shape.clone() };
        assert_eq!(start(gpus(16), half, placed.clone())[0], whole, "half a shape is none");
        let without_gpus = start(JobEvent::default(), shape.clone(), placed.clone());
        assert_eq!(without_gpus[0], whole, "the start tells the number of GPUs");
        let other_team = JobEvent { team: Some("b".into()), ..placed };
        assert_eq!(start(gpus(16), shape, other_team)[0], whole, "its wait counts for another team");
    }

    #[test]
    fn a_resize_invalidates_earlier_attempts_only_where_they_said_less() {
        use JobEventKind::{Ended, Started, Submitted};
        let resized = JobEvent { final_state: Some("RESIZED".into()), ..JobEvent::default() };
        let with_model = |model: Option<&str>, count: u64| JobEvent {
            nodes: Some(format!("n{count}")),
            node_count: Some(1),
            gpu_model: model.map(str::to_owned),
            ..gpus(count)
        };
        let second = |first: JobEvent, second: JobEvent| {
            let mut invalidation = Invalidation::default();
            both(&mut invalidation, of(Submitted, 0, gpus(1)));
            both(&mut invalidation, of(Started, 10, first));
            both(&mut invalidation, of(Ended, 20, resized.clone()));
            both(&mut invalidation, of(Started, 21, second))[0].clone()
        };
        assert_eq!(second(with_model(None, 4), with_model(None, 8)), [(20, 21)], "each says its nodes");
        assert_eq!(second(with_model(Some("a"), 4), with_model(Some("b"), 8)), [(20, 21)]);
        let late_model = second(with_model(None, 4), with_model(Some("b"), 8));
        assert_eq!(late_model, [(0, 21)], "the first attempt takes the model of the second");
    }

    #[test]
    fn a_hold_from_the_scheduler_invalidates_what_agents_saw() {
        use JobEventKind::{DeviceHeld, Started, Submitted};
        let evidence = |by: &str| JobEvent { hold_evidence: Some(by.into()), ..JobEvent::default() };
        let mut invalidation = Invalidation::default();
        both(&mut invalidation, of(Submitted, 0, gpus(1)));
        assert_eq!(both(&mut invalidation, of(DeviceHeld, 29, evidence("process")))[0], [(29, 29)]);
        both(&mut invalidation, of(Started, 30, gpus(1)));
        assert_eq!(both(&mut invalidation, of(DeviceHeld, 40, evidence("slurm")))[0], [(29, 40)]);
        let mut invalidation = Invalidation::default();
        both(&mut invalidation, of(Submitted, 0, gpus(1)));
        both(&mut invalidation, of(Started, 30, gpus(1)));
        assert_eq!(both(&mut invalidation, of(DeviceHeld, 31, evidence("slurm")))[0], [(31, 31)]);
    }

    #[test]
    fn after_a_restart_events_invalidate_what_they_would_have_without() {
        use JobEventKind::{Started, Submitted};
        let rows = |event: JobEvent| {
            let table = raw_tables().into_iter().find(|table| table.schema == SchemaId::JobEvent).unwrap();
            let mut rows = RawRows::new(table, 0);
            rows.push(0, &Event::Job(event));
            rows.finish()
        };
        let submitted = of(Submitted, 0, gpus(1));
        let mut forgetful = Invalidation::default();
        assert_eq!(both(&mut forgetful, of(Started, 30, gpus(1)))[0], [(0, 30)], "nothing is known of it");
        let mut restored = Invalidation::default();
        let (events, facts) = rows(submitted);
        restored.restore_jobs(&events, &facts);
        assert_eq!(restored.spans(), InvalidatedSpans::default());
        assert_eq!(both(&mut restored, of(Started, 30, gpus(1))), [vec![(30, 30)], vec![(0, 30)]]);
    }

    #[test]
    fn a_step_of_a_job_invalidates_nothing_earlier() {
        use JobEventKind::{Ended, Started, Submitted};
        let step = || JobEvent { step_id: Some("0".into()), nodes: Some("a".into()), ..JobEvent::default() };
        let mut invalidation = Invalidation::default();
        both(&mut invalidation, of(Submitted, 0, gpus(1)));
        both(&mut invalidation, of(Started, 10, gpus(1)));
        assert_eq!(both(&mut invalidation, of(Started, 20, step()))[0], [(20, 20)]);
        assert_eq!(both(&mut invalidation, of(Ended, 30, step()))[0], [(30, 30)]);
        assert_eq!(both(&mut invalidation, of(Started, 40, step()))[0], [(40, 40)], "the job has not ended");
    }

    #[test]
    fn a_release_after_the_end_invalidates_the_time_since() {
        use JobEventKind::{DeviceReleased, Ended, Started};
        let mut invalidation = Invalidation::default();
        invalidated(&mut invalidation, &[job(Started, 0)]);
        assert_eq!(invalidated(&mut invalidation, &[job(DeviceReleased, 10)]), [(10, 10)]);
        assert_eq!(invalidated(&mut invalidation, &[job(Ended, 20)]), [(20, 20)]);
        assert_eq!(invalidated(&mut invalidation, &[job(DeviceReleased, 22)]), [(20, 22)]);
        assert_eq!(invalidated(&mut invalidation, &[job(Started, 15)]), [(0, 22)], "late: its whole life");
    }
}
