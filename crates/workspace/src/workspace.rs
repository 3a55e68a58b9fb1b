//! [`Workspace`]: a data folder and its log, opened for writing.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_events::SchemaId;
use tidegate_lake::engine::Limits;
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::pipeline::{Pipeline, Plan};
use tidegate_lake::runner::{Pace, Runner};
use tidegate_log::poison::DeathWatch;
use tidegate_log::{DataDir, EmbeddedLog, EmbeddedOptions, EventLog, KafkaLog, TopicConfig};

use crate::CommandError;
use crate::folder::lake_url;
use crate::log_args::LogArgs;
use crate::origin::{Origin, consumer_group, read_origin, reader_group, write_origin};

/// Subfolder where a lake is rebuilt before it replaces the one in use.
const REBUILT_LAKE: &str = "lake.rebuilt";

/// Subfolder of snapshots.
pub const SNAPSHOTS: &str = "snapshots";

/// Subfolder where readers note what they died of.
pub const DEATHS: &str = "deaths";

/// A data folder opened for writing, with its event log.
///
/// With the embedded log this process is the only writer of the folder. With the log on Kafka, any
/// number of processes share the work.
pub struct Workspace {
    /// The locked folder.
    pub folder: DataDir,
    /// The embedded log, or the one on Kafka.
    pub log: Arc<dyn EventLog>,
    args: LogArgs,
    origin: Option<Origin>,
    sharing: Sharing,
}

impl std::fmt::Debug for Workspace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { folder, args, origin, sharing, .. } = self;
        let mut shown = f.debug_struct("Workspace");
        shown.field("folder", folder).field("args", args).field("origin", origin);
        shown.field("sharing", sharing).finish_non_exhaustive()
    }
}

impl Workspace {
    /// Opens the folder to maintain its tables. Fails if they were computed from another log.
    pub fn open(data: &Path, log: &LogArgs) -> Result<Self, CommandError> {
        let sharing = if log.kafka().is_some() { Sharing::Shared } else { Sharing::Exclusive };
        let opened = Self::open_as(data, log, sharing)?;
        opened.check_origin()?;
        if opened.origin.is_some() {
            write_origin(opened.folder.path(), opened.origin.as_ref())?;
        }
        Ok(opened)
    }

    /// Opens the folder to rebuild its tables. No other process may have it open; the present
    /// tables may come from another log.
    pub fn open_alone(data: &Path, log: &LogArgs) -> Result<Self, CommandError> {
        Self::open_as(data, log, Sharing::Exclusive)
    }

    fn open_as(data: &Path, args: &LogArgs, sharing: Sharing) -> Result<Self, CommandError> {
        // Connect first: an unreachable address must not leave an empty folder behind.
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
        let (log, origin): (Arc<dyn EventLog>, _) = match kafka {
            Some((log, prefix)) => {
                let origin = Origin::new(&log, &prefix)?;
                (Arc::new(log), Some(origin))
            }
            None => (Arc::new(EmbeddedLog::open(folder.log(), EmbeddedOptions::default())?), None),
        };
        Ok(Self { folder, log, args: args.clone(), origin, sharing })
    }

    /// Opens the lake and attaches it to the log.
    pub async fn runner(&self, pipelines: Vec<Pipeline>, pace: Pace) -> Result<Runner, CommandError> {
        self.runner_of(Plan::compile(pipelines).await?, pace).await
    }

    /// Records that the tables of a folder, computed from its embedded log, continue from a copy of
    /// that log on Kafka with the same offsets.
    pub fn move_origin(folder: &DataDir, log: &KafkaLog, prefix: &str) -> Result<(), CommandError> {
        write_origin(folder.path(), Some(&Origin::new(log, prefix)?))
    }

    /// As [`Workspace::runner`], with a plan that was compiled before the folder was opened.
    pub async fn runner_of(&self, plan: Plan, pace: Pace) -> Result<Runner, CommandError> {
        let lake = Lake::open(&lake_url(&self.folder)?, plan, Limits::default(), self.sharing).await?;
        let pace = Pace { oldest_ms: self.oldest_ms(), ..pace };
        let group = consumer_group(self.folder.path())?;
        let runner = Runner::start(Arc::clone(&self.log), &group, lake, pace).await?;
        Ok(runner.watched_by(DeathWatch::begin(&self.deaths(), "tables")))
    }

    /// Events before this time are set aside, ms since the epoch.
    pub fn oldest_ms(&self) -> i64 {
        self.args.oldest_ms()
    }

    /// Creates the topics that are missing, and sets how long existing ones keep records if the
    /// command line says so.
    pub fn create_topics(&self) -> Result<(), CommandError> {
        let mut existing: BTreeMap<String, TopicConfig> = self.log.topics()?.into_iter().collect();
        for topic in SchemaId::ALL.map(SchemaId::topic) {
            match (existing.get(topic), self.args.retention()) {
                (None, _) => {
                    // Schemas may share a topic.
                    let layout = self.args.layout(topic);
                    self.log.create_topic(topic, layout)?;
                    existing.insert(topic.into(), layout);
                }
                (Some(config), Some(chosen)) if config.retain_ms != chosen.retain_ms() => {
                    self.log.set_retention(topic, chosen.retain_ms())?;
                }
                (Some(_), _) => {}
            }
        }
        Ok(())
    }

    /// Folder of the snapshots of those who read the log and keep state in memory.
    pub fn snapshots(&self) -> PathBuf {
        self.folder.path().join(SNAPSHOTS)
    }

    /// Folder where readers of the log note what they work on, and what they died of.
    pub fn deaths(&self) -> PathBuf {
        self.folder.path().join(DEATHS)
    }

    /// Name under which such a reader says on the log how far its snapshots in this folder reach.
    pub fn reader_group(&self, reader: &str) -> Result<String, CommandError> {
        reader_group(self.folder.path(), reader)
    }

    /// Folder in which a lake is rebuilt. An existing one is left over from an interrupted rebuild
    /// or swap.
    pub fn rebuilt_lake(&self) -> PathBuf {
        self.folder.path().join(REBUILT_LAKE)
    }

    /// Replaces the lake in use with the rebuilt one, atomically: a complete lake exists at any
    /// instant.
    pub fn swap_in_rebuilt_lake(&self) -> Result<(), CommandError> {
        let (lake, rebuilt) = (self.folder.lake(), self.rebuilt_lake());
        // The new tables must be on disk before the old ones are removed.
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

    /// Offsets belong to one log, so tables must continue from the log they were computed from.
    fn check_origin(&self) -> Result<(), CommandError> {
        let data = self.folder.path().display();
        let mut stored = read_origin(self.folder.path())?;
        let has_tables = fs::read_dir(self.folder.lake())?.next().is_some();
        if stored.is_none() && has_tables {
            // Another process may have just created the folder. It writes the origin before any
            // table, so read it again.
            stored = read_origin(self.folder.path())?;
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

fn remove_folder(folder: &Path) -> Result<(), CommandError> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != ErrorKind::NotFound => Err(format!("remove {}: {e}", folder.display()).into()),
        _ => Ok(()),
    }
}
