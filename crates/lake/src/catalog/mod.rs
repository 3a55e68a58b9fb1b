//! Catalog: the tables as queries see them, committed files overlaid with uncommitted rows.

pub(crate) mod build;
mod committed;
pub mod disk;
pub(crate) mod full_rows;
mod lag;
mod named;
pub(crate) mod overlay;
mod parts;
pub mod pinned;
pub mod position;
pub mod rollup;
mod sight;
mod teams;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, RwLock};

use datafusion::catalog::TableProvider;
use datafusion::prelude::SessionContext;

pub use self::committed::committed_catalog;
pub use self::lag::{TableLag, table_lag};
pub use self::overlay::{Hidden, Overlay};
pub use self::parts::Parts;
pub use self::sight::Sight;
use crate::error::Result;
use crate::pipeline::rollup::Rollup;
use crate::table::TableSpec;

/// A consistent set of tables. A query runs on one catalog from its first table to its last.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    /// Tables by name, views among them.
    pub tables: BTreeMap<String, Arc<dyn TableProvider>>,
    /// Description of each table.
    pub specs: BTreeMap<String, Arc<TableSpec>>,
    /// Names of the tables that are computed when they are read.
    pub views: BTreeSet<String>,
    /// How far each joined table is up to date; the rows of `table_lag`.
    pub lag: Vec<TableLag>,
    /// Rollups of each table, the narrowest first.
    pub rollups: BTreeMap<String, Vec<Rollup>>,
    /// Rows of tables that are merged when they are read, before the merge.
    pub parts: BTreeMap<String, Parts>,
    /// Names of the tables that are for administrators: audit records, and what is computed from
    /// them.
    pub guarded: BTreeSet<String>,
    /// The question that each table answers, where its pipeline names one.
    pub questions: BTreeMap<String, Question>,
    /// Where the rows of each stored table are, for another process that opens them. Empty if they
    /// are not all in a lake.
    pub stored: BTreeMap<String, Stored>,
}

/// A question that a table answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// It, in the words of an operator or a payer.
    pub text: String,
    /// A query to begin with.
    pub example: Option<String>,
}

/// Where the rows of a stored table are: in a version of its Delta table, overlaid with others.
#[derive(Debug, Clone)]
pub struct Stored {
    /// Delta version of the committed rows; [`Self::NO_TABLE`] before the first one.
    pub version: i64,
    /// Log partitions whose rows a query merges.
    pub partitions: u32,
    /// Rows that are not committed.
    pub overlay: Overlay,
}

impl Stored {
    /// The version of a table that does not exist yet and has no rows.
    pub const NO_TABLE: i64 = -1;
}

impl Catalog {
    /// Registers every table in a session.
    pub fn register(&self, ctx: &SessionContext) -> Result<()> {
        for (name, table) in &self.tables {
            ctx.register_table(name.as_str(), Arc::clone(table))?;
        }
        Ok(())
    }
}

/// Source of the newest catalog.
#[derive(Debug, Clone)]
pub struct CatalogSource {
    pub(crate) published: Arc<RwLock<Arc<Catalog>>>,
}

impl CatalogSource {
    /// A source whose catalog never changes.
    pub fn fixed(catalog: Catalog) -> Self {
        Self { published: Arc::new(RwLock::new(Arc::new(catalog))) }
    }

    /// The newest catalog.
    pub fn current(&self) -> Arc<Catalog> {
        Arc::clone(&self.published.read().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
