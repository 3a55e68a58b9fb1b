//! Faulty forecasts: biased, noisy or stale, without their own record showing it.

use tidegate_autopilot::{
    executor::OnlineForecast,
    forecast::{DemandForecast, Series},
    state::ClusterState,
};

use crate::PPM;

/// How a forecast errs until the fault ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ForecastFault {
    /// Relative error of every answer, ppm; negative is too low.
    pub bias_ppm: i32,
    /// Largest random relative error of an answer, either way, ppm.
    pub noise_ppm: u32,
    /// Period at which it learns what happened, µs; 0 means at once.
    pub stale_us: i64,
    /// When the fault ends, µs since 1970.
    pub until_us: i64,
    /// Seed of the noise.
    pub seed: u64,
}

impl ForecastFault {
    /// Whether an observation at `now_us` is learnt, if the one before was at `before_us`.
    pub fn learns(&self, before_us: i64, now_us: i64) -> bool {
        now_us >= self.until_us || self.stale_us <= 0 || before_us / self.stale_us != now_us / self.stale_us
    }

    /// The faulty answer at `now_us` in place of `gpus`; `key` identifies the question.
    fn answer(&self, gpus: f64, now_us: i64, key: u64) -> f64 {
        if now_us >= self.until_us {
            return gpus;
        }
        let drawn = mixed(self.seed ^ mixed(now_us as u64 ^ mixed(key)));
        // From -1 to 1.
        let off = (drawn >> 11) as f64 / (1u64 << 52) as f64 - 1.0;
        let ppm = f64::from(self.bias_ppm) + f64::from(self.noise_ppm) * off;
        (gpus * (1.0 + ppm / f64::from(PPM))).max(0.0)
    }
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): decorrelates neighbours.
fn mixed(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// A forecast with a fault. Its reported coverage is that of the correct forecast: the fault is not
/// known yet.
#[derive(Debug, Clone)]
pub struct FaultyForecast<F> {
    right: F,
    error: ForecastFault,
    /// Time of the last observation, and the present, µs since 1970.
    shown_us: i64,
    now_us: i64,
}

impl<F> FaultyForecast<F> {
    /// Wraps `right` with the fault `error`.
    pub fn new(right: F, error: ForecastFault) -> Self {
        Self { right, error, shown_us: 0, now_us: 0 }
    }

    /// The correct forecast, to record into.
    pub fn right_mut(&mut self) -> &mut F {
        &mut self.right
    }

    /// Sets the present, µs since 1970.
    pub fn set_now(&mut self, now_us: i64) {
        self.now_us = now_us;
    }
}

impl<F: OnlineForecast> OnlineForecast for FaultyForecast<F> {
    fn observe(&mut self, state: &ClusterState) {
        if self.error.learns(self.shown_us, self.now_us) {
            self.right.observe(state);
        }
        self.shown_us = self.now_us;
    }

    fn annotate(&self, state: &mut ClusterState) {
        self.right.annotate(state);
    }
}

impl<F: DemandForecast> DemandForecast for FaultyForecast<F> {
    fn highest_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let key = within_ms as u64 ^ level.to_bits();
        self.right.highest_gpus(of, level, within_ms).map(|gpus| self.error.answer(gpus, self.now_us, key))
    }

    fn typical_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let key = within_ms as u64 ^ level.to_bits();
        self.right.typical_gpus(of, level, within_ms).map(|gpus| self.error.answer(gpus, self.now_us, !key))
    }

    fn coverage(&self, of: Series<'_>) -> Option<f64> {
        self.right.coverage(of)
    }

    fn as_of_us(&self, of: Series<'_>) -> Option<i64> {
        self.right.as_of_us(of)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_off_by_bias_and_noise_until_the_fault_ends() {
        let error = ForecastFault { bias_ppm: -200_000, until_us: 100, ..ForecastFault::default() };
        assert_eq!(error.answer(50.0, 99, 1), 40.0);
        assert_eq!(error.answer(50.0, 100, 1), 50.0);
        let noisy = ForecastFault { noise_ppm: 100_000, until_us: i64::MAX, ..error };
        let answers: Vec<f64> = (0..2_000).map(|at| noisy.answer(50.0, at, 7)).collect();
        // 40 of 50 by bias, and up to 5 either way, evenly: a mean within four deviations of 5 /
        // √(3 · 2,000) = 0.065.
        assert!(answers.iter().all(|gpus| (35.0..45.0).contains(gpus)));
        let mean = answers.iter().sum::<f64>() / 2_000.0;
        assert!((mean - 40.0).abs() < 0.26, "{mean}");
        assert!(answers.iter().any(|gpus| *gpus < 35.5) && answers.iter().any(|gpus| *gpus > 44.5));
    }

    #[test]
    fn a_stale_one_learns_now_and_then() {
        let error = ForecastFault { stale_us: 10, until_us: 100, ..ForecastFault::default() };
        let learnt: Vec<i64> = (1..35).filter(|at| error.learns(at - 1, *at)).collect();
        assert_eq!(learnt, [10, 20, 30]);
        assert!(error.learns(101, 102) && ForecastFault::default().learns(1, 2));
    }
}
