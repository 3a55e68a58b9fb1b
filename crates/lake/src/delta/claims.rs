//! Claims: which process may commit for a log partition when several write to one lake.
//!
//! A claim is an application transaction `(tidegate-owner/<table>/<partition>, count)`; taking a
//! partition over raises the count. A commit builds upon a version that this process validated: it
//! found its own claim there, the progress it knows, and every file it is about to remove. Delta
//! gives each version to one writer only, and the loser validates again. So a process that lost its
//! partition finds the other's claim and cannot commit, however long it was away.

use deltalake::kernel::{Action, Transaction};
use deltalake::logstore::get_actions;
use deltalake::protocol::{DeltaOperation, SaveMode};
use hashbrown::HashSet;

use super::data_files::DataFile;
use super::{DeltaStore, Pending, delta_error};
use crate::error::{LakeError, Result};
use crate::spans;
use crate::window::{InvalidatedSpans, Span};

/// This process's claim on a log partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    count: i64,
    /// Version of the table that holds the claim.
    version: i64,
}

/// Data files that a commit adds and removes, and the progress it brings.
#[derive(Debug, Default)]
pub struct Change {
    /// Log partition, and the offset below which all its records are in the table afterwards.
    pub progress: Vec<(u32, u64)>,
    /// Data files to add.
    pub adds: Vec<DataFile>,
    /// Data files to remove.
    pub removes: Vec<DataFile>,
    /// What the commit invalidates in joined tables; `None` if none of them reads this one.
    pub invalidated: Option<InvalidatedSpans>,
    /// What a joined table has yet to recompute afterwards; `None` if that does not change.
    pub pending: Option<Pending>,
}

/// Names of the spans of [`Change::invalidated`] in a commit.
const INVALIDATED: &str = "tidegate.touched_us";
const INVALIDATED_WAITS: &str = "tidegate.touched_waits_us";

impl DeltaStore {
    /// Makes this process the only one that commits for these log partitions, until the next claim
    /// of them.
    pub async fn claim(&mut self, partitions: &[u32]) -> Result<()> {
        loop {
            self.refresh().await?;
            let mut claims = Vec::new();
            for partition in partitions {
                claims
                    .push((*partition, self.transaction(&self.owner_id(*partition)).await?.unwrap_or(0) + 1));
            }
            let now_ms = self.clock.now_ms();
            let claim = |(partition, count): &(u32, i64)| {
                Action::Txn(Transaction::new_with_last_update(
                    self.owner_id(*partition),
                    *count,
                    Some(now_ms),
                ))
            };
            let actions = claims.iter().map(claim).collect();
            if self.try_commit(actions, self.write_operation(), None).await? {
                let version = self.version();
                self.progress.retain(|partition, _| !partitions.contains(partition));
                self.claims.extend(claims.into_iter().map(|(p, count)| (p, Claim { count, version })));
                return Ok(());
            }
        }
    }

    /// How often processes claimed this log partition.
    pub async fn claims(&self, partition: u32) -> Result<u64> {
        Ok(self.transaction(&self.owner_id(partition)).await?.map_or(0, |count| count as u64))
    }

    /// Drops claims on partitions that this process gives up.
    pub fn release(&mut self, partitions: &[u32]) {
        for partition in partitions {
            self.claims.remove(partition);
            self.progress.remove(partition);
        }
    }

    /// Commits actions for log partitions of this process, on top of what others committed
    /// meanwhile.
    pub(super) async fn commit_claimed(
        &mut self,
        actions: Vec<Action>,
        change: &Change,
        operation: DeltaOperation,
    ) -> Result<()> {
        let files = actions.iter().filter(|action| matches!(action, Action::Add(_))).count();
        let table = self.spec.name.clone();
        spans::commit(&table, files, self.commit_until_done(actions, change, operation)).await
    }

    async fn commit_until_done(
        &mut self,
        actions: Vec<Action>,
        change: &Change,
        operation: DeltaOperation,
    ) -> Result<()> {
        loop {
            if self.validated_version < self.version() {
                self.validate(change).await?;
            }
            if self.try_commit(actions.clone(), operation.clone(), change.invalidated.as_ref()).await? {
                return Ok(());
            }
            self.refresh().await?;
        }
    }

    /// Checks that the versions since the last validation changed nothing this process relies on.
    async fn validate(&mut self, change: &Change) -> Result<()> {
        for version in self.validated_version + 1..=self.version() {
            let log = self.table.log_store();
            let commit = log.read_commit_entry(version as u64).await.map_err(|e| self.error(e))?;
            // Logs are kept for hours. A process that was away for longer cannot know what it
            // missed.
            let commit = commit.ok_or_else(|| self.fenced(None))?;
            let actions = get_actions(version as u64, &commit).map_err(|e| self.error(e))?;
            for action in actions {
                if let Action::Txn(transaction) = action
                    && let Some(partition) = self.partition_taken_over(version, &transaction)
                {
                    return Err(self.fenced(Some(partition)));
                }
            }
        }
        if !change.removes.is_empty() {
            let here: HashSet<String> = self.files()?.into_iter().map(|file| file.path).collect();
            if change.removes.iter().any(|file| !here.contains(&file.path)) {
                return Err(self.fenced(None));
            }
        }
        self.validated_version = self.version();
        Ok(())
    }

