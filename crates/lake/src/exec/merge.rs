//! Puts the rows of one key merge_rows, of windows that are kept in parts.

use arrow::array::RecordBatch;
use datafusion::dataframe::DataFrame;
use datafusion::functions_aggregate::expr_fn::{max, min, sum};
use datafusion::logical_expr::Expr;
use datafusion::prelude::ident;

use crate::batch::concat;
use crate::batch::sort::sorted;
use crate::engine::{self, Limits};
use crate::error::Result;
use crate::table::{Merge, REVISION, TableSpec};

/// Rows of a windowed table with those of one key put merge_rows; its public columns. Where the table
/// is not kept in parts, its rows are of several log partitions and add up.
pub fn merge_rows(spec: &TableSpec, rows: DataFrame) -> Result<DataFrame> {
    let rows = aggregate(spec, rows, Vec::new())?;
    // Every select compares every column with every other, so it is left out where they stand in
    // order.
    let names = rows.schema().fields().iter().map(|field| field.name());
    if names.eq(spec.columns.iter().map(|c| &c.name)) {
        return Ok(rows);
    }
    Ok(rows.select(spec.columns.iter().map(|c| ident(&c.name)).collect::<Vec<_>>())?)
}

/// As [`merge_rows`], of rows as they stand in files, for a file: sorted by the key.
pub async fn merge_file_rows(spec: &TableSpec, rows: Vec<RecordBatch>) -> Result<RecordBatch> {
    let limits = Limits { threads: 1, ..Limits::default() };
    let ctx = engine::session(&engine::runtime(limits)?, limits);
    let latest = max(ident(REVISION)).alias(REVISION);
    let rows = aggregate(spec, ctx.read_batches(rows)?, vec![latest])?.collect().await?;
    Ok(sorted(&concat(&spec.file_schema(), &rows)?, &spec.key)?)
}

fn aggregate(spec: &TableSpec, rows: DataFrame, mut values: Vec<Expr>) -> Result<DataFrame> {
    let part = |place: usize, name: &str| match spec.partials.get(place) {
        Some(part) => *part,
        None if spec.key.iter().any(|key| key == name) => Merge::Key,
        None => Merge::Sum,
    };
    let mut keys = Vec::new();
    for (place, column) in spec.columns.iter().enumerate() {
        let value = ident(&column.name);
        match part(place, &column.name) {
            Merge::Key => keys.push(value),
            Merge::Sum => values.push(sum(value).alias(&column.name)),
            Merge::Min => values.push(min(value).alias(&column.name)),
            Merge::Max => values.push(max(value).alias(&column.name)),
        }
    }
    Ok(rows.aggregate(keys, values)?)
}
