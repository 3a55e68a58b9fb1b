//! Reader of delimited text, in blocks: it holds one block and one line in memory.

use std::io::Read;

use memchr::{memchr, memchr_iter, memchr2};

use super::{Cell, Column, ColumnKind, Next, RAW_LIMIT_BYTES, Rows};
use crate::error::{ImportError, Reject, RejectCode};

/// A longer line is rejected and skipped without being held in memory.
pub(crate) const MAX_LINE_BYTES: usize = 1 << 20;
const BLOCK_BYTES: usize = 256 << 10;
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Syntax of fields.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    pub delimiter: u8,
    /// Fields may be in double quotes (doubled inside). Slurm's output has no quotes.
    pub quoted: bool,
}

/// A byte source that knows its progress.
pub(crate) trait Bytes: Read {
    fn progress(&self) -> (u64, Option<u64>);
    /// Explains an I/O error that occurred after `line`.
    fn explain(&self, error: std::io::Error, line: u64) -> ImportError;
    /// Checks at the end that the source was read completely.
    fn finish(&self) -> Result<(), ImportError>;
}

/// Position of a field in the current record.
#[derive(Debug, Clone, Copy)]
struct Field {
    start: usize,
    end: usize,
    /// Whether the field is in `unescaped`, because it had doubled quotes.
    rewritten: bool,
}

pub(crate) struct CsvRows<R> {
    input: R,
    file: String,
    dialect: Dialect,
    columns: Vec<Column>,
    buffer: Vec<u8>,
    /// Unread bytes are `buffer[at..filled]`.
    at: usize,
    filled: usize,
    ended: bool,
    /// The current record is `buffer[record.0..record.1]`, without its line end.
    record: (usize, usize),
    /// The start of the current record, if it was too long to hold.
    long_line: Vec<u8>,
    fields: Vec<Field>,
    unescaped: String,
    line: u64,
    next_line: u64,
}

enum Scan {
    /// Length with and without the line end, and line ends inside quotes.
    Record {
        length: usize,
        content: usize,
        inner_lines: u64,
    },
    NeedMore,
}

impl<R: Bytes> CsvRows<R> {
    /// Reads the header line. A byte order mark is skipped.
    pub(crate) fn open(input: R, file: String, dialect: Dialect) -> Result<Self, ImportError> {
        let mut rows = Self {
            input,
            file,
            dialect,
            columns: Vec::new(),
            buffer: vec![0; BLOCK_BYTES],
            at: 0,
            filled: 0,
            ended: false,
            record: (0, 0),
            long_line: Vec::new(),
            fields: Vec::new(),
            unescaped: String::new(),
            line: 0,
            next_line: 1,
        };
        while rows.filled < BYTE_ORDER_MARK.len() && rows.refill()? {}
        if rows.buffer.starts_with(BYTE_ORDER_MARK) {
            rows.at = BYTE_ORDER_MARK.len();
        }
        match rows.read_record()? {
            Next::End => return Err(ImportError::Empty { file: rows.file }),
            Next::Bad(reject) => return Err(ImportError::Header { file: rows.file, what: reject.reason }),
            Next::Row => rows.columns = rows.header()?,
        }
        Ok(rows)
    }

    fn header(&self) -> Result<Vec<Column>, ImportError> {
        let mut columns: Vec<Column> = Vec::with_capacity(self.fields.len());
        for index in 0..self.fields.len() {
            let name = self.text(index).trim().to_owned();
            if columns.iter().any(|known| known.name == name) && !name.is_empty() {
                let what = format!("column {name} appears twice; rename one");
                return Err(ImportError::Header { file: self.file.clone(), what });
            }
            columns.push(Column { name, kind: ColumnKind::Text, type_name: "text".into() });
        }
        Ok(columns)
    }

    fn text(&self, index: usize) -> &str {
        let field = self.fields[index];
        if field.rewritten {
            return &self.unescaped[field.start..field.end];
        }
        // The whole record is valid UTF-8, and delimiters and quotes are ASCII, so each field is
        // UTF-8 too.
        std::str::from_utf8(&self.buffer[field.start..field.end]).unwrap_or_default()
    }

