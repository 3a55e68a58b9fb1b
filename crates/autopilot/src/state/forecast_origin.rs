//! Origin of a demand forecast, kept in the state so that a plan's record names the forecast behind
//! it.

use serde::{Deserialize, Serialize};
use tidegate_insight::forecast::{Drift, Reach};

/// Which forecast answers for an owner's demand in a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum ForecastOrigin {
    /// Forecasts published on the log. Horizons beyond their last hour fall back to the owner's
    /// past.
    Published {
        /// Series, e.g. `TEAM serving`.
        series: String,
        /// When the newest forecast was issued.
        issued_us: i64,
        /// Horizons whose bounds do not hold.
        off: Vec<BoundsDrift>,
        /// Why horizons beyond a day fall back to the past.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        far: Option<String>,
    },
    /// The owner's own past, as the autopilot observed it.
    Past {
        /// Why published forecasts are not used.
        why: String,
        /// Share of its own past bounds that held, millionths. `None`: too few have ended.
        #[serde(default)]
        held_ppm: Option<u32>,
    },
    /// No forecast.
    Nobody {
        /// Why there is none.
        why: String,
    },
}

/// Published bounds that outcomes have shown to be wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundsDrift {
    /// Horizon.
    pub reach: Reach,
    /// Kind of drift.
    pub drift: Drift,
    /// Since when.
    pub since_us: i64,
    /// Share of outcomes between quantiles 0.1 and 0.9, millionths.
    pub inside80_ppm: u32,
    /// Share of outcomes at or below quantile 0.95, millionths.
    pub below95_ppm: u32,
}
