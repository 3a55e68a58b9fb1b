//! The 16 job-demand series as cases, with the forecaster as an expert: its marginal quantiles at each decision and lesson, as a
//! pipeline would have had them.

use std::{collections::BTreeMap, path::Path};

use tidegate_insight::{
    forecast::{Config, Forecast, Forecaster, JobEvent, JobTable, LEVELS},
    sizing::{Marginals, Prices, Sample},
};

use super::{
    Case, Outside, SizingTrialError,
    regret::{TERMS, asked},
};
use crate::forecast::{Series, load};

const HOUR_US: i64 = 3_600_000_000;
/// Series that are not GPUs.
const SERVING: &str = "servegen";

/// Reads the series from `folder` and lets the forecaster say, at break-even `rho`, what it would commit to.
///
/// # Errors
/// A trace that is missing, a series the forecaster refuses, `rho` out of range.
pub fn demand_cases(folder: &Path, rho: f64) -> Result<Vec<Case>, SizingTrialError> {
    let prices = Prices::of_ratio(rho)?;
    let demand = load(folder)?.into_iter().filter(|series| series.set != SERVING);
    demand.map(|series| case(series, prices.critical_ratio())).collect()
}

fn case(series: Series, level: f64) -> Result<Case, SizingTrialError> {
    let commitments = replay(&series, level)?;
    Ok(Case {
        name: format!("{}/{}", series.set, series.name),
        first: series.first_origin,
        step: series.step,
        demand: series.values,
        outside: vec![Outside { name: "(d) forecaster".to_owned(), commitments }],
    })
}

/// Goes through the series hour by hour; the same forecaster answers wherever it is asked.
fn replay(series: &Series, level: f64) -> Result<BTreeMap<(usize, usize), f64>, SizingTrialError> {
    let config = Config { horizon: TERMS[0], outages: series.claims.is_empty(), ..Config::default() };
    let mut forecaster = Forecaster::new(config)?;
    let asked = asked(series.first_origin, series.step);
    let last = asked.iter().next_back().copied().unwrap_or(0);
    let (events, mut next, mut table) = (events(series), 0, JobTable::new());
    let mut commitments = BTreeMap::new();
    for hour in 0..=last {
        let now = hour as i64 * HOUR_US;
        while let Some((_, event)) = events.get(next).filter(|(at, _)| *at < now) {
            table.apply(*event);
            next += 1;
        }
        table.learn(now);
        let wanted = asked.contains(&hour) || forecaster.wants_outlook();
        let outlook = (!events.is_empty() && wanted)
            .then(|| table.outlook(now, HOUR_US, forecaster.anchors()))
            .flatten();
        if hour > 0 {
            let kept = if forecaster.wants_outlook() { outlook.as_deref() } else { None };
            forecaster.observe(Some(series.values[hour - 1]), kept);
        }
        if asked.contains(&hour) {
            let forecast = forecaster.forecast(outlook.as_deref())?;
            for term in TERMS {
                commitments.insert((hour, term), commitment(&forecast, term, level)?);
            }
        }
    }
    Ok(commitments)
}

/// Quantile at `level` of the mixture of the term's hours.
fn commitment(forecast: &Forecast, term: usize, level: f64) -> Result<f64, SizingTrialError> {
    let mut quantiles = Vec::with_capacity(term * LEVELS.len());
    for hour in 1..=term {
        quantiles.extend(LEVELS.iter().map(|&level| forecast.quantile(hour, level).unwrap_or(f64::NAN)));
    }
    Ok(Sample::of_forecast(Marginals { levels: &LEVELS, quantiles: &quantiles })?.quantile(level))
}

/// Submissions, starts and ends in order of time; the traces have no queue, so a job starts as it is submitted.
fn events(series: &Series) -> Vec<(i64, JobEvent)> {
    let mut events = Vec::with_capacity(series.claims.len() * 3);
    for (id, claim) in (0u64..).zip(&series.claims) {
        let (start, end) = ((claim.start * 1e6) as i64, (claim.end * 1e6) as i64);
        events.push((start, JobEvent::Submitted { id, at_us: start, gpus: claim.gpus }));
        events.push((start, JobEvent::Started { id, at_us: start }));
        events.push((end, JobEvent::Ended { id, at_us: end }));
    }
    events.sort_by_key(|(at, event)| (*at, matches!(event, JobEvent::Ended { .. })));
    events
}
