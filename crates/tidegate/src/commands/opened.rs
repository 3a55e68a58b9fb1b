//! A data folder and its log, opened for writing.

use std::ffi::OsString;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde::{Deserialize, Serialize};
use tidegate_events::SchemaId;
use tidegate_lake::engine::Limits;
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::pipeline::Pipeline;
use tidegate_lake::pipeline::Plan;
use tidegate_lake::runner::{CONSUMER_GROUP, Pace, Runner};
use tidegate_log::{
    DataDir, EmbeddedLog, EmbeddedOptions, EventLog, KafkaLog, KafkaOptions, KafkaUrl, TopicConfig,
};

use super::{CommandError, lake_url};

/// A lake under construction, in the data folder.
const REBUILT_LAKE: &str = "lake.rebuilt";
/// Which log on Kafka the folder's tables are computed from; absent for the log in the folder
/// itself.
const ORIGIN: &str = "kafka.json";
/// Partitions of a topic on Kafka where nobody says how many.
const DEFAULT_PARTITIONS: u32 = 8;

/// Where the log is.
#[derive(Debug, Clone, Default, Args)]
pub struct PlaceArgs {
    /// Event log: kafka://HOST:PORT[,HOST:PORT...][/PREFIX]; by default the one in the data folder
    #[arg(long, value_name = "URL", env = "TIDEGATE_LOG")]
    log: Option<KafkaUrl>,

    /// librdkafka property of the Kafka client, e.g. security.protocol=SASL_SSL; may be given
    /// several times
    #[arg(long = "kafka-property", value_name = "KEY=VALUE", value_parser = property)]
    properties: Vec<(String, String)>,

    /// File with librdkafka properties, a KEY=VALUE on each line; for passwords, which other users
    /// see on a command line
    #[arg(long, value_name = "FILE", env = "TIDEGATE_KAFKA_CONFIG")]
    kafka_config: Option<PathBuf>,
}

/// Which log a command reads and writes, and how it lays out what is not there yet.
#[derive(Debug, Clone, Default, Args)]
pub struct LogArgs {
    #[command(flatten)]
    pub place: PlaceArgs,

    /// Partitions of each topic that is created on Kafka: at most so many processes share the work
    /// [default: 8]
    #[arg(long, value_name = "N", requires = "log", value_parser = clap::value_parser!(u32).range(1..=1000))]
    partitions: Option<u32>,

    /// How long topics that are created keep records after they were written; what tables lack is
    /// kept [default: for ever]
    #[arg(long, value_name = "DAYS", value_parser = clap::value_parser!(u64).range(1..=36500))]
    retain_days: Option<u64>,
}

fn property(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().into(), value.trim().into())),
        _ => Err(format!("{text:?} is not KEY=VALUE, e.g. security.protocol=SASL_SSL")),
    }
}

impl PlaceArgs {
    /// The address on Kafka, where there is one.
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
    /// The address on Kafka, where there is one.
    pub fn kafka(&self) -> Option<&KafkaUrl> {
        self.place.kafka()
    }

    /// The same cluster, another log: its prefix has `suffix` at the end. Without Kafka it is the
    /// same.
    pub fn in_fresh_prefix(&self, suffix: &str) -> Result<Self, CommandError> {
        let fresh = |url: &KafkaUrl| format!("kafka://{}/{}-{suffix}", url.servers(), url.prefix()).parse();
        let log = self.kafka().map(fresh).transpose()?;
        Ok(Self { place: PlaceArgs { log, ..self.place.clone() }, ..self.clone() })
    }

    /// The same, as another process takes it on its command line.
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

    /// How topics are laid out that this command creates.
    pub fn topics(&self) -> TopicConfig {
        let on_kafka = self.kafka().is_some();
        let partitions = if on_kafka { self.partitions.unwrap_or(DEFAULT_PARTITIONS) } else { 1 };
        let retain_ms = self.retain_days.map(|days| days * 86_400_000);
        TopicConfig { partitions, retain_ms, retain_bytes: None }
    }
}

/// Names a log on Kafka, whatever address it is reached by, and the lake that is computed from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Origin {
    cluster: String,
    prefix: String,
    /// Tells this lake from others of the same log: processes that keep it are a consumer group of
    /// that name.
    lake: String,
}

