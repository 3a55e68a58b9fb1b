//! The view `gpu_peaks`: peak performance of GPU models, from `schemas/gpu_peaks.csv` and an
//! optional file of the user, which takes precedence.
//!
//! A model or precision that is in neither file has no peak. No default stands in for it.

use std::fmt::Write;

use csv::{ReaderBuilder, StringRecord};

use crate::error::{LakeError, Result};
use crate::pipeline::definition::Pipeline;

/// Name of the view.
pub const TABLE: &str = "gpu_peaks";

const SHIPPED: &str = include_str!("../../../../schemas/gpu_peaks.csv");
const SHIPPED_ORIGIN: &str = "schemas/gpu_peaks.csv";

/// Columns of the file in the order of the view, and whether each is an integer. The first three
/// are required.
const COLUMNS: [(&str, bool); 10] = [
    ("model", false),
    ("precision", false),
    ("peak_gflop_per_second", true),
    ("memory_bytes", true),
    ("memory_bytes_per_second", true),
    ("boost_clock_mhz", true),
    ("since", false),
    ("peak_source", false),
    ("memory_source", false),
    ("clock_source", false),
];
const REQUIRED: usize = 3;

/// Returns the view with the rows of a file before the shipped ones. `origin` names the file in the
/// table and in messages.
///
/// # Errors
/// [`LakeError::Pipeline`] with file, line and problem.
pub fn with_file(origin: &str, text: &str) -> Result<Pipeline> {
    Pipeline::parse(origin, &view(Some((origin, text)))?)
}

/// Text of the view's pipeline file.
fn view(own: Option<(&str, &str)>) -> Result<String> {
    let mut rows = match own {
        Some((origin, text)) => read(origin, text, 1)?,
        None => Vec::new(),
    };
    rows.extend(read(SHIPPED_ORIGIN, SHIPPED, 0)?);
    let mut select = String::from("SELECT ");
    for (place, (name, is_number)) in COLUMNS.iter().enumerate() {
        let column = format!("column{}", place + 1);
        let column =
            if *is_number { format!("CAST({column} AS BIGINT)") } else { format!("CAST({column} AS TEXT)") };
        writeln!(select, "{}{column} AS {name},", if place == 0 { "" } else { "       " }).ok();
    }
    let (origin, own) = (COLUMNS.len() + 1, COLUMNS.len() + 2);
    writeln!(select, "       column{origin} AS origin, CAST(column{own} AS BIGINT) AS is_own").ok();
    Ok(format!("{HEADER}{select}FROM (VALUES\n{}\n)\n", rows.join(",\n")))
}

/// Rows of a CSV file as SQL.
fn read(origin: &str, text: &str, is_own: u8) -> Result<Vec<String>> {
    let refuse =
        |line: u64, message: String| LakeError::Pipeline { file: format!("{origin}:{line}"), message };
    let mut reader =
        ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(text.as_bytes());
    let headers = reader.headers().map_err(|e| refuse(1, e.to_string()))?.clone();
    let known = COLUMNS.map(|(name, _)| name);
    if let Some(unknown) = headers.iter().find(|name| !known.contains(name)) {
        return Err(refuse(1, format!("column {unknown:?} is not known; there are: {}", known.join(", "))));
    }
    let places = known.map(|name| headers.iter().position(|header| header == name));
    if let Some(missing) = (0..REQUIRED).find(|place| places[*place].is_none()) {
        return Err(refuse(
            1,
            format!("column {:?} is missing; the first line names the columns", known[missing]),
        ));
    }
    let (mut rows, mut seen) = (Vec::new(), Vec::new());
    for record in reader.records() {
        let record =
            record.map_err(|e| refuse(e.position().map_or(1, csv::Position::line), e.to_string()))?;
        let line = record.position().map_or(1, csv::Position::line);
        let named = (cell(&record, places[0]).to_owned(), cell(&record, places[1]).to_owned());
        if seen.contains(&named) {
            return Err(refuse(line, format!("{} in {} occurs twice; keep one row", named.0, named.1)));
        }
        let values = COLUMNS.iter().zip(places).map(|((name, is_number), place)| {
            let text = cell(&record, place);
            match (text, *is_number) {
                ("", _) if matches!(*name, "model" | "precision") => Err(format!("{name} is empty")),
                ("", _) => Ok("NULL".to_owned()),
                (text, false) => Ok(format!("'{}'", text.replace('\'', "''"))),
                (text, true) => match text.parse::<i64>() {
                    Ok(number) if number > 0 => Ok(number.to_string()),
                    _ => Err(format!(
                        "{name} is {text:?}; write an integer above 0, or leave it empty if it is not known"
                    )),
                },
            }
        });
        let values = values.collect::<Result<Vec<_>, _>>().map_err(|message| refuse(line, message))?;
        rows.push(format!("    ({}, '{}', {is_own})", values.join(", "), origin.replace('\'', "''")));
        seen.push(named);
    }
    Ok(rows)
}

