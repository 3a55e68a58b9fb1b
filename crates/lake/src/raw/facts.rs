//! Facts: what the state must know of an event beside its columns.

use std::hash::Hasher;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use tidegate_events::Event;
use tidegate_events::v1::{JobEvent, JobEventKind, SignalState};
use xxhash_rust::xxh3::Xxh3;

use crate::table::{EVENT, KEY};
use crate::window::MICROS_PER_MS;

/// What the state must know of one event beside its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// Hash of the key.
    pub key: i64,
    /// First 8 bytes of the event id. Repeats of one event have equal numbers.
    pub event: i64,
    /// Event time, µs.
    pub time: i64,
    /// End of the time in which the event can change windows, µs; equal to `time` for an instant.
    pub reach: i64,
    /// Watermark that the event gives its cluster, µs: `time`, or for a price that holds from a
    /// future time, when it was entered.
    pub observed: i64,
    /// Attempt the event belongs to; -1 if none.
    pub attempt: i64,
    /// Whether the key is finished after this event; `None` if the event does not decide it. A
    /// step, for example, may end shortly after its job.
    pub terminal: Option<bool>,
}

/// Identity of an event: hash of its key, and the first 8 bytes of its event id.
pub type EventId = (i64, i64);

impl Facts {
    /// Two events with the same identity are one event, delivered twice.
    pub fn id(&self) -> EventId {
        (self.key, self.event)
    }
}

pub(super) fn facts_from_event(event: &Event) -> Facts {
    let envelope = event.envelope();
    let id = envelope.map_or(&[][..], |e| e.event_id.as_slice());
    let identity = id.first_chunk().map_or(0, |head| i64::from_le_bytes(*head));
    let time = event.event_time_ms().saturating_mul(MICROS_PER_MS);
    let cluster = envelope.map_or("", |e| e.cluster.as_str());
    let (key, reach, terminal) = match event {
        // A heartbeat is its own key, so that heartbeats do not pile up under one key.
        Event::Job(e) if e.kind() == JobEventKind::Observed => (identity, time, Some(true)),
        Event::Job(e) => (
            key_hash(cluster, &e.job_id),
            time,
            decides_completion(e.kind().as_str_name(), e.step_id.is_none()).then(|| is_terminal(e)),
        ),
        Event::Capacity(e) => (key_hash(cluster, &e.owner), time, Some(false)),
        Event::PoolSample(e) => {
            (identity, time.saturating_add(MICROS_PER_MS.saturating_mul(e.interval_ms as i64)), Some(true))
        }
        // These are not folded: nodes never end, and steps are too many to hold until their job
        // ends. Each event is its own key and leaves memory with the next commit.
        Event::Step(e) => (identity, time.saturating_add(e.duration_us as i64), Some(true)),
        // A job has few episodes, and one that ended may be followed by another.
        Event::Straggler(e) => (key_hash(cluster, &e.job_id), time, Some(e.state() == SignalState::Cleared)),
        Event::NodeHealth(e) => (key_hash(cluster, &e.node), time, Some(false)),
        Event::Node(_)
        | Event::DeadLetter(_)
        | Event::GpuSamples(_)
        | Event::Forecast(_)
        | Event::Coverage(_)
        | Event::JobEnd(_)
        | Event::Scaling(_)
        | Event::Sizing(_)
        | Event::Audit(_)
        | Event::Autopilot(_) => (identity, time, Some(true)),
    };
    let attempt = if let Event::Job(e) = event { e.attempt_id.unwrap_or(-1) } else { -1 };
    let observed = match event {
        Event::Capacity(e) => e.entered_ms.map_or(time, |ms| time.min(ms.saturating_mul(MICROS_PER_MS))),
        _ => time,
    };
    Facts { key, event: identity, time, reach, observed, attempt, terminal }
}

/// A step may end, and a device be released, shortly after the job's end.
fn decides_completion(kind: &str, of_job: bool) -> bool {
    of_job && !matches!(kind, "DEVICE_HELD" | "DEVICE_RELEASED")
}

fn is_terminal(event: &JobEvent) -> bool {
    event.kind() == JobEventKind::Ended && !continues(event.final_state.as_deref())
}

/// A job is finished when an attempt ends for good. A requeued or resized attempt is followed by
/// another.
fn continues(final_state: Option<&str>) -> bool {
    matches!(final_state, Some("REQUEUED" | "RESIZED"))
}

/// Hash of (cluster, name): the unit of recomputation of keyed tables.
pub fn key_hash(cluster: &str, name: &str) -> i64 {
    let mut hasher = Xxh3::new();
    hasher.write(cluster.as_bytes());
    hasher.write_u8(0);
    hasher.write(name.as_bytes());
    hasher.finish() as i64
}

/// Facts of committed rows, read back from their columns. `folds`: whether keyed pipelines read the
/// table.
pub(crate) fn facts_from_rows(batch: &RecordBatch, folds: bool) -> Vec<Facts> {
    let text = |name: &str| batch.column_by_name(name).map(|c| c.as_string_view().clone());
    let (kind, state, step) = (text("kind"), text("final_state"), text("step_id"));
    let attempt = batch.column_by_name("attempt_id").map(|c| c.as_primitive::<Int64Type>().clone());
    let number = |name| batch.column_by_name(name).expect("bookkeeping column").as_primitive::<Int64Type>();
    let (keys, events) = (number(KEY), number(EVENT));
    let times = batch
        .column_by_name("event_time")
        .expect("raw tables have event_time")
        .as_primitive::<TimestampMicrosecondType>();
    let terminal = |row: usize| match (&kind, &state, &step) {
        (Some(kind), Some(state), Some(step)) => {
            decides_completion(kind.value(row), step.is_null(row)).then(|| {
                let continues = continues(state.is_valid(row).then(|| state.value(row)));
                (kind.value(row) == "ENDED" && !continues) || kind.value(row) == "OBSERVED"
            })
        }
        _ => Some(!folds),
    };
    let entered = batch.column_by_name("entered_time").map(|c| c.as_primitive::<TimestampMicrosecondType>());
    let observed = |row: usize| match entered {
        Some(entered) if entered.is_valid(row) => entered.value(row).min(times.value(row)),
        _ => times.value(row),
    };
    let fact = |row: usize| Facts {
        key: keys.value(row),
        event: events.value(row),
        time: times.value(row),
        reach: times.value(row),
        observed: observed(row),
        attempt: attempt.as_ref().map_or(-1, |a| if a.is_valid(row) { a.value(row) } else { -1 }),
        terminal: terminal(row),
    };
    (0..batch.num_rows()).map(fact).collect()
}
