//! The Delta log of a table: one file per commit, a checkpoint now and then, and what may be
//! deleted once it stands.
//!
//! Looking for the newest version means listing the folder of the log, and on a local disk that
//! reads all of it, whatever offset is asked for. With a commit each ten seconds a log kept for
//! Delta's default of 30 days has 259,200 files. So a commit lists it once, to take its own version
//! in, and files go as soon as a checkpoint makes them superfluous.

use std::collections::HashMap;

use chrono::{Duration, Utc};
use deltalake::kernel::Action;
use deltalake::kernel::transaction::{CommitData, CommitProperties, PROTOCOL, TransactionError};
use deltalake::logstore::CommitOrBytes;
use deltalake::protocol::DeltaOperation;
use deltalake::protocol::checkpoints::{cleanup_expired_logs_for, create_checkpoint};
use deltalake::{ObjectStoreError, Path};
use object_store::ObjectStoreExt;

use super::{DeltaStore, delta_error};
use crate::error::Result;

/// A checkpoint after so many versions, as Delta's writers do by default.
const CHECKPOINT_EVERY: i64 = 100;
const LAST_CHECKPOINT: &str = "_delta_log/_last_checkpoint";

/// For commits that delta-rs makes itself: it would list the whole log after each to see what has
/// expired.
pub(super) fn leave_log_alone() -> CommitProperties {
    CommitProperties::default().with_create_checkpoint(false).with_cleanup_expired_logs(Some(false))
}

impl DeltaStore {
    /// Writes the next version; `false` if there is one already, or this store knows only versions
    /// from before those that are left in the log.
    pub(super) async fn write_version(
        &mut self,
        actions: Vec<Action>,
        note: HashMap<String, serde_json::Value>,
        operation: DeltaOperation,
    ) -> Result<bool> {
        let version = self.version() + 1;
        let snapshot = self.table.snapshot().map_err(|e| self.fail(e))?.snapshot();
        PROTOCOL.can_commit(snapshot, &actions, &operation).map_err(|e| self.fail(e.into()))?;
        if self.checkpointed_at().await? >= version {
            return Ok(false);
        }
        let bytes = CommitData::new(actions, operation, note, Vec::new()).get_bytes();
        let bytes = bytes.map_err(|e| self.fail(e.into()))?;
        let id = uuid::Uuid::new_v4();
        let log = self.table.log_store();
        match log.write_commit_entry(version as u64, CommitOrBytes::LogBytes(bytes), id).await {
            Ok(()) => {}
            Err(TransactionError::VersionAlreadyExists(_)) => return Ok(false),
            Err(e) => return Err(self.fail(e.into())),
        }
        self.table.update_incremental(Some(version as u64)).await.map_err(|e| self.fail(e))?;
        self.checkpoint_if_due(version - 1).await;
        Ok(true)
    }

    /// Version of the newest checkpoint, -1 without one. Below it versions may be gone, and could
    /// be written once more: to the store a version that was deleted is one that never was.
    async fn checkpointed_at(&self) -> Result<i64> {
        let hint = match self.table.object_store().get(&Path::from(LAST_CHECKPOINT)).await {
            Ok(hint) => hint.bytes().await?,
            Err(ObjectStoreError::NotFound { .. }) => return Ok(-1),
            Err(e) => return Err(e.into()),
        };
        // A hint that is just being written says nothing yet; whoever reads the table goes by the
        // listing then, too.
        let hint: serde_json::Value = serde_json::from_slice(&hint).unwrap_or_default();
        Ok(hint["version"].as_i64().unwrap_or(-1))
    }

    /// Writes a checkpoint if this process' commits after `before` reached the version for one.
    /// That it fails is no harm: the commit stands, and the next checkpoint holds what this one
    /// would.
    pub(super) async fn checkpoint_if_due(&mut self, before: i64) {
        if (self.version() + 1) / CHECKPOINT_EVERY == (before + 1) / CHECKPOINT_EVERY {
            return;
        }
        match self.checkpoint().await {
            Ok(()) => self.to_clean = true,
            Err(error) => tracing::warn!(table = self.spec.name, %error, "no checkpoint was written"),
        }
    }

    async fn checkpoint(&mut self) -> Result<()> {
        create_checkpoint(&self.table, None).await.map_err(|e| self.fail(e))?;
        // From now on this store reads the checkpoint, not the commits before it.
        self.table.update_state().await.map_err(|e| delta_error(&self.spec, self.table.table_url(), e))
    }

    /// After a checkpoint: deletes what the log holds of versions older than `keep` and below the
    /// newest checkpoint that is as old. Returns how many files.
    pub async fn clean_log(&mut self, keep: Duration) -> Result<usize> {
        if !std::mem::take(&mut self.to_clean) {
            return Ok(0);
        }
        let cutoff_ms = (Utc::now() - keep).timestamp_millis();
        let log = self.table.log_store();
        let cleaned = cleanup_expired_logs_for(self.version() as u64, log.as_ref(), cutoff_ms, None).await;
        Ok(cleaned.unwrap_or_else(|error| {
            // Another process of a shared lake may delete the same files; what is left goes after
            // the next checkpoint.
            tracing::debug!(table = self.spec.name, %error, "the log was not cleaned whole");
            0
        }))
    }
}
