use std::path::PathBuf;
use std::sync::Arc;

/// Why the log refused or failed.
///
/// Cloneable, because one failed commit answers every append that was waiting for it.
#[derive(Debug, Clone, thiserror::Error)]
#[allow(missing_docs, reason = "the message says what each field is")]
#[non_exhaustive]
pub enum LogError {
    /// The topic does not exist.
    #[error("unknown topic {0}; create it first")]
    UnknownTopic(String),

    /// The topic has no partition of that number.
    #[error("topic {topic} has partitions 0 to {}, there is no partition {partition}", .partitions - 1)]
    UnknownPartition { topic: String, partition: u32, partitions: u32 },

    /// The name cannot name a topic: `what` says why.
    #[error("topic name {topic:?} is refused: {what}")]
    InvalidTopic { topic: String, what: &'static str },

    /// The name of the producer is empty or longer than
    /// [`MAX_SOURCE_BYTES`](crate::MAX_SOURCE_BYTES).
    #[error("a source name of {bytes} bytes is refused; use 1 to {limit} bytes")]
    InvalidSource { bytes: usize, limit: usize },

    /// The topic exists with another number of partitions.
    #[error(
        "topic {topic} exists with {existing} partitions, asked for {wanted}; use the existing number or another topic name"
    )]
    TopicMismatch { topic: String, existing: u32, wanted: u32 },

    /// The Kafka topic no longer has the partitions it was created with, which moves keys.
    #[error(
        "topic {topic} was made with {declared} partitions and has {existing} now: records of one key would stand in two of them. Lay the log out anew under another prefix: import the sources again, or `tidegate log copy --partitions` where they are still in an embedded log"
    )]
    Repartitioned { topic: String, declared: u32, existing: u32 },

    /// A read outside the partition: retention or a trim dropped the offset, or it is past the end.
    #[error("offset {wanted} is outside the readable range {start}..{end}; continue from one of its ends")]
    OffsetOutOfRange { wanted: u64, start: u64, end: u64 },

    /// An append skips sequence numbers of its producer.
    #[error(
        "source {source_name} must go on with sequence number {expected}, got {got}; send the missing records first, or start a new epoch at 0"
    )]
    SequenceGap { source_name: String, expected: u64, got: u64 },

    /// A newer life of the same producer has appended.
    #[error(
        "source {source_name} appended with epoch {got} after epoch {newest}; a newer instance of it is running, stop this one"
    )]
    StaleEpoch { source_name: String, newest: u64, got: u64 },

    /// Another handle raised the generation of writers, see
    /// [`EventLog::fence`](crate::EventLog::fence).
    #[error(
        "this handle writes as generation {held}, the log is at generation {current}; another process took over, stop writing"
    )]
    Fenced { held: u64, current: u64 },

    /// A stored batch does not decode, or its offsets do not continue those before it.
    #[error(
        "topic {topic} partition {partition} is corrupt at offset {offset}: {what}; restore the data folder from a backup, or import the sources again into a new one"
    )]
    Corrupt { topic: String, partition: u32, offset: u64, what: String },

    /// The folder lacks something that was acknowledged, or does not belong together.
    #[error(
        "the log in {} is corrupt: {what}; restore the data folder from a backup, or import the sources again into a new one",
        .dir.display()
    )]
    CorruptStore { dir: PathBuf, what: String },

    /// Key and payload exceed [`MAX_RECORD_BYTES`](crate::MAX_RECORD_BYTES).
    #[error("a record of {bytes} bytes is over the limit of {limit} bytes; split it or store it elsewhere")]
    RecordTooLarge { bytes: usize, limit: usize },

    /// The batch exceeds [`MAX_BATCH_BYTES`](crate::MAX_BATCH_BYTES).
    #[error("a batch of {bytes} bytes is over the limit of {limit} bytes; append it in smaller batches")]
    BatchTooLarge { bytes: usize, limit: usize },

    /// Another process holds the lock of the folder; `pid` is `None` where it is not known.
    #[error("{} is in use by {}; stop it or choose another folder", .dir.display(), holder(.pid))]
    AlreadyOpen { dir: PathBuf, pid: Option<u32> },

    /// The path names a file.
    #[error("{} is a file; data needs a folder of its own, name another path", .path.display())]
    NotAFolder { path: PathBuf },

    /// The folder holds no data of Tidegate.
    #[error("{} holds no data; check the path, or import something into it first", .dir.display())]
    NotADataDir { dir: PathBuf },

    /// A newer version of Tidegate wrote the folder or the topic.
    #[error(
        "{place} is written in format {found}, this program reads up to format {supported}; use a newer tidegate"
    )]
    NewerFormat { place: String, found: u32, supported: u32 },

    /// The disk or the quota is full.
    #[error("no space left under {}; free some and start again, nothing acknowledged is lost", .dir.display())]
    Full { dir: PathBuf },

    /// A file operation failed; `what` says which.
    #[error("{what} failed")]
    Io { what: String, source: Arc<std::io::Error> },

    /// The URL does not parse as a [`KafkaUrl`](crate::KafkaUrl).
    #[error("{url:?} names no Kafka log: {what}; write kafka://HOST:PORT[,HOST:PORT...][/PREFIX]")]
    InvalidKafkaUrl { url: String, what: String },

    /// A property is not of the form `KEY=VALUE`, or a file of properties cannot be read.
    #[error("{property} is no property of Kafka's client; write KEY=VALUE, e.g. security.protocol=SASL_SSL")]
    InvalidKafkaProperty { property: String },

    /// A property that holds a secret was given on the command line.
    #[error(
        "{key} is a secret, which other users see on a command line; write KEY=VALUE into a file and name it with --kafka-config"
    )]
    SecretOnCommandLine { key: String },

    /// No answer from Kafka within the timeout; trying again may help.
    #[error(
        "Kafka at {servers} did not get done in {seconds} s: {doing} ({reason}); check that the address is right, that its brokers run and that their disks are not full. Nothing acknowledged is lost, and an append may be repeated"
    )]
    KafkaUnavailable { servers: String, doing: String, seconds: u64, reason: String },

    /// Kafka refused the request for good; `mend` says what to do.
    #[error("Kafka at {servers} refused {doing}: {reason}; {mend}")]
    KafkaRefused { servers: String, doing: String, reason: String, mend: String },

    /// No answer from the server that takes events over HTTP; trying again may help.
    #[error(
        "{url} did not get done with {doing} ({reason}); check the address, and that `tidegate up --ingest` runs there"
    )]
    ServerUnavailable { url: String, doing: String, reason: String },

    /// The server that takes events over HTTP refused the request for good.
    #[error("{url} refused {doing}: {reason}")]
    ServerRefused { url: String, doing: String, reason: String },

    /// The target of a copy holds something else than the beginning of this copy.
    #[error("topic {topic} partition {partition} cannot be copied at offset {offset}: {what}")]
    NoCopy { topic: String, partition: u32, offset: u64, what: String },

    /// An earlier write failed, so the state on disk is unknown until the log is opened again.
    #[error("the log stopped after an earlier write failed ({reason}); mend the cause and start again")]
    Stopped { reason: String },
}

impl LogError {
    /// Whether waiting may help: the log cannot be reached right now.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::KafkaUnavailable { .. } | Self::ServerUnavailable { .. })
    }

    /// An I/O error with the operation, e.g. `writing data/FORMAT`; a full disk is [`Self::Full`].
    pub(crate) fn io(dir: &std::path::Path, what: impl Into<String>, source: std::io::Error) -> Self {
        use std::io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match source.kind() {
            StorageFull | QuotaExceeded | FileTooLarge => Self::Full { dir: dir.to_path_buf() },
            _ => Self::Io { what: what.into(), source: Arc::new(source) },
        }
    }
}

fn holder(pid: &Option<u32>) -> String {
    pid.map_or_else(|| "another process".into(), |pid| format!("process {pid}"))
}