    /// Moves unread bytes to the front and reads another block. Returns whether anything was read.
    fn refill(&mut self) -> Result<bool, ImportError> {
        if self.ended {
            return Ok(false);
        }
        self.buffer.copy_within(self.at..self.filled, 0);
        self.filled -= self.at;
        self.at = 0;
        if self.buffer.len() - self.filled < BLOCK_BYTES {
            self.buffer.resize(self.filled + BLOCK_BYTES, 0);
        }
        loop {
            match self.input.read(&mut self.buffer[self.filled..]) {
                Ok(0) => {
                    self.ended = true;
                    self.input.finish()?;
                    return Ok(false);
                }
                Ok(count) => {
                    self.filled += count;
                    return Ok(true);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(self.input.explain(error, self.next_line - 1)),
            }
        }
    }

    fn read_record(&mut self) -> Result<Next, ImportError> {
        loop {
            self.line = self.next_line;
            self.fields.clear();
            self.unescaped.clear();
            self.long_line.clear();
            match self.scan() {
                Scan::Record { length, content, inner_lines } if content <= MAX_LINE_BYTES => {
                    self.record = (self.at, self.at + content);
                    self.at += length;
                    self.next_line += 1 + inner_lines;
                    if content == 0 {
                        continue;
                    }
                    return Ok(self.check_encoding());
                }
                Scan::NeedMore if self.filled - self.at <= MAX_LINE_BYTES => {
                    if !self.refill()? && self.at == self.filled {
                        return Ok(Next::End);
                    }
                }
                _ => return self.skip_long_line(),
            }
        }
    }

    /// Skips the rest of the line block by block.
    fn skip_long_line(&mut self) -> Result<Next, ImportError> {
        let kept = RAW_LIMIT_BYTES.min(self.filled - self.at);
        self.long_line.extend_from_slice(&self.buffer[self.at..self.at + kept]);
        loop {
            if let Some(found) = memchr(b'\n', &self.buffer[self.at..self.filled]) {
                self.at += found + 1;
                break;
            }
            self.at = self.filled;
            if !self.refill()? {
                break;
            }
        }
        self.fields.clear();
        self.next_line = self.line + 1;
        Ok(Next::Bad(Reject::new(
            RejectCode::LineTooLong,
            format!("the line is longer than {MAX_LINE_BYTES} bytes; is its line end missing?"),
        )))
    }

    fn check_encoding(&mut self) -> Next {
        match std::str::from_utf8(&self.buffer[self.record.0..self.record.1]) {
            Ok(_) => Next::Row,
            Err(error) => {
                let place = error.valid_up_to() + 1;
                let reason =
                    format!("byte {place} of the line is not UTF-8; convert the file, e.g. with iconv");
                Next::Bad(Reject::new(RejectCode::BadEncoding, reason))
            }
        }
    }

    /// Finds the fields of the record that starts at `at`.
    fn scan(&mut self) -> Scan {
        if self.dialect.quoted { self.scan_quoted() } else { self.scan_plain() }
    }

    fn scan_plain(&mut self) -> Scan {
        let unread = &self.buffer[self.at..self.filled];
        let (length, mut content) = match memchr(b'\n', unread) {
            Some(end) => (end + 1, end),
            None if self.ended && !unread.is_empty() => (unread.len(), unread.len()),
            None => return Scan::NeedMore,
        };
        if content > 0 && unread[content - 1] == b'\r' {
            content -= 1;
        }
        let mut start = self.at;
        for delimiter in memchr_iter(self.dialect.delimiter, &unread[..content]) {
            let end = self.at + delimiter;
            self.fields.push(Field { start, end, rewritten: false });
            start = end + 1;
        }
        self.fields.push(Field { start, end: self.at + content, rewritten: false });
        Scan::Record { length, content, inner_lines: 0 }
    }

    fn scan_quoted(&mut self) -> Scan {
        let mut at = self.at;
        let mut inner_lines = 0;
        loop {
            let (field, stop) = if self.buffer[at..self.filled].first() == Some(&b'"') {
                match self.scan_quoted_field(at) {
                    Some((field, stop, lines)) => {
                        inner_lines += lines;
                        (field, stop)
                    }
                    None => return Scan::NeedMore,
                }
            } else {
                match memchr2(self.dialect.delimiter, b'\n', &self.buffer[at..self.filled]) {
                    Some(found) => (Field { start: at, end: at + found, rewritten: false }, at + found),
                    None if self.ended && self.filled > self.at => {
                        (Field { start: at, end: self.filled, rewritten: false }, self.filled)
                    }
                    None => return Scan::NeedMore,
                }
            };
            self.fields.push(field);
            let at_end = stop == self.filled;
            if at_end || self.buffer[stop] == b'\n' {
                return self.end_of_record(stop, at_end, inner_lines);
            }
            at = stop + 1;
        }
    }

    fn end_of_record(&mut self, stop: usize, at_end: bool, inner_lines: u64) -> Scan {
        let mut content = stop - self.at;
        if content > 0 && self.buffer[stop - 1] == b'\r' {
            content -= 1;
            if let Some(last) = self.fields.last_mut().filter(|field| !field.rewritten) {
                last.end = last.end.min(stop - 1);
            }
        }
        Scan::Record { length: stop - self.at + usize::from(!at_end), content, inner_lines }
    }

    /// The field whose opening quote is at `open`, its end (delimiter, line end or end of input),
    /// and the number of line ends inside it. Text between closing quote and delimiter is dropped.
    fn scan_quoted_field(&mut self, open: usize) -> Option<(Field, usize, u64)> {
        let mut pieces = 0;
        let (start, mut from) = (self.unescaped.len(), open + 1);
        let close = loop {
            match memchr(b'"', &self.buffer[from..self.filled]) {
                Some(found) if self.buffer[..self.filled].get(from + found + 1) == Some(&b'"') => {
                    // An unfinished record is scanned again after the next block, so nothing is
                    // lost here.
                    self.unescaped.push_str(&String::from_utf8_lossy(&self.buffer[from..from + found + 1]));
                    pieces += 1;
                    from += found + 2;
                }
                Some(found) if from + found + 1 < self.filled || self.ended => break from + found,
                None if self.ended => break self.filled,
                _ => return None,
            }
        };
        let field = if pieces == 0 {
            Field { start: open + 1, end: close, rewritten: false }
        } else {
            self.unescaped.push_str(&String::from_utf8_lossy(&self.buffer[from..close]));
            Field { start, end: self.unescaped.len(), rewritten: true }
        };
        let lines = memchr_iter(b'\n', &self.buffer[open..close]).count() as u64;
        let rest = (close + 1).min(self.filled);
        match memchr2(self.dialect.delimiter, b'\n', &self.buffer[rest..self.filled]) {
            Some(found) => Some((field, rest + found, lines)),
            None if self.ended => Some((field, self.filled, lines)),
            None => None,
        }
    }
}

impl<R: Bytes> Rows for CsvRows<R> {
    fn columns(&self) -> &[Column] {
        &self.columns
    }

