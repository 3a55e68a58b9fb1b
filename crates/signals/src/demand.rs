//! Demand of a cluster, hour by hour, and its forecasts: GPUs held and waited for, by pool, team,
//! size class and in total.

mod series;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_events::v1::SeriesKind;
use tidegate_events::{Event, Micros, MilliGpus, v1};
use tidegate_insight::forecast::{JobEvent, LEVELS, size_class};

use crate::facts::JobFact;
use crate::publication::{Publication, envelope, producer_name};
use crate::time::HOUR_US;
use crate::{budget, coverage};
use series::Series;

/// Version of the forecaster, part of the producer name.
const MODEL: &str = "hybrid-1";
const HOUR_MS: u64 = 3_600_000;
/// Forecasts are issued at 0, 6, 12 and 18 h UTC.
const ISSUE_INTERVAL_HOURS: i64 = 6;
/// Published horizons, hours. Readers interpolate between them.
const HORIZONS: [usize; 16] = [1, 2, 3, 4, 6, 8, 12, 18, 24, 36, 48, 72, 96, 120, 144, 168];
/// Hours of a series before its first forecast.
const MIN_HOURS: usize = 24;
/// After a silence of this many hours a series starts anew.
const MAX_GAP_HOURS: i64 = 60 * 24;
/// How long an end is remembered, hours.
const END_RETENTION_HOURS: i64 = 7 * 24;
/// Most series per cluster; further pools and teams count in the total alone.
const MAX_SERIES: usize = 256;

/// From a time on, demand of a series is higher by `more_milli`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DemandChange {
    /// Kind and name of the series.
    pub series: SeriesKey,
    pub more_milli: i64,
    pub at_us: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct OpenJob {
    id: u64,
    gpus_milli: i64,
    team: Option<String>,
    pool: Option<String>,
    /// Size class at the first report. A job keeps its class when it is resized; otherwise its
    /// class would lose it without an end.
    class: Option<String>,
}

/// Demand of one cluster, and the forecasts of it. Knows no log: a backtest runs it too.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Demand {
    cluster: String,
    learn_from_us: i64,
    /// Start of the hour that is being added up.
    hour_us: Option<i64>,
    open: BTreeMap<String, OpenJob>,
    next_id: u64,
    /// When jobs ended lately. Late or repeated events do not revive them.
    ended: BTreeMap<String, i64>,
    series: BTreeMap<(i32, String), Series>,
    #[serde(skip)]
    changes: Vec<DemandChange>,
    #[serde(skip)]
    out: Vec<Publication>,
}

type SeriesKey = (i32, String);

