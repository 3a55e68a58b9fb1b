//! What foresees an owner's demand: beside the state, so that the record of a plan says whose
//! forecast it was made by.

use serde::{Deserialize, Serialize};
use tidegate_insight::forecast::{Drift, Reach};

/// What foresees the demand of an owner for a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "by", rename_all = "snake_case")]
pub enum ForecastOrigin {
    /// Forecasts that were published on the log. What reaches beyond their last hour is told from
    /// the past.
    Published {
        /// The series, e.g. `TEAM serving`.
        series: String,
        /// When the newest was issued.
        issued_us: i64,
        /// Bounds of it that do not hold.
        off: Vec<BoundsDrift>,
        /// Why what reaches further than a day is told from the past.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        far: Option<String>,
    },
    /// Its own past, as the autopilot saw it.
    Past {
        /// Why not what was published.
        why: String,
        /// Share of the bounds told from it that held, millionths; `None` while too few are over.
        #[serde(default)]
        held_ppm: Option<u32>,
    },
    /// Nothing.
    Nobody {
        /// Why not.
        why: String,
    },
}

/// Published bounds that the truth has shown to be wrong, as the log says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoundsDrift {
    /// How far ahead.
    pub reach: Reach,
    /// In what way.
    pub drift: Drift,
    /// Since when.
    pub since_us: i64,
    /// Share of the truths between quantiles 0.1 and 0.9, millionths.
    pub inside80_ppm: u32,
    /// Share of the truths at or below quantile 0.95, millionths.
    pub below95_ppm: u32,
}
