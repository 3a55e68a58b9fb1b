//! Raw tables and the schemas they hold.

use std::sync::Arc;

use tidegate_events::SchemaId;

use crate::table::TableSpec;

/// A raw table and the event schema it holds.
#[derive(Debug, Clone)]
pub struct RawTable {
    pub spec: Arc<TableSpec>,
    pub schema: SchemaId,
    /// Whether repeats are only recognised within a window, see
    /// [`crate::state::dedup::REMEMBERED_RECORDS`], because the events are too many. Otherwise all
    /// repeats are, at about five bytes of memory for each key there ever was.
    pub has_dedup_window: bool,
    /// Ratios of samples are rounded to multiples of this many millionths; 1 keeps them as they
    /// were read.
    pub ratio_step_ppm: u32,
}

impl RawTable {
    /// Whether its keys never finish, so that each event stands alone.
    pub fn has_endless_keys(&self) -> bool {
        matches!(self.schema, SchemaId::GpuSampleBatch | SchemaId::StepReport | SchemaId::NodeEvent)
    }
}
