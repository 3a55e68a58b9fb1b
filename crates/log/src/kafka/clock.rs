//! The brokers' clock: the timestamp that a broker writes on a message.

use std::sync::Mutex;
use std::time::Instant;

use rdkafka::config::FromClientConfigAndContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};
use rdkafka::message::{Message, Timestamp};
use rdkafka::producer::{BaseProducer, BaseRecord, DeliveryResult, Producer, ProducerContext};
use rdkafka::{ClientConfig, ClientContext};

use super::client::Cluster;
use super::deadline::Deadline;
use super::delivery::Wait;
use crate::check::lock;
use crate::{LogClock, LogError};

/// Topic of the messages whose timestamps are read.
pub(super) const TOPIC: &str = "clock";
/// Messages sent. The one with the shortest round trip bounds the broker's time most tightly.
const ASKED: usize = 3;

/// Delivery of a message.
#[derive(Default)]
struct Delivered(Mutex<Option<Result<i64, KafkaError>>>);

impl ClientContext for Delivered {
    fn error(&self, error: KafkaError, reason: &str) {
        tracing::debug!(target: "kafka", %error, reason, "asking for the time");
    }
}

impl ProducerContext for Delivered {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        let delivered = match result {
            Ok(message) => match message.timestamp() {
                Timestamp::LogAppendTime(ms) => Ok(ms),
                _ => Err(KafkaError::MessageProduction(Code::InvalidTimestamp)),
            },
            Err((error, _)) => Err(error.clone()),
        };
        *lock(&self.0) = Some(delivered);
    }
}

/// Writes messages to a topic with broker timestamps and reads these. The producer lasts for one
/// call: calls come every ten minutes or so, and it would cost memory in between.
pub(super) fn ask(cluster: &Cluster, deadline: Deadline) -> Result<LogClock, LogError> {
    let topic = cluster.name(TOPIC);
    if cluster.partitions(&topic, 1, deadline)?.is_none() {
        let settings = [
            ("cleanup.policy", "delete"),
            ("message.timestamp.type", "LogAppendTime"),
            ("retention.ms", "3600000"),
            ("segment.ms", "3600000"),
            ("segment.bytes", "1048576"),
        ];
        cluster.create(&topic, 1, &settings, deadline)?;
    }
    let doing = "asking the broker for the time";
    let failed = |error: KafkaError| cluster.error(doing, &error, cluster.options.timeout);
    let config: ClientConfig = cluster.options.clock();
    let producer: BaseProducer<Delivered> =
        BaseProducer::from_config_and_context(&config, Delivered::default()).map_err(failed)?;
    let mut best: Option<(LogClock, Instant)> = None;
    // The first one also finds out where to send to.
    for _ in 0..=ASKED {
        let sent = Instant::now();
        producer.send(BaseRecord::<(), [u8]>::to(&topic).payload(b"")).map_err(|(error, _)| failed(error))?;
        let wait = Wait::begin();
        while producer.in_flight_count() > 0 && !deadline.passed() {
            wait.step(&producer);
        }
        let answered = Instant::now();
        let written_ms = match lock(&producer.context().0).take() {
            Some(written) => written.map_err(failed)?,
            None => return Err(cluster.timed_out(doing, deadline, "no answer")),
        };
        // It was written somewhere between the two; the broker's clock shows whole milliseconds.
        let half = (answered - sent) / 2;
        let uncertainty_ms = i64::try_from(half.as_millis()).unwrap_or(i64::MAX) + 1;
        if best.is_none_or(|(best, _)| uncertainty_ms < best.uncertainty_ms) {
            best = Some((LogClock { at_ms: written_ms, uncertainty_ms }, sent + half));
        }
    }
    let (clock, at) = best.ok_or_else(|| cluster.timed_out(doing, deadline, "no answer"))?;
    let since_ms = i64::try_from(at.elapsed().as_millis()).unwrap_or(0);
    Ok(LogClock { at_ms: clock.at_ms + since_ms, ..clock })
}
