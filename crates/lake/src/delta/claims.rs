//! Who may commit for a log partition, where several processes keep one lake.
//!
//! A claim is an application transaction `(tidegate-owner/<table>/<partition>, count)`; taking a
//! partition over raises the count. A commit is built upon a version in which this process looked
//! and found its own claim, the progress it knows, and every file it is about to remove. Delta
//! gives each version to one writer only, so whoever comes second looks again: a process that lost
//! its partition finds another's claim and cannot commit, however long it was away.

use chrono::Utc;
use deltalake::kernel::{Action, Transaction};
use deltalake::logstore::get_actions;
use deltalake::protocol::{DeltaOperation, SaveMode};
use hashbrown::HashSet;

use super::{DataFile, DeltaStore, delta_error};
use crate::error::{LakeError, Result};
use crate::window::Span;

/// That this process keeps a log partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claim {
    count: i64,
    /// Version of the table that holds it.
    version: i64,
}

/// Data files that come and go with a commit, and how far it brings log partitions.
#[derive(Debug, Default)]
pub struct Change {
    /// Log partition, and the offset below which all its records are in the table then.
    pub progress: Vec<(u32, u64)>,
    pub adds: Vec<DataFile>,
    pub removes: Vec<DataFile>,
    /// Times whose windows may be others after it, noted in the commit for those that are computed
    /// from several tables; `None` where nobody asks.
    pub touched: Option<Vec<Span>>,
}

/// Name under which [`Change::touched`] stands in a commit.
const TOUCHED: &str = "tidegate.touched_us";

impl DeltaStore {
    /// Makes this process the only one that commits for these log partitions, from now on until the
    /// next claim of them.
    pub async fn claim(&mut self, partitions: &[u32]) -> Result<()> {
        loop {
            self.refresh().await?;
            let mut claims = Vec::new();
            for partition in partitions {
                claims
                    .push((*partition, self.transaction(&self.owner_id(*partition)).await?.unwrap_or(0) + 1));
            }
            let now_ms = Utc::now().timestamp_millis();
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

    /// How often processes took this log partition over.
    pub async fn claims(&self, partition: u32) -> Result<u64> {
        Ok(self.transaction(&self.owner_id(partition)).await?.map_or(0, |count| count as u64))
    }

    /// Forgets claims: the partitions are somebody else's to commit for.
    pub fn release(&mut self, partitions: &[u32]) {
        for partition in partitions {
            self.claims.remove(partition);
            self.progress.remove(partition);
        }
    }

    /// Commits actions that belong to log partitions of this process, upon whatever others
    /// committed meanwhile.
    pub(super) async fn commit_claimed(
        &mut self,
        actions: Vec<Action>,
        change: &Change,
        operation: DeltaOperation,
    ) -> Result<()> {
        loop {
            if self.looked_at < self.version() {
                self.look(change).await?;
            }
            if self.try_commit(actions.clone(), operation.clone(), change.touched.as_deref()).await? {
                return Ok(());
            }
            self.refresh().await?;
        }
    }

    /// Whether nobody changed what this process rests on, in the versions since it last looked.
    async fn look(&mut self, change: &Change) -> Result<()> {
        for version in self.looked_at + 1..=self.version() {
            let log = self.table.log_store();
            let commit = log.read_commit_entry(version as u64).await.map_err(|e| self.fail(e))?;
            // Logs are kept for hours: who was away for longer knows nothing any more.
            let commit = commit.ok_or_else(|| self.fenced(None))?;
            let actions = get_actions(version as u64, &commit).map_err(|e| self.fail(e))?;
            for action in actions {
                if let Action::Txn(transaction) = action
                    && let Some(partition) = self.taken_over(version, &transaction)
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
        self.looked_at = self.version();
        Ok(())
    }

    /// The log partition of this process that another one took over, or committed for, by this
    /// transaction.
    fn taken_over(&self, version: i64, transaction: &Transaction) -> Option<u32> {
        let claimed =
            self.claims.iter().find(|(partition, _)| transaction.app_id == self.owner_id(**partition));
        if let Some((partition, claim)) = claimed {
            return (transaction.version > claim.count).then_some(*partition);
        }
        let known =
            self.progress.keys().find(|partition| transaction.app_id == self.progress_id(**partition))?;
        // What a former process committed before this one took over is what this one began with.
        let since = self.claims.get(known).map_or(-1, |claim| claim.version);
        (version > since).then_some(*known)
    }

    fn fenced(&self, partition: Option<u32>) -> LakeError {
        LakeError::Fenced { table: self.spec.name.clone(), partition }
    }

    /// Commits upon the version this store knows; `false` if somebody else has committed since.
    async fn try_commit(
        &mut self,
        actions: Vec<Action>,
        operation: DeltaOperation,
        touched: Option<&[Span]>,
    ) -> Result<bool> {
        let note = touched.map(|spans| (TOUCHED.to_owned(), serde_json::json!(spans)));
        let before = self.version();
        let committed = self.write_version(actions, note.into_iter().collect(), operation).await?;
        // Upon a version that was looked at, nobody can have come in between.
        if committed && self.looked_at == before {
            self.looked_at = before + 1;
        }
        Ok(committed)
    }

    /// What the commits after a version touched; `None` if nobody knows any more: the log of one of
    /// them is gone, or it was made when nobody asked.
    pub async fn touched_since(&self, version: i64) -> Result<Option<Vec<Span>>> {
        let log = self.table.log_store();
        let mut touched = Vec::new();
        for version in version + 1..=self.version() {
            let commit = log.read_commit_entry(version as u64).await.map_err(|e| self.fail(e))?;
            let Some(commit) = commit else { return Ok(None) };
            let (mut brings_rows, mut note) = (false, None);
            for action in get_actions(version as u64, &commit).map_err(|e| self.fail(e))? {
                match action {
                    Action::Txn(transaction) => brings_rows |= self.is_progress(&transaction.app_id),
                    Action::CommitInfo(info) => note = info.info.get(TOUCHED).cloned(),
                    _ => {}
                }
            }
            match note.and_then(|note| serde_json::from_value::<Vec<Span>>(note).ok()) {
                Some(spans) => touched.extend(spans),
                None if brings_rows => return Ok(None),
                None => {}
            }
        }
        Ok(Some(touched))
    }

    /// Version of an application transaction as of the version this store knows.
    pub(super) async fn transaction(&self, app: &str) -> Result<Option<i64>> {
        let snapshot = self.table.snapshot().map_err(|e| self.fail(e))?;
        snapshot.transaction_version(self.table.log_store().as_ref(), app).await.map_err(|e| self.fail(e))
    }

    /// Looks for commits made by others.
    pub async fn refresh(&mut self) -> Result<()> {
        self.kept_from = None;
        self.table.update_state().await.map_err(|e| delta_error(&self.spec, self.table.table_url(), e))
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
