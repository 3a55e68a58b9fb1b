//! Report over many jobs: measures with intervals, as data and as text.

use std::fmt::Write as _;

use rand::Rng;
use serde::Serialize;
use tidegate_insight::straggler::Class;

use super::method::Level;
use super::options::Options;
use super::random::child;
use super::score::{Hit, JobScore};
use super::statistics::{quantile, wilson};

/// A share or score with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Interval {
    /// The value.
    pub value: f64,
    /// Lower bound.
    pub low: f64,
    /// Upper bound.
    pub high: f64,
}

/// A group of jobs scored together.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Group {
    /// Regime, or a mix of them.
    pub name: &'static str,
    /// Jobs.
    pub jobs: usize,
    /// Total length, h.
    pub job_hours: f64,
    /// GPUs times length, h.
    pub gpu_hours: f64,
    /// Events that count.
    pub events: usize,
    /// Events for which an alarm is neither right nor wrong.
    pub dont_care: usize,
}

/// Measures of one method on one group of jobs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measures {
    /// Name of the method.
    #[serde(rename = "judge")]
    pub method: &'static str,
    /// Level of its alarms.
    pub level: Level,
    /// Group of jobs.
    pub group: &'static str,
    /// Events found.
    pub found: u64,
    /// Events missed.
    pub missed: u64,
    /// Alarms that matched no event.
    pub false_alarms: u64,
    /// Alarms that matched only events that do not count.
    pub ignored: u64,
    /// Found / (found + false), Wilson.
    pub precision: Option<Interval>,
    /// Found / events, Wilson.
    pub recall: Option<Interval>,
    /// Their harmonic mean; interval by bootstrap over jobs (1,000 times).
    pub f1: Option<Interval>,
    /// False alarms per job-day.
    pub false_per_job_day: f64,
    /// False alarms per 1,000 GPU-days.
    pub false_per_1000_gpu_days: f64,
    /// From the end of the first slow step to the event time that decided the alarm, s: median and
    /// 95th percentile.
    pub delay_s: Option<(f64, f64)>,
    /// The same up to the arrival of the alarm.
    pub heard_s: Option<(f64, f64)>,
    /// Share of found events with exactly the right rank or node, without network events.
    pub blame: Option<Interval>,
    /// Share of found events with the right node, without network events.
    pub blame_node: Option<Interval>,
    /// The same for network events that counters could show.
    pub blame_network: Option<Interval>,
    /// Share of found events with the right class, of six.
    pub class: Option<Interval>,
    /// Found and all events by the job's slowdown: 5 to 10 %, to 20 %, above.
    pub by_size: [(u64, u64); 3],
    /// Found and all events by class.
    pub by_class: Vec<(Class, u64, u64)>,
}

/// A whole evaluation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// What was run.
    pub options: Options,
    /// Jobs by group.
    pub groups: Vec<Group>,
    /// Measures by group, method and level.
    pub measures: Vec<Measures>,
}

fn share(hits: u64, of: u64) -> Option<Interval> {
    wilson(hits, of).map(|(low, high)| Interval { value: hits as f64 / of as f64, low, high })
}

fn counts<'a>(scores: impl Iterator<Item = &'a JobScore>) -> (u64, u64, u64) {
    scores.fold((0, 0, 0), |(found, missed, wrong), score| {
        let hit = score.hits.iter().filter(|hit| hit.delay_s.is_some()).count() as u64;
        (found + hit, missed + score.hits.len() as u64 - hit, wrong + score.false_alarms)
    })
}

fn f1(found: u64, missed: u64, wrong: u64) -> f64 {
    let all = 2 * found + missed + wrong;
    if all == 0 { f64::NAN } else { 2.0 * found as f64 / all as f64 }
}

fn f1_interval(scores: &[&JobScore]) -> Option<Interval> {
    let (found, missed, wrong) = counts(scores.iter().copied());
    let value = f1(found, missed, wrong);
    let mut rng = child(0, '-', "bootstrap");
    let mut drawn: Vec<f64> = (0..1000)
        .map(|_| {
            let again = (0..scores.len()).map(|_| scores[rng.random_range(0..scores.len())]);
            let (found, missed, wrong) = counts(again);
            f1(found, missed, wrong)
        })
        .filter(|value| value.is_finite())
        .collect();
    drawn.sort_by(f64::total_cmp);
    value.is_finite().then_some(())?;
    Some(Interval { value, low: quantile(&drawn, 0.025)?, high: quantile(&drawn, 0.975)? })
}

fn spread(hits: &[&Hit], of: fn(&Hit) -> Option<f64>) -> Option<(f64, f64)> {
    let mut values: Vec<f64> = hits.iter().filter_map(|hit| of(hit)).collect();
    values.sort_by(f64::total_cmp);
    Some((quantile(&values, 0.5)?, quantile(&values, 0.95)?))
}

