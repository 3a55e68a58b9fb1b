//! Delta Lake tables. Data files and progress go into one commit. No other module uses Delta Lake.
//!
//! A commit holds the added and removed files of one table, and an application transaction
//! `(tidegate/<table>/<partition>, offset)` for each log partition: all records below the offset
//! are in the table. On start progress is read back from the table itself, so data and progress
//! cannot disagree.

mod beside;
mod claims;
mod data_files;
mod dead;
mod disk;
mod encoding;
mod file_writer;
mod limits;
mod log;
mod pending;

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::DataType;
use deltalake::kernel::{Action, Add, PrimitiveType, Remove, StructField, Transaction};
use deltalake::protocol::DeltaOperation;
use deltalake::{DeltaTable, DeltaTableBuilder, DeltaTableError};
use tokio::sync::OnceCell;
use url::Url;

pub use self::claims::Change;
use self::claims::Claim;
pub use self::data_files::{DataFile, PartitionValues};
use self::data_files::{add_action, remove_action};
use self::dead::DeadFiles;
pub use self::dead::FileTotal;
pub use self::disk::install as install_disk;
pub use self::encoding::FileRows;
pub use self::file_writer::DataFileWriter;
pub use self::limits::{Limits, TableDisk};
pub use self::log::next_checkpoint;
pub use self::pending::Pending;
use crate::clock::Clock;
use crate::error::{LakeError, Result};
use crate::table::TableSpec;

/// One Delta table, opened for reading and writing.
pub struct DeltaStore {
    spec: Arc<TableSpec>,
    table: DeltaTable,
    /// Per log partition, the offset that [`Self::progress`] read or the last commit set.
    progress: HashMap<u32, u64>,
    /// The time that [`Self::kept_from`] read or the last drop set.
    kept_from: Option<Option<i64>>,
    /// What [`Self::pending`] read or the last commit set.
    pending: OnceCell<Pending>,
    /// Limits that the table's properties have.
    limits: Option<Limits>,
    /// Files that this process is to delete.
    dead: DeadFiles,
    clock: Clock,
    /// A checkpoint was written since the last log cleanup.
    log_needs_cleanup: bool,
    /// In a shared lake: this process's claim on each of its log partitions.
    claims: HashMap<u32, Claim>,
    /// Latest version in which claims and progress were found unchanged.
    validated_version: i64,
}

impl std::fmt::Debug for DeltaStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeltaStore")
            .field("table", &self.spec.name)
            .field("version", &self.version())
            .finish()
    }
}

impl DeltaStore {
    /// Opens the table below `root`, or creates it empty.
    pub async fn open_or_create(root: &Url, spec: Arc<TableSpec>) -> Result<Self> {
        Self::open_or_create_with(root, spec, HashMap::new()).await
    }

    /// As [`Self::open_or_create`]; a new table gets these properties.
    pub async fn open_or_create_with(
        root: &Url,
        spec: Arc<TableSpec>,
        properties: HashMap<&'static str, String>,
    ) -> Result<Self> {
        match Self::open(root, Arc::clone(&spec)).await? {
            Some(store) => Ok(store),
            None => match Self::create(root, Arc::clone(&spec), properties).await {
                Ok(store) => Ok(store),
                // Another process may have created it meanwhile.
                Err(e) => Self::open(root, spec).await?.ok_or(e),
            },
        }
    }

    /// Opens the table below `root`; `None` if it does not exist.
    pub async fn open(root: &Url, spec: Arc<TableSpec>) -> Result<Option<Self>> {
        install_disk();
        let url = table_url(root, &spec)?;
        if url.to_file_path().is_ok_and(|folder| !folder.join("_delta_log").is_dir()) {
            return Ok(None);
        }
        let error = |e: DeltaTableError| delta_error(&spec, &url, e);
        match DeltaTableBuilder::from_url(url.clone()).map_err(error)?.load().await {
            Ok(table) => Ok(Some(Self::from_table(spec, table))),
            Err(DeltaTableError::NotATable(_)) => Ok(None),
            Err(e) => Err(error(e)),
        }
    }

