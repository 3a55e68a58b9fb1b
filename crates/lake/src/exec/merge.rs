//! Merges partial aggregates: several rows of one key into one.

use arrow::array::RecordBatch;
use datafusion::dataframe::DataFrame;
use datafusion::functions_aggregate::expr_fn::{max, min, sum};
use datafusion::logical_expr::Expr;
use datafusion::prelude::{SessionContext, ident};

use crate::batch::concat;
use crate::batch::sort::sorted;
use crate::engine::{self, Limits};
use crate::error::Result;
use crate::exec::partial;
use crate::table::{Merge, REVISION, TableSpec};

/// Merges the rows of a windowed table that have the same key; public columns. If the table is not
/// kept as partial aggregates, such rows come from several log partitions and are summed.
pub fn merge_rows(spec: &TableSpec, rows: DataFrame) -> Result<DataFrame> {
    let rows = aggregate(spec, rows, Vec::new())?;
    // Building a projection compares every column with every other, so it is skipped if the columns
    // are in order already.
    let names = rows.schema().fields().iter().map(|field| field.name());
    if names.eq(spec.columns.iter().map(|c| &c.name)) {
        return Ok(rows);
    }
    Ok(rows.select(spec.columns.iter().map(|c| ident(&c.name)).collect::<Vec<_>>())?)
}

/// As [`merge_rows`], of partial aggregates in memory: public columns, sorted by key.
pub async fn merge_batches(
    ctx: &SessionContext,
    spec: &TableSpec,
    rows: Vec<RecordBatch>,
) -> Result<RecordBatch> {
    if let Some(rows) = partial::merge(spec, &rows)? {
        return Ok(rows);
    }
    let rows = merge_rows(spec, ctx.read_batches(rows)?)?.collect().await?;
    Ok(sorted(&concat(&spec.public_schema(), &rows)?, &spec.key)?)
}

/// As [`merge_rows`], of rows of data files into rows of one file: file schema, sorted by key.
pub async fn merge_file_rows(spec: &TableSpec, rows: Vec<RecordBatch>) -> Result<RecordBatch> {
    if let Some(rows) = partial::merge(spec, &rows)? {
        return Ok(rows);
    }
    let limits = Limits { threads: 1, ..Limits::default() };
    let ctx = engine::session(&engine::runtime(limits)?, limits);
    let latest = max(ident(REVISION)).alias(REVISION);
    let rows = aggregate(spec, ctx.read_batches(rows)?, vec![latest])?.collect().await?;
    Ok(sorted(&concat(&spec.file_schema(), &rows)?, &spec.key)?)
}

fn aggregate(spec: &TableSpec, rows: DataFrame, mut values: Vec<Expr>) -> Result<DataFrame> {
    let mut keys = Vec::new();
    for (place, column) in spec.columns.iter().enumerate() {
        let value = ident(&column.name);
        match spec.merge(place) {
            Merge::Key => keys.push(value),
            Merge::Sum => values.push(sum(value).alias(&column.name)),
            Merge::Min => values.push(min(value).alias(&column.name)),
            Merge::Max => values.push(max(value).alias(&column.name)),
        }
    }
    Ok(rows.aggregate(keys, values)?)
}
