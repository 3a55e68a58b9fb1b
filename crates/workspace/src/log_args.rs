//! Command-line arguments that choose an event log.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use tidegate_events::SchemaId;
use tidegate_lake::runner::OLDEST_MS;
use tidegate_log::{KafkaLog, KafkaOptions, KafkaUrl, TopicConfig};

use crate::CommandError;
use crate::args::time_ms;

/// Partitions of a new topic on Kafka unless `--partitions` is given.
const DEFAULT_PARTITIONS: u32 = 8;

/// Address and credentials of the event log.
#[derive(Debug, Clone, Default, Args)]
pub struct PlaceArgs {
    /// Event log: kafka://HOST:PORT[,HOST:PORT...][/PREFIX] [default: the log in the data folder]
    #[arg(long, value_name = "URL", env = "TIDEGATE_LOG")]
    log: Option<KafkaUrl>,

    /// librdkafka property of the Kafka client, e.g. security.protocol=SASL_SSL; may be given
    /// several times
    #[arg(long = "kafka-property", value_name = "KEY=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,

    /// File with librdkafka properties, one KEY=VALUE a line. Keep passwords here: other users can
    /// read a command line
    #[arg(long, value_name = "FILE", env = "TIDEGATE_KAFKA_CONFIG")]
    kafka_config: Option<PathBuf>,
}

/// The log that a command reads and writes, and the layout of topics that it creates.
#[derive(Debug, Clone, Default, Args)]
pub struct LogArgs {
    /// Address and credentials.
    #[command(flatten)]
    pub place: PlaceArgs,

    /// Partitions of each topic created on Kafka; at most this many processes share the work
    /// [default: 8]
    #[arg(long, value_name = "N", requires = "log", value_parser = clap::value_parser!(u32).range(1..=1000))]
    partitions: Option<u32>,

    /// Days that the log keeps records after they were written, of new topics and of existing ones,
    /// or `forever`. Records that tables or snapshots still need are kept [default for new topics:
    /// 7 for gpu-samples and steps, 400 for others]
    #[arg(long, value_name = "DAYS|forever", value_parser = retention)]
    retain_days: Option<Retention>,

    /// Set aside events before this date, as dead letters; a table has windows from its first event
    /// on. Give every process of a site the same [default: 2010-01-01]
    #[arg(long, value_name = "DATE", env = "TIDEGATE_OLDEST", value_parser = oldest)]
    oldest: Option<i64>,
}

fn oldest(text: &str) -> Result<i64, String> {
    time_ms(text).map_err(|e| e.to_string())
}

/// How long the log keeps records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// Until everybody has passed them and they were written this many days ago.
    Days(u64),
    /// For ever.
    Forever,
}

impl Retention {
    /// As a topic's layout has it.
    pub fn retain_ms(self) -> Option<u64> {
        match self {
            Self::Days(days) => Some(days * 86_400_000),
            Self::Forever => None,
        }
    }

    /// What new topics keep if nobody chooses otherwise.
    pub fn default_of(topic: &str) -> Self {
        let schema = SchemaId::ALL.into_iter().find(|schema| schema.topic() == topic);
        schema.map_or(Self::Forever, |schema| Self::Days(schema.retained_days()))
    }
}

fn retention(text: &str) -> Result<Retention, String> {
    match text.parse::<u64>() {
        Ok(days @ 1..=36_500) => Ok(Retention::Days(days)),
        _ if text == "forever" => Ok(Retention::Forever),
        _ => Err(format!("{text:?} is neither a number of days from 1 to 36500 nor `forever`")),
    }
}

fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err(format!("{text:?} is not KEY=VALUE, e.g. security.protocol=SASL_SSL")),
    }
}

impl PlaceArgs {
    /// The address on Kafka; `None` for the embedded log.
    pub fn kafka(&self) -> Option<&KafkaUrl> {
        self.log.as_ref()
    }

    /// Opens the log on Kafka.
    pub fn open_kafka(&self, url: &KafkaUrl) -> Result<KafkaLog, CommandError> {
        let mut options = KafkaOptions::new(url.clone());
        if let Some(file) = &self.kafka_config {
            options.read_properties(file)?;
        }
        self.properties
            .iter()
            .try_for_each(|(key, value)| options.add_argument(&format!("{key}={value}")))?;
        Ok(KafkaLog::open(options)?)
    }
}

impl LogArgs {
    /// The address on Kafka; `None` for the embedded log.
    pub fn kafka(&self) -> Option<&KafkaUrl> {
        self.place.kafka()
    }

    /// Events before this time are set aside, ms since the epoch.
    pub fn oldest_ms(&self) -> i64 {
        self.oldest.unwrap_or(OLDEST_MS)
    }

    /// Another log on the same Kafka cluster: `-suffix` is appended to the topic prefix. The
    /// embedded log is returned unchanged.
    pub fn in_fresh_prefix(&self, suffix: &str) -> Result<Self, CommandError> {
        let fresh = |url: &KafkaUrl| format!("kafka://{}/{}-{suffix}", url.servers(), url.prefix()).parse();
        let log = self.kafka().map(fresh).transpose()?;
        Ok(Self { place: PlaceArgs { log, ..self.place.clone() }, ..self.clone() })
    }

    /// These arguments as a child process takes them on its command line.
    pub fn arguments(&self) -> Vec<OsString> {
        let Some(url) = self.kafka() else { return Vec::new() };
        let mut arguments: Vec<OsString> = vec!["--log".into(), url.to_string().into()];
        for (key, value) in &self.place.properties {
            arguments.extend(["--kafka-property".into(), format!("{key}={value}").into()]);
        }
        if let Some(file) = &self.place.kafka_config {
            arguments.extend(["--kafka-config".into(), file.into()]);
        }
        if let Some(partitions) = self.partitions {
            arguments.extend(["--partitions".into(), partitions.to_string().into()]);
        }
        arguments
    }

    /// Layout of a topic that this command creates.
    pub fn layout(&self, topic: &str) -> TopicConfig {
        let retain_ms = self.retain_days.unwrap_or_else(|| Retention::default_of(topic)).retain_ms();
        TopicConfig { partitions: self.new_partitions(), retain_ms, retain_bytes: None }
    }

    /// Layout of the topics of jobs, nodes and capacity.
    pub fn topics(&self) -> TopicConfig {
        self.layout(SchemaId::JobEvent.topic())
    }

    /// Partitions of topics that this command creates.
    pub fn new_partitions(&self) -> u32 {
        let on_kafka = self.kafka().is_some();
        if on_kafka { self.partitions.unwrap_or(DEFAULT_PARTITIONS) } else { 1 }
    }

    /// How long existing topics are to keep records, if the command line says so.
    pub fn retention(&self) -> Option<Retention> {
        self.retain_days
    }
}