    /// The log partition of this process that another one claimed, or committed for, with this
    /// transaction.
    fn partition_taken_over(&self, version: i64, transaction: &Transaction) -> Option<u32> {
        let claimed =
            self.claims.iter().find(|(partition, _)| transaction.app_id == self.owner_id(**partition));
        if let Some((partition, claim)) = claimed {
            return (transaction.version > claim.count).then_some(*partition);
        }
        let known =
            self.progress.keys().find(|partition| transaction.app_id == self.progress_id(**partition))?;
        // What another process committed before this one claimed the partition is included in where
        // this one started.
        let since = self.claims.get(known).map_or(-1, |claim| claim.version);
        (version > since).then_some(*known)
    }

    fn fenced(&self, partition: Option<u32>) -> LakeError {
        LakeError::Fenced { table: self.spec.name.clone(), partition }
    }

    /// Commits on top of the version this store knows; `false` if another process has committed
    /// since.
    async fn try_commit(
        &mut self,
        actions: Vec<Action>,
        operation: DeltaOperation,
        invalidated: Option<&InvalidatedSpans>,
    ) -> Result<bool> {
        let notes = invalidated.into_iter().flat_map(|spans| {
            [(INVALIDATED, &spans.all), (INVALIDATED_WAITS, &spans.waits)]
                .map(|(name, spans)| (name.to_owned(), serde_json::json!(spans)))
        });
        let before = self.version();
        let committed = self.write_version(actions, notes.collect(), operation).await?;
        // Nothing can have come between a validated version and the next one.
        if committed && self.validated_version == before {
            self.validated_version = before + 1;
        }
        Ok(committed)
    }

    /// What the commits after a version invalidated. `None` if that is not known: the log of a
    /// version is gone, or it was committed when no joined table read this one.
    pub async fn invalidated_since(&self, version: i64) -> Result<Option<InvalidatedSpans>> {
        let log = self.table.log_store();
        let mut invalidated = InvalidatedSpans::default();
        for version in version + 1..=self.version() {
            let commit = log.read_commit_entry(version as u64).await.map_err(|e| self.error(e))?;
            let Some(commit) = commit else { return Ok(None) };
            let (mut brings_rows, mut notes) = (false, [None, None]);
            for action in get_actions(version as u64, &commit).map_err(|e| self.error(e))? {
                match action {
                    Action::Txn(transaction) => brings_rows |= self.is_progress(&transaction.app_id),
                    Action::CommitInfo(info) => {
                        notes = [INVALIDATED, INVALIDATED_WAITS].map(|name| info.info.get(name).cloned());
                    }
                    _ => {}
                }
            }
            let [all, waits] =
                notes.map(|note| note.and_then(|note| serde_json::from_value::<Vec<Span>>(note).ok()));
            match all {
                // Earlier versions of Tidegate had the waits among the others.
                Some(all) => invalidated.extend(InvalidatedSpans { all, waits: waits.unwrap_or_default() }),
                None if brings_rows => return Ok(None),
                None => {}
            }
        }
        Ok(Some(invalidated))
    }

    /// Version of an application transaction, as of the version this store knows.
    pub(super) async fn transaction(&self, app: &str) -> Result<Option<i64>> {
        let snapshot = self.table.snapshot().map_err(|e| self.error(e))?;
        snapshot.transaction_version(self.table.log_store().as_ref(), app).await.map_err(|e| self.error(e))
    }

    /// Reads commits of other processes.
    pub async fn refresh(&mut self) -> Result<()> {
        self.kept_from = None;
        let before = self.version();
        let updated = self.table.update_state().await;
        updated.map_err(|e| delta_error(&self.spec, self.table.table_url(), e))?;
        if self.version() != before {
            self.pending.take();
        }
        Ok(())
    }

    pub(super) fn write_operation(&self) -> DeltaOperation {
        let partition_by = self.spec.partition_columns().iter().map(|c| (*c).to_owned()).collect();
        DeltaOperation::Write { mode: SaveMode::Append, partition_by: Some(partition_by), predicate: None }
    }

    pub(super) fn progress_id(&self, partition: u32) -> String {
        format!("tidegate/{}/{partition}", self.spec.name)
    }

    fn is_progress(&self, app: &str) -> bool {
        app.strip_prefix("tidegate/")
            .and_then(|rest| rest.strip_prefix(self.spec.name.as_str()))
            .is_some_and(|rest| rest.starts_with('/'))
    }

    fn owner_id(&self, partition: u32) -> String {
        format!("tidegate-owner/{}/{partition}", self.spec.name)
    }
}
