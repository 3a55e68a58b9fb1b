//! Records that earlier lives of the runner died of are set aside before they are decoded.

use tidegate_log::poison::{DeathWatch, Place};
use tidegate_log::{StoredRecord, TopicPartition};

/// Name under which the runner notes what it works on.
pub(super) const READER: &str = "tables";

/// Cuts a batch so that a suspect record is processed alone: the batch ends before the first
/// suspect, or right after it if the batch starts with it. Returns whether it starts with it.
pub(super) fn cut(watch: Option<&DeathWatch>, at: &TopicPartition, records: &mut Vec<StoredRecord>) -> bool {
    let (Some(first), Some(last)) = (records.first(), records.last()) else { return false };
    let from = first.offset;
    let Some(suspect) = watch.and_then(|watch| watch.suspect(at, (from, last.offset + 1))) else {
        return false;
    };
    records.retain(|stored| stored.offset < suspect.max(from + 1));
    suspect == from
}

/// Notes that a record comes next. Returns why it is set aside, if it is.
pub(super) fn enter(watch: Option<&mut DeathWatch>, at: &TopicPartition, offset: u64) -> Option<String> {
    let watch = watch.filter(|watch| watch.is_careful() || watch.skips_any() || watch.tries_any())?;
    let place = Place::record(at, offset);
    if watch.skips(&place) {
        watch.skipped(&place, at, offset);
        return Some(watch.reason());
    }
    watch.enter(place);
    None
}

/// Notes that the records from one offset to another become rows together.
pub(super) fn enter_all(watch: Option<&mut DeathWatch>, at: &TopicPartition, (from, to): (u64, u64)) {
    if let Some(watch) = watch.filter(|watch| watch.is_careful() || watch.tries_any()) {
        watch.enter(Place::Records { topic: at.topic.clone(), partition: at.partition, from, to });
    }
}

/// Notes that what comes next is no single record's.
pub(super) fn leave(watch: Option<&mut DeathWatch>) {
    if let Some(watch) = watch {
        watch.enter(Place::Work);
    }
}
