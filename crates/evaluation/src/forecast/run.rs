//! Runs the protocol: replays each series to each origin, forecasts, scores and measures time.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};
use tidegate_insight::forecast::Forecast;

use super::{
    CLASSES, Series, TraceError, by_class, load,
    metrics::{ByBucket, QUANTILES, Quantiles, score},
    replay,
    rivals::{RIVALS, rival},
};

/// Row of Tidegate's forecaster.
pub const OURS: &str = "tidegate";

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder of the traces, files named as published.
    pub traces: PathBuf,
    /// Sets to run; all of the protocol if empty. [`CLASSES`] runs only if named.
    pub sets: Vec<String>,
}

/// Compute times of one series, ms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// One fit and forecast, all horizons and levels: median over origins.
    pub forecast_ms: f64,
    /// Maximum.
    pub worst_ms: f64,
    /// One event of the job table, learning included, µs; zero where there are no jobs.
    pub event_us: f64,
}

/// Scores of all models, and times of Tidegate's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Scores by model, then by `set-series`, then by bucket.
    pub series: BTreeMap<String, BTreeMap<String, ByBucket>>,
    /// Times by `set-series`.
    pub times: BTreeMap<String, Times>,
}

/// Runs the protocol.
///
/// # Errors
/// [`TraceError`] if a trace is missing or Tidegate's forecaster rejects a series.
pub fn run(options: &Options) -> Result<Report, TraceError> {
    let mut report = Report { series: BTreeMap::new(), times: BTreeMap::new() };
    let mut all = load(&options.traces)?;
    if options.sets.iter().any(|set| set == CLASSES) {
        let totals = all.iter().filter(|series| series.name == "total" && !series.claims.is_empty());
        let classes: Vec<Series> = totals.flat_map(by_class).collect();
        all.extend(classes);
    }
    for series in all {
        if options.sets.is_empty() || options.sets.iter().any(|s| s == series.set) {
            run_series(&series, &mut report)?;
        }
    }
    Ok(report)
}

fn run_series(series: &Series, report: &mut Report) -> Result<(), TraceError> {
    let name = format!("{}-{}", series.set, series.name);
    let origins: Vec<usize> = series.origins().collect();
    let mut keep = |model: &str, forecasts: &[Vec<Quantiles>]| {
        let scores = score(&series.values, series.first_origin, &origins, forecasts);
        report.series.entry(model.to_owned()).or_default().insert(name.clone(), scores);
    };
    for model in RIVALS {
        let forecasts: Vec<_> =
            origins.iter().map(|o| rival(model, &series.values[..*o], series.horizon)).collect();
        keep(model, &forecasts);
    }
    let (forecasts, times) = ours(series, &origins)?;
    keep(OURS, &forecasts);
    report.times.insert(name, times);
    Ok(())
}

/// Tidegate's forecasts at the origins; one forecaster passes through all of them, as in the
/// service.
fn ours(series: &Series, origins: &[usize]) -> Result<(Vec<Vec<Quantiles>>, Times), TraceError> {
    let refused = |why| TraceError::Refused { name: series.name.clone(), why };
    let mut replayed = replay(series, series.horizon, &origins.iter().copied().collect()).map_err(refused)?;
    let rows = |forecast: &Forecast| {
        let at = |hour| QUANTILES.map(|level| forecast.quantile(hour, level).unwrap_or(f64::NAN));
        (1..=series.horizon).map(at).collect()
    };
    let forecasts = replayed.forecasts.iter().map(|(_, forecast)| rows(forecast)).collect();
    let taken_ms = &mut replayed.taken_ms;
    taken_ms.sort_unstable_by(f64::total_cmp);
    let times = Times {
        forecast_ms: taken_ms[taken_ms.len() / 2],
        worst_ms: taken_ms[taken_ms.len() - 1],
        event_us: replayed.event_us,
    };
    Ok((forecasts, times))
}