fn cell(record: &StringRecord, place: Option<usize>) -> &str {
    place.and_then(|place| record.get(place)).unwrap_or("")
}

const HEADER: &str = r#"--! name    = "gpu_peaks"
--! doc     = "What a GPU can do at most, dense, by model and precision: schemas/gpu_peaks.csv, and before it the file that --peaks names. What is not here is not known; nothing stands in for it."
--! question = "What can a GPU model do at most, and who says so?"
--! example  = "SELECT model, peak_gflop_per_second / 1000 AS tflop_per_second, memory_bytes_per_second / 1000000000 AS gb_per_second, peak_source FROM gpu_peaks WHERE precision = 'bf16' ORDER BY peak_gflop_per_second DESC"
--! sources = []
--! [columns]
--! model                   = "Model as NVML names it; % stands for any text. Rows of an own file go before the shipped ones, then the longest name that fits."
--! precision               = "Of the multiplications, as in steps; fp64_tensor is FP64 on tensor cores."
--! peak_gflop_per_second   = "Operations per second at most, thousands of millions, without sparsity; for int8 and int4 whole-number operations."
--! memory_bytes            = "Device memory by its data sheet, a GB taken for 2^30 bytes; what a device really has is framebuffer_total_bytes of gpu_samples."
--! memory_bytes_per_second = "Bytes per second to and from device memory at most."
--! boost_clock_mhz         = "Clock of the multiprocessors at which the peak is stated, MHz; NULL if no source says it."
--! since                   = "Version of this table from which on the row is as it is, a date."
--! peak_source             = "Where the peak is from; where sources differ, which one was taken."
--! memory_source           = "Where size and speed of the memory are from."
--! clock_source            = "Where the clock is from, as SMs x tensor cores each x FMA per clock x 2 x clock."
--! origin                  = "File the row stands in."
--! is_own                  = "1 for a row of the file that --peaks names, else 0."
"#;

#[cfg(test)]
mod tests {
    use super::*;

    /// `schemas/gpu_peaks.csv` is the only source of the view.
    #[test]
    fn the_view_matches_the_csv_file() {
        let expected = view(None).unwrap();
        let file = "../../pipelines/gpu_peaks.sql";
        if std::env::var_os("TIDEGATE_BLESS").is_some_and(|v| v == "1") {
            std::fs::write(file, &expected).unwrap();
        }
        let written = std::fs::read_to_string(file).unwrap();
        assert!(written == expected, "{file} does not say what the CSV says; TIDEGATE_BLESS=1 writes it");
    }

    #[test]
    fn every_shipped_figure_has_a_source() {
        let mut reader = csv::Reader::from_reader(SHIPPED.as_bytes());
        for row in reader.records() {
            let row = row.unwrap();
            let sourced = |figures: &[usize], source: usize| {
                figures.iter().all(|figure| row[*figure].is_empty() == row[source].is_empty())
            };
            assert!(sourced(&[2], 7) && sourced(&[3, 4], 8) && sourced(&[5], 9), "{row:?}");
            assert!(!row[6].is_empty(), "{row:?}");
        }
    }

    #[test]
    fn errors_name_the_line() {
        let error_of = |text: &str| with_file("own.csv", text).unwrap_err().to_string();
        let head = "model,precision,peak_gflop_per_second\n";
        assert!(error_of("model,precision\n").contains("peak_gflop_per_second"));
        assert!(error_of("model,precision,peak_gflop_per_second,price\n").contains("\"price\" is not known"));
        let wrong = error_of(&format!("{head}X,bf16,1\nY,bf16,12.5\n"));
        assert!(wrong.contains("own.csv:3") && wrong.contains("12.5"), "{wrong}");
        assert!(error_of(&format!("{head}X,bf16,1\nX,bf16,2\n")).contains("own.csv:3"));
        assert!(error_of(&format!("{head}X,,1\n")).contains("precision is empty"));
        assert!(
            with_file("own.csv", &format!("{head}It's new,bf16,\n"))
                .unwrap()
                .sql
                .contains("('It''s new', 'bf16', NULL,")
        );
    }
}
