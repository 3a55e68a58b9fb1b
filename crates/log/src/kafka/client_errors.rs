//! Errors of the Kafka client in the log's terms: what the library reports, and whether a retry can
//! help.

use std::sync::{Arc, Mutex};

use rdkafka::client::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use super::options::KafkaOptions;
use crate::LogError;
use crate::check::lock;

/// Keeps the library's last error callback, which says more than the error that its calls return.
#[derive(Debug, Clone, Default)]
pub(super) struct ClientErrors(Arc<Mutex<Option<ClientError>>>);

#[derive(Debug)]
struct ClientError {
    code: Option<Code>,
    reason: String,
}

impl ClientErrors {
    pub fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        match level {
            RDKafkaLogLevel::Emerg
            | RDKafkaLogLevel::Alert
            | RDKafkaLogLevel::Critical
            | RDKafkaLogLevel::Error => tracing::warn!(target: "kafka", facility, "{message}"),
            // The library recovers from these by itself, for example when another process takes
            // over an id; callers get our own error.
            RDKafkaLogLevel::Warning => tracing::info!(target: "kafka", facility, "{message}"),
            _ => tracing::debug!(target: "kafka", facility, "{message}"),
        }
    }

    pub fn record(&self, error: &KafkaError, reason: &str) {
        tracing::debug!(target: "kafka", %error, "{reason}");
        // "All brokers down" hides the reason of the last one, and the end of a partition is no
        // error.
        if !matches!(error.rdkafka_error_code(), Some(Code::AllBrokersDown | Code::PartitionEOF)) {
            *lock(&self.0) = Some(ClientError { code: error.rdkafka_error_code(), reason: reason.into() });
        }
    }

    pub fn last(&self) -> Option<String> {
        lock(&self.0).as_ref().map(|error| error.reason.clone())
    }

    /// The last error, if waiting cannot fix it.
    pub fn refusal(&self) -> Option<(String, &'static str)> {
        let last = lock(&self.0);
        let error = last.as_ref()?;
        match kind(error.code?) {
            Kind::Refused(mend) => Some((error.reason.clone(), mend)),
            _ => None,
        }
    }

    pub fn forget(&self) {
        *lock(&self.0) = None;
    }
}

/// Callbacks of a client that only sends requests.
pub(super) struct Context(pub ClientErrors);

impl ClientContext for Context {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.0.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        self.0.record(&error, reason);
    }
}

impl ConsumerContext for Context {}

/// Why a request failed, and whether a retry can help.
pub(super) enum Kind {
    Refused(&'static str),
    UnknownTopic,
    Passing,
}

pub(super) fn refused(options: &KafkaOptions, doing: &str, error: &KafkaError, mend: &str) -> LogError {
    let servers = options.url.servers().into();
    LogError::KafkaRefused { servers, doing: doing.into(), reason: error.to_string(), mend: mend.into() }
}

/// Whether asking again can help.
pub(super) fn is_passing(error: &KafkaError) -> bool {
    code(error).is_some_and(|code| matches!(kind(code), Kind::Passing))
}

/// The code of an error. The crate exposes none for the answer to an administrative request.
pub(super) fn code(error: &KafkaError) -> Option<Code> {
    match error {
        KafkaError::AdminOp(code) => Some(*code),
        _ => error.rdkafka_error_code(),
    }
}

pub(super) fn kind(code: Code) -> Kind {
    match code {
        Code::TopicAuthorizationFailed => Kind::Refused(
            "grant this user Read, Write, Describe, Create and Alter on topics that begin with the prefix",
        ),
        Code::GroupAuthorizationFailed => {
            Kind::Refused("grant this user Read and Describe on consumer groups that begin with the prefix")
        }
        Code::TransactionalIdAuthorizationFailed => Kind::Refused(
            "grant this user Write and Describe on transactional ids that begin with the prefix",
        ),
        Code::ClusterAuthorizationFailed => {
            Kind::Refused("grant this user what it lacks on the cluster, or create the topic by hand")
        }
        Code::Authentication
        | Code::SaslAuthenticationFailed
        | Code::UnsupportedSASLMechanism
        | Code::IllegalSASLState => Kind::Refused("check the properties security.protocol and sasl.*"),
        Code::MessageSizeTooLarge | Code::InvalidMessageSize => Kind::Refused(
            "raise max.message.bytes of the topic to 8454144, as topics made by tidegate have it",
        ),
        Code::InvalidReplicationFactor => Kind::Refused("ask for no more copies than there are brokers"),
        Code::InvalidTopic | Code::PolicyViolation | Code::InvalidConfig | Code::InvalidPartitions => {
            Kind::Refused("the cluster's rules do not allow it; change them or create the topic by hand")
        }
        Code::InvalidTransactionTimeout => {
            Kind::Refused("set a transaction timeout that the broker's transaction.max.timeout.ms allows")
        }
        Code::UnsupportedVersion | Code::UnsupportedFeature => {
            Kind::Refused("use a Kafka of version 2.5 or newer")
        }
        Code::SSL => Kind::Refused(
            "check that security.protocol is what this port speaks, that ssl.ca.location names the authority of the brokers' certificate, and that it is made out for this host name",
        ),
        Code::BadMessage | Code::InvalidMessage | Code::BadCompression => {
            Kind::Refused("the partition is damaged; restore it from a replica")
        }
        Code::UnknownTopic | Code::UnknownTopicOrPartition | Code::UnknownPartition => Kind::UnknownTopic,
        _ => Kind::Passing,
    }
}
