//! Catalogs of a process that only answers queries: the tables exactly as a catalog of the process
//! that writes them shows them.
//!
//! Committed rows are read from the same version of each Delta table; rows that are not committed
//! are asked for. Only the tables that a query reads are opened, so a new catalog costs little.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::DataFusionError;
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use serde::{Deserialize, Serialize};
use url::Url;

use super::full_rows::{FullRows, StoredTable};
use super::overlay::{Hidden, Overlay};
use super::{Catalog, Stored, TableLag, build};
use crate::delta::DeltaStore;
use crate::engine::{self, Limits};
use crate::error::{LakeError, Result};
use crate::pipeline::plan::{Group, Plan};
use crate::table::{Layout, TableSpec, window_revisions};

/// Where the rows of a table are, as one process tells another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Delta version of the committed rows.
    pub version: i64,
    /// Log partitions whose rows a query merges.
    pub partitions: u32,
    /// Committed rows that rows in memory replace.
    pub hide: Hidden,
    /// Whether there are rows in memory.
    pub has_tail: bool,
}

impl From<&Stored> for Place {
    fn from(stored: &Stored) -> Self {
        let Overlay { hide, rows, streams, .. } = &stored.overlay;
        let has_tail = !streams.is_empty() || rows.iter().any(|batch| batch.num_rows() > 0);
        Self { version: stored.version, partitions: stored.partitions, hide: hide.clone(), has_tail }
    }
}

/// The tables of a lake, opened at the versions that another process names.
#[derive(Debug)]
pub struct PinnedLake {
    root: Url,
    plan: Plan,
    runtime: Arc<RuntimeEnv>,
    stores: BTreeMap<String, DeltaStore>,
}

impl PinnedLake {
    /// Opens nothing yet.
    ///
    /// # Errors
    /// The temporary folder cannot be used.
    pub fn new(root: Url, plan: Plan) -> Result<Self> {
        let runtime = engine::runtime(Limits::default())?;
        Ok(Self { root, plan, runtime, stores: BTreeMap::new() })
    }

    /// The stored tables that queries of these tables and views read.
    pub fn stored_behind(&self, names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
        let (mut seen, mut left) = (BTreeSet::new(), names.into_iter().collect::<Vec<_>>());
        let rollups = self.plan.rollups();
        while let Some(name) = left.pop() {
            if !seen.insert(name.clone()) {
                continue;
            }
            if let Some(view) = self.plan.views.iter().find(|view| view.spec.name == name) {
                left.extend(view.pipeline.sources.iter().cloned());
            }
            left.extend(rollups.get(&name).into_iter().flatten().map(|rollup| rollup.table.clone()));
            if name == window_revisions().name {
                let windowed = self.stored_specs().filter(|spec| spec.layout == Layout::Windowed);
                left.extend(windowed.map(|spec| spec.name.clone()));
            }
        }
        self.stored_specs().map(|spec| spec.name.clone()).filter(|name| seen.contains(name)).collect()
    }

    fn stored_specs(&self) -> impl Iterator<Item = Arc<TableSpec>> {
        let joined = self.plan.stored_joined().map(|planned| Arc::clone(&planned.spec));
        self.plan.groups.iter().flat_map(Group::commit_order).chain(joined)
    }

    /// The catalog in which these tables can be read; a query of another one fails. `tail` gives
    /// the rows of a table that are not committed.
    ///
    /// # Errors
    /// A table cannot be read at the version asked for.
    pub async fn catalog(
        &mut self,
        places: &BTreeMap<String, Place>,
        lag: Vec<TableLag>,
        tail: impl Fn(&TableSpec) -> Arc<dyn TableProvider>,
    ) -> Result<Catalog> {
        let ctx = engine::session(&self.runtime, Limits { threads: 1, ..Limits::default() });
        let mut stored = Vec::new();
        for spec in self.stored_specs().collect::<Vec<_>>() {
            let Some(place) = places.get(&spec.name) else {
                let rows = FullRows::of(&ctx, Arc::new(NotOpened(Arc::clone(&spec))));
                stored.push(StoredTable { spec, rows, partitions: 1 });
                continue;
            };
            let committed = match place.version {
                Stored::NO_TABLE => None,
                version => Some(self.pinned(&spec, version).await?.provider().await?),
            };
            let elsewhere = place.has_tail.then(|| tail(&spec));
            let overlay = Overlay { hide: place.hide.clone(), elsewhere, ..Overlay::default() };
            let rows = FullRows::overlaid(&ctx, &spec, committed, overlay);
            stored.push(StoredTable { spec, rows, partitions: place.partitions });
        }
        build::public_catalog(&self.runtime, &self.plan, stored, lag, &BTreeMap::new()).await
    }

    /// The table at a version. What was read of it before is used again.
    async fn pinned(&mut self, spec: &Arc<TableSpec>, version: i64) -> Result<&DeltaStore> {
        if let Some(store) = self.stores.get_mut(&spec.name)
            && store.version() != version
            && let Err(error) = store.pin(version).await
        {
            // Commits in between may have been cleaned up: a checkpoint stands for them.
            tracing::debug!(table = spec.name, %error, "opened anew");
            self.stores.remove(&spec.name);
        }
        if !self.stores.contains_key(&spec.name) {
            let opened = DeltaStore::open(&self.root, Arc::clone(spec)).await?;
            let mut store = opened
                .ok_or_else(|| LakeError::Refused(format!("table {} is not in the lake", spec.name)))?;
            if store.version() != version {
                store.pin(version).await?;
            }
            self.stores.insert(spec.name.clone(), store);
        }
        Ok(&self.stores[&spec.name])
    }
}

/// A table that the query was not expected to read: an error is better than no rows.
#[derive(Debug)]
struct NotOpened(Arc<TableSpec>);

#[async_trait]
impl TableProvider for NotOpened {
    fn schema(&self) -> SchemaRef {
        self.0.full_schema()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _: &dyn Session,
        _: Option<&Vec<usize>>,
        _: &[Expr],
        _: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>, DataFusionError> {
        Err(DataFusionError::Internal(format!("table {} was not opened for this query", self.0.name)))
    }
}
