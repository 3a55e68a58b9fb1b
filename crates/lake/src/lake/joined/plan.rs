//! Planner of joined tables: which windows to recompute, and in which order. It is pure and reads
//! no table.

use std::collections::BTreeMap;

use crate::pipeline::definition::Shape;
use crate::pipeline::plan::Planned;
use crate::window::{MICROS_PER_MS, Segment, Span, floor_to, intersect_spans, merge_spans, subtract_spans};

/// How many segments are recomputed and committed together.
const SEGMENTS_PER_COMMIT: usize = 24;
/// The windows of this time before the watermark are live: an update recomputes them before
/// anything older, µs.
const LIVE_US: i64 = 600_000_000;

/// What a joined table lacks. Spans of windows reach from the start of the first to the last µs of
/// the last; they are sorted and disjoint.
#[derive(Debug)]
pub(super) struct RecomputePlan {
    /// Windows to recompute now.
    pub now: Vec<Span>,
    /// Windows that stay pending.
    pub later: Vec<Span>,
    /// Windows that tables this one reads have yet to recompute: computed now, they stay pending.
    pub unsettled: Vec<Span>,
    /// Invalidations that the plan takes over: the number of each raw table, and the version of its
    /// group's anchor plus one.
    pub progress: Vec<(u32, u64)>,
    /// Watermark that the table has windows up to afterwards, µs.
    pub live_to: Option<i64>,
}

/// The time in which a joined table has windows that can be recomputed, µs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Extent {
    /// Start of its first window; `None` if there is none yet.
    pub begin: Option<i64>,
    /// Watermark of its raw tables. Prices and reservations for later times do not count.
    pub end: Option<i64>,
    /// Windows that start earlier are final: rows they are made of were dropped by retention.
    pub final_before: i64,
}

/// Segments to recompute, with the spans inside each.
pub(super) type Segments = Vec<(i64, Vec<Span>)>;

/// The windows in the invalidated spans. `first_event` is the time of the first event of all, µs;
/// it is asked only if everything is invalidated.
pub(super) fn windows_in(
    invalidated: &[Span],
    width: i64,
    extent: Extent,
    first_event: impl FnOnce() -> Option<i64>,
) -> Vec<Span> {
    let Some((low, high)) = bounds(invalidated, extent, first_event) else { return Vec::new() };
    let inside = |(from, to): &Span| {
        let (from, to) = (low.max(*from), high.min(*to));
        (from <= to).then(|| (floor_to(from, width), floor_to(to, width) + width - 1))
    };
    merge_spans(invalidated.iter().filter_map(inside).collect(), 1)
}

fn bounds(invalidated: &[Span], extent: Extent, first_event: impl FnOnce() -> Option<i64>) -> Option<Span> {
    let high = extent.end?;
    let low = invalidated.iter().map(|(from, _)| *from).min()?;
    let low = if low == i64::MIN { first_event()? } else { low };
    Some((low.max(extent.begin?).max(extent.final_before), high))
}

/// Divides windows into those that are live and those before, given the watermark.
pub(super) fn live_and_older(windows: &[Span], width: i64, watermark: Option<i64>) -> (Vec<Span>, Vec<Span>) {
    let Some(watermark) = watermark else { return (Vec::new(), windows.to_vec()) };
    let live = [(floor_to(watermark - LIVE_US, width), i64::MAX)];
    (intersect_spans(windows, &live), subtract_spans(windows, &live))
}

/// Selects the pending windows that a repair recomputes. Only windows that start in `[from, to)`
/// count; of these it takes the newest one and all that start less than `newest_us` before its end.
/// Times in µs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice {
    pub from: i64,
    pub to: i64,
    pub newest_us: i64,
}

impl Slice {
    /// All windows that start in a span, and the one that contains its start.
    pub fn all_in((from, to): Span) -> Self {
        Self { from, to, newest_us: i64::MAX }
    }

    /// The slice of `pending`. None older than one that is `blocked`: what is left over stays one
    /// piece.
    pub fn of(self, pending: &[Span], blocked: &[Span], width: i64) -> Vec<Span> {
        let start = |time: i64| if time == i64::MIN { time } else { floor_to(time, width) };
        let inside = intersect_spans(pending, &[(start(self.from), self.to.saturating_sub(1))]);
        let Some((_, newest)) = inside.last() else { return Vec::new() };
        let from = match self.newest_us {
            i64::MAX => i64::MIN,
            newest_us => start(newest - newest_us.max(1) + 1),
        };
        let after_blocked = blocked.last().map_or(i64::MIN, |(_, to)| to.saturating_add(1));
        intersect_spans(&inside, &[(from.max(after_blocked), i64::MAX)])
    }
}

/// Spans as segments, in the groups in which they are committed.
pub(super) fn commits(spans: &[Span], segment: Segment) -> Vec<Segments> {
    let mut segments: BTreeMap<i64, Vec<Span>> = BTreeMap::new();
    for (from, to) in spans {
        let mut start = segment.start(*from);
        while start <= *to {
            let next = segment.next(start);
            segments.entry(start).or_default().push((start.max(*from), (next - 1).min(*to)));
            start = next;
        }
    }
    let segments: Segments = segments.into_iter().collect();
    segments.chunks(SEGMENTS_PER_COMMIT).map(<[_]>::to_vec).collect()
}

/// All spans of these segments.
pub(super) fn spans_of(segments: &Segments) -> Vec<Span> {
    merge_spans(segments.iter().flat_map(|(_, spans)| spans.clone()).collect(), 1)
}

