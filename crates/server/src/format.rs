//! Output formats, and how HTTP requests choose one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How rows are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// Drawn table for people; the first [`crate::TABLE_ROWS`] rows.
    Table,
    /// One array of objects, NULL included.
    Json,
    /// One object per line.
    Jsonl,
    /// Header line, then rows; NULL is empty.
    Csv,
    /// Arrow IPC stream.
    Arrow,
    /// One Parquet file.
    Parquet,
}

impl Format {
    /// All formats, as error messages list them.
    pub const ALL: [Self; 6] = [Self::Table, Self::Json, Self::Jsonl, Self::Csv, Self::Arrow, Self::Parquet];

    /// Its name in commands and requests.
    pub fn name(self) -> &'static str {
        match self {
            Self::Table => "table",
            Self::Json => "json",
            Self::Jsonl => "jsonl",
            Self::Csv => "csv",
            Self::Arrow => "arrow",
            Self::Parquet => "parquet",
        }
    }

    /// Content type of a response in this format.
    pub fn media_type(self) -> &'static str {
        match self {
            Self::Table => "text/plain; charset=utf-8",
            Self::Json => "application/json",
            Self::Jsonl => "application/jsonl",
            Self::Csv => "text/csv; charset=utf-8; header=present",
            Self::Arrow => "application/vnd.apache.arrow.stream",
            Self::Parquet => "application/vnd.apache.parquet",
        }
    }

    /// Whether people can read it in a terminal.
    pub fn is_text(self) -> bool {
        !matches!(self, Self::Arrow | Self::Parquet)
    }

    /// The format an HTTP `Accept` header prefers: the one with the highest `q`, of equal ones the
    /// first named. `None` if it accepts none of them. JSON is what a client without preference
    /// gets.
    pub fn from_accept(accept: &str) -> Option<Self> {
        let mut best: Option<(f32, Self)> = None;
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let Some(format) = parts.next().and_then(Self::from_media_range) else { continue };
            let quality = parts.find_map(|p| p.strip_prefix("q=")).map_or(1.0, |q| q.parse().unwrap_or(0.0));
            if quality > best.map_or(0.0, |(q, _)| q) {
                best = Some((quality, format));
            }
        }
        best.map(|(_, format)| format)
    }

    fn from_media_range(range: &str) -> Option<Self> {
        Some(match range.to_ascii_lowercase().as_str() {
            "*/*" | "application/*" | "application/json" => Self::Json,
            "application/jsonl" | "application/x-ndjson" => Self::Jsonl,
            "text/csv" => Self::Csv,
            "application/vnd.apache.arrow.stream" => Self::Arrow,
            "application/vnd.apache.parquet" | "application/x-parquet" => Self::Parquet,
            "text/plain" | "text/*" => Self::Table,
            _ => return None,
        })
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|f| f.name() == text).ok_or_else(|| {
            format!("unknown format {text:?}; there are: {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_headers_choose_the_preferred_format() {
        let cases = [
            ("*/*", Some(Format::Json)),
            ("text/csv", Some(Format::Csv)),
            ("text/csv;q=0.5, application/x-ndjson", Some(Format::Jsonl)),
            ("application/json;q=0.1, text/csv;q=0.2", Some(Format::Csv)),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Some(Format::Json)),
            ("Text/Plain", Some(Format::Table)),
            ("application/vnd.apache.arrow.stream", Some(Format::Arrow)),
            ("application/vnd.apache.parquet", Some(Format::Parquet)),
            ("image/png", None),
            ("text/csv;q=0", None),
        ];
        for (accept, format) in cases {
            assert_eq!(Format::from_accept(accept), format, "{accept}");
        }
    }

    #[test]
    fn names_are_read_back() {
        for format in Format::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        assert!("xml".parse::<Format>().unwrap_err().contains("jsonl"));
    }
}
