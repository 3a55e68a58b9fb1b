//! Where live sources send to: a log in this process, on Kafka, or behind HTTP.

mod http;

use std::sync::Arc;

use tidegate_log::{
    Appended, Batch, DataDir, EmbeddedLog, EmbeddedOptions, EventLog, LogClock, LogError, TopicConfig,
    TopicPartition,
};

pub use http::HttpLog;

/// What of a log one needs to send to it. Calls block until they are done.
pub trait Outlet: Send + Sync {
    /// How many partitions a topic has; it is created where it is missing, if that can be done from
    /// here.
    fn partitions(&self, topic: &str) -> Result<u32, LogError>;

    /// Appends as [`EventLog::append`] does.
    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError>;

    /// As [`EventLog::clock`].
    fn clock(&self) -> Result<Option<LogClock>, LogError>;
}

/// A log that this process has open.
pub struct LogOutlet {
    log: Arc<dyn EventLog>,
    /// Of a topic that is created.
    partitions: u32,
    /// Kept for as long as the log inside is open.
    _folder: Option<DataDir>,
}

impl LogOutlet {
    /// Sends to `log`; a topic that is missing gets so many partitions.
    pub fn new(log: Arc<dyn EventLog>, partitions: u32) -> Self {
        Self { log, partitions, _folder: None }
    }

    /// Sends to the log in a data folder, which nobody else has open meanwhile.
    pub fn of_folder(folder: DataDir) -> Result<Self, LogError> {
        let log = EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?;
        Ok(Self { log: Arc::new(log), partitions: 1, _folder: Some(folder) })
    }

    fn find(&self, topic: &str) -> Result<Option<u32>, LogError> {
        let found = self.log.topics()?.into_iter().find(|(name, _)| name == topic);
        Ok(found.map(|(_, config)| config.partitions))
    }
}

impl Outlet for LogOutlet {
    fn partitions(&self, topic: &str) -> Result<u32, LogError> {
        if let Some(partitions) = self.find(topic)? {
            return Ok(partitions);
        }
        let config = TopicConfig { partitions: self.partitions, retain_ms: None, retain_bytes: None };
        match self.log.create_topic(topic, config) {
            Ok(()) => Ok(self.partitions),
            // Somebody else was first, and wanted another number.
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

impl std::fmt::Debug for LogOutlet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogOutlet").field("partitions", &self.partitions).finish_non_exhaustive()
    }
}
