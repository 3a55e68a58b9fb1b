//! The Delta log of a table: commits, checkpoints and cleanup.
//!
//! Finding the newest version lists the folder of the log, and on a local disk that reads all of
//! it, whatever offset is asked for. With a commit every ten seconds, a log kept for Delta's
//! default of 30 days has 259,200 files. So a commit lists the log once, to read its own version
//! back, and files are deleted as soon as a checkpoint makes them superfluous. The tables of a
//! flush have their checkpoints at different versions, so that no flush writes all of them.

use std::collections::HashMap;

use chrono::Duration;
use deltalake::kernel::Action;
use deltalake::kernel::transaction::{CommitData, CommitProperties, PROTOCOL, TransactionError};
use deltalake::logstore::CommitOrBytes;
use deltalake::protocol::DeltaOperation;
use deltalake::protocol::checkpoints::{cleanup_expired_logs_for, create_checkpoint};
use deltalake::{ObjectStoreError, Path};
use object_store::ObjectStoreExt;

use super::{DeltaStore, delta_error};
use crate::error::Result;

/// Versions between two checkpoints; the default of Delta writers.
const CHECKPOINT_EVERY: i64 = 100;
const LAST_CHECKPOINT: &str = "_delta_log/_last_checkpoint";

/// Properties for commits that delta-rs makes itself. By default it would list the whole log after
/// each to find expired files.
pub(super) fn without_log_cleanup() -> CommitProperties {
    CommitProperties::default().with_create_checkpoint(false).with_cleanup_expired_logs(Some(false))
}

/// The first version from `version` on whose commit is followed by a checkpoint of this table.
pub fn next_checkpoint(table: &str, version: i64) -> i64 {
    let phase = (xxhash_rust::xxh3::xxh3_64(table.as_bytes()) % CHECKPOINT_EVERY as u64) as i64;
    version + (phase - version).rem_euclid(CHECKPOINT_EVERY)
}

impl DeltaStore {
    /// Writes the next version. Returns `false` if it exists already, or if this store only knows
    /// versions older than those left in the log.
    pub(super) async fn write_version(
        &mut self,
        actions: Vec<Action>,
        note: HashMap<String, serde_json::Value>,
        operation: DeltaOperation,
    ) -> Result<bool> {
        let version = self.version() + 1;
        let snapshot = self.table.snapshot().map_err(|e| self.error(e))?.snapshot();
        PROTOCOL.can_commit(snapshot, &actions, &operation).map_err(|e| self.error(e.into()))?;
        if self.checkpointed_at().await? >= version {
            return Ok(false);
        }
        let bytes = CommitData::new(actions, operation, note, Vec::new()).get_bytes();
        let bytes = bytes.map_err(|e| self.error(e.into()))?;
        let id = uuid::Uuid::new_v4();
        let log = self.table.log_store();
        match log.write_commit_entry(version as u64, CommitOrBytes::LogBytes(bytes), id).await {
            Ok(()) => {}
            Err(TransactionError::VersionAlreadyExists(_)) => return Ok(false),
            Err(e) => return Err(self.error(e.into())),
        }
        self.table.update_incremental(Some(version as u64)).await.map_err(|e| self.error(e))?;
        self.checkpoint_if_due(version - 1).await;
        Ok(true)
    }

    /// Version of the newest checkpoint, -1 without one. Older versions may have been deleted and
    /// could be written once more: the store cannot tell a deleted version from one that never
    /// existed.
    async fn checkpointed_at(&self) -> Result<i64> {
        let hint = match self.table.object_store().get(&Path::from(LAST_CHECKPOINT)).await {
            Ok(hint) => hint.bytes().await?,
            Err(ObjectStoreError::NotFound { .. }) => return Ok(-1),
            Err(e) => return Err(e.into()),
        };
        // A hint that is just being written does not parse. Readers of the table then go by the
        // listing too.
        let hint: serde_json::Value = serde_json::from_slice(&hint).unwrap_or_default();
        Ok(hint["version"].as_i64().unwrap_or(-1))
    }

    /// Writes a checkpoint if commits of this process after `before` reached the version for one. A
    /// failure does no harm: the commit stands, and the next checkpoint covers it.
    pub(super) async fn checkpoint_if_due(&mut self, before: i64) {
        if next_checkpoint(&self.spec.name, before + 1) > self.version() {
            return;
        }
        match self.checkpoint().await {
            Ok(()) => self.log_needs_cleanup = true,
            Err(error) => tracing::warn!(table = self.spec.name, %error, "no checkpoint was written"),
        }
    }

    async fn checkpoint(&mut self) -> Result<()> {
        create_checkpoint(&self.table, None).await.map_err(|e| self.error(e))?;
        // From now on this store reads the checkpoint, not the commits before it.
        self.table.update_state().await.map_err(|e| delta_error(&self.spec, self.table.table_url(), e))
    }

    /// Whether a checkpoint was written since the last [`Self::clean_log`].
    pub fn has_new_checkpoint(&self) -> bool {
        self.log_needs_cleanup
    }

    /// After a checkpoint: deletes log files of versions older than `keep` and below the newest
    /// checkpoint of that age. Versions from `needed_from` on stay until they are older than
    /// `longest`. Returns the number of files.
    pub async fn clean_log(
        &mut self,
        keep: Duration,
        longest: Duration,
        needed_from: Option<i64>,
    ) -> Result<usize> {
        if !std::mem::take(&mut self.log_needs_cleanup) {
            return Ok(0);
        }
        let last = needed_from.unwrap_or(i64::MAX).min(self.version());
        let mut deleted = self.delete_versions(last, keep).await;
        if last + CHECKPOINT_EVERY < self.version() {
            deleted += self.delete_versions(self.version(), keep.max(longest)).await;
        }
        Ok(deleted)
    }

    /// Deletes log files older than `keep` and below the newest checkpoint that is neither younger
    /// nor above `last`.
    async fn delete_versions(&self, last: i64, keep: Duration) -> usize {
        let cutoff_ms = self.clock.now_ms() - keep.num_milliseconds();
        let log = self.table.log_store();
        let cleaned = cleanup_expired_logs_for(last.max(0) as u64, log.as_ref(), cutoff_ms, None).await;
        cleaned.unwrap_or_else(|error| {
            // Another process of a shared lake may delete the same files. What is left goes after
            // the next checkpoint.
            tracing::debug!(table = self.spec.name, %error, "log cleanup is incomplete");
            0
        })
    }
}
