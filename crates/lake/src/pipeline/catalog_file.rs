//! Catalogues: CSV files that a pipeline reads as the table `catalog`.
//!
//! A pipeline's header names the file: `catalog = { file = "schemas/xid_catalog.csv", key =
//! ["code"], whole_numbers = ["code"] }`. Its SELECT then reads `FROM catalog`. The CSV is the only
//! place where the rows are written down; they become part of the pipeline's SQL when its file is
//! parsed.
//!
//! The table `catalog` has the columns of the CSV (text, or BIGINT where `whole_numbers` names
//! them; an empty cell is NULL), then `origin` (text: the CSV the row is from) and `is_own`
//! (BIGINT: 1 for rows of a user's file that go before the shipped ones, else 0).

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use csv::{ReaderBuilder, StringRecord, Trim};
use serde::Deserialize;

use crate::error::{LakeError, Result};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        &[$((concat!("schemas/", $name, ".csv"), include_str!(concat!("../../../../schemas/", $name, ".csv")))),*]
    };
}

/// Catalogues that come with the binary: file and text of each.
const SHIPPED: &[(&str, &str)] =
    files!["gpu_peaks", "ledger_classes", "link_peaks", "mig_profiles", "pending_reasons", "xid_catalog"];

/// The header key `catalog` of a pipeline file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CatalogHeader {
    /// A shipped catalogue, or a path from the folder of the pipeline file.
    pub file: String,
    /// Columns that together identify a row. None may be empty, and no two rows may be equal in all
    /// of them.
    pub key: Vec<String>,
    /// Columns that hold integers of at least 0.
    #[serde(default)]
    pub whole_numbers: Vec<String>,
}

/// A CSV file with its rows.
#[derive(Debug, Clone)]
pub(crate) struct CatalogFile {
    /// Name of the file in messages and in the column `origin`.
    pub origin: String,
    pub text: String,
    /// Whether it is a user's file, whose rows take precedence over the shipped ones.
    pub is_own: bool,
}

impl CatalogFile {
    /// The shipped catalogue of this name, e.g. `schemas/xid_catalog.csv`.
    pub fn shipped(file: &str) -> Option<Self> {
        let (origin, text) = SHIPPED.iter().find(|(name, _)| *name == file)?;
        Some(Self { origin: (*origin).to_owned(), text: (*text).to_owned(), is_own: false })
    }

    /// Finds the catalogue that a pipeline file names: a shipped one, or one in the folder of that
    /// file.
    ///
    /// # Errors
    /// [`LakeError::Pipeline`] if there is neither.
    pub fn find(file: &str, pipeline_file: &Path) -> Result<Self> {
        if let Some(shipped) = Self::shipped(file) {
            return Ok(shipped);
        }
        let path = pipeline_file.parent().unwrap_or(Path::new("")).join(file);
        let text = std::fs::read_to_string(&path).map_err(|e| {
            let shipped: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
            LakeError::Pipeline {
                file: pipeline_file.display().to_string(),
                message: format!(
                    "read the catalogue {}: {e}; name a CSV file from the folder of the pipeline file, or a shipped one: {}",
                    path.display(),
                    shipped.join(", ")
                ),
            }
        })?;
        Ok(Self { origin: path.display().to_string(), text, is_own: false })
    }

    fn refuse(&self, line: u64, message: String) -> LakeError {
        LakeError::Pipeline { file: format!("{}:{line}", self.origin), message }
    }
}

/// Prepends the rows of a catalogue to a pipeline's SQL.
///
/// The last file defines the columns. Files before it are a user's own: they may leave out columns
/// that are not in `required`, and their numbers are at least 1.
///
/// # Errors
/// [`LakeError::Pipeline`] with file, line and problem.
pub(crate) fn with_rows(
    header: &CatalogHeader,
    files: &[CatalogFile],
    required: &[&str],
    sql: &str,
) -> Result<String> {
    let Some(shipped) = files.last() else { return Ok(sql.to_owned()) };
    let headers = reader(shipped).headers().map_err(|e| shipped.refuse(1, e.to_string()))?.clone();
    let columns: Vec<&str> = headers.iter().collect();
    if let Some(unknown) =
        header.key.iter().chain(&header.whole_numbers).find(|c| !columns.contains(&c.as_str()))
    {
        let message = format!(
            "there is no column {unknown:?}, which `catalog` names; there are: {}",
            columns.join(", ")
        );
        return Err(shipped.refuse(1, message));
    }
    let mut rows = Vec::new();
    for file in files {
        rows.extend(read(header, file, &columns, required)?);
    }
    if rows.is_empty() {
        return Err(shipped.refuse(1, "the catalogue has no rows".into()));
    }
    let mut select = String::new();
    for (place, column) in columns.iter().enumerate() {
        let data_type = if is_number(header, column) { "BIGINT" } else { "TEXT" };
        write!(select, "CAST(column{} AS {data_type}) AS \"{column}\", ", place + 1).ok();
    }
    let (origin, own) = (columns.len() + 1, columns.len() + 2);
    write!(select, "column{origin} AS origin, CAST(column{own} AS BIGINT) AS is_own").ok();
    // All in one line, so that the line numbers of SQL errors stay those of the file.
    let values = rows.join(", ");
    Ok(format!("WITH catalog AS (SELECT {select} FROM (VALUES {values})) SELECT * FROM ({sql})\n"))
}

fn is_number(header: &CatalogHeader, column: &str) -> bool {
    header.whole_numbers.iter().any(|number| number == column)
}