    fn next(&mut self) -> Result<Next, ImportError> {
        let next = self.read_record()?;
        let (found, wanted) = (self.fields.len(), self.columns.len());
        if matches!(next, Next::Row) && found != wanted {
            return Ok(Next::Bad(Reject::new(
                RejectCode::FieldCount,
                format!(
                    "the line has {found} fields, the header has {wanted}; is a delimiter inside a value?"
                ),
            )));
        }
        Ok(next)
    }

    fn cell(&self, column: usize) -> Cell<'_> {
        Cell::Text(self.text(column))
    }

    fn line(&self) -> u64 {
        self.line
    }

    fn raw(&self) -> Vec<u8> {
        if !self.long_line.is_empty() {
            return self.long_line.clone();
        }
        let record = &self.buffer[self.record.0..self.record.1];
        record[..record.len().min(RAW_LIMIT_BYTES)].to_vec()
    }

    fn progress(&self) -> (u64, Option<u64>) {
        self.input.progress()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a few bytes at a time, so that records cross read boundaries.
    struct Trickle<'a> {
        bytes: &'a [u8],
        step: usize,
    }

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = self.bytes.len().min(self.step).min(buffer.len());
            buffer[..count].copy_from_slice(&self.bytes[..count]);
            self.bytes = &self.bytes[count..];
            Ok(count)
        }
    }

    impl Bytes for Trickle<'_> {
        fn progress(&self) -> (u64, Option<u64>) {
            (0, None)
        }

        fn explain(&self, source: std::io::Error, line: u64) -> ImportError {
            ImportError::Read { file: "trickle".into(), line, source }
        }

        fn finish(&self) -> Result<(), ImportError> {
            Ok(())
        }
    }

    fn read(bytes: &[u8], step: usize, quoted: bool) -> Vec<Vec<String>> {
        let dialect = Dialect { delimiter: b',', quoted };
        let mut rows = CsvRows::open(Trickle { bytes, step }, "x".into(), dialect).unwrap();
        let mut records = Vec::new();
        while let Next::Row = rows.next().unwrap() {
            records.push((0..rows.columns.len()).map(|column| rows.text(column).to_owned()).collect());
        }
        records
    }

    proptest! {
        #[test]
        fn written_records_read_back_however_the_bytes_arrive(
            records in prop::collection::vec(prop::collection::vec("[a\"',;\r\n é]{0,6}", 3), 1..20),
            step in 1_usize..40,
        ) {
            let mut writer = ::csv::Writer::from_writer(Vec::new());
            writer.write_record(["one", "two", "three"]).unwrap();
            for record in &records {
                writer.write_record(record).unwrap();
            }
            let bytes = writer.into_inner().unwrap();
            prop_assert_eq!(read(&bytes, step, true), records);
        }

        #[test]
        fn without_quotes_a_record_is_its_line_split(
            records in prop::collection::vec(prop::collection::vec("[a\"' é]{0,6}", 2), 1..20),
            step in 1_usize..40,
        ) {
            let lines: Vec<_> = records.iter().map(|record| record.join(",")).collect();
            let content = format!("one,two\n{}", lines.join("\n"));
            prop_assert_eq!(read(content.as_bytes(), step, false), records);
        }
    }
}
