//! Options of an evaluation run.

use serde::Serialize;
use tidegate_insight::straggler::Settings;

use super::scene::{Noise, Regime};

/// What to run, and how.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Options {
    /// Seeds, from and to (exclusive). Below 100 for tuning; from 1,000 on for reports that nothing
    /// was tuned on.
    pub seeds: (u64, u64),
    /// Regimes; one job of each per seed.
    pub regimes: Vec<Regime>,
    /// Length of each job, h; drawn from 2 to 4.6 by default.
    pub hours: Option<f64>,
    /// Size of the injected slowdowns.
    pub noise: Noise,
    /// Whether the rivals run too.
    pub rivals: bool,
    /// How far the watermark lags behind arrivals, s. Later reports are late.
    pub lag_s: f64,
    /// Delay after which Tidegate's detector may use a device window, s.
    pub evidence_lag_s: f64,
    /// Threads; they do not change the report.
    #[serde(skip)]
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seeds: (0, 100),
            regimes: vec![Regime::A, Regime::B, Regime::C],
            hours: None,
            noise: Noise::Hard,
            rivals: true,
            lag_s: 2.0,
            evidence_lag_s: Settings::default().evidence_lag_us as f64 / 1e6,
            threads: 1,
        }
    }
}
