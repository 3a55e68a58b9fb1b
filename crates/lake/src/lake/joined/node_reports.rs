//! Events of nodes that recent windows can depend on, in memory: what each node last reported
//! before midnight, and what it reported since. Events that say nothing a joined table reads, such
//! as errors of GPUs, are left out, and the rest has a bound: a flood must not take the memory of
//! the process that records it (ADR 0514).

use std::collections::BTreeMap;

use arrow::array::{Array, AsArray, BooleanArray, RecordBatch, StringViewArray};
use arrow::compute::filter_record_batch;
use arrow::datatypes::{Int64Type, TimestampMicrosecondType};
use hashbrown::{HashMap, HashSet};

use super::super::late_nodes::is_informative;
use crate::batch::{compact, concat, conform};
use crate::delta::{DataFile, DeltaStore};
use crate::error::Result;
use crate::table::{OFFSET, PARTITION};

/// Bytes of rows that are held: about 200,000 reports. With more, windows are computed from the
/// full tables until the next day begins.
const MAX_BYTES: usize = 128 << 20;
/// Batches held before they are merged.
const MAX_BATCHES: usize = 64;
/// Rows of a file that are decoded at a time.
const ROWS_AT_ONCE: usize = 8 * 1024;

/// Rows of `node_events` that windows from the horizon on can depend on.
#[derive(Debug)]
pub(super) struct NodeReports {
    /// Public columns.
    rows: Vec<RecordBatch>,
    /// Bytes of `rows` that are allowed.
    max_bytes: usize,
    /// There were too many.
    is_full: bool,
    /// By log partition: rows below this offset were read.
    read_to: BTreeMap<String, i64>,
    /// Files that were read, of those that there are.
    files: HashSet<String>,
    /// Rows before it are only those that are still in force, µs.
    horizon: i64,
}

impl Default for NodeReports {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            max_bytes: MAX_BYTES,
            is_full: false,
            read_to: BTreeMap::new(),
            files: HashSet::new(),
            horizon: i64::MIN,
        }
    }
}

impl NodeReports {
    /// The rows; `None` if there are more than may be held.
    pub(super) fn rows(&self) -> Option<&[RecordBatch]> {
        (!self.is_full).then_some(&self.rows)
    }

    /// Reads new rows, of any time.
    pub(super) async fn update(&mut self, store: &DeltaStore, horizon: i64) -> Result<()> {
        let is_next_day = horizon > self.horizon;
        if is_next_day && self.is_full {
            *self = Self { max_bytes: self.max_bytes, ..Self::default() };
        }
        if self.is_full {
            return Ok(());
        }
        self.horizon = self.horizon.max(horizon);
        let (mut reached, mut files) = (self.read_to.clone(), HashSet::new());
        for file in store.files()? {
            let is_read = self.files.contains(&file.path);
            files.insert(file.path.clone());
            let partition = file.partition_value(PARTITION).unwrap_or_default().to_owned();
            let from = self.read_to.get(&partition).copied().unwrap_or(0);
            // A compacted file has rows that were read in others.
            if is_read || file.largest(OFFSET).is_some_and(|last| last < from) {
                continue;
            }
            let next = self.read(store, &file, from).await?;
            if self.is_full {
                return Ok(());
            }
            let reached = reached.entry(partition).or_insert(0);
            *reached = next.max(*reached);
        }
        (self.read_to, self.files) = (reached, files);
        if is_next_day { self.keep_in_force() } else { Ok(()) }
    }

