//! What a start has to know of all keys that ever were. It is saved from time to time
//! (`lake/saved_keys.rs`), so that a start need not read all rows for it.

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use hashbrown::HashSet;

use super::bloom::SealedKeys;
use crate::table::OFFSET;

/// The keys of all records below an offset, and which of their events are needed again.
#[derive(Debug, Clone)]
pub struct KnownKeys {
    /// It knows the keys of all records below this offset.
    pub offset: u64,
    /// Watermark of each cluster, µs.
    pub watermarks: Vec<(String, i64)>,
    /// Keys of which all events were in memory: those that were open, or sealed lately.
    pub held: HashSet<i64>,
    /// Offset of the first of these events.
    pub held_from: u64,
    /// All keys.
    pub keys: SealedKeys,
}

/// The keys of a group's rows, as a start finds them.
#[derive(Debug, Default)]
pub struct FoundKeys {
    held: HashSet<i64>,
    held_from: u64,
    /// Keys whose first record is not below the offset of [`KnownKeys`].
    new: HashSet<i64>,
}

impl FoundKeys {
    /// Those that were saved.
    pub fn of(known: &KnownKeys) -> Self {
        Self { held: known.held.clone(), held_from: known.held_from, new: HashSet::new() }
    }

    /// Adds a key that has no rows below the offset.
    pub fn add_new(&mut self, key: i64) {
        self.new.insert(key);
    }

    /// The offset from which all rows of a key are; 0 if it is not known.
    pub fn rows_from(&self, key: i64) -> u64 {
        if self.held.contains(&key) || self.new.contains(&key) { self.held_from } else { 0 }
    }
}

/// Smallest offset of these rows.
pub(super) fn first_offset<'a>(rows: impl Iterator<Item = &'a RecordBatch>) -> Option<u64> {
    let offsets = rows.flat_map(|batch| {
        let offsets = batch.column_by_name(OFFSET).expect("raw rows have offsets");
        offsets.as_primitive::<Int64Type>().values().iter().copied()
    });
    offsets.min().map(|offset| offset as u64)
}
