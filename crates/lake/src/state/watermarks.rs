//! Watermarks: the time up to which each cluster was observed.

use arrow::array::{AsArray, RecordBatch};
use hashbrown::HashMap;

/// Per cluster, the latest time that any of its events speaks for, µs.
///
/// Clusters have an index, so that a row refers to its cluster in four bytes.
#[derive(Debug, Default)]
pub struct Watermarks {
    clusters: Vec<(String, i64)>,
}

impl Watermarks {
    /// The latest of all clusters, µs.
    pub fn latest(&self) -> Option<i64> {
        self.clusters.iter().map(|(_, time)| *time).max()
    }

    /// Watermark of a cluster; `i64::MIN` before its first event.
    pub fn of(&self, index: u32) -> i64 {
        self.clusters[index as usize].1
    }

    /// Moves a cluster's watermark forward. An earlier time changes nothing.
    pub fn advance(&mut self, index: u32, time: i64) {
        let watermark = &mut self.clusters[index as usize].1;
        *watermark = (*watermark).max(time);
    }

    /// All watermarks as they are now, by index.
    pub fn snapshot(&self) -> Vec<i64> {
        self.clusters.iter().map(|(_, time)| *time).collect()
    }

    /// All watermarks by name of the cluster.
    pub fn by_name(&self) -> HashMap<&str, i64> {
        self.clusters.iter().map(|(name, time)| (name.as_str(), *time)).collect()
    }

    /// Index of a cluster. A cluster that is new gets the next one.
    pub fn index(&mut self, cluster: &str) -> u32 {
        let index = self.clusters.iter().position(|(name, _)| name == cluster).unwrap_or_else(|| {
            self.clusters.push((cluster.to_owned(), i64::MIN));
            self.clusters.len() - 1
        });
        index as u32
    }

    /// Index of each row's cluster.
    pub fn indexes(&mut self, batch: &RecordBatch) -> Vec<u32> {
        let clusters =
            batch.column_by_name("cluster").expect("raw tables have a cluster").as_string_view().clone();
        // Rows of one cluster come in runs.
        let mut last = ("", None);
        let mut indexes = Vec::with_capacity(batch.num_rows());
        for cluster in &clusters {
            let cluster = cluster.unwrap_or_default();
            let index = match last {
                (name, Some(index)) if name == cluster => index,
                _ => self.index(cluster),
            };
            last = (cluster, Some(index));
            indexes.push(index);
        }
        indexes
    }
}
