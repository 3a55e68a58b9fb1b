//! Sizing: how much capacity to commit to, and how to buy it.
//!
//! Start with `reservation`: one commitment at two prices is a quantile of demand. `rules`
//! estimate that quantile, `leader` chooses among them by past costs, `paths` draws demand for
//! terms longer than any forecast, and `mix` splits capacity over owned, reserved, spot and
//! on-demand. Demand is the mean number of GPUs of an hour throughout.

mod error;
mod leader;
mod mix;
mod paths;
mod prices;
mod reservation;
mod rules;
mod sample;

pub use error::SizingError;
pub use leader::{Decision, SWITCHING, TEMPERATURE, blend, follow, regrets};
pub use mix::{Mix, MixShare, Offer, OwnedCost, SpotTerms, buying_mix};
pub use paths::{Growth, GrowthPrior, PathPlan, growth, scenario_paths};
pub use prices::Prices;
pub use reservation::{
    Comparison, Reservation, Spread, Term, compare, hold_by_paths, hold_by_sample, reserve_by_forecast,
    reserve_by_paths, reserve_by_sample,
};
pub use rules::Rule;
pub use sample::{Marginals, Sample};
