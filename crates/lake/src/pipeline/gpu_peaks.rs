//! The view `gpu_peaks` with a user's own file of GPU peaks, which takes precedence over
//! `schemas/gpu_peaks.csv`.
//!
//! A model or precision that is in neither file has no peak. No default stands in for it.

use crate::error::Result;
use crate::pipeline::catalog_file::CatalogFile;
use crate::pipeline::definition::Pipeline;

/// Name of the table.
pub const TABLE: &str = "gpu_peaks";

const FILE: &str = "pipelines/catalog/gpu_peaks.sql";
const TEXT: &str = include_str!("../../../../pipelines/catalog/gpu_peaks.sql");

/// Columns that a user's file must have.
const REQUIRED: [&str; 3] = ["model", "precision", "peak_gflop_per_second"];

/// Returns the pipeline `gpu_peaks` with the rows of a CSV file before the shipped ones. `origin`
/// names the file in the table and in messages.
///
/// # Errors
/// [`LakeError::Pipeline`](crate::error::LakeError::Pipeline) with file, line and problem.
pub fn with_file(origin: &str, text: &str) -> Result<Pipeline> {
    let own = CatalogFile { origin: origin.to_owned(), text: text.to_owned(), is_own: true };
    Pipeline::parse_with(FILE, TEXT, &REQUIRED, |name| {
        Ok([own.clone()].into_iter().chain(CatalogFile::shipped(name)).collect())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shipped_figure_has_a_source() {
        let shipped = CatalogFile::shipped("schemas/gpu_peaks.csv").unwrap();
        let mut reader = csv::Reader::from_reader(shipped.text.as_bytes());
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
    fn what_is_wrong_is_named_with_its_line() {
        let said = |text: &str| with_file("own.csv", text).unwrap_err().to_string();
        let head = "model,precision,peak_gflop_per_second\n";
        assert!(said("model,precision\n").contains("peak_gflop_per_second"));
        assert!(said("model,precision,peak_gflop_per_second,price\n").contains("\"price\" is not known"));
        let wrong = said(&format!("{head}X,bf16,1\nY,bf16,12.5\n"));
        assert!(wrong.contains("own.csv:3") && wrong.contains("12.5"), "{wrong}");
        assert!(said(&format!("{head}X,bf16,1\nX,bf16,2\n")).contains("own.csv:3"));
        assert!(said(&format!("{head}X,,1\n")).contains("precision is empty"));
        assert!(
            with_file("own.csv", &format!("{head}It's new,bf16,\n"))
                .unwrap()
                .sql
                .contains("('It''s new', 'bf16', NULL,")
        );
    }
}