    /// Reads the rows of a file from an offset on. Returns the offset after the last.
    async fn read(&mut self, store: &DeltaStore, file: &DataFile, from: i64) -> Result<i64> {
        let schema = store.spec().public_schema();
        let mut next = from;
        for rows in store.rows_of(file, ROWS_AT_ONCE).await? {
            let rows = rows?;
            let offsets = rows.column_by_name(OFFSET).expect("raw files have offsets");
            let offsets = offsets.as_primitive::<Int64Type>().values();
            next = offsets.iter().fold(next, |next, offset| next.max(offset + 1));
            let says = is_informative(&rows);
            let wanted: BooleanArray =
                says.iter().zip(offsets).map(|(says, offset)| Some(*says && *offset >= from)).collect();
            if wanted.true_count() == 0 {
                continue;
            }
            self.rows.push(compact(&conform(&filter_record_batch(&rows, &wanted)?, &schema)?)?);
            if self.rows.len() > MAX_BATCHES || self.bytes() > self.max_bytes {
                self.keep_in_force()?;
            }
            if self.bytes() > self.max_bytes {
                tracing::warn!(
                    "events of nodes since midnight take more than {} MiB: joined tables are computed from files until the \
                     next day, which takes longer",
                    self.max_bytes >> 20
                );
                *self = Self {
                    max_bytes: self.max_bytes,
                    is_full: true,
                    horizon: self.horizon,
                    ..Self::default()
                };
                break;
            }
        }
        Ok(next)
    }

    fn bytes(&self) -> usize {
        self.rows.iter().map(RecordBatch::get_array_memory_size).sum()
    }

    /// Drops rows before the horizon that are not in force, and makes one batch of the others.
    fn keep_in_force(&mut self) -> Result<()> {
        let Some(first) = self.rows.first() else { return Ok(()) };
        let rows = concat(&first.schema(), &std::mem::take(&mut self.rows))?;
        self.rows = vec![in_force(&rows, self.horizon)?];
        Ok(())
    }
}

/// Keeps all rows from the horizon on. Of those before it, keeps the latest value of each property
/// of a node, the first agent start of each cluster, and one row for each pool and model.
fn in_force(rows: &RecordBatch, horizon: i64) -> Result<RecordBatch> {
    let column = |name: &str| rows.column_by_name(name).expect("a column of node_events");
    let times = column("event_time").as_primitive::<TimestampMicrosecondType>().values();
    let text = |name| column(name).as_string_view();
    let (clusters, nodes, kinds) = (text("cluster"), text("node"), text("kind"));
    let (pools, models, states) = (text("pool"), text("gpu_model"), text("state"));
    let (gpus, uuids, migs) = (column("gpus_milli"), text("gpu_uuid"), text("mig_uuid"));
    // What a row says, and how it ranks among rows that say the same.
    let said = |row: usize| -> Vec<(String, i64)> {
        let (cluster, node, time) = (clusters.value(row), nodes.value(row), times[row]);
        let of_node = |what: &str| (format!("{what}\0{cluster}\0{node}"), time);
        let mut said = Vec::new();
        match kinds.value(row) {
            "NODE_REGISTERED" => {
                said.push(of_node("exists"));
                said.extend(pools.is_valid(row).then(|| of_node("pool")));
                said.extend(models.is_valid(row).then(|| of_node("model")));
                said.extend(gpus.is_valid(row).then(|| of_node("gpus")));
            }
            "NODE_REMOVED" => said.push(of_node("exists")),
            "STATE_CHANGED" => said.extend(states.is_valid(row).then(|| of_node("state"))),
            "DEVICE_LOST" | "DEVICE_FOUND" | "DEVICE_STALE" | "DEVICE_ANSWERS" => {
                let value = |of: &StringViewArray| {
                    if of.is_valid(row) { of.value(row).to_owned() } else { String::new() }
                };
                said.push((format!("device\0{cluster}\0{node}\0{}\0{}", value(uuids), value(migs)), time));
            }
            "COLLECTOR_STARTED" => said.push((format!("watched\0{cluster}"), -time)),
            _ => {}
        }
        if pools.is_valid(row) || models.is_valid(row) {
            let value = |of: &StringViewArray| of.is_valid(row).then(|| of.value(row).to_owned());
            said.push((format!("named\0{cluster}\0{:?}\0{:?}", value(pools), value(models)), -time));
        }
        said
    };
    let mut best: HashMap<String, i64> = HashMap::new();
    for row in (0..rows.num_rows()).filter(|row| times[*row] < horizon) {
        for (what, rank) in said(row) {
            let best = best.entry(what).or_insert(rank);
            *best = rank.max(*best);
        }
    }
    let is_best = |(what, rank): (String, i64)| best.get(&what) == Some(&rank);
    let keep: BooleanArray = (0..rows.num_rows())
        .map(|row| Some(times[row] >= horizon || said(row).into_iter().any(is_best)))
        .collect();
    Ok(compact(&filter_record_batch(rows, &keep)?)?)
}

