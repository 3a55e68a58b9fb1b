//! Waits for what a producer sent to be delivered, without keeping a processor busy.

use std::thread;
use std::time::{Duration, Instant};

use rdkafka::producer::{BaseProducer, ProducerContext};

/// Bounds of the sleep between two polls.
const REST_LEAST: Duration = Duration::from_micros(50);
const REST_MOST: Duration = Duration::from_millis(5);

/// A wait for deliveries, from its beginning.
///
/// `BaseProducer::poll` of rdkafka 0.39 never returns before its timeout, even when deliveries have
/// arrived, and it busy-waits during the last millisecond. Polling with a timeout of 1 ms therefore
/// uses a whole core until the broker answers. This polls with a timeout of zero instead and sleeps
/// between polls, for a sixteenth of the time waited so far: an answer is noticed at most that
/// late.
pub(super) struct Wait(Instant);

impl Wait {
    pub fn begin() -> Self {
        Self(Instant::now())
    }

    /// Handles the deliveries that have arrived, then sleeps.
    pub fn step<C: ProducerContext>(&self, producer: &BaseProducer<C>) {
        producer.poll(Duration::ZERO);
        thread::sleep((self.0.elapsed() / 16).clamp(REST_LEAST, REST_MOST));
    }
}