/// Width of a joined pipeline's windows, µs.
pub(super) fn width_us(planned: &Planned) -> i64 {
    let Shape::Joined { width_ms, .. } = planned.pipeline.shape else { unreachable!("planned as joined") };
    width_ms * MICROS_PER_MS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::{MICROS_PER_DAY, MICROS_PER_HOUR};

    const MINUTE: i64 = 60_000_000;

    /// The minutes from the first to the last one.
    fn minutes(first: i64, last: i64) -> Span {
        (first * MINUTE, (last + 1) * MINUTE - 1)
    }

    #[test]
    fn windows_lie_between_the_first_one_and_the_watermark() {
        let extent = Extent { begin: Some(2 * MINUTE), end: Some(9 * MINUTE + 5), final_before: i64::MIN };
        let windows = |invalidated: &[Span]| windows_in(invalidated, MINUTE, extent, || Some(0));
        assert_eq!(windows(&[(0, 3 * MINUTE), (4 * MINUTE + 1, 5 * MINUTE)]), [minutes(2, 5)]);
        assert_eq!(windows(&[(8 * MINUTE, i64::MAX), (0, MINUTE)]), [minutes(8, 9)]);
        assert_eq!(windows(&[(i64::MIN, i64::MAX)]), [minutes(2, 9)]);
        let is_final = Extent { final_before: 9 * MINUTE, ..extent };
        assert_eq!(windows_in(&[(0, i64::MAX)], MINUTE, is_final, || None), [minutes(9, 9)]);
        assert_eq!(windows_in(&[(0, 1)], MINUTE, Extent { begin: None, ..extent }, || None), []);
    }

    #[test]
    fn spans_are_cut_at_segments_and_segments_at_commits() {
        let commits = commits(&[(MINUTE, 25 * MICROS_PER_HOUR)], Segment::Hour);
        assert_eq!(commits.iter().map(Vec::len).collect::<Vec<_>>(), [24, 2]);
        assert_eq!(commits[0][0], (0, vec![(MINUTE, MICROS_PER_HOUR - 1)]));
        assert_eq!(commits[1][0].0, MICROS_PER_DAY);
        let last = 25 * MICROS_PER_HOUR;
        assert_eq!(commits[1][1], (last, vec![(last, last)]));
        assert_eq!(spans_of(&commits[1]), [(MICROS_PER_DAY, last)]);
    }

    #[test]
    fn the_last_ten_minutes_are_live_whatever_else_is_invalid() {
        let watermark = Some(100 * MINUTE + 7);
        let (live, older) = live_and_older(&[minutes(3, 8), minutes(20, 100)], MINUTE, watermark);
        assert_eq!(live, [minutes(90, 100)]);
        assert_eq!(older, [minutes(3, 8), minutes(20, 89)]);
        let hours = [(0, 2 * MICROS_PER_HOUR - 1)];
        let (live, older) = live_and_older(&hours, MICROS_PER_HOUR, watermark);
        assert_eq!((live, older), (vec![(60 * MINUTE, 2 * MICROS_PER_HOUR - 1)], vec![minutes(0, 59)]));
        assert_eq!(live_and_older(&[minutes(3, 8)], MINUTE, None), (vec![], vec![minutes(3, 8)]));
    }

    #[test]
    fn a_slice_is_the_newest_windows_after_those_that_wait_for_an_input() {
        let pending = [minutes(3, 8), minutes(20, 30)];
        let newest = |newest_us| Slice { newest_us, ..Slice::all_in((i64::MIN, i64::MAX)) };
        assert_eq!(newest(5 * MINUTE).of(&pending, &[], MINUTE), [minutes(26, 30)]);
        assert_eq!(newest(1).of(&pending, &[], MINUTE), [minutes(30, 30)], "at least one window");
        assert_eq!(newest(25 * MINUTE).of(&pending, &[], MINUTE), [minutes(6, 8), minutes(20, 30)]);
        assert_eq!(newest(5 * MINUTE).of(&pending, &[minutes(0, 28)], MINUTE), [minutes(29, 30)]);
        assert_eq!(newest(5 * MINUTE).of(&pending, &[minutes(30, 31)], MINUTE), []);
        assert_eq!(newest(5 * MINUTE).of(&[], &[], MINUTE), []);
        let from = |from| Slice::all_in((from, i64::MAX));
        assert_eq!(from(7 * MINUTE + 1).of(&pending, &[], MINUTE), [minutes(7, 8), minutes(20, 30)]);
        assert_eq!(from(i64::MIN).of(&pending, &[minutes(0, 28)], MINUTE), [minutes(29, 30)]);
    }

    #[test]
    fn a_slice_has_no_window_outside_its_span() {
        let pending = [minutes(3, 8), minutes(20, 30)];
        let within = Slice { from: 5 * MINUTE, to: 25 * MINUTE, newest_us: 2 * MINUTE };
        assert_eq!(within.of(&pending, &[], MINUTE), [minutes(23, 24)]);
        let none = Slice { from: 10 * MINUTE, to: 20 * MINUTE, ..within };
        assert_eq!(none.of(&pending, &[], MINUTE), []);
        // A window that lasts longer than the span begins with the first.
        assert_eq!(
            Slice::all_in((21 * MINUTE, 30 * MINUTE)).of(&pending, &[], 10 * MINUTE),
            [minutes(20, 29)]
        );
    }
}