fn reader(file: &CatalogFile) -> csv::Reader<&[u8]> {
    ReaderBuilder::new().comment(Some(b'#')).trim(Trim::All).from_reader(file.text.as_bytes())
}

/// Rows of a file as SQL: a value for each of `columns`, then origin and `is_own`.
fn read(
    header: &CatalogHeader,
    file: &CatalogFile,
    columns: &[&str],
    required: &[&str],
) -> Result<Vec<String>> {
    let mut reader = reader(file);
    let headers = reader.headers().map_err(|e| file.refuse(1, e.to_string()))?.clone();
    if let Some(unknown) = headers.iter().find(|name| !columns.contains(name)) {
        return Err(
            file.refuse(1, format!("column {unknown:?} is not known; there are: {}", columns.join(", ")))
        );
    }
    let place = |column: &str| headers.iter().position(|header| header == column);
    if let Some(missing) = required.iter().find(|column| place(column).is_none()) {
        return Err(
            file.refuse(1, format!("column {missing:?} is missing; the first line names the columns"))
        );
    }
    let places: Vec<_> = columns.iter().map(|column| (*column, place(column))).collect();
    let (mut rows, mut names) = (Vec::new(), BTreeSet::new());
    for record in reader.records() {
        let record =
            record.map_err(|e| file.refuse(e.position().map_or(1, csv::Position::line), e.to_string()))?;
        let line = record.position().map_or(1, csv::Position::line);
        let name: Vec<_> = header.key.iter().map(|column| cell(&record, place(column)).to_owned()).collect();
        let values = places.iter().map(|(column, place)| value(header, file, column, cell(&record, *place)));
        let values = values.collect::<Result<Vec<_>, _>>().map_err(|message| file.refuse(line, message))?;
        if names.contains(&name) {
            return Err(file.refuse(line, format!("a row with {} comes twice; keep one", name.join(", "))));
        }
        names.insert(name);
        rows.push(format!("({}, {}, {})", values.join(", "), quoted(&file.origin), u8::from(file.is_own)));
    }
    Ok(rows)
}

fn cell(record: &StringRecord, place: Option<usize>) -> &str {
    place.and_then(|place| record.get(place)).unwrap_or("")
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// A cell as SQL.
fn value(header: &CatalogHeader, file: &CatalogFile, column: &str, text: &str) -> Result<String, String> {
    let least = i64::from(file.is_own);
    match text {
        "" if header.key.iter().any(|key| key == column) => Err(format!("{column} is empty")),
        "" => Ok("NULL".to_owned()),
        _ if !is_number(header, column) => Ok(quoted(text)),
        _ => match text.parse::<i64>() {
            Ok(number) if number >= least => Ok(number.to_string()),
            _ => Err(format!(
                "{column} is {text:?}; write a whole number of at least {least}, or nothing if it is not known"
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::definition::Pipeline;

    #[test]
    fn every_csv_of_the_schemas_is_shipped() {
        let names = std::fs::read_dir("../../schemas").unwrap();
        let names = names.map(|f| f.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> =
            names.filter(|n| n.ends_with(".csv")).map(|n| format!("schemas/{n}")).collect();
        names.sort();
        assert_eq!(SHIPPED.iter().map(|(file, _)| *file).collect::<Vec<_>>(), names);
    }

    const COLOURS: &str = "\
--! name = \"colours\"
--! doc = \"Colours by code.\"
--! sources = []
--! catalog = { file = \"colours.csv\", key = [\"code\"], whole_numbers = [\"code\"] }
--! [columns]
--! code = \"Code.\"
--! name = \"Name.\"
WITH named AS (SELECT code, name FROM catalog WHERE name IS NOT NULL)
SELECT code, name FROM named
";

    /// The pipeline above beside a CSV with this text, or the error.
    fn colours(csv: Option<&str>) -> Result<Pipeline, String> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("colours.sql");
        std::fs::write(&file, COLOURS).unwrap();
        if let Some(csv) = csv {
            std::fs::write(folder.path().join("colours.csv"), csv).unwrap();
        }
        Pipeline::load(&file).map_err(|e| e.to_string())
    }

    #[tokio::test]
    async fn a_pipeline_reads_a_csv_file_beside_it() {
        let colours = colours(Some("code,name\n1,red\n2,\n3,it's blue\n")).unwrap();
        let ctx = datafusion::prelude::SessionContext::new();
        let rows = ctx.sql(&colours.sql).await.unwrap().collect().await.unwrap();
        let shown = arrow::util::pretty::pretty_format_batches(&rows).unwrap().to_string();
        assert!(
            shown.contains("| 1    | red ") && shown.contains("it's blue") && !shown.contains("| 2 "),
            "{shown}"
        );
        crate::pipeline::plan::Plan::compile(vec![colours]).await.unwrap();
    }

    #[test]
    fn a_broken_catalogue_is_named_with_its_line() {
        for (csv, words) in [
            (None, "colours.csv: No such file"),
            (Some("name\nred\n"), "colours.csv:1: there is no column \"code\""),
            (Some("code,name\n1,red\n1,blue\n"), "colours.csv:3: a row with 1 comes twice"),
            (Some("code,name\n1,red\none,blue\n"), "colours.csv:3: code is \"one\""),
            (Some("code,name\n1,red\n,blue\n"), "colours.csv:3: code is empty"),
            (Some("code,name\n"), "colours.csv:1: the catalogue has no rows"),
        ] {
            let refused = colours(csv).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
