//! Callbacks of producers: where messages of a transaction went, and the errors of the client.

use std::sync::Mutex;
use std::time::Duration;

use rdkafka::ClientContext;
use rdkafka::config::{FromClientConfigAndContext, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::message::Message;
use rdkafka::producer::{self, BaseProducer, DeliveryResult, Producer};

use super::client_errors::ClientErrors;
use super::options::KafkaOptions;
use super::record::offset;
use crate::check::lock;

/// Tells the messages of a batch from those that go with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub(super) enum Role {
    Beside = 0,
    Data = 1,
}

/// Where the messages of a transaction went.
#[derive(Debug, Clone, Default)]
pub(super) struct Delivered {
    /// Offsets of the first and last message of [`Role::Data`].
    pub data: Option<(u64, u64)>,
    pub failed: Option<KafkaError>,
}

/// Callbacks of a producer: logs, errors, deliveries.
pub(super) struct ProducerContext {
    pub errors: ClientErrors,
    pub delivered: Mutex<Delivered>,
}

impl ClientContext for ProducerContext {
    /// The library reports it as an error when another process takes over an id. That is normal
    /// here, and the result of the append covers it.
    fn log(&self, _: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::info!(target: "kafka", facility, "{message}");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.errors.record(&error, reason);
    }
}

impl producer::ProducerContext for ProducerContext {
    type DeliveryOpaque = usize;

    fn delivery(&self, result: &DeliveryResult<'_>, role: usize) {
        let delivered = &mut *lock(&self.delivered);
        match result {
            Ok(message) if role == Role::Data as usize => {
                let at = offset(message.offset());
                let (first, last) = delivered.data.unwrap_or((at, at));
                delivered.data = Some((first.min(at), last.max(at)));
            }
            Ok(_) => {}
            Err((error, _)) => drop(delivered.failed.get_or_insert_with(|| error.clone())),
        }
    }
}

/// Connects once more as a producer, because that client reports the reason of a failed connection.
pub(super) fn probe_refusal(options: &KafkaOptions, errors: &ClientErrors) {
    let context = ProducerContext { errors: errors.clone(), delivered: Mutex::default() };
    let producer: Result<BaseProducer<ProducerContext>, _> =
        BaseProducer::from_config_and_context(&options.admin(), context);
    let Ok(producer) = producer else { return };
    if producer.client().fetch_metadata(None, Duration::from_millis(500)).is_err() {
        (0..4).for_each(|_| producer.poll(Duration::from_millis(50)));
    }
}