impl Demand {
    /// Hours before `learn_from_us` are not learnt from; only the jobs still open then count.
    pub fn new(cluster: &str, learn_from_us: i64) -> Self {
        Self {
            cluster: cluster.into(),
            learn_from_us,
            hour_us: None,
            open: BTreeMap::new(),
            next_id: 0,
            ended: BTreeMap::new(),
            series: BTreeMap::new(),
            changes: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Applies a job event of `at_us`; kinds that change no demand are ignored.
    pub fn observe(&mut self, job: v1::JobEvent, at_us: i64) {
        if let Some(fact) = JobFact::from_event(job) {
            self.apply(&fact, at_us);
        }
        // Only the sizing of capacity reads them.
        self.changes.clear();
    }

    /// Forecasts and coverage published by `now_us`, since the last call. All events up to then
    /// were observed.
    pub fn publish(&mut self, now_us: i64) -> Vec<Event> {
        self.advance(now_us);
        self.take().into_iter().flat_map(|publication| publication.events).collect()
    }

    /// Applies what a job event of `at_us` states.
    pub(crate) fn apply(&mut self, fact: &JobFact, at_us: i64) {
        self.advance(at_us);
        if self.ended.get(&fact.job_id).is_some_and(|ended_us| at_us <= *ended_us) {
            return;
        }
        if self.open.len() >= budget::MAX_JOBS && !self.open.contains_key(&fact.job_id) {
            return;
        }
        match fact.kind {
            v1::JobEventKind::Submitted => self.upsert_job(fact, at_us, false),
            v1::JobEventKind::Started | v1::JobEventKind::Resized => self.upsert_job(fact, at_us, true),
            v1::JobEventKind::Ended if !fact.continues => self.remove_job(&fact.job_id, at_us),
            _ => {}
        }
    }

    /// Closes the hours that ended by `now_us`, and issues the forecasts due. All events up to then
    /// were applied.
    pub(crate) fn advance(&mut self, now_us: i64) {
        let first = now_us.max(self.learn_from_us).div_euclid(HOUR_US).saturating_mul(HOUR_US);
        let mut hour_us = *self.hour_us.get_or_insert(first);
        if now_us.saturating_sub(hour_us) / HOUR_US > MAX_GAP_HOURS {
            for series in self.series.values_mut() {
                let jobs = std::mem::take(&mut series.jobs);
                *series = Series { level_milli: series.level_milli, jobs, ..Series::new(first, first) };
            }
            hour_us = first;
        }
        while hour_us.saturating_add(HOUR_US) <= now_us {
            hour_us += HOUR_US;
            self.close_hour(hour_us);
        }
        self.hour_us = Some(hour_us);
    }

    /// Hands over forecasts and coverage since the last call.
    pub(crate) fn take(&mut self) -> Vec<Publication> {
        std::mem::take(&mut self.out)
    }

    /// Hands over demand changes since the last call, in order.
    pub(crate) fn take_changes(&mut self) -> Vec<DemandChange> {
        std::mem::take(&mut self.changes)
    }

    fn upsert_job(&mut self, fact: &JobFact, at_us: i64, starts: bool) {
        let known = self.open.remove(&fact.job_id);
        if let Some(job) = &known {
            self.add(job, -job.gpus_milli, at_us);
        }
        let is_new = known.is_none();
        let mut job = known.unwrap_or_else(|| {
            self.next_id += 1;
            OpenJob { id: self.next_id, gpus_milli: 0, team: None, pool: None, class: None }
        });
        let gpus = fact.gpus_milli.and_then(|gpus| i64::try_from(gpus).ok());
        job.gpus_milli = gpus.unwrap_or(job.gpus_milli);
        job.team = fact.team.clone().or(job.team);
        job.pool = fact.pool.clone().or(job.pool);
        let gpus = job.gpus_milli as f64 / 1000.0;
        job.class = job.class.take().or_else(|| size_class(gpus).map(str::to_owned));
        self.add(&job, job.gpus_milli, at_us);
        let gpus = job.gpus_milli as f64 / 1000.0;
        let id = job.id;
        for name in series_of(&job) {
            let Some(series) = self.series.get_mut(&name) else { continue };
            if is_new {
                series.jobs.apply(JobEvent::Submitted { id, at_us, gpus });
            }
            if starts {
                series.jobs.apply(JobEvent::Started { id, at_us });
            }
        }
        self.open.insert(fact.job_id.clone(), job);
    }

    fn remove_job(&mut self, job_id: &str, at_us: i64) {
        if self.ended.len() < budget::MAX_JOBS {
            self.ended.insert(job_id.into(), at_us);
        }
        let Some(job) = self.open.remove(job_id) else { return };
        self.add(&job, -job.gpus_milli, at_us);
        for name in series_of(&job) {
            if let Some(series) = self.series.get_mut(&name) {
                series.jobs.apply(JobEvent::Ended { id: job.id, at_us });
            }
        }
    }

    /// Adds to the demand of the job's series from `at_us` on.
    fn add(&mut self, job: &OpenJob, more_milli: i64, at_us: i64) {
        for name in series_of(job) {
            self.changes.push(DemandChange { series: name.clone(), more_milli, at_us });
            if !self.series.contains_key(&name) && self.series.len() >= MAX_SERIES {
                continue;
            }
            let hour_us = self.hour_us.unwrap_or(at_us);
            let series = self.series.entry(name).or_insert_with(|| Series::new(hour_us, at_us));
            series.accrue(at_us);
            series.level_milli = series.level_milli.saturating_add(more_milli);
        }
    }

    /// Closes the hour that ends at `end_us`.
    fn close_hour(&mut self, end_us: i64) {
        if end_us.rem_euclid(24 * HOUR_US) == 0 {
            self.ended.retain(|_, ended_us| end_us - *ended_us < END_RETENTION_HOURS * HOUR_US);
        }
        let issues = end_us.div_euclid(HOUR_US).rem_euclid(ISSUE_INTERVAL_HOURS) == 0;
        for ((kind, name), series) in &mut self.series {
            let truth_milli = series.close_hour(end_us);
            let about = (SeriesKind::try_from(*kind).unwrap_or_default(), name.as_str());
            for standing in series.issued.close_hour(end_us - HOUR_US, truth_milli) {
                self.out.push(coverage::publication(&self.cluster, about, MODEL, end_us, standing));
            }
            if issues && series.forecaster.steps() >= MIN_HOURS {
                let outlook = series.outlook(end_us);
                if let Ok(forecast) = series.forecaster.forecast(outlook.as_deref()) {
                    let about = [MODEL, &self.cluster, about.0.as_str_name(), name, &end_us.to_string()];
                    let source = producer_name(&about);
                    let events = (0..).zip(HORIZONS).filter_map(|(seq, horizon)| {
                        let values: Option<Vec<u64>> = LEVELS
                            .iter()
                            .map(|level| {
                                Some(MilliGpus::round_from_gpus(forecast.quantile(horizon, *level)?).0)
                            })
                            .collect();
                        let values = values?;
                        let target_us = end_us + HOUR_US * (horizon as i64 - 1);
                        series.issued.add(target_us, horizon, &values);
                        Some(Event::Forecast(v1::Forecast {
                            envelope: envelope(&self.cluster, &source, end_us, seq),
                            kind: *kind,
                            name: name.clone(),
                            target_ms: Micros(target_us).floor_millis().0,
                            step_ms: HOUR_MS,
                            horizon: horizon as u32,
                            level_ppm: LEVELS.iter().map(|level| (level * 1e6).round() as u32).collect(),
                            gpus_milli: values,
                            model: MODEL.into(),
                        }))
                    });
                    let events = events.collect();
                    self.out.push(Publication { source, events });
                }
            }
        }
    }
}

/// The series that a job counts in.
fn series_of(job: &OpenJob) -> Vec<SeriesKey> {
    let total = Some((SeriesKind::Total.into(), "total".to_owned()));
    let pool = job.pool.clone().filter(|pool| !pool.is_empty()).map(|pool| (SeriesKind::Pool.into(), pool));
    let team = job.team.clone().filter(|team| !team.is_empty()).map(|team| (SeriesKind::Team.into(), team));
    let class = job.class.clone().map(|class| (SeriesKind::Class.into(), class));
    [total, pool, team, class].into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fact(kind: v1::JobEventKind, job_id: &str, gpus_milli: Option<u64>) -> JobFact {
        JobFact {
            kind,
            job_id: job_id.into(),
            attempt: None,
            team: Some("t".into()),
            pool: Some("p".into()),
            gpus_milli,
            hosts: None,
            continues: false,
        }
    }

    fn forecasts(demand: &mut Demand) -> Vec<v1::Forecast> {
        let events = demand.take().into_iter().flat_map(|publication| publication.events);
        events
            .map(|event| match event {
                Event::Forecast(forecast) => forecast,
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn constant_demand_is_forecast_for_each_series_and_horizon() {
        let mut demand = Demand::new("c", i64::MIN);
        demand.apply(&fact(v1::JobEventKind::Submitted, "a", Some(4_000)), 0);
        demand.apply(&fact(v1::JobEventKind::Started, "a", Some(4_000)), HOUR_US / 2);
        demand.advance(30 * HOUR_US);
        let issued = forecasts(&mut demand);
        // At 24 h and 30 h: total, pool, team, and jobs of two to four GPUs.
        assert_eq!(issued.len(), 2 * 4 * HORIZONS.len());
        assert!(issued.iter().filter(|f| f.kind() == SeriesKind::Class).all(|f| f.name == "2-4"));
        let of = |kind: SeriesKind| issued.iter().filter(|f| f.kind() == kind).count();
        assert_eq!([SeriesKind::Total, SeriesKind::Pool, SeriesKind::Team].map(of), [2 * HORIZONS.len(); 3]);
        let first = &issued[0];
        assert_eq!((first.horizon, first.target_ms, first.level_ppm.len()), (1, 24 * 3_600_000, 21));
        // Constant demand is forecast to stay, or to rise: one job came in the only day seen. The
        // bound is three times the peak.
        assert!(first.gpus_milli.is_sorted() && first.gpus_milli[20] <= 12_000, "{first:?}");
        assert!((4_000..=8_000).contains(&first.gpus_milli[10]), "{first:?}");
    }

    #[test]
    fn a_job_stays_in_the_class_of_its_first_size() {
        let mut demand = Demand::new("c", i64::MIN);
        demand.apply(&fact(v1::JobEventKind::Submitted, "a", Some(8_000)), 0);
        demand.apply(&fact(v1::JobEventKind::Resized, "a", Some(16_000)), HOUR_US);
        let level = |demand: &Demand, class: &str| {
            demand.series.get(&(SeriesKind::Class.into(), class.to_owned())).map(|series| series.level_milli)
        };
        assert_eq!([level(&demand, "5-8"), level(&demand, "9-32")], [Some(16_000), None]);
        demand.apply(&fact(v1::JobEventKind::Ended, "a", None), 2 * HOUR_US);
        assert_eq!(level(&demand, "5-8"), Some(0));
    }

    #[test]
    fn hours_are_means_of_what_is_held_and_waited_for() {
        let mut demand = Demand::new("c", i64::MIN);
        let mut seen = Vec::new();
        for (kind, gpus, at_us) in [
            (v1::JobEventKind::Submitted, Some(8_000), 0),
            // It gets four of the eight GPUs it asked for after half an hour, and two more after
            // one and a half hours.
            (v1::JobEventKind::Started, Some(4_000), HOUR_US / 2),
            (v1::JobEventKind::Resized, Some(6_000), HOUR_US * 3 / 2),
            (v1::JobEventKind::Ended, None, HOUR_US * 9 / 4),
        ] {
            demand.apply(&fact(kind, "a", gpus), at_us);
            seen.push(demand.series[&(SeriesKind::Total.into(), "total".to_owned())].clone());
        }
        let sum = |series: &Series| series.sum / i128::from(HOUR_US / 4);
        // In thousandths of a GPU times quarter hours: 8 x 2; in the second hour 4 x 2; in the
        // third 6 x 1.
        assert_eq!(seen.iter().map(sum).collect::<Vec<_>>(), [0, 16_000, 8_000, 6_000]);
        assert_eq!(seen.iter().map(|s| s.level_milli).collect::<Vec<_>>(), [8_000, 4_000, 6_000, 0]);
        // Repeated, too early or unknown events change nothing.
        for (kind, at_us) in [(v1::JobEventKind::Ended, 0), (v1::JobEventKind::Ended, i64::MIN / 2)] {
            demand.apply(&fact(kind, "a", None), at_us);
        }
        assert_eq!(demand.series[&(SeriesKind::Total.into(), "total".to_owned())].level_milli, 0);
    }

    #[test]
    fn a_long_silence_restarts_learning() {
        let mut demand = Demand::new("c", 0);
        demand.apply(&fact(v1::JobEventKind::Submitted, "a", Some(1_000)), -5_000 * HOUR_US);
        demand.advance(25 * HOUR_US);
        assert_eq!(demand.series.values().map(|s| s.forecaster.steps()).max(), Some(25));
        demand.advance(100_000 * HOUR_US);
        assert_eq!(demand.series.values().map(|s| s.forecaster.steps()).max(), Some(0));
    }
}
