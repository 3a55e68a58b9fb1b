//! What a lake table is: its columns with their meaning, and how it is laid out.
//!
//! Columns whose name begins with an underscore carry bookkeeping and are not shown to queries.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};

/// Log partition that produced the row; also the Delta partition column.
pub const PARTITION: &str = "_partition";
/// Offset of the record in its log partition.
pub const OFFSET: &str = "_offset";
/// Hash of the key the row belongs to (unit of recomputation), e.g. of (cluster, job_id).
pub const KEY: &str = "_key";
/// First 8 bytes of the event id; with [`KEY`] it tells duplicates.
pub const EVENT: &str = "_event";
/// Keyed tables: whether the key may still change. Delta partition column.
pub const OPEN: &str = "_open";
/// Window tables: start of the calendar segment (day or month) that is rewritten as one. Delta
/// partition column.
pub const SEGMENT: &str = "_segment";
/// Window tables: how often the window was recomputed after it had closed.
pub const REVISION: &str = "_revision";

/// UTC time in microseconds, the one time type of the lake (Delta's TIMESTAMP).
pub fn timestamp_type() -> DataType {
    DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))
}

/// One documented column.
#[derive(Debug, Clone)]
pub struct Column {
    pub name: String,
    pub data_type: DataType,
    /// What it holds, with unit.
    pub doc: String,
}

/// How rows of a table come and go, which decides its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Events as they came: appended, never changed.
    Raw,
    /// As raw, but many rows to an event; those of a file stand in order of device and time.
    Samples,
    /// One row per key, replaced as the key's events come in. `_open` rows are rewritten with every
    /// commit, the others only when a late event reaches a finished key.
    Keyed,
    /// Rows of event-time windows, rewritten by calendar segment.
    Windowed,
}

/// How values of a column that stand for parts of a window's rows become the value of all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// It names the row: parts with the same values of all such columns belong together.
    Key,
    Sum,
    Min,
    Max,
}

/// A table of the lake.
#[derive(Debug, Clone)]
pub struct TableSpec {
    pub name: String,
    pub version: u32,
    pub doc: String,
    pub layout: Layout,
    /// Public columns, in order.
    pub columns: Vec<Column>,
    /// Public columns that together name a row.
    pub key: Vec<String>,
    /// Windowed tables that are kept in parts: one for each of `columns`. Several rows of the table
    /// then have one key, and are put together when it is read. Empty for all other tables.
    pub parts: Vec<Part>,
}

impl TableSpec {
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

    /// Delta partition columns; their values stand in the file's metadata, not in the file.
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

    /// Everything that stands in a data file: public columns, then bookkeeping that is not a
    /// partition column.
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
