//! What the serving process and its workers tell each other.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_lake::catalog::pinned::Place;
use tidegate_lake::catalog::{Sight, TableLag};

use crate::question::Question;

/// A query for a worker.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Ask {
    /// Number of the catalog to read: equal numbers are the same tables with the same rows.
    pub(super) catalog: u64,
    pub(super) question: Question,
    /// How much the query sees.
    pub(super) sight: Sight,
    pub(super) rows_max: u64,
    pub(super) time_ms: u64,
}

/// Where the tables of a query are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Places {
    pub(super) stored: BTreeMap<String, Place>,
    pub(super) lag: Vec<TableLag>,
}

/// Stored tables that a worker needs.
pub(super) type Needed = BTreeSet<String>;

/// Rows of a table that are not committed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct WantedTail {
    /// Number of the question; every frame of the reply begins with it.
    pub(super) id: u64,
    pub(super) table: String,
    /// Places of the columns in the table's full schema.
    pub(super) columns: Vec<usize>,
}