#[cfg(test)]
mod tests {
    use tidegate_events::v1::{Envelope, NodeEvent, NodeEventKind};
    use tidegate_events::{Event, SchemaId};
    use url::Url;

    use super::*;
    use crate::delta::Change;
    use crate::raw::raw_tables;
    use crate::raw::rows::RawRows;
    use crate::window::{MICROS_PER_DAY, MICROS_PER_MS};

    const DAY_MS: i64 = MICROS_PER_DAY / MICROS_PER_MS;

    /// A store of `node_events` on disk.
    struct Stored {
        _folder: tempfile::TempDir,
        store: DeltaStore,
        next: u64,
    }

    impl Stored {
        async fn open() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let root = Url::from_directory_path(folder.path()).unwrap();
            let raw = raw_tables().into_iter().find(|raw| raw.schema == SchemaId::NodeEvent).unwrap();
            let store = DeltaStore::open_or_create(&root, raw.spec).await.unwrap();
            Self { _folder: folder, store, next: 0 }
        }

        async fn commit(&mut self, events: &[(NodeEventKind, i64)]) {
            let raw = raw_tables().into_iter().find(|raw| raw.schema == SchemaId::NodeEvent).unwrap();
            let mut rows = RawRows::new(raw, 0);
            for (kind, at_ms) in events {
                let envelope = Envelope { cluster: "c".into(), event_time_ms: *at_ms, ..Envelope::default() };
                let state = (*kind == NodeEventKind::StateChanged).then(|| "IDLE".into());
                let event = NodeEvent {
                    envelope: Some(envelope),
                    kind: (*kind).into(),
                    node: "n".into(),
                    state,
                    ..NodeEvent::default()
                };
                rows.push(self.next, &Event::Node(event));
                self.next += 1;
            }
            let rows = conform(&rows.finish().0, &self.store.spec().file_schema()).unwrap();
            let file = self.store.write(vec![(PARTITION, "0".into())], &[rows]).await.unwrap();
            let adds = file.into_iter().collect();
            self.store.commit(Change { adds, ..Change::default() }).await.unwrap();
        }
    }

    fn held(reports: &NodeReports) -> Option<usize> {
        reports.rows().map(|rows| rows.iter().map(RecordBatch::num_rows).sum())
    }

    #[tokio::test]
    async fn events_that_say_nothing_are_not_held() {
        let mut stored = Stored::open().await;
        let mut reports = NodeReports::default();
        let flood = [(NodeEventKind::Xid, DAY_MS); 20_000];
        stored.commit(&[(NodeEventKind::NodeRegistered, 5), (NodeEventKind::StateChanged, DAY_MS)]).await;
        stored.commit(&flood).await;
        reports.update(&stored.store, MICROS_PER_DAY).await.unwrap();
        assert_eq!(held(&reports), Some(2));
        stored.commit(&flood).await;
        stored.commit(&[(NodeEventKind::StateChanged, DAY_MS + 1)]).await;
        reports.update(&stored.store, MICROS_PER_DAY).await.unwrap();
        assert_eq!(held(&reports), Some(3));
    }

    #[tokio::test]
    async fn more_than_the_bound_is_given_up_until_the_next_day() {
        let mut stored = Stored::open().await;
        let mut reports = NodeReports { max_bytes: 1 << 20, ..NodeReports::default() };
        let flood: Vec<_> = (0..20_000).map(|ms| (NodeEventKind::StateChanged, DAY_MS + ms)).collect();
        stored.commit(&flood).await;
        reports.update(&stored.store, MICROS_PER_DAY).await.unwrap();
        assert_eq!((held(&reports), reports.bytes()), (None, 0));
        stored.commit(&[(NodeEventKind::StateChanged, 2 * DAY_MS)]).await;
        reports.update(&stored.store, MICROS_PER_DAY).await.unwrap();
        assert_eq!(held(&reports), None);
        // Of the day before, what still holds.
        reports.update(&stored.store, 2 * MICROS_PER_DAY).await.unwrap();
        assert_eq!(held(&reports), Some(2));
    }
}