    async fn create(
        root: &Url,
        spec: Arc<TableSpec>,
        properties: HashMap<&'static str, String>,
    ) -> Result<Self> {
        let url = table_url(root, &spec)?;
        let error = |e: DeltaTableError| delta_error(&spec, &url, e);
        if let Ok(folder) = url.to_file_path() {
            disk::create_folder(&folder)
                .map_err(|e| LakeError::Io(format!("create {}", folder.display()), e))?;
        }
        let columns = spec
            .full_schema()
            .fields()
            .iter()
            .map(|f| delta_field(f.name(), f.data_type()))
            .collect::<Result<Vec<_>>>()?;
        let table = DeltaTableBuilder::from_url(url.clone()).map_err(error)?.build().map_err(error)?;
        let table = table
            .create()
            .with_table_name(&spec.name)
            .with_comment(&spec.doc)
            .with_configuration(properties.into_iter().map(|(key, value)| (key, Some(value))))
            .with_raise_if_key_not_exists(false)
            .with_columns(columns)
            .with_partition_columns(spec.partition_columns().iter().copied())
            .await
            .map_err(error)?;
        Ok(Self::from_table(spec, table))
    }

    fn from_table(spec: Arc<TableSpec>, table: DeltaTable) -> Self {
        Self {
            progress: HashMap::new(),
            kept_from: None,
            pending: OnceCell::new(),
            limits: None,
            dead: DeadFiles::default(),
            clock: Clock::default(),
            log_needs_cleanup: false,
            claims: HashMap::new(),
            validated_version: table.version().map_or(-1, |v| v as i64),
            spec,
            table,
        }
    }

    /// Description of the table.
    pub fn spec(&self) -> &Arc<TableSpec> {
        &self.spec
    }

    /// A property that the table was created with.
    pub fn property(&self, key: &str) -> Result<Option<String>> {
        let snapshot = self.table.snapshot().map_err(|e| self.error(e))?;
        Ok(snapshot.metadata().configuration().get(key).cloned())
    }

    /// Delta version that this store has read.
    pub fn version(&self) -> i64 {
        self.table.version().map_or(-1, |v| v as i64)
    }

    /// Reads the table as of a version that another process has read.
    pub async fn pin(&mut self, version: i64) -> Result<()> {
        let pinned = self.table.load_version(u64::try_from(version).unwrap_or(0)).await;
        self.kept_from = None;
        self.pending.take();
        pinned.map_err(|e| delta_error(&self.spec, self.table.table_url(), e))
    }

    /// Progress in a log partition: all records below this offset are in the table.
    pub async fn progress(&mut self, partition: u32) -> Result<u64> {
        if let Some(known) = self.progress.get(&partition) {
            return Ok(*known);
        }
        let offset = self.committed_progress(partition).await?;
        self.progress.insert(partition, offset);
        Ok(offset)
    }

    /// As [`Self::progress`], of a partition that another process may own. Not cached.
    pub async fn committed_progress(&self, partition: u32) -> Result<u64> {
        let version = self.transaction(&self.progress_id(partition)).await?;
        Ok(version.map_or(0, |v| v as u64))
    }

    /// Commits files and progress together. Afterwards the table holds all records of each
    /// partition below its offset.
    ///
    /// # Errors
    /// [`LakeError::Fenced`] if another process claimed a partition or changed what the commit
    /// relies on. Nothing is committed then, and the table must be read anew.
    pub async fn commit(&mut self, change: Change) -> Result<()> {
        let now_ms = self.clock.now_ms();
        let removes = change.removes.iter().cloned().map(|file| Action::Remove(remove_action(file, now_ms)));
        let adds = change.adds.iter().cloned().map(|file| Action::Add(add_action(file, now_ms)));
        let mut actions: Vec<Action> = removes.chain(adds).collect();
        actions.extend(change.progress.iter().map(|(partition, offset)| {
            let app = self.progress_id(*partition);
            Action::Txn(Transaction::new_with_last_update(app, *offset as i64, Some(now_ms)))
        }));
        actions.extend(change.pending.iter().flat_map(|pending| self.pending_actions(pending)));
        self.commit_claimed(actions, &change, self.write_operation()).await?;
        self.remember_removed(&change.removes);
        self.progress.extend(change.progress);
        if let Some(pending) = change.pending {
            self.pending = OnceCell::new_with(Some(pending));
        }
        Ok(())
    }

