//! Log sinks: where the agent delivers records. A log in this process, on Kafka, or behind HTTP.

mod http;

use std::sync::Arc;

use tidegate_events::SchemaId;
use tidegate_log::{
    Appended, Batch, DataDir, EmbeddedLog, EmbeddedOptions, EventLog, LogClock, LogError, TopicConfig,
    TopicPartition,
};

pub use http::{HttpLogSink, Identity, Roots};

/// The part of a log that delivery needs. Calls block until they are done.
pub trait LogSink: Send + Sync {
    /// Number of partitions of a topic. A missing topic is created where that is possible.
    ///
    /// # Errors
    /// [`LogError`] if the log cannot be reached or lacks the topic.
    fn partitions(&self, topic: &str) -> Result<u32, LogError>;

    /// Appends a batch; see [`EventLog::append`].
    ///
    /// # Errors
    /// As [`EventLog::append`].
    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError>;

    /// The log's clock; see [`EventLog::clock`].
    ///
    /// # Errors
    /// As [`EventLog::clock`].
    fn clock(&self) -> Result<Option<LogClock>, LogError>;
}

/// A log that this process has open itself.
pub struct DirectLogSink {
    log: Arc<dyn EventLog>,
    /// Partitions of a topic that it creates.
    partitions: u32,
    /// Held for as long as the log inside is open.
    _folder: Option<DataDir>,
}

impl DirectLogSink {
    /// Delivers to `log`; a missing topic gets so many partitions.
    pub fn new(log: Arc<dyn EventLog>, partitions: u32) -> Self {
        Self { log, partitions, _folder: None }
    }

    /// Opens the log in a data folder, which nobody else may have open.
    ///
    /// # Errors
    /// [`LogError`] if the log cannot be opened.
    pub fn open_folder(folder: DataDir) -> Result<Self, LogError> {
        let log = EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?;
        Ok(Self { log: Arc::new(log), partitions: 1, _folder: Some(folder) })
    }

    fn find(&self, topic: &str) -> Result<Option<u32>, LogError> {
        let found = self.log.topics()?.into_iter().find(|(name, _)| name == topic);
        Ok(found.map(|(_, config)| config.partitions))
    }
}

impl LogSink for DirectLogSink {
    fn partitions(&self, topic: &str) -> Result<u32, LogError> {
        if let Some(partitions) = self.find(topic)? {
            return Ok(partitions);
        }
        let days =
            SchemaId::ALL.into_iter().find(|schema| schema.topic() == topic).map(SchemaId::retained_days);
        let retain_ms = days.map(|days| days * 86_400_000);
        let config = TopicConfig { partitions: self.partitions, retain_ms, retain_bytes: None };
        match self.log.create_topic(topic, config) {
            Ok(()) => Ok(self.partitions),
            // Another process created it first, with another number.
            Err(LogError::TopicMismatch { existing, .. }) => Ok(existing),
            Err(error) => Err(error),
        }
    }

    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        self.log.append(at, batch)
    }

    fn clock(&self) -> Result<Option<LogClock>, LogError> {
        self.log.clock()
    }
}

impl std::fmt::Debug for DirectLogSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectLogSink").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}
