//! Puts the rows of one key together, of windows that are kept in parts.

use arrow::array::RecordBatch;
use datafusion::dataframe::DataFrame;
use datafusion::functions_aggregate::expr_fn::{max, min, sum};
use datafusion::logical_expr::Expr;
use datafusion::prelude::ident;

use crate::batch::concat;
use crate::batch::sort::sorted;
use crate::engine::{self, Limits};
use crate::error::Result;
use crate::table::{Part, REVISION, TableSpec};

/// Rows of a windowed table with those of one key put together; its public columns. Where the table
/// is not kept in parts, its rows are of several log partitions and add up.
pub fn together(spec: &TableSpec, rows: DataFrame) -> Result<DataFrame> {
    let rows = grouped(spec, rows, Vec::new())?;
    // Every select compares every column with every other, so it is left out where they stand in
    // order.
    let names = rows.schema().fields().iter().map(|field| field.name());
    if names.eq(spec.columns.iter().map(|c| &c.name)) {
        return Ok(rows);
    }
    Ok(rows.select(spec.columns.iter().map(|c| ident(&c.name)).collect::<Vec<_>>())?)
}

/// As [`together`], of rows as they stand in files, for a file: sorted by the key.
pub async fn in_one_file(spec: &TableSpec, rows: Vec<RecordBatch>) -> Result<RecordBatch> {
    let limits = Limits { threads: 1, ..Limits::default() };
    let ctx = engine::session(&engine::runtime(limits)?, limits);
    let latest = max(ident(REVISION)).alias(REVISION);
    let rows = grouped(spec, ctx.read_batches(rows)?, vec![latest])?.collect().await?;
    Ok(sorted(&concat(&spec.file_schema(), &rows)?, &spec.key)?)
}

fn grouped(spec: &TableSpec, rows: DataFrame, mut values: Vec<Expr>) -> Result<DataFrame> {
    let part = |place: usize, name: &str| match spec.parts.get(place) {
        Some(part) => *part,
        None if spec.key.iter().any(|key| key == name) => Part::Key,
        None => Part::Sum,
    };
    let mut keys = Vec::new();
    for (place, column) in spec.columns.iter().enumerate() {
        let value = ident(&column.name);
        match part(place, &column.name) {
            Part::Key => keys.push(value),
            Part::Sum => values.push(sum(value).alias(&column.name)),
            Part::Min => values.push(min(value).alias(&column.name)),
            Part::Max => values.push(max(value).alias(&column.name)),
        }
    }
    Ok(rows.aggregate(keys, values)?)
}
