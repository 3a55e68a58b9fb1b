//! Retention by table: raw samples for weeks, minutes for a year, hours and days for ever, audit
//! records for as long as the log keeps them.
//!
//! Whole files of raw rows and whole segments of windows are dropped. A joined window is final once
//! rows of its time were dropped from a table it is computed from: late events no longer change it,
//! because it could not be recomputed. Partial aggregates still take late events, since each is a
//! sum of its own.

use std::collections::BTreeMap;

use chrono::{DateTime, Duration, Utc};
use tidegate_events::SchemaId;

use crate::delta::{DataFile, DeltaStore};
use crate::error::{LakeError, Result};
use crate::pipeline::plan::{Group, Plan, Planned};
use crate::raw::AUDIT_TABLE;
use crate::table::{Layout, PARTITION, SEGMENT};

/// How long tables keep their rows, counted from the newest row. Tables without an entry keep them
/// for ever. By default only audit records are dropped, after the days that the log keeps them.
#[derive(Debug, Clone)]
pub struct Retention(BTreeMap<String, Duration>);

impl Default for Retention {
    fn default() -> Self {
        let days = i64::try_from(SchemaId::AuditEvent.retained_days()).unwrap_or(i64::MAX);
        Self(BTreeMap::from([(AUDIT_TABLE.to_owned(), Duration::days(days))]))
    }
}

impl Retention {
    /// Checks that the rows of each table can be dropped.
    ///
    /// # Errors
    /// A table does not exist, or other tables would be wrong without its rows.
    pub fn new(keep: BTreeMap<String, Duration>, plan: &Plan) -> Result<Self> {
        let droppable = droppable(plan);
        for table in keep.keys() {
            if !droppable.contains(&table.as_str()) {
                return Err(LakeError::Refused(format!(
                    "rows of {table} cannot be dropped by age: it is not a table, or other tables need all its rows; tables that allow it: {}",
                    droppable.join(", ")
                )));
            }
        }
        let Self(mut all) = Self::default();
        all.extend(keep);
        Ok(Self(all))
    }

    /// How long a table keeps its rows; `None` if for ever.
    pub(crate) fn of(&self, table: &str) -> Option<Duration> {
        self.0.get(table).copied()
    }

    /// Drops expired rows of a table in these log partitions. Returns whether there were any.
    pub(crate) async fn apply(&self, store: &mut DeltaStore, partitions: &[u32]) -> Result<bool> {
        let Some(keep) = self.0.get(&store.spec().name) else { return Ok(false) };
        let column = time_column(store.spec().layout);
        let files = store.files()?;
        let Some(cutoff) = cutoff(&files, column, *keep, store.now()) else { return Ok(false) };
        let mine = |file: &DataFile| {
            file.partition_value(PARTITION)
                .is_some_and(|p| partitions.iter().any(|mine| mine.to_string() == p))
        };
        // Files of one segment are dropped together: a window may have partial aggregates in each
        // of them.
        let mut ends: BTreeMap<String, DateTime<Utc>> = BTreeMap::new();
        for file in &files {
            if let Some(time) = latest(file, column) {
                let end = ends.entry(retention_unit(file)).or_insert(time);
                *end = time.max(*end);
            }
        }
        let is_old = |file: &DataFile| ends.get(&retention_unit(file)).is_some_and(|end| *end < cutoff);
        let expired: Vec<DataFile> = files.into_iter().filter(|file| mine(file) && is_old(file)).collect();
        let Some(last) = expired.iter().filter_map(|file| latest(file, column)).max() else {
            return Ok(false);
        };
        tracing::info!(table = store.spec().name, files = expired.len(), "dropped files past retention");
        store.drop_files(expired, last.timestamp_micros() + 1).await?;
        Ok(true)
    }
}

/// Tables whose rows can be dropped: windowed tables, raw tables that only partial aggregates and
/// joined windows are computed from, and audit records, each of which stands alone.
fn droppable(plan: &Plan) -> Vec<&str> {
    let stored = |planned: &&Planned| planned.pipeline.stored;
    let with_partials = |planned: &Planned| !planned.spec.partials.is_empty();
    // If no window is computed from a raw table alone, views read all of it: what was reported of a
    // node years ago still holds.
    let only_in_parts = |group: &&Group| {
        group.keyed.is_empty() && !group.windowed.is_empty() && group.windowed.iter().all(with_partials)
    };
    let is_audit = |group: &&Group| group.raw.spec.name == AUDIT_TABLE && group.keyed.is_empty();
    let raw = plan
        .groups
        .iter()
        .filter(|group| only_in_parts(group) || is_audit(group))
        .map(|group| &group.raw.spec);
    let of_groups = plan.groups.iter().flat_map(|group| &group.windowed);
    let windows = of_groups.chain(plan.joined.iter().filter(stored)).map(|planned| &planned.spec);
    let windows = windows.filter(|spec| spec.layout == Layout::Windowed);
    raw.chain(windows).map(|spec| spec.name.as_str()).collect()
}

fn time_column(layout: Layout) -> &'static str {
    if layout == Layout::Windowed { "window_start" } else { "event_time" }
}

/// What is dropped as one: a segment of windows, or a file.
fn retention_unit(file: &DataFile) -> String {
    file.partition_value(SEGMENT).unwrap_or(&file.path).to_owned()
}

fn latest(file: &DataFile, column: &str) -> Option<DateTime<Utc>> {
    let time = DateTime::parse_from_rfc3339(&file.latest(column)?).ok()?;
    Some(time.with_timezone(&Utc))
}

/// Rows before this time can be dropped. A clock that runs ahead must not delete history, so
/// nothing counts as newer than now.
fn cutoff(files: &[DataFile], column: &str, keep: Duration, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let newest = files.iter().filter_map(|file| latest(file, column)).max()?;
    newest.min(now).checked_sub_signed(keep)
}
