//! The table `table_lag`: what joined tables have yet to recompute.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray, TimestampMicrosecondArray};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use serde::{Deserialize, Serialize};
use url::Url;

use crate::delta::{DeltaStore, Pending};
use crate::error::Result;
use crate::pipeline::plan::{Plan, Planned};
use crate::table;
use crate::window::MICROS_PER_MS;

/// How far a joined table is up to date.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableLag {
    /// Name of the table.
    pub table: String,
    /// Time up to which it has windows, µs; `None` before its first commit.
    pub live_to: Option<i64>,
    /// Number of windows that are not recomputed yet.
    pub pending_windows: i64,
    /// Start of the first and end of the last of them, µs.
    pub pending: Option<(i64, i64)>,
}

impl TableLag {
    pub(crate) fn new(planned: &Planned, pending: &Pending) -> Self {
        let width = planned.pipeline.shape.width_ms().expect("joined tables have windows") * MICROS_PER_MS;
        Self {
            table: planned.spec.name.clone(),
            live_to: pending.live_to,
            pending_windows: pending.spans.iter().map(|(from, to)| (to - from) / width + 1).sum(),
            pending: pending
                .spans
                .first()
                .zip(pending.spans.last())
                .map(|(first, last)| (first.0, last.1 + 1)),
        }
    }
}

/// How far the joined tables below `root` are up to date. Takes no lock and creates nothing.
pub async fn table_lag(root: &Url, plan: &Plan) -> Result<Vec<TableLag>> {
    let mut lag = Vec::new();
    for planned in plan.stored_joined() {
        if let Some(store) = DeltaStore::open(root, Arc::clone(&planned.spec)).await? {
            lag.push(TableLag::new(planned, &store.pending().await?));
        }
    }
    Ok(lag)
}

/// The rows as a table.
pub(super) fn provider(rows: &[TableLag]) -> Result<Arc<dyn TableProvider>> {
    let time = |of: &dyn Fn(&TableLag) -> Option<i64>| -> ArrayRef {
        Arc::new(rows.iter().map(of).collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| Some(&row.table)).collect::<StringViewArray>()),
        time(&|row| row.live_to),
        Arc::new(rows.iter().map(|row| row.pending_windows).collect::<Int64Array>()),
        time(&|row| Some(row.pending?.0)),
        time(&|row| Some(row.pending?.1)),
    ];
    let schema = table::table_lag().public_schema();
    let batch = RecordBatch::try_new(Arc::clone(&schema), columns)?;
    Ok(Arc::new(MemTable::try_new(schema, vec![vec![batch]])?))
}
