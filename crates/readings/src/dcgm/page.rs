//! Parser of Prometheus' text format, as far as exporters of gauges and counters use it.
//!
//! Existing crates do not fit: `prometheus-parse` 0.2 splits labels at every comma, even inside
//! values (newer exporters write an XID's message as a label), and silently skips lines that it
//! cannot parse; `openmetrics-parser` is under the LGPL. Format:
//! <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::borrow::Cow;

/// One sample line.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample<'a> {
    /// Name of the metric.
    pub name: &'a str,
    /// Labels in the order of the line.
    pub labels: Vec<(&'a str, Cow<'a, str>)>,
    /// The number as text: conversion would lose digits of large integers.
    pub value: &'a str,
}

impl Sample<'_> {
    /// Value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| *label == name).map(|(_, value)| value.as_ref())
    }
}

/// Samples of a page, with an error for each line that is none. Comments and blank lines are
/// skipped.
pub fn samples(page: &str) -> impl Iterator<Item = Result<Sample<'_>, BadLine>> {
    page.lines().enumerate().filter_map(|(at, line)| {
        let line = line.trim();
        let passed = line.is_empty() || line.starts_with('#');
        (!passed).then(|| sample(line).ok_or(BadLine(at + 1)))
    })
}

/// Number of a line that is no sample, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadLine(pub usize);

fn sample(line: &str) -> Option<Sample<'_>> {
    let name_end = line.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == ':'))?;
    let (name, mut rest) = line.split_at(name_end);
    rest = rest.trim_start();
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside.trim_start();
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once('=')?;
            let (value, after) = quoted(value.trim_start())?;
            labels.push((label.trim(), value));
            rest = after.trim_start();
            rest = match rest.strip_prefix(',') {
                Some(after) => after.trim_start(),
                None if rest.starts_with('}') => rest,
                None => return None,
            };
        }
        rest = rest[1..].trim_start();
    }
    // A timestamp may follow the value; DCGM exporters do not write one.
    let value = rest.split_ascii_whitespace().next()?;
    let named = !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit());
    (named && value.parse::<f64>().is_ok()).then_some(Sample { name, labels, value })
}

/// Splits off a quoted text.
fn quoted(text: &str) -> Option<(Cow<'_, str>, &str)> {
    let text = text.strip_prefix('"')?;
    let (mut unescaped, mut from) = (String::new(), 0);
    let mut bytes = text.bytes().enumerate();
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' if unescaped.is_empty() && from == 0 => {
                return Some((Cow::Borrowed(&text[..at]), &text[at + 1..]));
            }
            b'"' => {
                unescaped.push_str(&text[from..at]);
                return Some((Cow::Owned(unescaped), &text[at + 1..]));
            }
            b'\\' => {
                unescaped.push_str(&text[from..at]);
                unescaped.push(match bytes.next()?.1 {
                    b'n' => '\n',
                    b'"' => '"',
                    b'\\' => '\\',
                    _ => return None,
                });
                from = at + 2;
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Sample<'_> {
        samples(line).next().unwrap().unwrap()
    }

    #[test]
    fn samples_are_parsed() {
        let sample =
            one(r#"A_b:c{gpu="0",UUID="GPU-1", err_msg="a, \"b\" = {c}\\\n",} 9223372036854775794 17"#);
        assert_eq!((sample.name, sample.value), ("A_b:c", "9223372036854775794"));
        assert_eq!(sample.label("UUID"), Some("GPU-1"));
        assert_eq!(sample.label("err_msg"), Some("a, \"b\" = {c}\\\n"));
        assert_eq!(sample.label("none"), None);
        assert_eq!(one("up 1").labels, []);
        assert_eq!(one("x{} NaN").value, "NaN");
        assert_eq!(one("x{a=\"\"}\t-1.5e3").label("a"), Some(""));
        assert_eq!(samples("# HELP x y\n\n# TYPE x gauge\n").count(), 0);
    }

    #[test]
    fn invalid_lines_are_reported() {
        let bad = [
            "x",
            "x{",
            "x{a}",
            "x{a=1} 1",
            "x{a=\"b} 1",
            "x{a=\"b\"c=\"d\"} 1",
            "x{a=\"\\x\"} 1",
            "x one",
            "9x 1",
            "<html>",
            "x{a=\"é",
        ];
        for line in bad {
            assert_eq!(samples(&format!("up 1\n{line}\n")).nth(1), Some(Err(BadLine(2))), "{line}");
        }
    }
}
