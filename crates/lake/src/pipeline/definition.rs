//! A pipeline file: a TOML header in `--!` lines and one SELECT.
//!
//! Four shapes, told by the header:
//! - keyed (`per = ["cluster", "job_id"]`): a function of all events of one key. Rerun when the key
//!   gets an event.
//! - windowed (`window = "1h"`): a function of the rows of one event-time window. Rerun when the
//!   window gets dirty.
//! - joined (`window` and `[extents]`): the same, of several tables that come from different
//!   topics.
//! - view (neither): a query over other tables, evaluated when asked.

use std::collections::BTreeMap;

use crate::window::Segment;

/// A parsed pipeline file. What its SQL means is decided by [`crate::plan`].
#[derive(Debug, Clone)]
pub struct Pipeline {
    pub name: String,
    pub version: u32,
    pub doc: String,
    /// The question it answers, as one asks it who runs the cluster or pays for it.
    pub question: Option<String>,
    /// A query that answers it.
    pub example: Option<String>,
    pub shape: Shape,
    /// Whether the result is a table of the lake; if not, it is a step on the way to other
    /// pipelines of its shape.
    pub stored: bool,
    /// Whether the rows of a view are computed once for all who read it in a query, see
    /// [`crate::views::materialized`].
    pub materialized: bool,
    /// The table whose windows these are put together to wider ones, see [`crate::catalog::rollup`]; without
    /// it here they are a table as any.
    pub rolls_up: Option<String>,
    /// Tables the SQL reads.
    pub sources: Vec<String>,
    /// Columns that together name an output row.
    pub key: Vec<String>,
    /// Meaning of the output columns, with unit.
    pub columns: BTreeMap<String, String>,
    /// File the pipeline stands in, for messages.
    pub file: String,
    /// Line of the file on which the SQL begins (1 = first).
    pub sql_line: usize,
    pub sql: String,
}

/// When a pipeline is run, and on what.
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
    /// Each source with its extent. One without stands as it is in every window: it must never
    /// change.
    Joined {
        width_ms: i64,
        lateness_ms: i64,
        extents: BTreeMap<String, Extent>,
        /// A source: windows that end before the first row of it begins are empty, and are not
        /// computed.
        since: Option<String>,
    },
    View,
}

/// What part of time a source row belongs to. SQL expressions over the source's columns.
#[derive(Debug, Clone, PartialEq)]
pub enum Extent {
    /// The row counts in the window that holds this instant.
    Instant { time: String },
    /// The row counts in every window it overlaps; the SQL sees it once per window, cut to
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

    /// Width of its windows, ms.
    pub fn width_ms(&self) -> Option<i64> {
        match self {
            Self::Windowed { width_ms, .. } | Self::Joined { width_ms, .. } => Some(*width_ms),
            _ => None,
        }
    }

    /// How long a window takes in rows, from its start: its width and lateness, ms.
    pub fn open_ms(&self) -> Option<i64> {
        match self {
            Self::Windowed { width_ms, lateness_ms, .. } | Self::Joined { width_ms, lateness_ms, .. } => {
                Some(width_ms + lateness_ms)
            }
            _ => None,
        }
    }
}
