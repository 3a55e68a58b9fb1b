//! Waits for what a producer sent to be delivered, without keeping a processor busy.

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, ProducerContext};

/// Rests between two looks at what came back.
const REST_LEAST: Duration = Duration::from_micros(50);
const REST_MOST: Duration = Duration::from_millis(5);

/// A wait for deliveries, from its beginning.
///
/// `BaseProducer::poll` of rdkafka 0.39 returns only when its timeout has passed, whatever was
/// delivered meanwhile, and it spins through the last millisecond. A short timeout therefore takes
/// all of a processor for as long as a broker does not answer. So this polls without a timeout and
/// sleeps in between: for a sixteenth of the wait so far, which delays an answer by no more.
pub(super) struct Wait(Instant);

impl Wait {
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Handles what came back by now, then sleeps for a moment.
    pub fn step<C: ProducerContext>(&self, producer: &BaseProducer<C>) {
        producer.poll(Duration::ZERO);
        thread::sleep((self.0.elapsed() / 16).clamp(REST_LEAST, REST_MOST));
    }
}
