//! Query results in a form common to all systems: numbers, text and null.

use std::path::Path;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use parquet::arrow::ArrowWriter;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidegate_server::{Overrides, QueryService};

use super::Timing;
use tidegate_workspace::CommandError;

/// Relative tolerance between numbers of different engines.
const TOLERANCE: f64 = 1e-9;

pub type Row = Vec<Value>;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    pub rows: Vec<Row>,
    #[serde(flatten)]
    pub took: Timing,
}

fn without_limit() -> Overrides {
    Overrides { rows_max: Some(u64::MAX), ..Overrides::default() }
}

/// Runs a query and returns its rows.
pub async fn rows(service: &QueryService, sql: &str) -> Result<Vec<Row>, CommandError> {
    let mut found = Vec::new();
    let mut answer = service.query(sql, without_limit()).await?;
    while let Some(batch) = answer.next().await? {
        let columns: Vec<Vec<Value>> = batch.columns().iter().map(values).collect::<Result<_, _>>()?;
        found.extend(
            (0..batch.num_rows()).map(|row| columns.iter().map(|column| column[row].clone()).collect()),
        );
    }
    Ok(found)
}

/// Runs a query and discards its rows.
pub async fn drain(service: &QueryService, sql: &str) -> Result<(), CommandError> {
    let mut answer = service.query(sql, without_limit()).await?;
    while answer.next().await?.is_some() {}
    Ok(())
}

fn values(column: &ArrayRef) -> Result<Vec<Value>, CommandError> {
    if column.data_type().is_numeric() {
        let numbers = cast(column, &DataType::Float64)?;
        return Ok(numbers
            .as_primitive::<Float64Type>()
            .iter()
            .map(|n| n.map_or(Value::Null, Value::from))
            .collect());
    }
    let texts = cast(column, &DataType::Utf8)?;
    Ok(texts.as_string::<i32>().iter().map(|text| text.map_or(Value::Null, Value::from)).collect())
}

/// Writes the result of a query to a Parquet file.
pub async fn export(service: &QueryService, sql: &str, file: &Path) -> Result<(), CommandError> {
    let mut answer = service.query(sql, without_limit()).await?;
    let mut writer = ArrowWriter::try_new(std::fs::File::create(file)?, answer.schema().clone(), None)?;
    while let Some(batch) = answer.next().await? {
        writer.write(&batch)?;
    }
    writer.close()?;
    Ok(())
}

/// Describes the first difference of two results.
pub fn difference(ours: &[Row], theirs: &[Row]) -> Option<String> {
    if ours.len() != theirs.len() {
        return Some(format!("{} rows, not {}", theirs.len(), ours.len()));
    }
    let place = ours
        .iter()
        .zip(theirs)
        .position(|(a, b)| a.len() != b.len() || !a.iter().zip(b).all(|(a, b)| equal(a, b)))?;
    Some(format!("row {}: {:?}, not {:?}", place + 1, theirs[place], ours[place]))
}

fn equal(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_differ_in_rows_in_numbers_and_in_what_is_missing() {
        let row = |n: f64| vec![Value::from("a"), Value::from(n)];
        assert_eq!(difference(&[row(1.0)], &[row(1.0 + 1e-12)]), None);
        assert!(difference(&[row(1.0)], &[row(1.001)]).is_some_and(|d| d.starts_with("row 1")));
        assert!(difference(&[row(1.0)], &[]).is_some_and(|d| d == "0 rows, not 1"));
        assert!(difference(&[vec![Value::Null]], &[vec![Value::from(0)]]).is_some());
    }
}
