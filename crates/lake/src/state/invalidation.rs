//! Tracks which event-time spans new events invalidate. Joined tables recompute their windows.
//!
//! An event in order changes nothing before its own time. An event that is late, or that changes
//! what was known about its job, invalidates the job's whole life. What an event says about a node
//! or a quota holds from its time on.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use hashbrown::HashMap;
use tidegate_events::SchemaId;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::raw::facts::{Facts, key_hash};
use crate::window::{MICROS_PER_HOUR, Span, merge_spans};

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
    "nodes",
    "node_count",
    "gpu_model",
    "gpus_milli",
    "asked_node_count",
    "asked_gpus_per_node_milli",
];

/// What earlier events of a key said.
#[derive(Debug, Clone, Copy, Default)]
struct KeyHistory {
    /// Time of its last event, µs.
    last: i64,
    /// When the job, or an attempt of it, ended, µs; 0 if it has not.
    ended: i64,
    /// Hash of each of [`ATTRIBUTES`]; 0 for one without a value.
    attributes: [u64; ATTRIBUTES.len()],
}

/// Spans invalidated since the last commit.
#[derive(Debug, Default)]
pub struct Invalidation {
    spans: Vec<Span>,
    histories: HashMap<i64, KeyHistory>,
}

impl Invalidation {
    /// Invalidates a span.
    pub fn add(&mut self, span: Span) {
        self.spans.push(span);
        if self.spans.len() > MAX_SPANS {
            self.spans = merge_spans(std::mem::take(&mut self.spans), 0);
        }
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

    fn record_jobs(
        &mut self,
        batch: &RecordBatch,
        facts: &[Facts],
        watermarks: &[i64],
        first: impl Fn(i64) -> i64,
    ) {
        let column = |name| batch.column_by_name(name).expect("a column of job_events");
        let (columns, kinds) = (ATTRIBUTES.map(column), column("kind").as_string_view());
        let evidence = column("hold_evidence").as_string_view();
        for (row, (fact, watermark)) in facts.iter().zip(watermarks).enumerate() {
            let begin = first(fact.key);
            let is_new = !self.histories.contains_key(&fact.key);
            let history = self.histories.entry(fact.key).or_default();
            let mut is_news = false;
            for (known, column) in history.attributes.iter_mut().zip(columns) {
                let new = hash(column, row);
                is_news |= new != 0 && new != *known;
                *known = if new == 0 { *known } else { new };
            }
            // A key without a history may have had one that was dropped.
            let in_order = fact.time >= history.last && if is_new { begin == fact.time } else { !is_news };
            history.last = history.last.max(fact.time);
            let to = fact.reach.max(*watermark).max(history.last);
            let from = match kinds.value(row) {
                // Until then the job was counted as waiting for GPUs, and it was not.
                "ELIGIBLE" => begin,
                // From now on it is known which attempt the wait led to.
                "STARTED" if history.ended == 0 => begin,
                // A hold from the scheduler overrides what agents saw of the device before.
                "DEVICE_HELD" if evidence.is_valid(row) && evidence.value(row) == "slurm" => begin,
                // From the end on, the device counted as free and the job as gone. This event says
                // that the device was held until now, or that the job waits or runs again.
                "DEVICE_RELEASED" | "SUBMITTED" | "WAITING" | "STARTED" | "ENDED" if history.ended > 0 => {
                    history.ended.min(fact.time)
                }
                _ => fact.time,
            };
            if kinds.value(row) == "ENDED" {
                history.ended = fact.time;
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

    /// After a commit: drops all spans, and the histories of finished jobs.
    pub fn clear_committed(&mut self, is_open: impl Fn(i64) -> bool, schema: SchemaId) {
        self.spans.clear();
        if schema == SchemaId::JobEvent {
            self.histories.retain(|key, _| is_open(*key));
        }
    }

    /// All spans, sorted and disjoint.
    pub fn spans(&self) -> Vec<Span> {
        merge_spans(self.spans.clone(), 0)
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
        let spans = invalidation.spans().into_iter().map(|(from, to)| (from / MINUTE, to / MINUTE)).collect();
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
