//! What the import keeps about a row after its events are built.

use std::borrow::Cow;

/// Identity and time span of a row that was mapped to events.
pub(crate) struct AcceptedRow<'r> {
    pub cluster: Cow<'r, str>,
    /// Hash of what the row describes: rows with equal identity describe the same thing.
    pub identity: u64,
    /// Rows with equal identity must agree; a contradicting row is rejected.
    pub unique: bool,
    /// First and last event time, ms since the epoch.
    pub first_ms: i64,
    pub last_ms: i64,
}