impl Origin {
    fn of(log: &KafkaLog, prefix: &str) -> Result<Self, CommandError> {
        let lake = format!("{:08x}", rand::random::<u32>());
        Ok(Self { cluster: log.cluster_id()?, prefix: prefix.into(), lake })
    }

    fn is_same_log(&self, other: &Self) -> bool {
        (&self.cluster, &self.prefix) == (&other.cluster, &other.prefix)
    }
}

/// The consumer group of those who keep the tables in a folder.
pub fn group_of(data: &Path) -> Result<String, CommandError> {
    Ok(match stored_origin(data)? {
        Some(origin) => format!("{CONSUMER_GROUP}-{}", origin.lake),
        None => CONSUMER_GROUP.into(),
    })
}

/// A data folder opened for writing, with its log. With the log inside, no other process writes to
/// the folder meanwhile; with the log on Kafka, any number of them share the work.
pub struct Opened {
    pub folder: DataDir,
    pub log: Arc<dyn EventLog>,
    topics: TopicConfig,
    origin: Option<Origin>,
    sharing: Sharing,
}

impl Opened {
    /// Opens the folder to keep its tables.
    pub fn open(data: &Path, log: &LogArgs) -> Result<Self, CommandError> {
        let sharing = if log.kafka().is_some() { Sharing::Shared } else { Sharing::Exclusive };
        let opened = Self::open_as(data, log, sharing)?;
        opened.check_origin()?;
        if opened.origin.is_some() {
            write_origin(opened.folder.path(), opened.origin.as_ref())?;
        }
        Ok(opened)
    }

    /// Opens the folder to replace its tables: nobody else may have it open, and the old ones may
    /// be of another log.
    pub fn open_alone(data: &Path, log: &LogArgs) -> Result<Self, CommandError> {
        Self::open_as(data, log, Sharing::Exclusive)
    }

    fn open_as(data: &Path, args: &LogArgs, sharing: Sharing) -> Result<Self, CommandError> {
        // An address where nobody answers leaves no folder behind.
        let kafka =
            args.kafka().map(|url| args.place.open_kafka(url).map(|log| (log, url.prefix().to_owned())));
        let kafka = kafka.transpose()?;
        let folder = match sharing {
            Sharing::Exclusive => DataDir::open(data)?,
            Sharing::Shared => DataDir::open_beside(data)?,
        };
        if sharing == Sharing::Exclusive {
            remove_folder(&folder.path().join(REBUILT_LAKE))?;
        }
        let topics = args.topics();
        let (log, origin): (Arc<dyn EventLog>, _) = match kafka {
            Some((log, prefix)) => {
                let origin = Origin::of(&log, &prefix)?;
                (Arc::new(log), Some(origin))
            }
            None => (Arc::new(EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?), None),
        };
        Ok(Self { folder, log, topics, origin, sharing })
    }

    /// Opens the lake and attaches it to the log.
    pub async fn runner(&self, pipelines: Vec<Pipeline>, pace: Pace) -> Result<Runner, CommandError> {
        self.runner_of(Plan::compile(pipelines).await?, pace).await
    }

    /// Notes that the tables in a folder, which were of the log inside, go on from this log on
    /// Kafka, offset for offset.
    pub fn move_origin(folder: &DataDir, log: &KafkaLog, prefix: &str) -> Result<(), CommandError> {
        write_origin(folder.path(), Some(&Origin::of(log, prefix)?))
    }

    /// As [`Opened::runner`], with pipelines that were checked before the folder was opened.
    pub async fn runner_of(&self, plan: Plan, pace: Pace) -> Result<Runner, CommandError> {
        let lake = Lake::open(&lake_url(&self.folder)?, plan, Limits::default(), self.sharing).await?;
        Ok(Runner::start(Arc::clone(&self.log), &group_of(self.folder.path())?, lake, pace).await?)
    }

    /// Creates the topics that are missing.
    pub fn create_topics(&self) -> Result<(), CommandError> {
        let existing: Vec<String> = self.log.topics()?.into_iter().map(|(topic, _)| topic).collect();
        for topic in SchemaId::ALL.map(SchemaId::topic) {
            if !existing.iter().any(|name| name == topic) {
                self.log.create_topic(topic, self.topics)?;
            }
        }
        Ok(())
    }

