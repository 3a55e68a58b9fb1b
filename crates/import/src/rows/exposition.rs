//! Pages of a dcgm-exporter as it serves them, one after the other, each after a comment with its
//! time:
//!
//! ```text
//! # 2026-11-01T12:00:00Z
//! DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-5fd4f087",Hostname="gpu01"} 87
//! ```
//!
//! A sample's own time, in ms since the epoch behind its value, wins over that of its page. They
//! are read as rows of `dcgm_long`, which has a column for each label.

use chrono::DateTime;

use super::csv::{Bytes, MAX_LINE_BYTES};
use super::lines::Lines;
use super::{Cell, Column, ColumnKind, Next, Rows};
use crate::error::{ImportError, Reject, RejectCode};

/// The labels that are columns.
const LABELS: [&str; 5] = ["Hostname", "gpu", "UUID", "modelName", "GPU_I_ID"];
/// Before them.
const TIME: usize = 0;
const METRIC: usize = 1;
const VALUE: usize = 2;
const FIRST_LABEL: usize = 3;
/// Only these are samples of GPUs.
const PREFIX: &str = "DCGM_FI_";

pub(crate) struct ExpositionRows<R> {
    lines: Lines<R>,
    columns: Vec<Column>,
    page_ms: Option<i64>,
    sample: Sample,
}

/// A line of a page.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sample {
    metric: String,
    value: String,
    /// By place in [`LABELS`].
    labels: [Option<String>; LABELS.len()],
    time_ms: Option<i64>,
}

impl<R: Bytes> ExpositionRows<R> {
    pub(crate) fn new(lines: Lines<R>) -> Self {
        let column = |name: &str, kind, of: &str| Column { name: name.into(), kind, type_name: of.into() };
        let text = |name: &&str| column(name, ColumnKind::Text, "text");
        let time = column("timestamp", ColumnKind::Time, "time");
        let columns = [time].into_iter().chain(["metric", "value"].iter().chain(&LABELS).map(text)).collect();
        Self { lines, columns, page_ms: None, sample: Sample::default() }
    }
}

impl<R: Bytes> Rows for ExpositionRows<R> {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn next(&mut self) -> Result<Next, ImportError> {
        loop {
            let line = match self.lines.read(MAX_LINE_BYTES)? {
                None => return Ok(Next::End),
                Some(Err(reject)) => return Ok(Next::Bad(reject)),
                Some(Ok(line)) => line.trim(),
            };
            if let Some(comment) = line.strip_prefix('#') {
                self.page_ms = time_of_page(comment.trim()).or(self.page_ms);
                continue;
            }
            if !line.starts_with(PREFIX) {
                continue;
            }
            let Some(mut sample) = Sample::read(line) else {
                let reason = "it is no line of Prometheus' text format: NAME{label=\"value\",...} VALUE";
                return Ok(Next::Bad(Reject::new(RejectCode::BadSeries, reason)));
            };
            sample.time_ms = sample.time_ms.or(self.page_ms);
            if sample.time_ms.is_none() {
                let reason =
                    "no time is known: before each page belongs a line such as # 2026-11-01T12:00:00Z";
                return Ok(Next::Bad(Reject::new(RejectCode::BadTime, reason)));
            }
            self.sample = sample;
            return Ok(Next::Row);
        }
    }

    fn cell(&self, column: usize) -> Cell<'_> {
        match column {
            TIME => self.sample.time_ms.map_or(Cell::Null, Cell::InstantMs),
            METRIC => Cell::Text(&self.sample.metric),
            VALUE => Cell::Text(&self.sample.value),
            label => match self.sample.labels.get(label - FIRST_LABEL) {
                Some(Some(text)) => Cell::Text(text),
                _ => Cell::Null,
            },
        }
    }

    fn line(&self) -> u64 {
        self.lines.number()
    }

    fn raw(&self) -> Vec<u8> {
        self.lines.raw()
    }

    fn progress(&self) -> (u64, Option<u64>) {
        self.lines.progress()
    }
}

