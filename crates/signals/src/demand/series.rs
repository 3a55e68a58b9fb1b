//! Demand of one series: the hour that is being added up, and the forecaster it feeds.

use serde::{Deserialize, Serialize};
use tidegate_insight::forecast::{Config, Forecaster, JobTable};

use super::{HORIZONS, ISSUE_INTERVAL_HOURS};
use crate::coverage::IssuedForecasts;
use crate::time::HOUR_US;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Series {
    /// Present demand, thousandths of a GPU.
    pub level_milli: i64,
    /// Start of the current hour; time up to which it is added up; sum so far, thousandths of a GPU
    /// × µs.
    pub hour_us: i64,
    pub since_us: i64,
    pub sum: i128,
    /// The series began within the hour.
    pub is_partial: bool,
    pub jobs: JobTable,
    pub forecaster: Forecaster,
    pub issued: IssuedForecasts,
}

impl Series {
    /// A series that begins at `at_us`, in or before the hour that began at `hour_us`.
    pub fn new(hour_us: i64, at_us: i64) -> Self {
        // The job table tells an outage from a quiet hour. The stride is prime to 24, and halves
        // the learning after a restart against the default.
        let config = Config { stride: 11, outages: false, ..Config::default() };
        Self {
            level_milli: 0,
            hour_us,
            since_us: at_us,
            sum: 0,
            is_partial: at_us > hour_us,
            jobs: JobTable::new(),
            forecaster: Forecaster::new(config).expect("hours divide a day"),
            issued: IssuedForecasts::new(ISSUE_INTERVAL_HOURS as usize, &HORIZONS),
        }
    }

    pub fn accrue(&mut self, at_us: i64) {
        let from_us = self.since_us.max(self.hour_us);
        if at_us > from_us {
            self.sum += i128::from(self.level_milli) * i128::from(at_us - from_us);
        }
        self.since_us = self.since_us.max(at_us);
    }

    /// Closes the hour. Returns its mean, thousandths of a GPU; `None` if the series began within
    /// it.
    pub fn close_hour(&mut self, end_us: i64) -> Option<u64> {
        self.accrue(end_us);
        let gpus = self.sum as f64 / HOUR_US as f64 / 1000.0;
        let value = (!self.is_partial).then_some(gpus.max(0.0));
        let outlook = if self.forecaster.wants_outlook() { self.outlook(end_us) } else { None };
        self.forecaster.observe(value, outlook.as_deref());
        let milli = u64::try_from((self.sum / i128::from(HOUR_US)).max(0)).unwrap_or(u64::MAX);
        let truth_milli = (!self.is_partial).then_some(milli);
        (self.hour_us, self.sum, self.is_partial) = (end_us, 0, false);
        truth_milli
    }

    pub fn outlook(&mut self, now_us: i64) -> Option<Vec<f64>> {
        self.jobs.learn(now_us);
        self.jobs.outlook(now_us, HOUR_US, self.forecaster.anchors())
    }
}
