//! Retention by level: raw samples for weeks, minutes for a year, hours and days for ever.
//!
//! What is dropped are whole files of raw rows and whole segments of windows. A window that is put
//! together from a table is final from when on rows of its time were dropped from that table: what
//! comes later for it changes no number that can no longer be computed. Windows that are kept in
//! parts take what comes late as before, since a part is a sum on its own.

use std::collections::BTreeMap;

use chrono::{DateTime, Duration, Utc};

use crate::delta::{DataFile, DeltaStore};
use crate::error::{LakeError, Result};
use crate::plan::{Group, Plan, Planned};
use crate::table::{Layout, PARTITION, SEGMENT};

/// How long tables keep their rows, counted from their newest one; a table that is not named keeps
/// them for ever.
#[derive(Debug, Clone, Default)]
pub struct Retention(BTreeMap<String, Duration>);

impl Retention {
    /// # Errors
    /// If a plan has no such table, or others could not be right without its rows.
    pub fn new(keep: BTreeMap<String, Duration>, plan: &Plan) -> Result<Self> {
        let droppable = droppable(plan);
        for table in keep.keys() {
            if !droppable.contains(&table.as_str()) {
                return Err(LakeError::Refused(format!(
                    "rows of {table} cannot be dropped by age: it is no table, or others are made of all its rows; tables that can be: {}",
                    droppable.join(", ")
                )));
            }
        }
        Ok(Self(keep))
    }

    /// Drops what is due of a table's rows in these log partitions; whether anything was.
    pub(crate) async fn apply(&self, store: &mut DeltaStore, partitions: &[u32]) -> Result<bool> {
        let Some(keep) = self.0.get(&store.spec().name) else { return Ok(false) };
        let column = time_column(store.spec().layout);
        let files = store.files()?;
        let Some(border) = border(&files, column, *keep, Utc::now()) else { return Ok(false) };
        let mine = |file: &DataFile| {
            file.partition_value(PARTITION)
                .is_some_and(|p| partitions.iter().any(|mine| mine.to_string() == p))
        };
        // Files of one segment go together: a window may have parts in each of them.
        let mut ends: BTreeMap<String, DateTime<Utc>> = BTreeMap::new();
        for file in &files {
            if let Some(time) = latest(file, column) {
                let end = ends.entry(unit(file)).or_insert(time);
                *end = time.max(*end);
            }
        }
        let is_old = |file: &DataFile| ends.get(&unit(file)).is_some_and(|end| *end < border);
        let expired: Vec<DataFile> = files.into_iter().filter(|file| mine(file) && is_old(file)).collect();
        let Some(last) = expired.iter().filter_map(|file| latest(file, column)).max() else {
            return Ok(false);
        };
        tracing::info!(table = store.spec().name, files = expired.len(), "dropped files past retention");
        store.drop_files(expired, last.timestamp_micros() + 1).await?;
        Ok(true)
    }
}

/// Tables from which rows may go: windows, and raw tables of which all that is kept is windows in
/// parts and windows of several tables, which are final then.
fn droppable(plan: &Plan) -> Vec<&str> {
    let stored = |planned: &&Planned| planned.pipeline.stored;
    let in_parts = |planned: &Planned| !planned.spec.parts.is_empty();
    // Where no window is made of a raw table alone, views read all of it: what was said of a node
    // years ago holds still.
    let only_in_parts = |group: &&Group| {
        group.keyed.is_empty() && !group.windowed.is_empty() && group.windowed.iter().all(in_parts)
    };
    let raw = plan.groups.iter().filter(only_in_parts).map(|group| &group.raw.spec);
    let of_groups = plan.groups.iter().flat_map(|group| &group.windowed);
    let windows = of_groups.chain(plan.joined.iter().filter(stored)).map(|planned| &planned.spec);
    let windows = windows.filter(|spec| spec.layout == Layout::Windowed);
    raw.chain(windows).map(|spec| spec.name.as_str()).collect()
}

fn time_column(layout: Layout) -> &'static str {
    if layout == Layout::Windowed { "window_start" } else { "event_time" }
}

/// What is dropped as one: a segment of windows, or a file.
fn unit(file: &DataFile) -> String {
    file.partition_value(SEGMENT).unwrap_or(&file.path).to_owned()
}

fn latest(file: &DataFile, column: &str) -> Option<DateTime<Utc>> {
    let time = DateTime::parse_from_rfc3339(&file.latest(column)?).ok()?;
    Some(time.with_timezone(&Utc))
}

/// Rows before it may go. A clock that runs ahead must not take the past with it: nothing counts as
/// newer than now.
fn border(files: &[DataFile], column: &str, keep: Duration, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let newest = files.iter().filter_map(|file| latest(file, column)).max()?;
    newest.min(now).checked_sub_signed(keep)
}
