//! Row-by-row access to a file of any format: fixed named columns, and one current row of cells.

use crate::error::{ImportError, Reject};

pub(crate) mod csv;
pub(crate) mod exposition;
mod guarded;
pub(crate) mod lines;
pub(crate) mod open;
pub(crate) mod parquet;

/// Bytes of a rejected row kept in its dead letter.
pub(crate) const RAW_LIMIT_BYTES: usize = 4096;

/// A value of the current row, borrowed from the reader's buffers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Cell<'a> {
    Null,
    Text(&'a str),
    Int(i64),
    Float(f64),
    /// Wall time without zone, ms since 1970-01-01T00:00:00.
    NaiveMs(i64),
    /// An instant, ms since the epoch.
    InstantMs(i64),
}

/// Type of a column; CSV columns are always `Text`.
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
    /// The file's name of the type, for messages.
    pub type_name: String,
}

/// Result of reading the next row.
#[derive(Debug)]
pub(crate) enum Next {
    Row,
    /// The row cannot be split into cells; reading continues after it.
    Bad(Reject),
    End,
}

/// A file read row by row in bounded memory.
pub(crate) trait Rows {
    fn columns(&self) -> &[Column];
    /// Moves to the next row. After an error the file cannot be read on.
    fn next(&mut self) -> Result<Next, ImportError>;
    /// Cell of the current row; `column` is an index into [`Rows::columns`].
    fn cell(&self, column: usize) -> Cell<'_>;
    /// Line of the current row (1 = first line of the file), or row number in a Parquet file (1 =
    /// first row).
    fn line(&self) -> u64;
    /// The current row as in the file, at most [`RAW_LIMIT_BYTES`] of it.
    fn raw(&self) -> Vec<u8>;
    /// Bytes read, and the size of the file if known.
    fn progress(&self) -> (u64, Option<u64>);
}
