//! The forecaster of `tidegate_insight` behind the autopilot's question.

use tidegate_insight::forecast::{Config, Forecast, ForecastError, Forecaster};

use super::{BySeries, Coverage, DemandForecast, Series};

/// Level and horizon, in steps, of the bounds that coverage is kept of.
const CHECKED: (f64, usize) = (0.9, 2);

#[derive(Debug, Clone)]
struct Learner {
    forecaster: Forecaster,
    forecast: Option<Forecast>,
    coverage: Coverage,
    newest_us: i64,
    steps: i64,
}

/// Forecasts learnt from each series.
#[derive(Debug, Clone)]
pub struct Learned {
    config: Config,
    series: BySeries<Learner>,
}

impl Learned {
    /// Knows nothing yet.
    ///
    /// # Errors
    /// Settings that the forecaster refuses.
    pub fn new(config: Config) -> Result<Self, ForecastError> {
        Forecaster::new(config)?;
        Ok(Self { config, series: BySeries::new() })
    }

    /// Takes the mean demand of the step that ended at `end_us`; `None` is a gap. One call for each
    /// step, in order.
    ///
    /// # Errors
    /// Settings that the forecaster refuses: never, as [`Self::new`] looked at them.
    pub fn observe(&mut self, of: Series<'_>, end_us: i64, gpus: Option<f64>) -> Result<(), ForecastError> {
        let forecaster = Forecaster::new(self.config)?;
        let new =
            || Learner { forecaster, forecast: None, coverage: Coverage::default(), newest_us: 0, steps: 0 };
        let learner = self.series.entry(of, new);
        learner.forecaster.observe(gpus, None);
        if let Some(value) = gpus {
            learner.newest_us = end_us;
            learner.coverage.truth(learner.steps, value);
        }
        learner.forecast = learner.forecaster.forecast(None).ok();
        if let Some(bound) = highest(learner.forecast.as_ref(), CHECKED.0, CHECKED.1) {
            learner.coverage.told(learner.steps + CHECKED.1 as i64, bound);
        }
        learner.steps += 1;
        Ok(())
    }

    /// Steps that `within_ms` reaches into, at least one.
    fn steps(&self, within_ms: i64) -> usize {
        let step_ms = self.config.step_s as i64 * 1000;
        usize::try_from((within_ms.max(1) + step_ms - 1) / step_ms).unwrap_or(1)
    }
}

fn highest(forecast: Option<&Forecast>, level: f64, steps: usize) -> Option<f64> {
    let forecast = forecast?;
    (1..=steps)
        .map(|step| forecast.quantile(step, level))
        .try_fold(0.0f64, |most, value| Some(most.max(value?)))
}

impl DemandForecast for Learned {
    /// The greatest of the steps' quantiles.
    fn highest_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        highest(self.series.get(of)?.forecast.as_ref(), level, self.steps(within_ms))
    }

    /// The mean of the steps' quantiles.
    fn typical_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let forecast = self.series.get(of)?.forecast.as_ref()?;
        let steps = self.steps(within_ms).min(self.config.horizon);
        let sum = (1..=steps).map(|step| forecast.quantile(step, level)).sum::<Option<f64>>()?;
        Some(sum / steps as f64)
    }

    fn coverage(&self, of: Series<'_>) -> Option<f64> {
        self.series.get(of)?.coverage.share()
    }

    fn as_of_us(&self, of: Series<'_>) -> Option<i64> {
        self.series.get(of).map(|learner| learner.newest_us)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_tide_is_learnt() {
        let of = Series { owner: "serving", pool: "h100" };
        let mut learned = Learned::new(Config { horizon: 24, ..Config::default() }).unwrap();
        let hour_us = 3_600_000_000i64;
        for hour in 0..24 * 15i64 {
            let demand = if (8..20).contains(&(hour % 24)) { 50.0 } else { 10.0 };
            learned.observe(of, (hour + 1) * hour_us, Some(demand)).unwrap();
        }
        let within = |hours: i64| learned.highest_gpus(of, 0.9, hours * 3_600_000).unwrap();
        // It is midnight: the next hours are calm, and by ten o'clock it is day.
        assert!(within(4) < 30.0, "{}", within(4));
        assert!(within(10) > 40.0, "{}", within(10));
        assert_eq!(learned.as_of_us(of), Some(24 * 15 * hour_us));
        assert!(learned.coverage(of).is_some());
        assert_eq!(learned.highest_gpus(Series { owner: "x", pool: "h100" }, 0.9, 1), None);
    }
}
