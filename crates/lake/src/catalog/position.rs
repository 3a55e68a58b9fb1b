//! Positions of the committed tables in the log, for readers that do not write.

use std::sync::Arc;

use chrono::DateTime;
use tidegate_log::TopicPartition;
use url::Url;

use crate::delta::DeltaStore;
use crate::error::Result;
use crate::pipeline::plan::Plan;
use crate::table::PARTITION;

/// What tables hold of a log partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Position {
    /// All records below this offset are in every table that absorbs them.
    pub offset: u64,
    /// Newest event time in the tables, ms since the epoch.
    pub watermark_ms: Option<i64>,
    /// How often a process claimed the partition; 0 in a lake with one writer.
    pub claims: u64,
}

/// Positions of the tables below `root` in these log partitions. Takes no lock and creates nothing.
pub async fn positions(root: &Url, plan: &Plan, partitions: &[TopicPartition]) -> Result<Vec<Position>> {
    let mut positions = vec![None::<Position>; partitions.len()];
    for group in &plan.groups {
        let topic = group.raw.schema.topic();
        let Some(anchor) = group.commit_order().pop() else { continue };
        let mut anchor = DeltaStore::open(root, anchor).await?;
        let raw = DeltaStore::open(root, Arc::clone(&group.raw.spec)).await?;
        let files = raw.map(|store| store.files()).transpose()?.unwrap_or_default();
        for (at, position) in partitions.iter().zip(&mut positions).filter(|(at, _)| at.topic == topic) {
            let (offset, claims) = match &mut anchor {
                Some(store) => (store.progress(at.partition).await?, store.claims(at.partition).await?),
                None => (0, 0),
            };
            let name = at.partition.to_string();
            let here = files.iter().filter(|file| file.partition_value(PARTITION) == Some(&name));
            let newest =
                here.filter_map(|file| DateTime::parse_from_rfc3339(&file.latest("event_time")?).ok());
            let watermark_ms = newest.map(|time| time.timestamp_millis()).max();
            // Several groups may read one topic. The tables hold what all of them hold.
            let before = position.unwrap_or(Position { offset: u64::MAX, ..Position::default() });
            *position = Some(Position {
                offset: before.offset.min(offset),
                watermark_ms: before.watermark_ms.max(watermark_ms),
                claims: before.claims.max(claims),
            });
        }
    }
    Ok(positions.into_iter().map(Option::unwrap_or_default).collect())
}
