//! Recorded forecast answers, from which a decision can be derived again. They are integers, as the
//! planner uses them: a float may not survive a round trip through text.

use serde::{Deserialize, Serialize};

use super::{DemandForecast, Series};
use crate::state::{OwnerName, PoolName};

/// A question and its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "asked", rename_all = "snake_case")]
pub enum ForecastAnswer {
    /// [`DemandForecast::highest_gpus`].
    Highest {
        /// Owner.
        owner: OwnerName,
        /// Pool.
        pool: PoolName,
        /// Level, millionths.
        level_ppm: u32,
        /// Horizon.
        within_ms: i64,
        /// Answer, thousandths of a GPU.
        gpus_milli: Option<i64>,
    },
    /// [`DemandForecast::typical_gpus`].
    Typical {
        /// Owner.
        owner: OwnerName,
        /// Pool.
        pool: PoolName,
        /// Level, millionths.
        level_ppm: u32,
        /// Horizon.
        within_ms: i64,
        /// Answer, thousandths of a GPU.
        gpus_milli: Option<i64>,
    },
    /// [`DemandForecast::coverage`].
    Coverage {
        /// Owner.
        owner: OwnerName,
        /// Pool.
        pool: PoolName,
        /// Answer, millionths.
        share_ppm: Option<u32>,
    },
    /// [`DemandForecast::as_of_us`].
    AsOf {
        /// Owner.
        owner: OwnerName,
        /// Pool.
        pool: PoolName,
        /// Answer.
        at_us: Option<i64>,
    },
}

/// A level or share in millionths.
pub(crate) fn ppm(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * 1e6).round() as u32
}

/// A forecast that only repeats recorded answers.
#[derive(Debug, Clone, Default)]
pub struct RecordedForecast {
    /// Recorded answers.
    pub answers: Vec<ForecastAnswer>,
}

impl RecordedForecast {
    fn find<T>(&self, pick: impl Fn(&ForecastAnswer) -> Option<Option<T>>) -> Option<T> {
        self.answers.iter().find_map(pick).flatten()
    }
}

impl DemandForecast for RecordedForecast {
    fn highest_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        self.find(|answer| match answer {
            ForecastAnswer::Highest { owner, pool, level_ppm: l, within_ms: w, gpus_milli } => {
                ((&**owner, &**pool, *l, *w) == (of.owner, of.pool, ppm(level), within_ms))
                    .then(|| gpus_milli.map(|milli| milli as f64 / 1e3))
            }
            _ => None,
        })
    }

    fn typical_gpus(&self, of: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        self.find(|answer| match answer {
            ForecastAnswer::Typical { owner, pool, level_ppm: l, within_ms: w, gpus_milli } => {
                ((&**owner, &**pool, *l, *w) == (of.owner, of.pool, ppm(level), within_ms))
                    .then(|| gpus_milli.map(|milli| milli as f64 / 1e3))
            }
            _ => None,
        })
    }

    fn coverage(&self, of: Series<'_>) -> Option<f64> {
        self.find(|answer| match answer {
            ForecastAnswer::Coverage { owner, pool, share_ppm } => ((&**owner, &**pool)
                == (of.owner, of.pool))
                .then(|| share_ppm.map(|ppm| f64::from(ppm) / 1e6)),
            _ => None,
        })
    }

    fn as_of_us(&self, of: Series<'_>) -> Option<i64> {
        self.find(|answer| match answer {
            ForecastAnswer::AsOf { owner, pool, at_us } => {
                ((&**owner, &**pool) == (of.owner, of.pool)).then_some(*at_us)
            }
            _ => None,
        })
    }
}
