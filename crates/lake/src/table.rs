//! Lake tables: their columns, with documentation, and their layout.
//!
//! Columns whose name begins with an underscore hold bookkeeping. Queries do not see them.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use serde::{Deserialize, Serialize};

/// Log partition that produced the row. Delta partition column.
pub const PARTITION: &str = "_partition";
/// Offset of the record in its log partition.
pub const OFFSET: &str = "_offset";
/// Hash of the row's key, e.g. (cluster, job_id): the unit of recomputation of keyed tables.
pub const KEY: &str = "_key";
/// First 8 bytes of the event id. Together with [`KEY`] it identifies duplicates.
pub const EVENT: &str = "_event";
/// Keyed tables: whether the key may still change. Delta partition column.
pub const OPEN: &str = "_open";
/// Windowed tables: start of the calendar segment (hour, day or month) that is rewritten as one.
/// Delta partition column.
pub const SEGMENT: &str = "_segment";
/// Windowed tables: how often the window changed after it had closed.
pub const REVISION: &str = "_revision";

/// UTC time in microseconds, the only time type of the lake (TIMESTAMP in Delta).
pub fn timestamp_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// A documented column.
#[derive(Debug, Clone)]
pub struct Column {
    /// Name of the column.
    pub name: String,
    /// Type: text, integer, UTC time, or 64-bit float in a view.
    pub data_type: DataType,
    /// What it holds, with its unit.
    pub doc: String,
}

/// How rows of a table are added and replaced. It decides the table's layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Events as they arrived: appended, never changed.
    Raw,
    /// As `Raw`, but with many rows per event. Files are sorted by device and time.
    Samples,
    /// One row per key, replaced when the key gets an event. Rows of open keys are rewritten with
    /// every commit, others only when a late event reaches a sealed key.
    Keyed,
    /// Rows of event-time windows, rewritten by calendar segment.
    Windowed,
}

/// How the values of a column merge when partial aggregates of one row are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Merge {
    /// Part of the row's key: partial aggregates with equal keys are combined.
    Key,
    /// Values are added.
    Sum,
    /// The least value.
    Min,
    /// The greatest value.
    Max,
}

/// A table of the lake.
#[derive(Debug, Clone)]
pub struct TableSpec {
    /// Name of the table.
    pub name: String,
    /// Version of the table. Each version has a folder of its own.
    pub version: u32,
    /// What the table holds.
    pub doc: String,
    /// How rows are added and replaced.
    pub layout: Layout,
    /// Public columns, in order.
    pub columns: Vec<Column>,
    /// Public columns that together identify a row.
    pub key: Vec<String>,
    /// For windowed tables stored as partial aggregates: how each of `columns` merges. Such a table
    /// holds several rows per key, which are merged when it is read. Empty for all other tables.
    pub partials: Vec<Merge>,
}

impl TableSpec {
    /// How the rows of one key merge in the column at this place. In a table without partial
    /// aggregates, each log partition has a row, and values are added.
    pub fn merge(&self, place: usize) -> Merge {
        match self.partials.get(place) {
            Some(merge) => *merge,
            None if self.key.contains(&self.columns[place].name) => Merge::Key,
            None => Merge::Sum,
        }
    }

    /// Folder of the table below the lake's root.
    pub fn folder(&self) -> String {
        format!("{}/v{}", self.name, self.version)
    }

    /// Bookkeeping columns of the layout.
    pub fn hidden_columns(&self) -> &'static [(&'static str, DataType)] {
        match self.layout {
            Layout::Raw | Layout::Samples => &[
                (PARTITION, DataType::Int32),
                (OFFSET, DataType::Int64),
                (KEY, DataType::Int64),
                (EVENT, DataType::Int64),
            ],
            Layout::Keyed => {
                &[(PARTITION, DataType::Int32), (OPEN, DataType::Boolean), (KEY, DataType::Int64)]
            }
            Layout::Windowed => {
                &[(PARTITION, DataType::Int32), (SEGMENT, DataType::Utf8), (REVISION, DataType::Int32)]
            }
        }
    }

    /// Delta partition columns. Their values are in a file's metadata, not in the file.
    pub fn partition_columns(&self) -> &'static [&'static str] {
        match self.layout {
            Layout::Raw | Layout::Samples => &[PARTITION],
            Layout::Keyed => &[PARTITION, OPEN],
            Layout::Windowed => &[PARTITION, SEGMENT],
        }
    }

    /// Public columns only.
    pub fn public_schema(&self) -> SchemaRef {
        Arc::new(Schema::new(
            self.columns.iter().map(|c| Field::new(&c.name, c.data_type.clone(), true)).collect::<Vec<_>>(),
        ))
    }

    /// The columns of a data file: public columns, then bookkeeping that is not a partition column.
    pub fn file_schema(&self) -> SchemaRef {
        let hidden =
            self.hidden_columns().iter().filter(|(name, _)| !self.partition_columns().contains(name));
        self.schema_with(hidden)
    }

    /// Public columns, then all bookkeeping columns.
    pub fn full_schema(&self) -> SchemaRef {
        self.schema_with(self.hidden_columns().iter())
    }

    fn schema_with<'a>(&self, hidden: impl Iterator<Item = &'a (&'static str, DataType)>) -> SchemaRef {
        let public = self.columns.iter().map(|c| Field::new(&c.name, c.data_type.clone(), true));
        let hidden = hidden.map(|(name, data_type)| Field::new(*name, data_type.clone(), true));
        Arc::new(Schema::new(public.chain(hidden).collect::<Vec<_>>()))
    }
}

/// The table of windows that changed after they had closed.
pub fn window_revisions() -> Arc<TableSpec> {
    let column = |name: &str, data_type, doc: &str| Column { name: name.into(), data_type, doc: doc.into() };
    Arc::new(TableSpec {
        name: "window_revisions".into(),
        version: 1,
        doc: "Windows of every windowed table, and how often late events changed them after they had closed."
            .into(),
        layout: Layout::Windowed,
        columns: vec![
            column("window_start", timestamp_type(), "Start of the window, UTC."),
            column("pipeline", DataType::Utf8View, "Name of the pipeline and of its table."),
            column(
                "revision",
                DataType::Int64,
                "0 until a late event changes the closed window, then counting; NULL before its first commit.",
            ),
            column("row_count", DataType::Int64, "Rows of the window."),
        ],
        key: vec!["window_start".into(), "pipeline".into()],
        partials: Vec::new(),
    })
}

/// The table of what joined tables have yet to recompute.
pub fn table_lag() -> Arc<TableSpec> {
    let column = |name: &str, data_type, doc: &str| Column { name: name.into(), data_type, doc: doc.into() };
    Arc::new(TableSpec {
        name: "table_lag".into(),
        version: 1,
        doc: "How far the tables over several topics, such as those of the ledger, are up to date. Late events change windows that are recomputed after the newest ones: those are pending.".into(),
        layout: Layout::Windowed,
        columns: vec![
            column("table_name", DataType::Utf8View, "The table."),
            column(
                "live_to",
                timestamp_type(),
                "Time up to which it has windows; NULL before its first commit.",
            ),
            column("pending_windows", DataType::Int64, "Windows that are not recomputed yet."),
            column("pending_from", timestamp_type(), "Start of the first of them; NULL without any."),
            column("pending_to", timestamp_type(), "End of the last of them; NULL without any."),
        ],
        key: vec!["table_name".into()],
        partials: Vec::new(),
    })
}
