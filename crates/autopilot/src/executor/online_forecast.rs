//! Forecasts that learn from what the executor observes.

use crate::forecast::{DemandForecast, SelectedForecast, Series, Trailing};
use crate::state::ClusterState;

/// A forecast that learns from what the executor observes.
pub trait OnlineForecast: DemandForecast {
    /// Learns the owners' current demand.
    fn observe(&mut self, state: &ClusterState);

    /// Writes the forecast's origin into the state, for the guard and the record.
    fn annotate(&self, _: &mut ClusterState) {}
}

impl OnlineForecast for SelectedForecast {
    fn observe(&mut self, state: &ClusterState) {
        Self::observe(self, state);
    }

    fn annotate(&self, state: &mut ClusterState) {
        Self::annotate(self, state);
    }
}

impl OnlineForecast for Trailing {
    fn observe(&mut self, state: &ClusterState) {
        for (owner, entry) in &state.owners {
            for (pool, share) in &entry.shares {
                if let Some(gpus) = share.demand_gpus {
                    Self::observe(self, Series { owner, pool }, state.at_us, f64::from(gpus));
                }
            }
        }
    }
}
