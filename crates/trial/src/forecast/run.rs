//! Runs the protocol: replays each series to each origin, forecasts, scores, takes the time.

use std::{collections::BTreeMap, path::PathBuf, time::Instant};

use serde::{Deserialize, Serialize};
use tidegate_insight::forecast::{Clients, Config, Forecaster, JobEvent, JobTable};

use super::{
    Series, TraceError, load,
    metrics::{ByBucket, QUANTILES, Quantiles, score},
    rivals::{RIVALS, rival},
};

/// Name of our own row.
pub const OURS: &str = "tidegate";

/// What to run.
#[derive(Debug, Clone)]
pub struct Options {
    /// Folder of the traces, files named as published.
    pub traces: PathBuf,
    /// Sets to run; all if empty.
    pub sets: Vec<String>,
}

/// Times of one series, ms.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Times {
    /// One fit and forecast, all horizons and levels: median over origins.
    pub forecast_ms: f64,
    /// Its greatest.
    pub worst_ms: f64,
    /// One event of the job table, learning included, µs; zero where there are no jobs.
    pub event_us: f64,
}

/// Scores of all models and times of ours.
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
/// [`TraceError`] if a trace is missing or our own forecaster refuses a series of the protocol.
pub fn run(options: &Options) -> Result<Report, TraceError> {
    let mut report = Report { series: BTreeMap::new(), times: BTreeMap::new() };
    for series in load(&options.traces)? {
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

const HOUR_US: i64 = 3_600_000_000;

/// Replays the series hour by hour, with the job table where there are jobs; the same forecaster goes through all origins, as it
/// would in a pipeline.
fn ours(series: &Series, origins: &[usize]) -> Result<(Vec<Vec<Quantiles>>, Times), TraceError> {
    let refused = |e| TraceError::Refused { name: series.name.clone(), why: e };
    let config = Config { horizon: series.horizon, outages: series.claims.is_empty(), ..Config::default() };
    let mut forecaster = Forecaster::new(config).map_err(refused)?;
    let events = events(series);
    let (mut next, mut table, mut clients) = (0, JobTable::new(), Clients::new(24));
    let has_outlook = !events.is_empty() || !series.clients.is_empty();
    let (mut out, mut taken, mut spent) = (Vec::new(), Vec::new(), 0.0);
    let last = origins.last().copied().unwrap_or(0);
    for hour in 0..=last {
        let now = hour as i64 * HOUR_US;
        let began = Instant::now();
        while let Some((at, event)) = events.get(next)
            && *at < now
        {
            table.apply(*event);
            next += 1;
        }
        table.learn(now);
        spent += began.elapsed().as_secs_f64();
        let outlook = |horizons: &[usize], clients: &Clients| {
            if events.is_empty() { clients.outlook(horizons) } else { table.outlook(now, HOUR_US, horizons) }
        };
        if hour > 0 {
            let rates: Vec<f64> = series.clients.iter().map(|c| c[hour - 1]).collect();
            clients.observe(&rates);
            let known =
                if forecaster.wants_outlook() { outlook(forecaster.anchors(), &clients) } else { None };
            let known = known.filter(|_| has_outlook);
            forecaster.observe(Some(series.values[hour - 1]), known.as_deref());
        }
        if origins.contains(&hour) {
            let began = Instant::now();
            let known = outlook(forecaster.anchors(), &clients).filter(|_| has_outlook);
            let forecast = forecaster.forecast(known.as_deref()).map_err(refused)?;
            taken.push(began.elapsed().as_secs_f64() * 1e3);
            let rows = (1..=series.horizon)
                .map(|h| QUANTILES.map(|level| forecast.quantile(h, level).unwrap_or(f64::NAN)))
                .collect();
            out.push(rows);
        }
    }
    taken.sort_unstable_by(f64::total_cmp);
    let times = Times {
        forecast_ms: taken[taken.len() / 2],
        worst_ms: taken[taken.len() - 1],
        event_us: if next == 0 { 0.0 } else { spent * 1e6 / next as f64 },
    };
    Ok((out, times))
}

/// Submissions, starts and ends in order of time; the traces have no queue, so a job starts as it is submitted.
fn events(series: &Series) -> Vec<(i64, JobEvent)> {
    let mut out = Vec::with_capacity(series.claims.len() * 3);
    for (id, claim) in series.claims.iter().enumerate() {
        let (id, start, end) = (id as u64, (claim.start * 1e6) as i64, (claim.end * 1e6) as i64);
        out.push((start, JobEvent::Submitted { id, at_us: start, gpus: claim.gpus }));
        out.push((start, JobEvent::Started { id, at_us: start }));
        out.push((end, JobEvent::Ended { id, at_us: end }));
    }
    out.sort_by_key(|(at, event)| (*at, matches!(event, JobEvent::Ended { .. })));
    out
}
