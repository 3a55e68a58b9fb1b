//! Hourly demand of one series, as far back as the log goes. Forecasts learn from six weeks; a year
//! is not sized by them.

use serde::{Deserialize, Serialize};

use crate::time::{HOUR_US, YEAR_HOURS};

/// Hours kept, three to four years; beyond that the oldest year is dropped.
const MAX_HOURS: usize = 4 * YEAR_HOURS;

/// Hours of one series.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HourlyDemand {
    /// Present demand, thousandths of a GPU.
    level_milli: i128,
    /// Start of the current hour; time up to which it is added up; sum so far, thousandths of a GPU
    /// × µs.
    hour_us: i64,
    since_us: i64,
    sum: i128,
    /// The series began within the hour.
    is_partial: bool,
    /// Means of the past hours, GPUs.
    known: Vec<f64>,
}

impl HourlyDemand {
    /// A series that begins at `at_us`, in the hour that began at `hour_us`.
    pub fn new(hour_us: i64, at_us: i64) -> Self {
        Self {
            level_milli: 0,
            hour_us,
            since_us: at_us,
            sum: 0,
            is_partial: at_us > hour_us,
            known: Vec::new(),
        }
    }

    /// Forgets past hours, and keeps the present demand.
    pub fn restart(&mut self, hour_us: i64, at_us: i64) {
        *self = Self { level_milli: self.level_milli, ..Self::new(hour_us, at_us) };
    }

    /// Demand is higher by `more_milli` from `at_us` on.
    pub fn add(&mut self, more_milli: i64, at_us: i64) {
        self.accrue(at_us);
        self.level_milli += i128::from(more_milli);
    }

    /// Closes the hour that ends at `end_us`.
    pub fn close(&mut self, end_us: i64) {
        self.accrue(end_us);
        if !self.is_partial {
            self.known.push(self.sum.max(0) as f64 / HOUR_US as f64 / 1_000.0);
        }
        if self.known.len() > MAX_HOURS {
            self.known.drain(..YEAR_HOURS);
        }
        (self.hour_us, self.sum, self.is_partial) = (end_us, 0, false);
    }

    /// Mean GPUs of the hours before `at_us` (the start of an hour), oldest first.
    pub fn known_at(&self, at_us: i64) -> &[f64] {
        let later = usize::try_from((self.hour_us - at_us) / HOUR_US).unwrap_or(0);
        &self.known[..self.known.len().saturating_sub(later)]
    }

    fn accrue(&mut self, at_us: i64) {
        let from_us = self.since_us.max(self.hour_us);
        if at_us > from_us {
            self.sum += self.level_milli * i128::from(at_us - from_us);
        }
        self.since_us = self.since_us.max(at_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hours_are_means_and_the_first_counts_if_it_is_whole() {
        for (begin_us, first) in [(0, Some(2.0)), (HOUR_US / 2, None)] {
            let mut hours = HourlyDemand::new(0, begin_us);
            // 4 GPUs in the second half of the first hour; in the second, 4 and for a quarter of an
            // hour 2 more.
            hours.add(4_000, HOUR_US / 2);
            hours.close(HOUR_US);
            hours.add(2_000, HOUR_US);
            hours.add(-2_000, HOUR_US * 5 / 4);
            // A late change counts from the current hour on.
            hours.add(0, 0);
            hours.close(2 * HOUR_US);
            let expected: Vec<f64> = first.into_iter().chain([4.5]).collect();
            assert_eq!(hours.known_at(2 * HOUR_US), expected);
            assert_eq!(hours.known_at(HOUR_US), &expected[..expected.len() - 1]);
            hours.restart(2 * HOUR_US, 2 * HOUR_US);
            hours.close(3 * HOUR_US);
            assert_eq!(hours.known_at(3 * HOUR_US), [4.0]);
        }
    }

    #[test]
    fn the_oldest_year_goes_and_absurd_levels_come_back_to_zero() {
        let mut hours = HourlyDemand::new(0, 0);
        hours.add(i64::MAX, 0);
        hours.add(i64::MAX, 0);
        hours.close(HOUR_US);
        assert!(hours.known_at(HOUR_US)[0] > 1.8e16);
        hours.add(-i64::MAX, HOUR_US);
        hours.add(-i64::MAX, HOUR_US);
        for hour in 2..=MAX_HOURS as i64 + 1 {
            hours.close(hour * HOUR_US);
        }
        let known = hours.known_at((MAX_HOURS as i64 + 1) * HOUR_US);
        assert_eq!((known.len(), known[0]), (3 * YEAR_HOURS + 1, 0.0));
    }
}
