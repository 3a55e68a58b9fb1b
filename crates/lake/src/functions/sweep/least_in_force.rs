//! `least_in_force(rank, from, to)`: which of many intervals has the least rank, from when to when.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Int64Array, TimestampMicrosecondArray};
use arrow::datatypes::{DataType, Field, Int64Type, TimestampMicrosecondType};
use datafusion::common::Result;

use super::SweepAggregate;
use crate::table::timestamp_type;

pub(super) fn function() -> SweepAggregate {
    let arguments = vec![DataType::Int64, timestamp_type(), timestamp_type()];
    let result = vec![
        Field::new("rank", DataType::Int64, true),
        Field::new("from_time", timestamp_type(), true),
        Field::new("to_time", timestamp_type(), true),
    ];
    SweepAggregate::new("least_in_force", arguments, result, body)
}

fn body(columns: &[ArrayRef]) -> Result<Vec<ArrayRef>> {
    let rank = columns[0].as_primitive::<Int64Type>();
    let [from, to] = [1, 2].map(|at| columns[at].as_primitive::<TimestampMicrosecondType>());
    let row = |((rank, from), to)| Some((rank?, from?, to));
    let spans = least_ranks(rank.iter().zip(from).zip(to).filter_map(row));
    let times =
        |times: TimestampMicrosecondArray| Arc::new(times.with_data_type(timestamp_type())) as ArrayRef;
    Ok(vec![
        Arc::new(spans.iter().map(|span| span.0).collect::<Int64Array>()),
        times(spans.iter().map(|span| Some(span.1)).collect()),
        times(spans.iter().map(|span| span.2).collect()),
    ])
}

/// Rank, start and end of the result. An interval without an end lasts. Intervals of equal rank
/// count as one.
fn least_ranks(intervals: impl Iterator<Item = (i64, i64, Option<i64>)>) -> Vec<(i64, i64, Option<i64>)> {
    let mut changes: BTreeMap<i64, Vec<(i64, i64)>> = BTreeMap::new();
    for (rank, from, to) in intervals.filter(|(_, from, to)| to.is_none_or(|to| *from < to)) {
        changes.entry(from).or_default().push((rank, 1));
        if let Some(to) = to {
            changes.entry(to).or_default().push((rank, -1));
        }
    }
    let mut spans: Vec<(i64, i64, Option<i64>)> = Vec::new();
    let mut open: BTreeMap<i64, i64> = BTreeMap::new();
    for (at, changed) in changes {
        for (rank, by) in changed {
            *open.entry(rank).or_default() += by;
        }
        while open.first_entry().is_some_and(|first| *first.get() == 0) {
            open.pop_first();
        }
        let first = open.first_key_value().map(|(rank, _)| *rank);
        let lasting = spans.last_mut().filter(|span| span.2.is_none());
        if lasting.as_ref().map(|span| span.0) == first {
            continue;
        }
        if let Some(span) = lasting {
            span.2 = Some(at);
        }
        spans.extend(first.map(|rank| (rank, at, None)));
    }
    spans
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_rank_is_in_force_while_its_interval_lasts() {
        let spans = |intervals: &[(i64, i64, Option<i64>)]| least_ranks(intervals.iter().copied());
        assert_eq!(spans(&[]), []);
        // 1 begins within 2 and ends within it; 3 outlasts both.
        let three = [(2, 10, Some(40)), (1, 20, Some(30)), (3, 5, None)];
        let expected =
            [(3, 5, Some(10)), (2, 10, Some(20)), (1, 20, Some(30)), (2, 30, Some(40)), (3, 40, None)];
        assert_eq!(spans(&three), expected);
        // A gap; an interval that begins when another ends; an empty interval.
        let apart = [(5, 10, Some(20)), (5, 20, Some(30)), (4, 40, Some(50)), (1, 12, Some(12))];
        assert_eq!(spans(&apart), [(5, 10, Some(30)), (4, 40, Some(50))]);
    }
}
