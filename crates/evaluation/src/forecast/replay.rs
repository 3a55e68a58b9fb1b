//! Replay of a series hour by hour, as the service would run it: one forecaster answers at all
//! origins.

use std::{collections::BTreeSet, time::Instant};

use tidegate_insight::forecast::{Clients, Config, Forecast, ForecastError, Forecaster, JobEvent, JobTable};

use super::Series;

const HOUR_US: i64 = 3_600_000_000;

/// Forecasts and their compute times.
#[derive(Debug)]
pub(crate) struct Replayed {
    /// Known hours and the forecast made then, in order.
    pub(crate) forecasts: Vec<(usize, Forecast)>,
    /// Time of each forecast, outlook included, ms.
    pub(crate) taken_ms: Vec<f64>,
    /// Time per event of the job table, learning included, µs; zero without jobs.
    pub(crate) event_us: f64,
}

/// Replays `series` up to the last requested hour, with the job table or the clients where the
/// trace has them.
///
/// # Errors
/// The forecaster rejects the series.
pub(crate) fn replay(
    series: &Series,
    horizon: usize,
    asked: &BTreeSet<usize>,
) -> Result<Replayed, ForecastError> {
    let config = Config { horizon, outages: series.claims.is_empty(), ..Config::default() };
    let mut forecaster = Forecaster::new(config)?;
    let mut known = ReplayState::new(series);
    let mut replayed = Replayed { forecasts: Vec::new(), taken_ms: Vec::new(), event_us: 0.0 };
    for hour in 0..=asked.last().copied().unwrap_or(0) {
        known.advance(series, hour);
        if hour > 0 {
            let wanted = forecaster.wants_outlook();
            let outlook = if wanted { known.outlook(hour, forecaster.anchors()) } else { None };
            forecaster.observe(Some(series.values[hour - 1]), outlook.as_deref());
        }
        if asked.contains(&hour) {
            let began = Instant::now();
            let outlook = known.outlook(hour, forecaster.anchors());
            let forecast = forecaster.forecast(outlook.as_deref())?;
            replayed.taken_ms.push(began.elapsed().as_secs_f64() * 1e3);
            replayed.forecasts.push((hour, forecast));
        }
    }
    replayed.event_us = if known.next == 0 { 0.0 } else { known.spent_s * 1e6 / known.next as f64 };
    Ok(replayed)
}

/// Knowledge beside the series: job table or clients.
struct ReplayState {
    events: Vec<(i64, JobEvent)>,
    next: usize,
    table: JobTable,
    clients: Clients,
    has_clients: bool,
    spent_s: f64,
}

impl ReplayState {
    fn new(series: &Series) -> Self {
        Self {
            events: events(series),
            next: 0,
            table: JobTable::new(),
            clients: Clients::new(24),
            has_clients: !series.clients.is_empty(),
            spent_s: 0.0,
        }
    }

    /// Takes the events before `hour`.
    fn advance(&mut self, series: &Series, hour: usize) {
        let now_us = hour as i64 * HOUR_US;
        let began = Instant::now();
        while let Some((_, event)) = self.events.get(self.next).filter(|(at_us, _)| *at_us < now_us) {
            self.table.apply(*event);
            self.next += 1;
        }
        self.table.learn(now_us);
        self.spent_s += began.elapsed().as_secs_f64();
        if hour > 0 && self.has_clients {
            let rates: Vec<f64> = series.clients.iter().map(|client| client[hour - 1]).collect();
            self.clients.observe(&rates);
        }
    }

    fn outlook(&self, hour: usize, horizons: &[usize]) -> Option<Vec<f64>> {
        if !self.events.is_empty() {
            self.table.outlook(hour as i64 * HOUR_US, HOUR_US, horizons)
        } else if self.has_clients {
            self.clients.outlook(horizons)
        } else {
            None
        }
    }
}

/// Submissions, starts and ends in order of time. The traces have no queue, so a job starts when it
/// is submitted.
fn events(series: &Series) -> Vec<(i64, JobEvent)> {
    let mut out = Vec::with_capacity(series.claims.len() * 3);
    for (id, claim) in (0_u64..).zip(&series.claims) {
        let (start, end) = ((claim.start * 1e6) as i64, (claim.end * 1e6) as i64);
        out.push((start, JobEvent::Submitted { id, at_us: start, gpus: claim.gpus }));
        out.push((start, JobEvent::Started { id, at_us: start }));
        out.push((end, JobEvent::Ended { id, at_us: end }));
    }
    out.sort_by_key(|(at, event)| (*at, matches!(event, JobEvent::Ended { .. })));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::Claim;

    fn series() -> Series {
        // One job of eight GPUs an hour, for four hours each: 32 GPUs from the fourth hour on.
        let claims = (0..400).map(|hour| Claim {
            start: hour as f64 * 3600.0,
            end: (hour + 4) as f64 * 3600.0,
            gpus: 8.0,
        });
        Series {
            set: "itp",
            name: "made".into(),
            values: (0..400).map(|hour| 8.0 * f64::from(hour.min(3) + 1)).collect(),
            first_origin: 300,
            step: 7,
            origins: 3,
            horizon: 24,
            claims: claims.collect(),
            clients: Vec::new(),
        }
    }

    #[test]
    fn it_answers_where_it_is_asked_and_knows_the_jobs() {
        let series = series();
        let asked: BTreeSet<usize> = series.origins().collect();
        let replayed = replay(&series, 24, &asked).unwrap();
        assert_eq!(replayed.forecasts.iter().map(|(hour, _)| *hour).collect::<Vec<_>>(), [300, 307, 314]);
        assert_eq!(replayed.taken_ms.len(), 3);
        assert!(replayed.event_us > 0.0);
        for (hour, forecast) in &replayed.forecasts {
            assert_eq!(forecast.origin, *hour);
            assert!((forecast.median(24).unwrap() - 32.0).abs() < 3.0, "{:?}", forecast.median(24));
        }
        // More origins do not change the forecasts.
        let more = replay(&series, 24, &(250..=320).collect()).unwrap();
        assert_eq!(more.forecasts.iter().find(|(hour, _)| *hour == 307).unwrap().1, replayed.forecasts[1].1);
    }
}
