//! The origin of a folder's tables: which Kafka log they are computed from (`kafka.json`).

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegate_lake::runner::CONSUMER_GROUP;
use tidegate_log::KafkaLog;

use crate::CommandError;

/// Absent where the tables come from the embedded log of the same folder.
const ORIGIN_FILE: &str = "kafka.json";

/// Identifies a log on Kafka, independent of its address, and the lake computed from it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub cluster: String,
    pub prefix: String,
    /// Random id that distinguishes lakes of the same log. Processes that maintain this lake form
    /// a consumer group named after it.
    pub lake: String,
}

impl Origin {
    pub fn new(log: &KafkaLog, prefix: &str) -> Result<Self, CommandError> {
        let lake = format!("{:08x}", rand::random::<u32>());
        Ok(Self { cluster: log.cluster_id()?, prefix: prefix.into(), lake })
    }

    pub fn is_same_log(&self, other: &Self) -> bool {
        (&self.cluster, &self.prefix) == (&other.cluster, &other.prefix)
    }
}

/// Consumer group of the processes that maintain the tables in a folder.
pub fn consumer_group(data: &Path) -> Result<String, CommandError> {
    Ok(match read_origin(data)? {
        Some(origin) => format!("{CONSUMER_GROUP}-{}", origin.lake),
        None => CONSUMER_GROUP.into(),
    })
}

/// Consumer group of a reader that keeps its snapshots in a folder.
pub fn reader_group(data: &Path, reader: &str) -> Result<String, CommandError> {
    Ok(match read_origin(data)? {
        Some(origin) => format!("tidegate-{reader}-{}", origin.lake),
        None => format!("tidegate-{reader}"),
    })
}

pub fn read_origin(data: &Path) -> Result<Option<Origin>, CommandError> {
    let file = data.join(ORIGIN_FILE);
    match fs::read(&file) {
        Ok(json) => {
            let parsed = serde_json::from_slice(&json);
            Ok(Some(parsed.map_err(|e| format!("{} is damaged: {e}", file.display()))?))
        }
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(format!("read {}: {e}", file.display()).into()),
    }
}

/// Records which log the tables of a folder are computed from; `None` is the embedded one.
pub fn write_origin(data: &Path, origin: Option<&Origin>) -> Result<(), CommandError> {
    let file = data.join(ORIGIN_FILE);
    let Some(origin) = origin else {
        return match fs::remove_file(&file) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(format!("remove {}: {e}", file.display()).into())
            }
            _ => Ok(()),
        };
    };
    let stored = read_origin(data)?;
    if stored.as_ref().is_some_and(|stored| stored.is_same_log(origin)) {
        return Ok(());
    }
    let mut aside = tempfile::NamedTempFile::new_in(data)?;
    serde_json::to_writer(&mut aside, origin)?;
    aside.as_file().sync_all()?;
    let written = match stored {
        Some(_) => aside.persist(&file),
        // Processes may share a new folder: the first one writes the file, all use it.
        None => aside.persist_noclobber(&file),
    };
    match written {
        Err(e) if e.error.kind() != ErrorKind::AlreadyExists => {
            Err(format!("write {}: {e}", file.display()).into())
        }
        _ => Ok(()),
    }
}
