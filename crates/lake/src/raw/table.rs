//! A raw table.

use std::sync::Arc;

use tidegate_events::SchemaId;

use crate::table::TableSpec;

/// A raw table: which schema it holds and how an event becomes a row.
#[derive(Debug, Clone)]
pub struct RawTable {
    pub spec: Arc<TableSpec>,
    pub schema: SchemaId,
    /// Events are so many that repeats are known only if they come soon, see
    /// [`crate::state::dedup::REMEMBERED_RECORDS`]. Else any repeat is, at about five bytes of memory
    /// for each key there ever was.
    pub has_dedup_window: bool,
}

impl RawTable {
    /// Whether its keys come back for ever: each event is on its own then.
    pub fn has_endless_keys(&self) -> bool {
        matches!(self.schema, SchemaId::GpuSampleBatch | SchemaId::StepReport | SchemaId::NodeEvent)
    }
}
