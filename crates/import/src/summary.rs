//! What an import did, while it runs and at its end.

use std::collections::BTreeMap;

use crate::rows::Rows;

/// Rows from one report of progress to the next.
pub(crate) const PROGRESS_EVERY_ROWS: u64 = 4096;

/// Progress of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes read of the file on disk, and its size if known.
    pub bytes_read: u64,
    /// See `bytes_read`.
    pub bytes_total: Option<u64>,
    /// Rows read.
    pub rows: u64,
}

impl Progress {
    pub(crate) fn of(rows: &dyn Rows, rows_read: u64) -> Self {
        Self::new(rows.progress(), rows_read)
    }

    pub(crate) fn new((bytes_read, bytes_total): (u64, Option<u64>), rows_read: u64) -> Self {
        Self { bytes_read, bytes_total, rows: rows_read }
    }
}

/// Counts of an import: `rows_read` = accepted + duplicates + skipped + all rejected.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImportSummary {
    /// Rows read.
    pub rows_read: u64,
    /// Rows that became events.
    pub rows_accepted: u64,
    /// Rows that repeat an earlier row of the file exactly.
    pub rows_duplicate: u64,
    /// Rows that the mapping skips (`[[skip]]`).
    pub rows_skipped: u64,
    /// Rows written as dead letters, by [`RejectCode::as_str`].
    pub rows_rejected: BTreeMap<&'static str, u64>,
    /// Rows beyond the memory limit of the duplicate check; 0 except for giant files.
    pub rows_not_checked_for_duplicates: u64,
    /// Events appended, dead letters included, and events that an earlier import had already
    /// appended.
    pub events_written: u64,
    /// See `events_written`.
    pub events_already_present: u64,
    /// First and last time of each cluster, ms since the epoch.
    pub clusters: BTreeMap<String, (i64, i64)>,
}

impl ImportSummary {
    /// Number of rows written as dead letters.
    pub fn rejected(&self) -> u64 {
        self.rows_rejected.values().sum()
    }
}
