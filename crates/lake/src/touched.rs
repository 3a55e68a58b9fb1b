//! Tracks which time spans new events invalidate: the windows of joined tables that are to be
//! computed anew.
//!
//! An event that comes in order changes nothing before it. One that comes late, or says something
//! else of its job than was known, touches the job's whole life; what it says of a node or a quota
//! holds from then on.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use hashbrown::HashMap;
use tidegate_events::SchemaId;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::raw::{Facts, key_hash};
use crate::window::{MICROS_PER_HOUR, Span, merged};

/// More touched times than this are put together.
const MOST_SPANS: usize = 4_096;
/// Jobs whose last step is remembered.
const MOST_STEPPING: usize = 100_000;
/// The first step of a job says what it did before: so long at most.
const START_US: i64 = 6 * MICROS_PER_HOUR;
/// What windows show of a job beside its times, and what a wait asks for: said late, it holds from
/// the beginning.
const ABOUT: [&str; 9] = [
    "team",
    "user_name",
    "pool",
    "nodes",
    "node_count",
    "gpu_model",
    "gpus_milli",
    "asked_node_count",
    "asked_gpus_per_node_milli",
];

/// What was known of a key when its last event came.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    last: i64,
    /// When the job, or an attempt of it, was said to have ended, µs; 0: never.
    ended: i64,
    /// Hash of each of [`ABOUT`]; 0: nobody said.
    about: [u64; ABOUT.len()],
}

/// Times whose windows may be others for what was taken in since the last commit.
#[derive(Debug, Default)]
pub struct Touched {
    spans: Vec<Span>,
    known: HashMap<i64, Known>,
}

impl Touched {
    /// Takes note of times.
    pub fn add(&mut self, span: Span) {
        self.spans.push(span);
        if self.spans.len() > MOST_SPANS {
            self.spans = merged(std::mem::take(&mut self.spans), 0);
        }
    }

    /// Takes note of new events, one fact a row. `watermarks`: up to when each row's cluster was
    /// observed before. `first`: the first event time of a key.
    pub fn note(
        &mut self,
        schema: SchemaId,
        batch: &RecordBatch,
        facts: &[Facts],
        watermarks: &[i64],
        first: impl Fn(i64) -> i64,
    ) {
        match schema {
            SchemaId::JobEvent => self.note_jobs(batch, facts, watermarks, first),
            SchemaId::StepReport => self.note_steps(batch, facts, watermarks),
            SchemaId::NodeEvent | SchemaId::CapacityEvent => {
                facts
                    .iter()
                    .map(|fact| fact.time)
                    .min()
                    .into_iter()
                    .for_each(|from| self.add((from, i64::MAX)));
            }
            // A late sample says what held until the next one.
            _ => facts
                .iter()
                .zip(watermarks)
                .for_each(|(fact, watermark)| self.add((fact.time, fact.reach.max(*watermark)))),
        }
    }

    fn note_jobs(
        &mut self,
        batch: &RecordBatch,
        facts: &[Facts],
        watermarks: &[i64],
        first: impl Fn(i64) -> i64,
    ) {
        let column = |name| batch.column_by_name(name).expect("a column of job_events");
        let (columns, kinds) = (ABOUT.map(column), column("kind").as_string_view());
        let evidence = column("hold_evidence").as_string_view();
        for (row, (fact, watermark)) in facts.iter().zip(watermarks).enumerate() {
            let begin = first(fact.key);
            let is_new = !self.known.contains_key(&fact.key);
            let known = self.known.entry(fact.key).or_default();
            let mut is_news = false;
            for (known, column) in known.about.iter_mut().zip(columns) {
                let said = hash(column, row);
                is_news |= said != 0 && said != *known;
                *known = if said == 0 { *known } else { said };
            }
            // Of a key that was forgotten there may be more than is known.
            let in_order = fact.time >= known.last && if is_new { begin == fact.time } else { !is_news };
            known.last = known.last.max(fact.time);
            let to = fact.reach.max(*watermark).max(known.last);
            let from = match kinds.value(row) {
                // Before it the job did not wait for GPUs, whatever was taken to be so.
                "ELIGIBLE" => begin,
                // What an agent saw of this device does not count beside the scheduler's word.
                "DEVICE_HELD" if evidence.is_valid(row) && evidence.value(row) == "slurm" => begin,
                // Its device was taken to be free from the end on, as long as nobody told that it
                // was let go of; and the job to be gone, as long as nobody told that it waits
                // again.
                "DEVICE_RELEASED" | "SUBMITTED" | "WAITING" | "STARTED" | "ENDED" if known.ended > 0 => {
                    known.ended.min(fact.time)
                }
                _ => fact.time,
            };
            if kinds.value(row) == "ENDED" {
                known.ended = fact.time;
            }
            self.add((if in_order { from } else { from.min(begin) }, to));
        }
    }