impl Measures {
    pub(crate) fn of(method: &'static str, level: Level, group: &'static str, scores: &[&JobScore]) -> Self {
        const CLASSES: [Class; 6] = [
            Class::ComputeThermal,
            Class::ComputeSilent,
            Class::Host,
            Class::Communication,
            Class::Data,
            Class::Link,
        ];
        let (found, missed, false_alarms) = counts(scores.iter().copied());
        let hits: Vec<&Hit> = scores.iter().flat_map(|score| &score.hits).collect();
        let right = |network: bool, of: fn(&Hit) -> Option<bool>| {
            let judged: Vec<bool> = hits
                .iter()
                .filter(|hit| (hit.class == Class::Communication) == network)
                .filter_map(|hit| of(hit))
                .collect();
            share(judged.iter().filter(|&&right| right).count() as u64, judged.len() as u64)
        };
        let found_of = |keep: &dyn Fn(&Hit) -> bool| {
            let all = hits.iter().filter(|hit| keep(hit));
            all.fold((0, 0), |(found, all), hit| (found + u64::from(hit.delay_s.is_some()), all + 1))
        };
        let classed: Vec<bool> = hits.iter().filter_map(|hit| hit.classed).collect();
        let band = |from: f64, to: f64| found_of(&|hit| (from..to).contains(&hit.slowdown));
        let days: f64 = scores.iter().map(|score| score.hours / 24.0).sum();
        let gpu_days: f64 = scores.iter().map(|score| score.gpu_hours / 24.0).sum();
        Self {
            method,
            level,
            group,
            found,
            missed,
            false_alarms,
            ignored: scores.iter().map(|score| score.ignored).sum(),
            precision: share(found, found + false_alarms),
            recall: share(found, found + missed),
            f1: f1_interval(scores),
            false_per_job_day: false_alarms as f64 / days.max(f64::MIN_POSITIVE),
            false_per_1000_gpu_days: 1000.0 * false_alarms as f64 / gpu_days.max(f64::MIN_POSITIVE),
            delay_s: spread(&hits, |hit| hit.delay_s),
            heard_s: spread(&hits, |hit| hit.heard_s),
            blame: right(false, |hit| hit.blamed),
            blame_node: right(false, |hit| hit.node),
            blame_network: right(true, |hit| hit.blamed),
            class: share(classed.iter().filter(|&&right| right).count() as u64, classed.len() as u64),
            by_size: [band(0.0, 0.1), band(0.1, 0.2), band(0.2, f64::INFINITY)],
            by_class: CLASSES
                .map(|class| {
                    let (found, all) = found_of(&|hit| hit.class == class);
                    (class, found, all)
                })
                .to_vec(),
        }
    }
}

impl Report {
    /// Plain text, one line per method and level.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for group in &self.groups {
            // Writing to a string cannot fail.
            writeln!(
                text,
                "{}: seeds {}..{}, {:?} noise, {} jobs, {:.0} job-hours, {:.0} GPU-hours, {} events, {} that do not count",
                group.name,
                self.options.seeds.0,
                self.options.seeds.1,
                self.options.noise,
                group.jobs,
                group.job_hours,
                group.gpu_hours,
                group.events,
                group.dont_care
            )
            .ok();
            writeln!(
                text,
                "  {:<34} {:>17} {:>17} {:>17} {:>8} {:>9} {:>11} {:>11} {:>5} {:>5} {:>5} {:>5}  5-10%  -20%  >20%",
                "detector", "P", "R", "F1", "FP/job-d", "/kGPU-d", "delay s", "heard s", "blame", "node", "net", "class"
            )
            .ok();
            for it in self.measures.iter().filter(|it| it.group == group.name) {
                it.line(&mut text);
            }
        }
        text
    }
}

impl Measures {
    fn line(&self, text: &mut String) {
        let interval = |it: Option<Interval>| {
            it.map_or("-".into(), |it| format!("{:.3} {:.2}-{:.2}", it.value, it.low, it.high))
        };
        let one = |it: Option<Interval>| it.map_or("-".into(), |it| format!("{:.2}", it.value));
        let pair = |it: Option<(f64, f64)>| it.map_or("-".into(), |(p50, p95)| format!("{p50:.0}/{p95:.0}"));
        let level = if self.level == Level::Suspect { " (suspect)" } else { "" };
        let bands: Vec<String> = self.by_size.iter().map(|(found, all)| format!("{found}/{all}")).collect();
        writeln!(
            text,
            "  {:<34} {:>17} {:>17} {:>17} {:>8.2} {:>9.1} {:>11} {:>11} {:>5} {:>5} {:>5} {:>5}  {}",
            format!("{}{level}", self.method),
            interval(self.precision),
            interval(self.recall),
            interval(self.f1),
            self.false_per_job_day,
            self.false_per_1000_gpu_days,
            pair(self.delay_s),
            pair(self.heard_s),
            one(self.blame),
            one(self.blame_node),
            one(self.blame_network),
            one(self.class),
            bands.join("  ")
        )
        .ok();
    }
}
