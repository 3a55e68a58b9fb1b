//! Overlays committed rows with rows in memory.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{Field, SchemaRef};
use datafusion::catalog::TableProvider;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::dataframe::DataFrame;
use datafusion::datasource::MemTable;
use datafusion::logical_expr::{Expr, JoinType, cast};
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::prelude::{SessionContext, ident, lit};
use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::exec::merge;
use crate::table::{KEY, Layout, OFFSET, OPEN, PARTITION, SEGMENT, TableSpec};

/// Rows in memory, and the committed rows they replace.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    /// Committed rows that are replaced.
    pub hide: Hidden,
    /// Rows with the table's full schema.
    pub rows: Vec<RecordBatch>,
    /// More rows, whose batches are built when a query reads them.
    pub streams: Vec<Arc<dyn PartitionStream>>,
    /// Rows of another process, which are asked for when a query reads them.
    pub elsewhere: Option<Arc<dyn TableProvider>>,
}

/// Which committed rows a query must not see, because rows in memory replace them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hidden {
    /// Those of these (log partition, offset), from the offset on.
    pub from: Vec<(i32, i64)>,
    /// Open rows of these log partitions.
    pub open: Vec<i32>,
    /// Those of these (log partition, key).
    pub keys: Vec<(i32, i64)>,
    /// Those of these (log partition, segment).
    pub segments: Vec<(i32, String)>,
}

impl Hidden {
    /// The condition for rows that are hidden by partition.
    fn condition(&self) -> Option<Expr> {
        let here = |partition: i32| ident(PARTITION).eq(lit(partition));
        let from = self.from.iter().map(|(at, offset)| here(*at).and(ident(OFFSET).gt_eq(lit(*offset))));
        let open = self.open.iter().map(|at| here(*at).and(ident(OPEN)));
        from.chain(open).reduce(Expr::or)
    }
}

/// A stored table with every column: committed rows that are not hidden, and the rows in memory.
pub fn overlaid(
    ctx: &SessionContext,
    spec: &TableSpec,
    committed: Option<Arc<dyn TableProvider>>,
    overlay: Overlay,
) -> Result<DataFrame> {
    let schema = spec.full_schema();
    // Each part of a union is planned with every column, so parts without rows are left out.
    let has_rows = overlay.rows.iter().any(|batch| batch.num_rows() > 0);
    let in_memory = MemTable::try_new(Arc::clone(&schema), vec![overlay.rows])?;
    let Some(committed) = committed else { return Ok(ctx.read_table(Arc::new(in_memory))?) };
    let mut rows = ctx.read_table(committed)?;
    let hide = overlay.hide;
    if let Some(hidden) = hide.condition() {
        rows = rows.filter(hidden.is_not_true())?;
    }
    let keys: ArrayRef = Arc::new(hide.keys.iter().map(|(_, key)| Some(*key)).collect::<Int64Array>());
    rows = anti_join(ctx, rows, KEY, hide.keys.iter().map(|(p, _)| *p).collect(), keys)?;
    let segments: ArrayRef =
        Arc::new(hide.segments.iter().map(|(_, name)| Some(name)).collect::<StringArray>());
    rows = anti_join(ctx, rows, SEGMENT, hide.segments.iter().map(|(p, _)| *p).collect(), segments)?;
    let mut rows = rows.select(cast_columns(&schema))?;
    if has_rows {
        rows = rows.union(ctx.read_table(Arc::new(in_memory))?)?;
    }
    if !overlay.streams.is_empty() {
        rows = rows.union(ctx.read_table(Arc::new(StreamingTable::try_new(schema, overlay.streams)?))?)?;
    }
    if let Some(elsewhere) = overlay.elsewhere {
        rows = rows.union(ctx.read_table(elsewhere)?)?;
    }
    Ok(rows)
}

/// Rows whose (log partition, `column`) is not listed.
///
/// This is a join and not a list of literals: the scan turns a list into nested ORs, and thousands
/// of them overflow the stack.
fn anti_join(
    ctx: &SessionContext,
    rows: DataFrame,
    column: &str,
    partitions: Vec<i32>,
    values: ArrayRef,
) -> Result<DataFrame> {
    if partitions.is_empty() {
        return Ok(rows);
    }
    let partitions: ArrayRef = Arc::new(Int32Array::from(partitions));
    let listed = RecordBatch::try_from_iter([("listed_partition", partitions), ("listed_value", values)])?;
    let listed = ctx.read_batch(listed)?;
    Ok(rows.join(
        listed,
        JoinType::LeftAnti,
        &[PARTITION, column],
        &["listed_partition", "listed_value"],
        None,
    )?)
}

pub(super) fn cast_columns(schema: &SchemaRef) -> Vec<Expr> {
    let column = |f: &Arc<Field>| cast(ident(f.name()), f.data_type().clone()).alias(f.name());
    schema.fields().iter().map(column).collect()
}

/// The table as queries see it: public columns, with the rows of several log partitions and partial
/// aggregates merged.
pub fn public_rows(spec: &TableSpec, rows: DataFrame, partitions: u32) -> Result<DataFrame> {
    match is_merged(spec, partitions) {
        true => merge::merge_rows(spec, rows),
        false => unmerged_rows(spec, rows),
    }
}

/// Whether several rows may have one key, so that they are merged when they are read.
pub(super) fn is_merged(spec: &TableSpec, partitions: u32) -> bool {
    spec.layout == Layout::Windowed && (partitions > 1 || !spec.partials.is_empty())
}

/// The public columns of full rows.
pub(super) fn unmerged_rows(spec: &TableSpec, rows: DataFrame) -> Result<DataFrame> {
    Ok(rows.select(spec.columns.iter().map(|c| ident(&c.name)).collect::<Vec<_>>())?)
}

/// Restricts full rows to one log partition.
pub fn in_partition(rows: DataFrame, partition: u32) -> Result<DataFrame> {
    Ok(rows.filter(ident(PARTITION).eq(lit(partition as i32)))?)
}
