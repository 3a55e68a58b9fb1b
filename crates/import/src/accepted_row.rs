//! What the import keeps about a row after its events are built.

use std::borrow::Cow;

use tidegate_events::v1;
use xxhash_rust::xxh3::xxh3_64_with_seed;

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

/// What is kept of a row about `name` at a time; `part` tells rows apart that share both.
pub(crate) fn facts<'r>(
    cluster: Cow<'r, str>,
    name: &str,
    first_ms: i64,
    last_ms: i64,
    part: &str,
) -> AcceptedRow<'r> {
    let seed = xxh3_64_with_seed(cluster.as_bytes(), first_ms.cast_unsigned());
    let identity = xxh3_64_with_seed(part.as_bytes(), xxh3_64_with_seed(name.as_bytes(), seed));
    AcceptedRow { cluster, identity, unique: true, first_ms, last_ms }
}

/// An envelope with cluster and time.
pub(crate) fn envelope(cluster: &str, event_time_ms: i64) -> Option<v1::Envelope> {
    Some(v1::Envelope { cluster: cluster.to_owned(), event_time_ms, ..v1::Envelope::default() })
}
