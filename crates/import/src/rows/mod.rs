//! Rows of a file, whatever its format: a named, fixed set of columns and one current row of cells.

use crate::error::{ImportError, Reject};

pub(crate) mod csv;
pub(crate) mod open;
pub(crate) mod parquet;

/// At most this much of a refused row is kept with its dead letter.
pub(crate) const RAW_LIMIT_BYTES: usize = 4096;

/// One value of the current row, borrowed from the reader's buffers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell<'a> {
    Null,
    Text(&'a str),
    Int(i64),
    Float(f64),
    /// Wall time as published, ms since 1970-01-01T00:00:00 of an unstated zone.
    NaiveMs(i64),
    /// A point in time, ms since the epoch.
    InstantMs(i64),
}

/// What a column can hold; a CSV column is always `Text`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    Text,
    Number,
    Time,
    Other,
}

#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub name: String,
    pub kind: ColumnKind,
    /// The file's own name of the type, for messages.
    pub type_name: String,
}

/// What reading the next row brought.
#[derive(Debug)]
pub(crate) enum Next {
    Row,
    /// The row exists but cannot be taken apart; reading goes on behind it.
    Bad(Reject),
    End,
}

/// A file read row by row in bounded memory.
pub(crate) trait Rows {
    fn columns(&self) -> &[Column];
    /// Moves to the next row. An error ends the file.
    fn next(&mut self) -> Result<Next, ImportError>;
    /// Cell of the current row; `column` is an index into [`Rows::columns`].
    fn cell(&self, column: usize) -> Cell<'_>;
    /// Line of the current row (1 = first line of the file), or its number in a Parquet file (1 =
    /// first row).
    fn line(&self) -> u64;
    /// The current row as it stands in the file, at most [`RAW_LIMIT_BYTES`] of it.
    fn raw(&self) -> Vec<u8>;
    /// How much of the file has been read, and its size where that is known.
    fn progress(&self) -> (u64, Option<u64>);
}
