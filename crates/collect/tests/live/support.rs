//! Shared by the tests of live sources.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use tidegate_collect::{Reading, Sink};
use tidegate_events::{Event, v1};

/// Long enough for a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Records what sources emit.
#[derive(Default)]
pub struct Recorder {
    recorded: Mutex<RecordingSink>,
    changed: Condvar,
}

#[derive(Default)]
pub struct RecordingSink {
    pub events: Vec<Event>,
    pub readings: Vec<Reading>,
}

impl Recorder {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waits until the record satisfies the condition, and returns what `pick` takes from it.
    pub fn wait<T>(&self, what: &str, pick: impl Fn(&RecordingSink) -> Option<T>) -> T {
        let deadline = Instant::now() + PATIENCE;
        let mut recorded = self.recorded.lock().unwrap();
        loop {
            if let Some(picked) = pick(&recorded) {
                return picked;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "never reported: {what}; events {:#?}", recorded.events);
            recorded = self.changed.wait_timeout(recorded, left).unwrap().0;
        }
    }

    pub fn steps(&self) -> Vec<v1::StepReport> {
        let recorded = self.recorded.lock().unwrap();
        let step = |event: &Event| match event {
            Event::Step(step) => Some(step.clone()),
            _ => None,
        };
        recorded.events.iter().filter_map(step).collect()
    }
}

impl Sink for Recorder {
    fn reading(&self, reading: Reading) {
        self.recorded.lock().unwrap().readings.push(reading);
        self.changed.notify_all();
    }

    fn event(&self, event: Event) {
        self.recorded.lock().unwrap().events.push(event);
        self.changed.notify_all();
    }
}

/// Waits until the condition holds.
pub fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
