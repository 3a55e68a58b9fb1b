//! A sink that records what a source emits, and waits for it.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_collect::{Metric, Reading, Sink, Value};
use tidegate_events::Event;
use tidegate_events::v1::{NodeEvent, NodeEventKind};

/// Longer than any wait on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Default)]
pub struct Recorded {
    recorded: Mutex<RecordingSink>,
    changed: Condvar,
}

#[derive(Default, Clone)]
pub struct RecordingSink {
    /// With its arrival time, ms since the epoch.
    pub readings: Vec<(Reading, i64)>,
    pub events: Vec<NodeEvent>,
}

impl Sink for Recorded {
    fn reading(&self, reading: Reading) {
        self.recorded.lock().unwrap().readings.push((reading, now_ms()));
        self.changed.notify_all();
    }

    fn event(&self, event: Event) {
        let Event::Node(event) = event else { panic!("{event:?}") };
        assert!(event.envelope.as_ref().is_some_and(|e| e.event_time_ms > 0 && e.observed_time_ms > 0));
        self.recorded.lock().unwrap().events.push(event);
        self.changed.notify_all();
    }
}

impl Recorded {
    /// Waits until the record satisfies a condition, and returns it.
    #[track_caller]
    pub fn until(&self, what: &str, holds: impl Fn(&RecordingSink) -> bool) -> RecordingSink {
        let mut recorded = self.recorded.lock().unwrap();
        let until = Instant::now() + PATIENCE;
        while !holds(&recorded) {
            let left = until.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{what} did not come; events: {:#?}", recorded.events);
            recorded = self.changed.wait_timeout(recorded, left).unwrap().0;
        }
        recorded.clone()
    }

    pub fn recorded(&self) -> RecordingSink {
        self.recorded.lock().unwrap().clone()
    }
}

impl RecordingSink {
    /// Readings of a GPU (not its instances) by number, in order of arrival.
    pub fn of(&self, index: u32) -> Vec<&(Reading, i64)> {
        self.readings.iter().filter(|(r, _)| r.device.index == index && r.device.mig_uuid.is_none()).collect()
    }

    pub fn of_kind(&self, kind: NodeEventKind) -> Vec<&NodeEvent> {
        self.events.iter().filter(|event| event.kind() == kind).collect()
    }

    pub fn last_is(&self, index: u32, metric: Metric, value: Value) -> bool {
        self.of(index).last().is_some_and(|(r, _)| r.get(metric) == value)
    }

    /// Checks that every device has one reading at each tick, from its first to its last.
    #[track_caller]
    pub fn each_tick_once(&self, devices: u32, interval_ms: i64) {
        for index in 0..devices {
            let mut ticks = BTreeMap::new();
            for (reading, _) in self.of(index) {
                assert_eq!(reading.tick_ms % interval_ms, 0, "ticks are whole intervals");
                *ticks.entry(reading.tick_ms).or_insert(0) += 1;
            }
            assert!(ticks.values().all(|count| *count == 1), "device {index}: {ticks:?}");
        }
        // All devices have the same ticks while all were read.
        let span = |index| {
            let all: Vec<_> = self.of(index).iter().map(|(r, _)| r.tick_ms).collect();
            (all.iter().copied().min().unwrap(), all.iter().copied().max().unwrap(), all)
        };
        let spans: Vec<_> = (0..devices).map(span).collect();
        let (from, to) = (spans.iter().map(|s| s.0).max().unwrap(), spans.iter().map(|s| s.1).min().unwrap());
        let within = |all: &[i64]| {
            let mut ticks: Vec<_> = all.iter().copied().filter(|t| (from..=to).contains(t)).collect();
            ticks.sort_unstable();
            ticks
        };
        for (index, span) in spans.iter().enumerate() {
            assert_eq!(within(&span.2), within(&spans[0].2), "device {index} has other ticks than device 0");
        }
    }
}

pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}
