//! What a site takes on disk, and what of it the tables still need.

use std::path::Path;

use serde::{Deserialize, Serialize};
use tidegate_lake::delta::DeltaStore;
use tidegate_lake::pipeline::{Plan, shipped};
use tidegate_workspace::{CommandError, block_on_one_thread, folder_bytes, folder_url};

const DELTA_LOG: &str = "_delta_log";

/// Bytes and files of a data folder.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Disk {
    /// Data files of the tables' current versions.
    pub live_bytes: u64,
    pub live_files: u64,
    /// Data files that only older versions refer to.
    pub dead_bytes: u64,
    /// Delta logs of all tables.
    pub delta_log_bytes: u64,
    pub delta_log_files: u64,
    /// Most files of one table's Delta log.
    pub longest_delta_log: u64,
    /// The event log.
    pub event_log_bytes: u64,
}

/// Looks through a data folder that no process writes.
pub fn measure(data: &Path) -> Result<Disk, CommandError> {
    let lake = data.join("lake");
    let root = folder_url(&lake)?;
    block_on_one_thread(async {
        let plan = Plan::compile(shipped()).await?;
        let mut disk = Disk { event_log_bytes: folder_bytes(&data.join("log"))?, ..Disk::default() };
        for spec in plan.tables() {
            let Some(store) = DeltaStore::open(&root, spec.clone()).await? else { continue };
            let files = store.files()?;
            let live: u64 = files.iter().map(|file| file.size.unsigned_abs()).sum();
            let folder = lake.join(spec.folder());
            let log = folder.join(DELTA_LOG);
            let (log_bytes, log_files) = (folder_bytes(&log)?, std::fs::read_dir(&log)?.count() as u64);
            disk.live_bytes += live;
            disk.live_files += files.len() as u64;
            disk.dead_bytes += folder_bytes(&folder)?.saturating_sub(live + log_bytes);
            disk.delta_log_bytes += log_bytes;
            disk.delta_log_files += log_files;
            disk.longest_delta_log = disk.longest_delta_log.max(log_files);
        }
        Ok(disk)
    })?
}