/// The time in a comment: RFC 3339, or seconds since the epoch. Other comments have none.
fn time_of_page(comment: &str) -> Option<i64> {
    let seconds = || comment.parse::<i64>().ok()?.checked_mul(1_000);
    DateTime::parse_from_rfc3339(comment).map(|time| time.timestamp_millis()).ok().or_else(seconds)
}

impl Sample {
    /// `NAME{label="value",…} VALUE [TIME]`, or the same without labels.
    fn read(line: &str) -> Option<Self> {
        let end = line.find(|letter: char| !(letter.is_ascii_alphanumeric() || letter == '_'))?;
        let (metric, rest) = line.split_at(end);
        let mut sample = Self { metric: metric.into(), ..Self::default() };
        let rest = match rest.trim_start().strip_prefix('{') {
            Some(labels) => sample.read_labels(labels)?,
            None => rest,
        };
        let mut words = rest.split_ascii_whitespace();
        sample.value = words.next()?.into();
        sample.value.parse::<f64>().ok()?;
        sample.time_ms = words.next().map(str::parse).transpose().ok()?;
        words.next().is_none().then_some(sample)
    }

    /// Reads up to the closing brace; returns what follows.
    fn read_labels<'a>(&mut self, mut rest: &'a str) -> Option<&'a str> {
        loop {
            rest = rest.trim_start();
            if let Some(after) = rest.strip_prefix('}') {
                return Some(after);
            }
            let (name, value) = rest.split_once('=')?;
            let (value, after) = quoted(value.trim_start())?;
            if let Some(place) = LABELS.iter().position(|label| *label == name.trim_end()) {
                self.labels[place] = Some(value);
            }
            rest = after.trim_start();
            match rest.strip_prefix(',') {
                Some(after) => rest = after,
                None if rest.starts_with('}') => {}
                None => return None,
            }
        }
    }
}

/// The text in quotes at the beginning, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('"')?;
    let (mut value, mut letters) = (String::new(), text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match letters.next()?.1 {
                'n' => '\n',
                letter @ ('\\' | '"') => letter,
                _ => return None,
            }),
            letter => value.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(line: &str) -> Option<Vec<Option<String>>> {
        Sample::read(line).map(|sample| sample.labels.into())
    }

    #[test]
    fn lines_are_read_as_prometheus_writes_them() {
        let line =
            r#"DCGM_FI_DEV_GPU_UTIL { gpu = "1" , other="a}b,c", UUID="GPU-a\"b\\",} 8.7e1 1700000000000"#;
        let sample = Sample::read(line).unwrap();
        assert_eq!((sample.metric.as_str(), sample.value.as_str()), ("DCGM_FI_DEV_GPU_UTIL", "8.7e1"));
        assert_eq!(sample.time_ms, Some(1_700_000_000_000));
        let none = None::<String>;
        let wanted = [none.clone(), Some("1".into()), Some("GPU-a\"b\\".into()), none.clone(), none];
        assert_eq!(labels(line).unwrap(), wanted);
        assert_eq!(Sample::read("DCGM_FI_X NaN").unwrap().value, "NaN");
    }

    #[test]
    fn no_bytes_do_more_than_be_refused() {
        for line in [
            "DCGM_FI_X",
            "DCGM_FI_X{",
            "DCGM_FI_X{} ",
            "DCGM_FI_X{gpu} 1",
            "DCGM_FI_X{gpu=\"1} 1",
            "DCGM_FI_X{gpu=\"1\\x\"} 1",
            "DCGM_FI_X{gpu=\"1\" UUID=\"2\"} 1",
            "DCGM_FI_X{gpu=\"1\\",
            "DCGM_FI_X{é=\"é\"} é",
            "DCGM_FI_X 1 2 3",
            "DCGM_FI_X 1 1e3",
            "DCGM_FI_X one",
        ] {
            assert_eq!(Sample::read(line), None, "{line}");
        }
        assert_eq!(time_of_page("HELP DCGM_FI_X"), None);
        assert_eq!(time_of_page("9223372036854775807"), None);
        assert_eq!(time_of_page("2026-11-01T13:00:00+01:00"), time_of_page("1793534400"));
    }
}
