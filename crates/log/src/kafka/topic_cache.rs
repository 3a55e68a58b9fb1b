//! Topics that this handle has seen, or that the log's own records declare.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Instant;

/// By the topic's name in Kafka.
pub(super) type TopicCache = Mutex<HashMap<String, TopicState>>;

pub(super) enum TopicState {
    /// It has this many partitions.
    There(u32),
    /// It existed, and since this moment the brokers do not know it.
    Missing(Instant),
}
