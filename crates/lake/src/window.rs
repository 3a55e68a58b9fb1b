//! Event-time windows, and the calendar segments in which they are stored. All values are
//! microseconds since the epoch, UTC.

use std::collections::BTreeSet;

use chrono::{DateTime, Datelike, Months, NaiveDate, Utc};

/// Microseconds per millisecond.
pub const MICROS_PER_MS: i64 = 1_000;
/// Microseconds per hour.
pub const MICROS_PER_HOUR: i64 = 3_600_000_000;
/// Microseconds per day.
pub const MICROS_PER_DAY: i64 = 86_400_000_000;

/// A time span, both ends included, µs.
pub type Span = (i64, i64);

/// Spans that new events invalidate, sorted and disjoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InvalidatedSpans {
    /// Those in which rows of joined tables may change.
    pub all: Vec<Span>,
    /// Waits of which it became known which attempt they led to, and nothing else.
    pub waits: Vec<Span>,
}

impl InvalidatedSpans {
    /// Adds the spans of `other`. They are not merged.
    pub fn extend(&mut self, other: Self) {
        self.all.extend(other.all);
        self.waits.extend(other.waits);
    }
}

/// Sorts spans and merges those that overlap or are at most `gap` apart.
pub fn merge_spans(mut spans: Vec<Span>, gap: i64) -> Vec<Span> {
    spans.sort_unstable();
    let mut out: Vec<Span> = Vec::new();
    for (from, to) in spans {
        match out.last_mut() {
            Some(last) if from.saturating_sub(gap) <= last.1 => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

/// At most `most` spans that cover these, which are sorted and disjoint: those with the smallest
/// gaps are merged.
pub fn coarsened(mut spans: Vec<Span>, most: usize) -> Vec<Span> {
    while spans.len() > most.max(1) {
        let gap = |at: &usize| spans[*at].0.saturating_sub(spans[*at - 1].1);
        let at = (1..spans.len()).min_by_key(gap).expect("there are several");
        spans[at - 1].1 = spans[at].1;
        spans.remove(at);
    }
    spans
}

/// The parts of `spans` that `removed` does not cover; both are sorted and disjoint.
pub fn subtract_spans(spans: &[Span], removed: &[Span]) -> Vec<Span> {
    let mut left = Vec::new();
    for &(first, to) in spans {
        let mut from = first;
        for &(low, high) in removed.iter().filter(|(low, high)| *low <= to && *high >= first) {
            if low > from {
                left.push((from, low - 1));
            }
            from = high.saturating_add(1).max(from);
        }
        if from <= to {
            left.push((from, to));
        }
    }
    left
}

/// The parts of `spans` that `others` cover too; both are sorted and disjoint.
pub fn intersect_spans(spans: &[Span], others: &[Span]) -> Vec<Span> {
    let common = |span: &Span, other: &Span| (span.0.max(other.0), span.1.min(other.1));
    let pairs = spans.iter().flat_map(|span| others.iter().map(move |other| common(span, other)));
    pairs.filter(|(from, to)| from <= to).collect()
}

/// The largest multiple of `width` that is not after `time`; also for times before 1970.
pub fn floor_to(time: i64, width: i64) -> i64 {
    time - time.rem_euclid(width)
}

/// A calendar segment: the windows in it are recomputed and rewritten together.
///
/// Larger segments mean fewer files. Smaller ones mean less work when a late event changes one
/// window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segment {
    /// One hour, UTC.
    Hour,
    /// One day, UTC.
    Day,
    /// One month, UTC.
    Month,
}

impl Segment {
    /// Segment for windowed tables: a day for windows up to an hour, a month for longer ones.
    pub fn for_width_ms(width_ms: i64) -> Self {
        if width_ms <= 3_600_000 { Self::Day } else { Self::Month }
    }

    /// Segment for joined tables. They have many rows per minute and are recomputed wherever a span
    /// was invalidated, so windows below an hour are stored by hour.
    pub fn for_joined_width_ms(width_ms: i64) -> Self {
        if width_ms < 3_600_000 { Self::Hour } else { Self::for_width_ms(width_ms) }
    }

    /// Start of the segment that contains `time`.
    pub fn start(self, time: i64) -> i64 {
        match self {
            Self::Hour => floor_to(time, MICROS_PER_HOUR),
            Self::Day => floor_to(time, MICROS_PER_DAY),
            Self::Month => date_micros(date_of(time).with_day(1).unwrap_or(NaiveDate::MIN)),
        }
    }

    /// Start of the segment after the one that starts at `start`.
    pub fn next(self, start: i64) -> i64 {
        match self {
            Self::Hour => start + MICROS_PER_HOUR,
            Self::Day => start + MICROS_PER_DAY,
            Self::Month => date_of(start).checked_add_months(Months::new(1)).map_or(i64::MAX, date_micros),
        }
    }

    /// Name of the segment that starts at `start`, as used in file paths: its first day, and for an
    /// hour its hour.
    pub fn name(self, start: i64) -> String {
        let day = date_of(start).format("%Y-%m-%d");
        match self {
            Self::Hour => format!("{day}T{:02}", start.rem_euclid(MICROS_PER_DAY) / MICROS_PER_HOUR),
            Self::Day | Self::Month => day.to_string(),
        }
    }

    /// Start of the segment with this name.
    pub fn parse(name: &str) -> Option<i64> {
        let (day, hour) = name.split_once('T').unwrap_or((name, "0"));
        let day = NaiveDate::parse_from_str(day, "%Y-%m-%d").ok().map(date_micros)?;
        Some(day + hour.parse::<i64>().ok()? * MICROS_PER_HOUR)
    }

    /// Name of the file in which maintenance packs segments like the one that starts at `start`:
    /// hours by day. Days and months stay files of their own.
    pub fn pack_name(self, start: i64) -> Option<String> {
        (self == Self::Hour).then(|| Self::Day.name(start))
    }

    /// Whether the name is that of an hour.
    pub fn is_hour(name: &str) -> bool {
        name.contains('T')
    }

    /// Name of the day that the hour or day with this name belongs to.
    pub fn day_of(name: &str) -> &str {
        name.split_once('T').map_or(name, |(day, _)| day)
    }

    /// Adds every segment that overlaps `[from, to]`.
    pub fn mark(self, from: i64, to: i64, into: &mut BTreeSet<i64>) {
        let mut start = self.start(from);
        while start <= to {
            into.insert(start);
            start = self.next(start);
        }
    }
}

/// Joins neighbouring segments into runs `[low, high)`, so that each run is one query, of at
/// most `most` segments.
pub fn runs(segment: Segment, starts: &BTreeSet<i64>, most: usize) -> Vec<(i64, i64)> {
    let mut runs: Vec<(i64, i64)> = Vec::new();
    let mut count = 0;
    for &start in starts {
        let end = segment.next(start);
        match runs.last_mut() {
            Some(run) if run.1 == start && count < most => run.1 = end,
            _ => {
                runs.push((start, end));
                count = 0;
            }
        }
        count += 1;
    }
    runs
}

fn date_of(time: i64) -> NaiveDate {
    DateTime::<Utc>::from_timestamp_micros(time).map_or(NaiveDate::MIN, |t| t.date_naive())
}

fn date_micros(date: NaiveDate) -> i64 {
    date.and_time(chrono::NaiveTime::MIN).and_utc().timestamp_micros()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_subtracted_intersected_and_coarsened() {
        let spans = [(0, 9), (20, 29), (40, 49)];
        assert_eq!(subtract_spans(&spans, &[(5, 24), (26, 26), (40, 60)]), [(0, 4), (25, 25), (27, 29)]);
        assert_eq!(subtract_spans(&spans, &[(i64::MIN, i64::MAX)]), []);
        assert_eq!(subtract_spans(&spans, &[]), spans);
        assert_eq!(intersect_spans(&spans, &[(5, 24), (45, i64::MAX)]), [(5, 9), (20, 24), (45, 49)]);
        assert_eq!(coarsened(vec![(0, 1), (10, 11), (14, 15), (40, 41)], 2), [(0, 15), (40, 41)]);
        assert_eq!(coarsened(spans.to_vec(), 3), spans);
    }

    #[test]
    fn segments_cover_time_without_gap_or_overlap() {
        for segment in [Segment::Hour, Segment::Day, Segment::Month] {
            let mut start = segment.start(-3_000 * MICROS_PER_DAY);
            for _ in 0..400 {
                let next = segment.next(start);
                assert!(next > start);
                assert_eq!(segment.start(start), start);
                assert_eq!(segment.start(next - 1), start);
                assert_eq!(Segment::parse(&segment.name(start)), Some(start));
                start = next;
            }
        }
    }

    #[test]
    fn neighbours_join_to_runs() {
        let day = MICROS_PER_DAY;
        let starts = BTreeSet::from([0, day, 2 * day, 5 * day]);
        assert_eq!(runs(Segment::Day, &starts, 3), vec![(0, 3 * day), (5 * day, 6 * day)]);
        let cut = vec![(0, 2 * day), (2 * day, 3 * day), (5 * day, 6 * day)];
        assert_eq!(runs(Segment::Day, &starts, 2), cut);
    }

    #[test]
    fn spans_that_meet_are_one() {
        assert_eq!(merge_spans(vec![(5, 7), (0, 2), (3, 4), (6, 9), (20, 21)], 1), [(0, 9), (20, 21)]);
        assert_eq!(merge_spans(vec![(i64::MIN, 3), (4, 4)], 0), [(i64::MIN, 3), (4, 4)]);
    }

    #[test]
    fn floor_is_down_also_before_the_epoch() {
        assert_eq!(floor_to(-1, 10), -10);
        assert_eq!(floor_to(19, 10), 10);
    }
}
