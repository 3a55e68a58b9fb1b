//! What bounds a table on disk, written into the table's own properties: other Delta tools heed
//! them, and `tidegate status` tells them without asking the process that writes.

use std::collections::HashMap;

use chrono::Duration;
use deltalake::DeltaTableError;
use futures::TryStreamExt;
use hashbrown::HashSet;

use super::log::without_log_cleanup;
use super::{DeltaStore, FileTotal};
use crate::error::Result;

/// How long checkpoints name replaced files. Delta's default is a week: every segment that is
/// rewritten leaves such a file, and every checkpoint would name all of them.
const REPLACED: &str = "delta.deletedFileRetentionDuration";
const LOG: &str = "delta.logRetentionDuration";
/// Delta's compaction shortens the log by the limit of the log, and knows nothing of versions that
/// joined tables have yet to work off. So it must leave the log alone.
const CLEANUP: &str = "delta.enableExpiredLogCleanup";
const ROWS: &str = "tidegate.keepRows";

/// How long a table keeps what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Files after they were replaced.
    pub replaced: Duration,
    /// Versions of the log.
    pub log: Duration,
    /// Rows; `None` if for ever.
    pub rows: Option<Duration>,
}

/// What a table takes on disk.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableDisk {
    /// Name of the table.
    pub table: String,
    /// Data files of the newest version.
    pub live: FileTotal,
    /// Data files that are no longer part of the table, or not yet.
    pub dead: FileTotal,
    /// Files of the Delta log.
    pub log: FileTotal,
    /// How long rows stay, in words; `None` if for ever.
    pub keep_rows: Option<String>,
    /// How long replaced files stay, in words; `None` if no process has said it yet.
    pub keep_replaced: Option<String>,
    /// How long versions of the log stay, in words; `None` if no process has said it yet.
    pub keep_log: Option<String>,
}

impl DeltaStore {
    /// Writes the limits into the table's properties, unless they say so already.
    pub async fn record_limits(&mut self, limits: Limits) -> Result<()> {
        if self.limits.replace(limits) == Some(limits) {
            return Ok(());
        }
        let hours = |duration: Duration| format!("interval {} hours", duration.num_hours());
        let rows = limits.rows.map_or_else(|| "for ever".into(), |keep| format!("{} days", keep.num_days()));
        let wanted = [
            (REPLACED, hours(limits.replaced)),
            (LOG, hours(limits.log)),
            (CLEANUP, "false".into()),
            (ROWS, rows),
        ];
        let snapshot = self.table.snapshot().map_err(|e| self.error(e))?;
        let known = snapshot.metadata().configuration();
        if wanted.iter().all(|(key, value)| known.get(*key) == Some(value)) {
            return Ok(());
        }
        let set = self
            .table
            .clone()
            .set_tbl_properties()
            .with_properties(wanted.map(|(key, value)| (key.to_owned(), value)).into())
            .with_raise_if_not_exists(false)
            .with_commit_properties(without_log_cleanup())
            .await;
        let before = self.version();
        match set {
            Ok(table) => {
                self.table = table;
                self.checkpoint_if_due(before).await;
                Ok(())
            }
            // It is tried again with the next maintenance.
            Err(DeltaTableError::Transaction { source }) => {
                self.limits = None;
                tracing::debug!(table = self.spec.name, %source, "table properties gave way to another writer");
                Ok(())
            }
            Err(e) => Err(self.error(e)),
        }
    }

    /// What the table takes on disk. Lists its folder.
    pub async fn disk_use(&self) -> Result<TableDisk> {
        let mut disk = TableDisk { table: self.spec.name.clone(), ..TableDisk::default() };
        let live: HashSet<String> = self.files()?.into_iter().map(|file| file.path).collect();
        let mut listed = self.table.object_store().list(None);
        while let Some(file) = listed.try_next().await? {
            let path = file.location.as_ref();
            let total = match path.starts_with("_delta_log/") {
                true => &mut disk.log,
                false if live.contains(path) => &mut disk.live,
                false => &mut disk.dead,
            };
            total.add(file.size);
        }
        let snapshot = self.table.snapshot().map_err(|e| self.error(e))?;
        let known: &HashMap<String, String> = snapshot.metadata().configuration();
        let words = |key| known.get(key).map(|value| value.trim_start_matches("interval ").to_owned());
        disk.keep_rows = words(ROWS).filter(|rows| rows != "for ever");
        (disk.keep_replaced, disk.keep_log) = (words(REPLACED), words(LOG));
        Ok(disk)
    }
}
