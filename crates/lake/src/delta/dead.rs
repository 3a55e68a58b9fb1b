//! Dead files: data files that a commit removed. Older versions of the table still name them, so
//! readers of those versions need them for a while.
//!
//! A store remembers what it removed, and deletes that by name once it is old enough: without a
//! listing, and without a commit that says so. A sweep finds the rest by listing the table's
//! folder: what a process removed that has died since, and files that no commit ever named.

use std::collections::VecDeque;
use std::time::{self, Instant, SystemTime};

use chrono::Duration;
use deltalake::{ObjectStoreError, Path};
use futures::{StreamExt, TryStreamExt};
use hashbrown::HashSet;

use super::{DataFile, DeltaStore, disk};
use crate::error::Result;

/// How long a sweep spares files that no commit names: a process may be about to commit them.
const UNNAMED: Duration = Duration::hours(24);
/// Time between two sweeps.
const SWEEP_EVERY: Duration = Duration::hours(24);

/// A data file that is not part of the newest version.
#[derive(Debug)]
struct DeadFile {
    path: String,
    bytes: u64,
    /// When it was removed, ms since the epoch.
    removed_ms: i64,
    /// Since when no catalog that this process publishes reads it.
    unread_since: Instant,
}

/// Files that are to be deleted, the one removed first in front.
#[derive(Debug, Default)]
pub(super) struct DeadFiles {
    queue: VecDeque<DeadFile>,
    swept_ms: Option<i64>,
}

/// Number and size of files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FileTotal {
    /// Number of files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl FileTotal {
    /// Adds a file of this many bytes.
    pub fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

impl DeltaStore {
    /// Remembers files that this process has just removed.
    pub(super) fn remember_removed(&mut self, files: &[DataFile]) {
        let removed_ms = self.clock.now_ms();
        let dead = files.iter().map(|file| DeadFile {
            path: file.path.clone(),
            bytes: file.size.unsigned_abs(),
            removed_ms,
            unread_since: Instant::now(),
        });
        self.dead.queue.extend(dead);
    }

    /// Files that this process is still to delete.
    pub fn dead_files(&self) -> FileTotal {
        let mut total = FileTotal::default();
        self.dead.queue.iter().for_each(|file| total.add(file.bytes));
        total
    }

    /// Deletes the files known to be dead that were removed before this time, ms since the epoch,
    /// and before the oldest catalog in use was published. Returns their number.
    pub async fn delete_dead(&mut self, removed_before_ms: i64, in_use_since: Instant) -> Result<usize> {
        let is_due =
            |file: &DeadFile| file.removed_ms <= removed_before_ms && file.unread_since <= in_use_since;
        let mut due = Vec::new();
        while self.dead.queue.front().is_some_and(is_due) {
            due.extend(self.dead.queue.pop_front().map(|file| file.path));
        }
        self.delete(due).await
    }

    /// Lists the table's folder, at most once a day, for dead files that this process does not know
    /// and for files that no commit names. Deletes those of the second kind after a day; the others
    /// are left to [`Self::delete_dead`].
    pub async fn sweep_if_due(&mut self) -> Result<usize> {
        let now_ms = self.clock.now_ms();
        if self.dead.swept_ms.is_some_and(|at| now_ms - at < SWEEP_EVERY.num_milliseconds()) {
            return Ok(0);
        }
        self.dead.swept_ms = Some(now_ms);
        self.load_removed(now_ms).await?;
        let mut named: HashSet<String> = self.files()?.into_iter().map(|file| file.path).collect();
        named.extend(self.dead.queue.iter().map(|file| file.path.clone()));
        let border_ms = now_ms - UNNAMED.num_milliseconds();
        let mut unnamed = Vec::new();
        let mut listed = self.table.object_store().list(None);
        while let Some(file) = listed.try_next().await? {
            let path = file.location.to_string();
            let is_data = path.ends_with(".parquet") && !path.starts_with("_delta_log/");
            if is_data && !named.contains(&path) && file.last_modified.timestamp_millis() < border_ms {
                unnamed.push(path);
            }
        }
        Ok(self.remove_abandoned(border_ms) + self.delete(unnamed).await?)
    }

    /// Deletes temporary files of processes that died while they wrote them. Object stores have
    /// none.
    fn remove_abandoned(&self, before_ms: i64) -> usize {
        let Ok(folder) = self.table.table_url().to_file_path() else { return 0 };
        let border = SystemTime::UNIX_EPOCH + time::Duration::from_millis(before_ms.unsigned_abs());
        disk::remove_abandoned(&folder, border).unwrap_or_else(|error| {
            // They only take space, and the next sweep tries again.
            tracing::warn!(folder = %folder.display(), %error, "temporary files were not deleted");
            0
        })
    }

    /// Reads the files that the log names as removed, by this process or another.
    async fn load_removed(&mut self, now_ms: i64) -> Result<()> {
        let mut known: HashSet<String> = self.dead.queue.iter().map(|file| file.path.clone()).collect();
        let snapshot = self.table.snapshot().map_err(|e| self.error(e))?;
        let log = self.table.log_store();
        let mut removed = Vec::new();
        let mut tombstones = snapshot.all_tombstones(log.as_ref());
        while let Some(tombstone) = tombstones.next().await {
            let tombstone = tombstone.map_err(|e| self.error(e))?;
            let path = tombstone.path().into_owned();
            if known.insert(path.clone()) {
                removed.push(DeadFile {
                    path,
                    bytes: tombstone.size().unwrap_or(0).unsigned_abs(),
                    // A clock that ran ahead must not keep it for ever.
                    removed_ms: tombstone.deletion_timestamp().unwrap_or(0).min(now_ms),
                    unread_since: Instant::now(),
                });
            }
        }
        drop(tombstones);
        self.dead.queue.extend(removed);
        self.dead.queue.make_contiguous().sort_by_key(|file| file.removed_ms);
        Ok(())
    }

    async fn delete(&self, paths: Vec<String>) -> Result<usize> {
        let paths = futures::stream::iter(paths).map(|path| Ok(Path::from(path))).boxed();
        let store = self.table.object_store();
        let mut deleting = store.delete_stream(paths);
        let mut deleted = 0;
        while let Some(done) = deleting.next().await {
            match done {
                Ok(_) => deleted += 1,
                // Another process was faster, or an earlier life of this one.
                Err(ObjectStoreError::NotFound { .. }) => {}
                // The next sweep finds it again.
                Err(error) => tracing::warn!(table = self.spec.name, %error, "a dead file was not deleted"),
            }
        }
        Ok(deleted)
    }
}
