//! A pipeline file: a TOML header in `--!` lines and one SELECT.
//!
//! The header decides the shape:
//!
//! - Keyed (`per = ["cluster", "job_id"]`): a function of all events of one key. It runs when the
//!   key gets an event.
//! - Windowed (`window = "1h"`): a function of the rows of one event-time window. It runs when the
//!   window is dirty.
//! - Joined (`window` and `[extents]`): the same over several tables that come from different
//!   topics.
//! - View (neither): a query over other tables, evaluated when it is read.

use std::collections::BTreeMap;

use crate::window::Segment;

/// A parsed pipeline file. [`crate::pipeline::Plan`] interprets its SQL.
#[derive(Debug, Clone)]
pub struct Pipeline {
    /// Name of the pipeline and of its table: a-z, 0-9 and `_`.
    pub name: String,
    /// Version of the table. A new version is a new table.
    pub version: u32,
    /// What the table holds.
    pub doc: String,
    /// The question it answers, in the words of an operator or a payer.
    pub question: Option<String>,
    /// An example query.
    pub example: Option<String>,
    /// When the pipeline runs, and over what.
    pub shape: Shape,
    /// Whether the result is a table of the lake. If not, it is an intermediate step of other
    /// pipelines of its shape.
    pub stored: bool,
    /// Whether a view's rows are computed once and shared by all readers (`once = true`), see
    /// `views::materialized`.
    pub materialized: bool,
    /// Whether a joined table's windows depend on nothing that ended before them (`opening =
    /// true`): recent ones are then computed from opening balances in place of all history.
    pub opening: bool,
    /// Whether a joined table shows which attempt ended a wait. If not (`wait_outcome = false`), a
    /// job's start does not recompute the windows of its wait, unless it also reveals what the job
    /// had requested.
    pub wait_outcome: bool,
    /// The table whose windows this one sums up to wider ones, see [`crate::catalog::rollup`].
    pub rolls_up: Option<String>,
    /// Tables that the SQL reads.
    pub sources: Vec<String>,
    /// Columns that together identify an output row.
    pub key: Vec<String>,
    /// Documentation of the output columns, with units.
    pub columns: BTreeMap<String, String>,
    /// Path of the pipeline file, for messages.
    pub file: String,
    /// Whether the rows are those of a CSV file that the header names.
    pub is_catalog: bool,
    /// Line of the file on which the SQL starts, from 1.
    pub sql_line: usize,
    /// The SELECT.
    pub sql: String,
}

impl Pipeline {
    /// Folder of the pipeline file, e.g. `jobs`; `None` if the file stands in no named folder.
    pub fn subject(&self) -> Option<&str> {
        std::path::Path::new(&self.file).parent()?.file_name()?.to_str()
    }
}

/// When a pipeline runs, and over what.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    /// A function of all events of one key.
    Keyed {
        /// Columns of the key.
        per: Vec<String>,
    },
    /// A function of the rows of one event-time window.
    Windowed {
        /// Width of a window, ms.
        width_ms: i64,
        /// How long a window accepts rows after its end, ms.
        lateness_ms: i64,
        /// Which window a source row belongs to.
        extent: Extent,
    },
    /// Each source with its extent. A source without an extent is visible as a whole in every
    /// window and must never change.
    Joined {
        /// Width of a window, ms.
        width_ms: i64,
        /// How long a window accepts rows after its end, ms.
        lateness_ms: i64,
        /// Extent of each source.
        extents: BTreeMap<String, Extent>,
        /// Name of a source. Windows that end before its first row starts are empty and are not
        /// computed.
        since: Option<String>,
        /// Name of a source. Once each cluster has a row of it, windows that begin after all of
        /// these rows started are empty and are not computed.
        until: Option<String>,
    },
    /// A query over other tables.
    View,
}

/// The time a source row belongs to, as SQL expressions over the source's columns.
#[derive(Debug, Clone, PartialEq)]
pub enum Extent {
    /// The row is in the window that contains this instant.
    Instant {
        /// The instant.
        time: String,
    },
    /// The row is in every window it overlaps. The SQL sees it once per window, clipped to
    /// `clip_from`..`clip_to`.
    Interval {
        /// Start of the interval.
        from: String,
        /// End of the interval, exclusive.
        to: String,
    },
}

impl Shape {
    /// The calendar segments that windows are stored in; `None` without windows.
    pub fn segment(&self) -> Option<Segment> {
        match self {
            Self::Windowed { width_ms, .. } => Some(Segment::for_width_ms(*width_ms)),
            Self::Joined { width_ms, .. } => Some(Segment::for_joined_width_ms(*width_ms)),
            _ => None,
        }
    }

    /// Width of the windows, ms.
    pub fn width_ms(&self) -> Option<i64> {
        match self {
            Self::Windowed { width_ms, .. } | Self::Joined { width_ms, .. } => Some(*width_ms),
            _ => None,
        }
    }

    /// How long a window accepts rows after its start, ms: its width plus its lateness.
    pub fn open_ms(&self) -> Option<i64> {
        match self {
            Self::Windowed { width_ms, lateness_ms, .. } | Self::Joined { width_ms, lateness_ms, .. } => {
                Some(width_ms + lateness_ms)
            }
            _ => None,
        }
    }
}
