//! Records that earlier lives of the runner died of are set aside before they are decoded.

use tidegate_log::TopicPartition;
use tidegate_log::poison::{DeathWatch, Place};

/// Name under which the runner notes what it works on.
pub(super) const READER: &str = "tables";

/// Notes that a record comes next. Returns why it is set aside, if it is.
pub(super) fn enter(watch: Option<&mut DeathWatch>, at: &TopicPartition, offset: u64) -> Option<String> {
    let watch = watch.filter(|watch| watch.is_careful() || watch.skips_any())?;
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
    if let Some(watch) = watch.filter(|watch| watch.is_careful()) {
        watch.enter(Place::Records { topic: at.topic.clone(), partition: at.partition, from, to });
    }
}

/// Notes that what comes next is no single record's.
pub(super) fn leave(watch: Option<&mut DeathWatch>) {
    if let Some(watch) = watch {
        watch.enter(Place::Work);
    }
}
