//! The 16 job-demand series as cases, with the forecaster as an expert: its marginal quantiles at
//! each decision, as the service would have had them.

use std::{collections::BTreeMap, path::Path};

use tidegate_insight::{
    forecast::{Forecast, LEVELS},
    sizing::{Marginals, Prices, Sample},
};

use super::{
    Case, OutsideExpert, SizingEvaluationError,
    regret::{TERMS, decision_hours},
};
use crate::forecast::{Series, load, replay};

/// A set whose series are not GPUs.
const SERVING: &str = "servegen";

/// Reads the series from `folder`, with the forecaster's commitments at break-even `rho`.
///
/// # Errors
/// A trace that is missing, a series the forecaster rejects, `rho` out of range.
pub fn demand_cases(folder: &Path, rho: f64) -> Result<Vec<Case>, SizingEvaluationError> {
    let prices = Prices::from_ratio(rho)?;
    let demand = load(folder)?.into_iter().filter(|series| series.set != SERVING);
    demand.map(|series| case(series, prices.critical_ratio())).collect()
}

fn case(series: Series, level: f64) -> Result<Case, SizingEvaluationError> {
    let commitments = commitments(&series, level)?;
    Ok(Case {
        name: format!("{}/{}", series.set, series.name),
        first: series.first_origin,
        step: series.step,
        demand: series.values,
        outside: vec![OutsideExpert { name: "(d) forecaster".to_owned(), commitments }],
    })
}

/// Commitments of the forecaster at each decision, present or past, by known hours and term.
fn commitments(series: &Series, level: f64) -> Result<BTreeMap<(usize, usize), f64>, SizingEvaluationError> {
    let mut commitments = BTreeMap::new();
    for (known, forecast) in
        replay(series, TERMS[0], &decision_hours(series.first_origin, series.step))?.forecasts
    {
        for term in TERMS {
            commitments.insert((known, term), commitment(&forecast, term, level)?);
        }
    }
    Ok(commitments)
}

/// Quantile at `level` of the mixture of the term's hours.
fn commitment(forecast: &Forecast, term: usize, level: f64) -> Result<f64, SizingEvaluationError> {
    let mut quantiles = Vec::with_capacity(term * LEVELS.len());
    for hour in 1..=term {
        quantiles.extend(LEVELS.iter().map(|&level| forecast.quantile(hour, level).unwrap_or(f64::NAN)));
    }
    Ok(Sample::from_forecast(Marginals { levels: &LEVELS, quantiles: &quantiles })?.quantile(level))
}
