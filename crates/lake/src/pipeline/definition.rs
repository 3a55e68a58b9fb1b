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

/// A parsed pipeline file. [`crate::pipeline::plan`] interprets its SQL.
#[derive(Debug, Clone)]
pub struct Pipeline {
    pub name: String,
    pub version: u32,
    pub doc: String,
    /// The question it answers, in the words of an operator or a payer.
    pub question: Option<String>,
    /// An example query.
    pub example: Option<String>,
    pub shape: Shape,
    /// Whether the result is a table of the lake. If not, it is an intermediate step of other
    /// pipelines of its shape.
    pub stored: bool,
    /// Whether a view's rows are computed once and shared by all readers, see
    /// [`crate::views::materialized`].
    pub materialized: bool,
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
    /// Line of the file on which the SQL starts, from 1.
    pub sql_line: usize,
    pub sql: String,
}

/// When a pipeline runs, and over what.
#[derive(Debug, Clone, PartialEq)]
pub enum Shape {
    Keyed {
        per: Vec<String>,
    },
    Windowed {
        width_ms: i64,
        lateness_ms: i64,
        extent: Extent,
    },
    /// Each source with its extent. A source without an extent is visible as a whole in every
    /// window and must never change.
    Joined {
        width_ms: i64,
        lateness_ms: i64,
        extents: BTreeMap<String, Extent>,
        /// Name of a source. Windows that end before its first row starts are empty and are not
        /// computed.
        since: Option<String>,
    },
    View,
}

/// The time a source row belongs to, as SQL expressions over the source's columns.
#[derive(Debug, Clone, PartialEq)]
pub enum Extent {
    /// The row is in the window that contains this instant.
    Instant { time: String },
    /// The row is in every window it overlaps. The SQL sees it once per window, clipped to
    /// `clip_from`..`clip_to`.
    Interval { from: String, to: String },
}

impl Shape {
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
