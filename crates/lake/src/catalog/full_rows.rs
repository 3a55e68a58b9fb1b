//! Full rows of a stored table: every column, committed and in memory.
//!
//! The lake publishes a new catalog every second, and a query process builds one for each query. A
//! query reads few of the tables, so a table's rows are planned when it is first read.

use std::fmt;
use std::sync::Arc;

use datafusion::catalog::TableProvider;
use datafusion::dataframe::DataFrame;
use datafusion::prelude::SessionContext;

use super::overlay::{Overlay, overlaid};
use crate::error::Result;
use crate::table::TableSpec;

/// A stored table of a catalog.
#[derive(Debug)]
pub struct StoredTable {
    pub spec: Arc<TableSpec>,
    pub rows: FullRows,
    /// Log partitions whose rows a query merges.
    pub partitions: u32,
}

/// Rows that are planned on each call.
#[derive(Clone)]
pub struct FullRows(Arc<dyn Fn() -> Result<DataFrame> + Send + Sync>);

impl FullRows {
    /// Committed rows without the hidden ones, and the rows in memory. Do not pass a session in
    /// which the catalog's tables are registered: that would be a reference cycle.
    pub fn overlaid(
        ctx: &SessionContext,
        spec: &Arc<TableSpec>,
        committed: Option<Arc<dyn TableProvider>>,
        overlay: Overlay,
    ) -> Self {
        let (ctx, spec) = (ctx.clone(), Arc::clone(spec));
        Self(Arc::new(move || overlaid(&ctx, &spec, committed.clone(), overlay.clone())))
    }

    /// The rows of a table. `ctx` as in [`Self::overlaid`].
    pub fn of(ctx: &SessionContext, table: Arc<dyn TableProvider>) -> Self {
        let ctx = ctx.clone();
        Self(Arc::new(move || Ok(ctx.read_table(Arc::clone(&table))?)))
    }

    /// # Errors
    /// The committed rows do not have the table's columns.
    pub fn plan(&self) -> Result<DataFrame> {
        (self.0)()
    }
}

impl fmt::Debug for FullRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FullRows").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use datafusion::datasource::MemTable;

    use super::*;
    use crate::catalog::build::public_catalog;
    use crate::engine::{self, Limits};
    use crate::pipeline::plan::{Group, Plan};
    use crate::pipeline::shipped;
    use crate::table::Layout;

    #[tokio::test]
    async fn a_catalog_plans_the_tables_that_are_read_and_no_others() {
        let plan = Plan::compile(shipped()).await.unwrap();
        let runtime = engine::runtime(Limits::default()).unwrap();
        let ctx = engine::session(&runtime, Limits::default());
        let planned = Arc::new(AtomicUsize::new(0));
        let joined = plan.stored_joined().map(|planned| Arc::clone(&planned.spec));
        let specs = plan.groups.iter().flat_map(Group::commit_order).chain(joined);
        let stored = specs.map(|spec| {
            let empty = Arc::new(MemTable::try_new(spec.full_schema(), vec![vec![]]).unwrap());
            let (rows, planned) = (FullRows::of(&ctx, empty), Arc::clone(&planned));
            let counted = FullRows(Arc::new(move || {
                planned.fetch_add(1, Ordering::Relaxed);
                rows.plan()
            }));
            StoredTable { spec, rows: counted, partitions: 1 }
        });
        let catalog =
            public_catalog(&runtime, &plan, stored.collect(), Vec::new(), &BTreeMap::new()).await.unwrap();
        assert_eq!(planned.load(Ordering::Relaxed), 0);

        let reader = engine::session(&runtime, Limits::default());
        let read = async |name: &str| {
            let before = planned.load(Ordering::Relaxed);
            reader.read_table(Arc::clone(&catalog.tables[name])).unwrap().count().await.unwrap();
            planned.load(Ordering::Relaxed) - before
        };
        assert_eq!(read("attempts").await, 1);
        assert_eq!(read("jobs").await, 0, "the same rows, which are planned already");
        let windowed = plan.tables().iter().filter(|spec| spec.layout == Layout::Windowed).count();
        let revisions = read("window_revisions").await;
        assert!((10..=windowed).contains(&revisions), "each once: {revisions} of {windowed}");
    }
}