    /// Where a lake is built anew. A folder of this name is left over from an interrupted try, or
    /// from before a swap.
    pub fn rebuilt_lake(&self) -> PathBuf {
        self.folder.path().join(REBUILT_LAKE)
    }

    /// Puts the rebuilt lake in the place of the one in use, in one step: at any instant there is a
    /// complete one.
    pub fn swap_in_rebuilt_lake(&self) -> Result<(), CommandError> {
        let (lake, rebuilt) = (self.folder.lake(), self.rebuilt_lake());
        // What takes the place of the old tables must be on the disk before the old ones go.
        rustix::fs::sync();
        rustix::fs::renameat_with(
            rustix::fs::CWD,
            &rebuilt,
            rustix::fs::CWD,
            &lake,
            rustix::fs::RenameFlags::EXCHANGE,
        )
        .map_err(|e| format!("swap {} and {}: {e}", rebuilt.display(), lake.display()))?;
        write_origin(self.folder.path(), self.origin.as_ref())?;
        remove_folder(&rebuilt)
    }

    /// Offsets mean something in one log only, so tables go on from the log they came from.
    fn check_origin(&self) -> Result<(), CommandError> {
        let data = self.folder.path().display();
        let mut stored = stored_origin(self.folder.path())?;
        let has_tables = fs::read_dir(self.folder.lake())?.next().is_some();
        if stored.is_none() && has_tables {
            // Another process may have begun with the same folder a moment ago, and notes the log
            // before it makes tables.
            stored = stored_origin(self.folder.path())?;
        }
        match (stored, &self.origin) {
            (None, None) => Ok(()),
            (Some(stored), Some(origin)) if stored.is_same_log(origin) => Ok(()),
            (Some(stored), Some(origin)) => Err(format!(
                "the tables in {data} are of the log {:?} on Kafka cluster {}, this is {:?} on cluster {}; check the address, \
                 choose another --data, or rebuild them from this log with `tidegate pipeline backfill`",
                stored.prefix, stored.cluster, origin.prefix, origin.cluster
            )
            .into()),
            (Some(stored), None) => Err(format!(
                "the tables in {data} are of a log on Kafka (prefix {:?}); name it with --log kafka://HOST:PORT/{}",
                stored.prefix, stored.prefix
            )
            .into()),
            (None, _) if !has_tables => Ok(()),
            (None, _) => Err(format!(
                "the tables in {data} are of the log in that folder; move it with `tidegate log copy --to kafka://...`, or \
                 choose another --data"
            )
            .into()),
        }
    }
}

fn stored_origin(data: &Path) -> Result<Option<Origin>, CommandError> {
    let file = data.join(ORIGIN);
    match fs::read(&file) {
        Ok(json) => {
            let parsed = serde_json::from_slice(&json);
            Ok(Some(parsed.map_err(|e| format!("{} is damaged: {e}", file.display()))?))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("read {}: {e}", file.display()).into()),
    }
}

/// Notes which log the tables of a folder are of from now on; `None` is the one in the folder.
fn write_origin(data: &Path, origin: Option<&Origin>) -> Result<(), CommandError> {
    let file = data.join(ORIGIN);
    let Some(origin) = origin else {
        return match fs::remove_file(&file) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(format!("remove {}: {e}", file.display()).into())
            }
            _ => Ok(()),
        };
    };
    let stored = stored_origin(data)?;
    if stored.as_ref().is_some_and(|stored| stored.is_same_log(origin)) {
        return Ok(());
    }
    let mut aside = tempfile::NamedTempFile::new_in(data)?;
    serde_json::to_writer(&mut aside, origin)?;
    aside.as_file().sync_all()?;
    let written = match stored {
        Some(_) => aside.persist(&file),
        // Of processes that share a new folder one is first, and all take what it wrote.
        None => aside.persist_noclobber(&file),
    };
    match written {
        Err(e) if e.error.kind() != ErrorKind::AlreadyExists => {
            Err(format!("write {}: {e}", file.display()).into())
        }
        _ => Ok(()),
    }
}

fn remove_folder(folder: &Path) -> Result<(), CommandError> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(format!("remove {}: {e}", folder.display()).into()),
        _ => Ok(()),
    }
}