    fn note_steps(&mut self, batch: &RecordBatch, facts: &[Facts], watermarks: &[i64]) {
        if self.known.len() > MOST_STEPPING {
            self.known.clear();
        }
        let text = |name| batch.column_by_name(name).expect("a column of steps").as_string_view();
        let (clusters, jobs) = (text("cluster"), text("job_id"));
        for (row, (fact, watermark)) in facts.iter().zip(watermarks).enumerate() {
            let job = key_hash(clusters.value(row), jobs.value(row));
            let last = self.known.get(&job).map_or(fact.time - START_US, |known| known.last);
            let from = last.max(fact.time - START_US).min(fact.time);
            self.known.entry(job).or_default().last = last.max(fact.reach);
            self.add((from, fact.reach.max(*watermark)));
        }
    }

    /// Forgets what was committed, and keys that are finished.
    pub fn committed(&mut self, is_open: impl Fn(i64) -> bool, schema: SchemaId) {
        self.spans.clear();
        if schema == SchemaId::JobEvent {
            self.known.retain(|key, _| is_open(*key));
        }
    }

    /// All of them, in order and apart.
    pub fn spans(&self) -> Vec<Span> {
        merged(self.spans.clone(), 0)
    }
}

/// 0 for NULL.
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
    use crate::raw::{RawRows, raw_tables};
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

    /// Minutes that these events touch, of a job of which the first event was at minute 0.
    fn touch(touched: &mut Touched, events: &[Event]) -> Vec<Span> {
        let schema = events[0].schema();
        let mut rows =
            RawRows::new(raw_tables().into_iter().find(|table| table.schema == schema).unwrap(), 0);
        events.iter().for_each(|event| rows.push(0, event));
        let (batch, facts) = rows.finish();
        touched.note(schema, &batch, &facts, &vec![0; facts.len()], |_| 0);
        let spans = touched.spans().into_iter().map(|(from, to)| (from / MINUTE, to / MINUTE)).collect();
        touched.committed(|_| true, schema);
        spans
    }

    #[test]
    fn a_first_step_says_what_was_before_it() {
        let mut touched = Touched::default();
        assert_eq!(touch(&mut touched, &[step(1000)]), [(1000 - 360, 1001)]);
        assert_eq!(
            touch(&mut touched, &[step(1003)]),
            [(1001, 1004)],
            "what follows speaks of the time since"
        );
    }

    #[test]
    fn a_shape_said_late_holds_from_the_beginning() {
        use JobEventKind::{Submitted, Waiting};
        let waiting = |minute, gpus_per_node| {
            let Event::Job(waiting) = job(Waiting, minute) else { unreachable!() };
            Event::Job(JobEvent { asked_gpus_per_node_milli: gpus_per_node, ..waiting })
        };
        let mut touched = Touched::default();
        touch(&mut touched, &[job(Submitted, 0)]);
        assert_eq!(touch(&mut touched, &[waiting(5, None)]), [(5, 5)]);
        assert_eq!(touch(&mut touched, &[waiting(9, Some(8_000))]), [(0, 9)]);
        assert_eq!(touch(&mut touched, &[waiting(12, Some(8_000))]), [(12, 12)], "said before");
    }

    #[test]
    fn a_release_after_the_end_says_what_was_since() {
        use JobEventKind::{DeviceReleased, Ended, Started};
        let mut touched = Touched::default();
        touch(&mut touched, &[job(Started, 0)]);
        assert_eq!(touch(&mut touched, &[job(DeviceReleased, 10)]), [(10, 10)]);
        assert_eq!(touch(&mut touched, &[job(Ended, 20)]), [(20, 20)]);
        assert_eq!(touch(&mut touched, &[job(DeviceReleased, 22)]), [(20, 22)]);
        assert_eq!(touch(&mut touched, &[job(Started, 15)]), [(0, 22)], "late: all of its life");
    }
}