    /// Replaces files by others that hold the same rows. Readers of changes skip such a commit.
    ///
    /// # Errors
    /// As [`Self::commit`].
    pub async fn commit_compacted(&mut self, adds: Vec<DataFile>, removes: Vec<DataFile>) -> Result<()> {
        let now_ms = self.clock.now_ms();
        let removed = removes.iter().cloned().map(|file| remove_action(file, now_ms));
        let added = adds.into_iter().map(|file| add_action(file, now_ms));
        let removed = removed.map(|remove| Action::Remove(Remove { data_change: false, ..remove }));
        let added = added.map(|add| Action::Add(Add { data_change: false, ..add }));
        let actions = removed.chain(added).collect();
        let operation = DeltaOperation::Optimize { predicate: None, target_size: 0 };
        let change = Change { removes, ..Change::default() };
        self.commit_claimed(actions, &change, operation).await?;
        self.remember_removed(&change.removes);
        Ok(())
    }

    /// Drops whole files past retention. From then on rows before `kept_from` (µs) are incomplete.
    pub async fn drop_files(&mut self, removes: Vec<DataFile>, kept_from: i64) -> Result<()> {
        let now_ms = self.clock.now_ms();
        let mut actions: Vec<Action> =
            removes.iter().cloned().map(|file| Action::Remove(remove_action(file, now_ms))).collect();
        let kept_from = self.kept_from().await?.map_or(kept_from, |before| before.max(kept_from));
        actions.push(Action::Txn(Transaction::new_with_last_update(self.kept_id(), kept_from, Some(now_ms))));
        let change = Change { removes, ..Change::default() };
        self.commit_claimed(actions, &change, DeltaOperation::Delete { predicate: None }).await?;
        self.remember_removed(&change.removes);
        self.kept_from = Some(Some(kept_from));
        Ok(())
    }

    /// Time since which all rows are kept, µs; `None` if none were dropped.
    pub async fn kept_from(&mut self) -> Result<Option<i64>> {
        if self.kept_from.is_none() {
            self.kept_from = Some(self.transaction(&self.kept_id()).await?);
        }
        Ok(self.kept_from.flatten())
    }

    fn kept_id(&self) -> String {
        format!("tidegate-kept/{}", self.spec.name)
    }

    /// Sets the clock that dates removed files and ages the log.
    pub(crate) fn set_clock(&mut self, clock: Clock) {
        self.clock = clock;
    }

    /// The time of day.
    pub(crate) fn now(&self) -> chrono::DateTime<chrono::Utc> {
        self.clock.now()
    }

    fn error(&self, source: DeltaTableError) -> LakeError {
        delta_error(&self.spec, self.table.table_url(), source)
    }
}

fn table_url(root: &Url, spec: &TableSpec) -> Result<Url> {
    let base = format!("{}/{}/", root.as_str().trim_end_matches('/'), spec.folder());
    Url::parse(&base).map_err(|e| LakeError::Refused(format!("lake address {base} is not a URL: {e}")))
}

fn delta_error(spec: &TableSpec, place: &Url, source: DeltaTableError) -> LakeError {
    LakeError::Delta { table: spec.name.clone(), place: place.to_string(), source: Box::new(source) }
}

fn delta_field(name: &str, data_type: &DataType) -> Result<StructField> {
    let primitive = match data_type {
        DataType::Utf8 | DataType::Utf8View => PrimitiveType::String,
        DataType::Int64 => PrimitiveType::Long,
        DataType::Int32 => PrimitiveType::Integer,
        DataType::Boolean => PrimitiveType::Boolean,
        DataType::Binary | DataType::BinaryView => PrimitiveType::Binary,
        DataType::Timestamp(..) => PrimitiveType::Timestamp,
        other => {
            return Err(LakeError::Refused(format!(
                "column {name} has type {other}, which lake tables do not hold"
            )));
        }
    };
    Ok(StructField::nullable(name, primitive))
}
