//! Planner of joined tables: which windows to recompute. It is pure and reads no table.

use std::collections::BTreeMap;

use crate::pipeline::definition::Shape;
use crate::pipeline::plan::Planned;
use crate::window::{MICROS_PER_MS, Segment, Span, floor_to, merge_spans};

/// How many segments are recomputed and committed together.
const SEGMENTS_PER_COMMIT: usize = 24;

/// What a joined table lacks.
#[derive(Debug)]
pub(super) struct RecomputePlan {
    /// First and last window start, sorted and disjoint.
    pub spans: Vec<Span>,
    /// What the table is up to date with afterwards: the number of each raw table, and the version
    /// of its group's anchor plus one.
    pub progress: Vec<(u32, u64)>,
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

/// First and last start of the windows in the invalidated spans. `first_event` is the time of the
/// first event of all, µs; it is asked only if everything is invalidated.
pub(super) fn windows_in(
    invalidated: &[Span],
    width: i64,
    extent: Extent,
    first_event: impl FnOnce() -> Option<i64>,
) -> Vec<Span> {
    let Some((low, high)) = bounds(invalidated, extent, first_event) else { return Vec::new() };
    let inside = |(from, to): &Span| {
        let (from, to) = (low.max(*from), high.min(*to));
        (from <= to).then(|| (floor_to(from, width), floor_to(to, width)))
    };
    merge_spans(invalidated.iter().filter_map(inside).collect(), width)
}

fn bounds(invalidated: &[Span], extent: Extent, first_event: impl FnOnce() -> Option<i64>) -> Option<Span> {
    let high = extent.end?;
    let low = invalidated.iter().map(|(from, _)| *from).min()?;
    let low = if low == i64::MIN { first_event()? } else { low };
    Some((low.max(extent.begin?).max(extent.final_before), high))
}

impl RecomputePlan {
    /// The segments to recompute, in the groups in which they are committed.
    pub fn commits(&self, segment: Segment) -> Vec<Segments> {
        let mut segments: BTreeMap<i64, Vec<Span>> = BTreeMap::new();
        for (from, to) in &self.spans {
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

    #[test]
    fn windows_lie_between_the_first_one_and_the_watermark() {
        let extent = Extent { begin: Some(2 * MINUTE), end: Some(9 * MINUTE + 5), final_before: i64::MIN };
        let windows = |invalidated: &[Span]| windows_in(invalidated, MINUTE, extent, || Some(0));
        assert_eq!(windows(&[(0, 3 * MINUTE), (4 * MINUTE + 1, 5 * MINUTE)]), [(2 * MINUTE, 5 * MINUTE)]);
        assert_eq!(windows(&[(8 * MINUTE, i64::MAX), (0, MINUTE)]), [(8 * MINUTE, 9 * MINUTE)]);
        assert_eq!(windows(&[(i64::MIN, i64::MAX)]), [(2 * MINUTE, 9 * MINUTE)]);
        let is_final = Extent { final_before: 9 * MINUTE, ..extent };
        assert_eq!(windows_in(&[(0, i64::MAX)], MINUTE, is_final, || None), [(9 * MINUTE, 9 * MINUTE)]);
        assert_eq!(windows_in(&[(0, 1)], MINUTE, Extent { begin: None, ..extent }, || None), []);
    }

    #[test]
    fn spans_are_cut_at_segments_and_segments_at_commits() {
        let plan = RecomputePlan { spans: vec![(MINUTE, 25 * MICROS_PER_HOUR)], progress: Vec::new() };
        let commits = plan.commits(Segment::Hour);
        assert_eq!(commits.iter().map(Vec::len).collect::<Vec<_>>(), [24, 2]);
        assert_eq!(commits[0][0], (0, vec![(MINUTE, MICROS_PER_HOUR - 1)]));
        assert_eq!(commits[1][0].0, MICROS_PER_DAY);
        let last = 25 * MICROS_PER_HOUR;
        assert_eq!(commits[1][1], (last, vec![(last, last)]));
    }
}
