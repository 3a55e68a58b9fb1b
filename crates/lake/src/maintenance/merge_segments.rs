//! Merges the files of a closed segment of a joined table into one. While a segment is open, each
//! update adds a file of the windows that closed since the last one.

use std::collections::BTreeMap;

use crate::batch::concat;
use crate::batch::sort::sorted;
use crate::delta::{Change, DataFile, DeltaStore};
use crate::error::Result;
use crate::table::{PARTITION, SEGMENT};

/// Merges every segment of several files but the newest, which is still open. Returns whether there
/// was one.
pub(super) async fn merge_closed(store: &mut DeltaStore, partitions: &[u32]) -> Result<bool> {
    let owned: Vec<String> = partitions.iter().map(u32::to_string).collect();
    let mut segments: BTreeMap<(String, String), Vec<DataFile>> = BTreeMap::new();
    for file in store.files()? {
        let value = |column| file.partition_value(column).unwrap_or_default().to_owned();
        let (segment, partition) = (value(SEGMENT), value(PARTITION));
        segments.entry((segment, partition)).or_default().push(file);
    }
    // Names of segments sort by time.
    let Some(newest) = segments.keys().next_back().map(|(segment, _)| segment.clone()) else {
        return Ok(false);
    };
    segments.retain(|(segment, partition), files| {
        *segment != newest && files.len() > 1 && owned.contains(partition)
    });
    let worked = !segments.is_empty();
    for ((segment, partition), files) in segments {
        let mut rows = Vec::new();
        for file in &files {
            rows.extend(store.read_file(file).await?);
        }
        let rows = sorted(&concat(&store.spec().file_schema(), &rows)?, &store.spec().key)?;
        let adds = store.write(vec![(PARTITION, partition), (SEGMENT, segment)], &[rows]).await?;
        tracing::debug!(table = store.spec().name, files = files.len(), "merged a closed segment");
        let change = Change { adds: adds.into_iter().collect(), removes: files, ..Change::default() };
        store.commit(change).await?;
    }
    Ok(worked)
}
