//! Kafka does what every log must do.

use std::sync::Arc;

use tidegate_log::{EventLog, KafkaLog, KafkaOptions};
use tidegate_testing::conformance::Harness;
use tidegate_testing::conformance_suite;

use crate::broker;

struct Kafka {
    options: KafkaOptions,
}

impl Kafka {
    /// A log under a prefix of its own: generations are a log's, and a case that raises one must
    /// not stop another.
    fn new() -> Option<Self> {
        Some(Self { options: broker::options(&broker::shared()?) })
    }
}

impl Harness for Kafka {
    fn handle(&self) -> Arc<dyn EventLog> {
        Arc::new(KafkaLog::open(self.options.clone()).unwrap())
    }

    /// The cases drop their handles, and a new handle shares nothing with them.
    fn reopen(&mut self) {}

    /// Bytes are left to the broker.
    fn retention_is_immediate(&self) -> bool {
        false
    }
}

conformance_suite!(match Kafka::new() {
    Some(kafka) => kafka,
    None => return,
});
