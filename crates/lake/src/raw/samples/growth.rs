//! Growth of counters from sample to sample, and the time in which it happened.
//!
//! A batch is enough: growth up to its first sample is in `first_growth`, and the rest follows from
//! its values. So growth is a function of one batch, whatever came before or in between, and sums
//! of it do not depend on how a history was cut. Growth counts at the sample that ends it, as do
//! ratios, which are averages over the time before their sample.

use arrow::array::{ArrayRef, Int64Array};
use arrow::buffer::{NullBuffer, ScalarBuffer};
use std::sync::Arc;

use super::chunk::{RunRef, Values};
use super::metrics::metric_index;
use crate::batch::null_integers;

/// Growth of a counter and the time of it, µs, for each row of the runs. Both are NULL where the
/// growth is not known.
///
/// If samples in between could not be read, the next readable one counts the growth over the whole
/// time. A counter that decreased was reset; its growth before the reset is not known.
pub(super) fn growth(runs: &[RunRef<'_>], rows: usize, counter: usize) -> (ArrayRef, ArrayRef) {
    let interval = metric_index("interval_us").expect("a metric");
    if runs.iter().all(|picked| picked.chunk.metrics[counter].values.is_empty()) {
        let unknown = null_integers(rows);
        return (Arc::clone(&unknown), unknown);
    }
    let mut column = Column {
        growth: vec![0; rows],
        time: vec![0; rows],
        known: vec![false; rows],
        at: 0,
        last: None,
        waited: 0,
    };
    for picked in runs {
        let run = Counted {
            values: &picked.chunk.metrics[counter],
            interval: &picked.chunk.metrics[interval],
            first_row: picked.run.first_row,
            first_growth: picked.chunk.metrics[counter].first_growth.get(picked.run.number as usize),
        };
        column.push(&run, picked.run.ticks);
    }
    let nulls = NullBuffer::from(column.known);
    let array = |values: Vec<i64>| -> ArrayRef {
        Arc::new(Int64Array::new(ScalarBuffer::from(values), Some(nulls.clone())))
    };
    (array(column.growth), array(column.time))
}

struct Counted<'a> {
    values: &'a Values,
    interval: &'a Values,
    first_row: u32,
    first_growth: Option<&'a i64>,
}

struct Column {
    growth: Vec<i64>,
    time: Vec<i64>,
    known: Vec<bool>,
    at: usize,
    /// The last known value of the run.
    last: Option<i64>,
    /// Time since then, µs.
    waited: i64,
}

impl Column {
    fn push(&mut self, run: &Counted<'_>, ticks: u32) {
        let rows = run.first_row as usize..(run.first_row + ticks) as usize;
        if let Some((values, intervals)) = run.values.all_known(&rows).zip(run.interval.all_known(&rows)) {
            self.push_known(values, intervals, run.first_growth.copied());
            return;
        }
        (self.last, self.waited) = (None, 0);
        let (mut values, mut intervals) =
            (run.values.known_from(run.first_row), run.interval.known_from(run.first_row));
        for tick in 0..ticks {
            self.waited = self.waited.saturating_add(intervals.next().flatten().unwrap_or(0));
            if let Some(value) = values.next().flatten() {
                let grown = match self.last {
                    Some(last) => value.checked_sub(last),
                    None if tick == 0 => run.first_growth.copied(),
                    None => None,
                };
                if let Some(grown) = grown.filter(|grown| *grown >= 0) {
                    self.growth[self.at] = grown;
                    self.time[self.at] = self.waited;
                    self.known[self.at] = true;
                }
                (self.last, self.waited) = (Some(value), 0);
            }
            self.at += 1;
        }
    }

    /// As [`Self::push`], of a run in which everything could be read.
    fn push_known(&mut self, values: &[i64], intervals: &[i64], first_growth: Option<i64>) {
        let begin = self.at;
        self.at += values.len();
        let (growth, known) = (&mut self.growth[begin..self.at], &mut self.known[begin..self.at]);
        self.time[begin..self.at].copy_from_slice(intervals);
        let first = first_growth.filter(|grown| *grown >= 0);
        (growth[0], known[0]) = (first.unwrap_or(0), first.is_some());
        for (pair, (growth, known)) in values.windows(2).zip(growth[1..].iter_mut().zip(&mut known[1..])) {
            let grown = pair[1].checked_sub(pair[0]).filter(|grown| *grown >= 0);
            (*growth, *known) = (grown.unwrap_or(0), grown.is_some());
        }
    }
}
