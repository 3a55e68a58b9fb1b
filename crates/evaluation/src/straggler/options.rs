//! Options of an evaluation run.

use serde::Serialize;
use tidegate_insight::straggler::Settings;

use super::scene::{Noise, Regime};

/// What to run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Options {
    /// Seeds, from and to (excluded). Those below 100 are for tuning; those from 1,000 on for
    /// reports nobody tuned on.
    pub seeds: (u64, u64),
    /// Regimes; one job of each a seed.
    pub regimes: Vec<Regime>,
    /// Length of each job, h; by default drawn, 2 to 4.6.
    pub hours: Option<f64>,
    /// How large the injected slowdowns are.
    pub noise: Noise,
    /// Whether the rivals run too.
    pub rivals: bool,
    /// How far the watermark lags the clock of arrivals, s. Reports later than this are late.
    pub lag_s: f64,
    /// How long after a window of a device Tidegate's detector may use it, s.
    pub evidence_lag_s: f64,
    /// Threads; the report does not depend on them.
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
