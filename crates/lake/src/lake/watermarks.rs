//! Watermarks from the committed tables: the latest time that any record of a cluster speaks for.
//!
//! Joined tables count nothing after it. Only data files that are new since the last time are read,
//! two or three columns of each.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int64Type, TimestampMicrosecondType};
use tidegate_events::SchemaId;

use crate::delta::DeltaStore;
use crate::error::Result;
use crate::pipeline::plan::Plan;
use crate::window::MICROS_PER_MS;

#[derive(Debug, Default)]
pub(super) struct CommittedWatermarks {
    /// By raw table and cluster, µs.
    watermarks: BTreeMap<String, BTreeMap<String, i64>>,
    /// By raw table: the version that was read, and its files.
    read: BTreeMap<String, (i64, HashSet<String>)>,
}

impl CommittedWatermarks {
    /// Reads what was committed since the last time.
    pub async fn update(&mut self, plan: &Plan, stores: &BTreeMap<String, DeltaStore>) -> Result<()> {
        for group in plan.groups.iter().filter(|group| group.feeds_joined) {
            self.update_table(&stores[&group.raw.spec.name], group.raw.schema).await?;
        }
        Ok(())
    }

    /// Watermark of each cluster over these raw tables, µs. Other tables do not count: what they
    /// say of a time changes no window that is computed from these.
    pub fn for_tables(&self, roots: &BTreeSet<String>) -> BTreeMap<String, i64> {
        let mut watermarks = BTreeMap::new();
        for (cluster, time) in roots.iter().filter_map(|root| self.watermarks.get(root)).flatten() {
            let watermark = watermarks.entry(cluster.clone()).or_insert(*time);
            *watermark = (*watermark).max(*time);
        }
        watermarks
    }

    /// The latest watermark of any cluster, µs.
    pub fn latest(&self) -> Option<i64> {
        self.watermarks.values().flat_map(BTreeMap::values).copied().max()
    }

    async fn update_table(&mut self, store: &DeltaStore, schema: SchemaId) -> Result<()> {
        let name = &store.spec().name;
        let version = store.version();
        if self.read.get(name).is_some_and(|(read, _)| *read == version) {
            return Ok(());
        }
        let mut watermark = self.read.remove(name).map(|(_, files)| files).unwrap_or_default();
        let mut files = HashSet::new();
        let watermarks = self.watermarks.entry(name.clone()).or_default();
        for file in store.files()? {
            if !watermark.remove(&file.path) {
                for rows in store.read_columns(&file, columns(schema)).await? {
                    record(watermarks, &rows)?;
                }
            }
            files.insert(file.path);
        }
        self.read.insert(name.clone(), (version, files));
        Ok(())
    }
}

fn record(watermarks: &mut BTreeMap<String, i64>, rows: &RecordBatch) -> Result<()> {
    let clusters =
        cast(rows.column_by_name("cluster").expect("raw tables have a cluster"), &DataType::Utf8View)?;
    let clusters = clusters.as_string_view();
    let times =
        |name| rows.column_by_name(name).map(|c| c.as_primitive::<TimestampMicrosecondType>().clone());
    let whole = |name| rows.column_by_name(name).map(|c| c.as_primitive::<Int64Type>().clone());
    let time = times("event_time").expect("raw tables have event_time");
    let (entered, interval_ms, duration_us) =
        (times("entered_time"), whole("interval_ms"), whole("duration_us"));
    for row in (0..rows.num_rows()).filter(|row| time.is_valid(*row)) {
        let value = |column: &Option<arrow::array::Int64Array>| {
            column.as_ref().filter(|c| c.is_valid(row)).map_or(0, |c| c.value(row))
        };
        let lasts = value(&interval_ms).saturating_mul(MICROS_PER_MS).saturating_add(value(&duration_us));
        let mut at = time.value(row).saturating_add(lasts);
        if let Some(entered) = entered.as_ref().filter(|entered| entered.is_valid(row)) {
            at = at.min(entered.value(row));
        }
        let cluster = clusters.value(row);
        match watermarks.get_mut(cluster) {
            Some(watermark) => *watermark = at.max(*watermark),
            None => drop(watermarks.insert(cluster.to_owned(), at)),
        }
    }
    Ok(())
}

/// Columns that are read of a raw table. Steps and pool samples reach beyond their event time, and
/// a price counts by when it was entered.
fn columns(schema: SchemaId) -> &'static [&'static str] {
    match schema {
        SchemaId::StepReport => &["cluster", "event_time", "duration_us"],
        SchemaId::PoolSample => &["cluster", "event_time", "interval_ms"],
        SchemaId::CapacityEvent => &["cluster", "event_time", "entered_time"],
        _ => &["cluster", "event_time"],
    }
}
