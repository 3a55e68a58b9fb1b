//! Scaling curves of job families: step times by size, and the curve that is refitted as they
//! change.
//!
//! A window of steps at one size gives one observation, its median step, so single slow steps
//! hardly count. A fit uses all windows of a family, which keeps what was learnt at other sizes. It
//! is renewed when a size is new, when the number of windows has doubled, and once a day.
//!
//! Windows in which a part of the job was slow say nothing about scaling and are left out
//! ([`slow_periods`]). At each size older windows fade, so that a family that became faster is
//! believed.

mod slow_periods;
mod window;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, JobFamily, v1};
use tidegate_insight::advice::scaling::{Curve, Form, Observations, Size};

use crate::publication::{Publication, envelope, producer_name};
use crate::time::{DAY_US, US_PER_S};
use slow_periods::{HINDSIGHT_US, SlowPeriods};
use window::{ClosedWindow, Window};

/// Version of the fit, part of the producer name.
const MODEL: &str = "scaling-2";
/// Steps per window.
const WINDOW_STEPS: usize = 100;
/// A family is also refitted after this many windows, where the last doubling was long ago …
const REFIT_WINDOWS: u64 = 64;
/// … and when a window comes this long after the last fit.
const REFIT_INTERVAL_US: i64 = DAY_US;
/// Age at which a window counts half. After a family became faster, nine tenths of the new speed
/// are believed after log2 10 x 2 = 6.6 days; one odd day among steady ones moves the estimate by
/// less than a third (1 - 2^-0.5 = 0.29). There are hundreds of windows a day, so their noise asks
/// for no longer memory.
const HALF_LIFE_US: i64 = 2 * DAY_US;
/// Smallest change of a rate that is published, as a share.
const MIN_RATE_CHANGE: f64 = 0.01;
/// Sizes kept per family; families and jobs kept per cluster. Further sizes are not learnt; of
/// families and jobs the longest silent one is dropped.
const MAX_SIZES: usize = 24;
const MAX_FAMILIES: usize = 1_024;
const MAX_JOBS: usize = 4_096;
/// Most GPUs of a published point, and most nodes counted in a window.
const MAX_GPUS: u32 = 1 << 16;
/// How long a closed window waits for straggler signals about it, whatever the order in which
/// signals and steps of jobs are processed.
const SETTLE_US: i64 = HINDSIGHT_US + 30 * US_PER_S;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Run {
    #[serde(with = "crate::stored::family")]
    family: JobFamily,
    /// Nodes of the allocation; 0 if unknown.
    hosts: u32,
    window: Option<Window>,
    closed: VecDeque<ClosedWindow>,
    slow: SlowPeriods,
    newest_us: i64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Family {
    observed: Observations,
    /// Steps by size, and when the last of them ended.
    steps: BTreeMap<Size, (u64, i64)>,
    windows: u64,
    fitted_us: i64,
    /// Published rate by GPUs.
    published: BTreeMap<u32, u64>,
    newest_us: i64,
}

/// Scaling of the jobs of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Curves {
    cluster: String,
    runs: BTreeMap<String, Run>,
    /// By family name, and whether tokens are counted.
    families: BTreeMap<(String, bool), Family>,
    #[serde(skip)]
    out: Vec<Publication>,
}

impl Curves {
    pub fn new(cluster: &str) -> Self {
        Self { cluster: cluster.into(), runs: BTreeMap::new(), families: BTreeMap::new(), out: Vec::new() }
    }

    /// Takes the family and the number of nodes (0 if unknown) that a job event states.
    pub fn observe_job(&mut self, job_id: &str, family: &JobFamily, hosts: u32, at_us: i64) {
        let run = self.run(job_id, at_us);
        run.family.merge(family);
        if hosts > 0 && hosts != run.hosts {
            (run.hosts, run.window) = (hosts, None);
        }
    }

    /// The job ended at `at_us`.
    pub fn job_ended(&mut self, job_id: &str, at_us: i64) {
        let Some(mut run) = self.runs.remove(job_id) else { return };
        for whole in std::mem::take(&mut run.closed) {
            self.learn_window(job_id, &run, &whole, at_us);
        }
    }

    /// Takes a straggler signal about one of the jobs.
    pub fn observe_straggler(&mut self, signal: &v1::StragglerSignal) {
        if let Some(run) = self.runs.get_mut(&signal.job_id) {
            run.slow.observe(signal);
        }
    }

    /// Takes one rank's report of a step that ended at `end_us`.
    pub fn observe_step(&mut self, report: &v1::StepReport, end_us: i64) {
        let Some(world) = report.world_size.filter(|world| (1..=MAX_GPUS).contains(world)) else { return };
        let pauses = report.checkpoint_us.unwrap_or(0).saturating_add(report.restore_us.unwrap_or(0));
        let took_us = report.duration_us.saturating_sub(pauses);
        if took_us == 0 {
            return;
        }
        let run = self.run(&report.job_id, end_us);
        let window = run.window.take().filter(|window| window.world == world);
        let mut window = window.unwrap_or_else(|| Window::new(world));
        let whole = (window.steps.len() == WINDOW_STEPS && !window.steps.contains_key(&report.step))
            .then(|| std::mem::replace(&mut window, Window::new(world)));
        window.take(report, took_us, end_us);
        run.window = Some(window);
        run.closed.extend(whole.and_then(|window| window.closed(run.hosts)));
        let is_ripe = |whole: &ClosedWindow| end_us.saturating_sub(whole.span_us.1) >= SETTLE_US;
        if !run.closed.front().is_some_and(is_ripe) {
            return;
        }
        let Some(mut run) = self.runs.remove(&report.job_id) else { return };
        while let Some(whole) = run.closed.pop_front_if(|whole| is_ripe(whole)) {
            self.learn_window(&report.job_id, &run, &whole, end_us);
            run.slow.forget(whole.span_us.1);
        }
        self.runs.insert(report.job_id.clone(), run);
    }

    /// Hands over the curves since the last call.
    pub fn take(&mut self) -> Vec<Publication> {
        std::mem::take(&mut self.out)
    }

    /// The job's run, seen at `at_us`.
    fn run(&mut self, job_id: &str, at_us: i64) -> &mut Run {
        if !self.runs.contains_key(job_id) && self.runs.len() >= MAX_JOBS {
            // A run without steps goes before one that reports them.
            let oldest = self.runs.iter().min_by_key(|(_, run)| (run.window.is_some(), run.newest_us));
            if let Some(oldest) = oldest.map(|(job, _)| job.clone()) {
                self.runs.remove(&oldest);
            }
        }
        let new = || Run {
            family: JobFamily::default(),
            hosts: 0,
            window: None,
            closed: VecDeque::new(),
            slow: SlowPeriods::default(),
            newest_us: at_us,
        };
        let run = self.runs.entry(job_id.to_owned()).or_insert_with(new);
        run.newest_us = run.newest_us.max(at_us);
        run
    }

    /// Learns a closed window as an observation of its family, unless a part of the job was slow.
    fn learn_window(&mut self, job_id: &str, run: &Run, window: &ClosedWindow, at_us: i64) {
        if run.slow.overlaps(window.span_us) {
            return;
        }
        let of = &run.family;
        let name = of.name(job_id);
        let key = (name.clone(), window.tells_tokens);
        if !self.families.contains_key(&key) && self.families.len() >= MAX_FAMILIES {
            let oldest = self.families.iter().min_by_key(|(_, family)| family.newest_us);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.families.remove(&oldest);
            }
        }
        let family = self.families.entry(key).or_insert_with(|| Family::new(at_us));
        family.newest_us = at_us;
        let ClosedWindow { size, median_s, steps, .. } = *window;
        let before = family.steps.get(&size).copied();
        if before.is_none() && family.steps.len() >= MAX_SIZES {
            return;
        }
        let newest_us = window.span_us.1;
        let age_us = before.map_or(0, |(_, last_us)| newest_us.saturating_sub(last_us).max(0));
        let keep = 0.5_f64.powf(age_us as f64 / HALF_LIFE_US as f64);
        if family.observed.add_fading(size, median_s, steps, keep).is_err() {
            return;
        }
        let (sum, last_us) = before.unwrap_or((0, newest_us));
        family.steps.insert(size, (sum.saturating_add(steps), last_us.max(newest_us)));
        family.windows += 1;
        let is_due = family.windows.is_power_of_two()
            || family.windows.is_multiple_of(REFIT_WINDOWS)
            || at_us.saturating_sub(family.fitted_us) >= REFIT_INTERVAL_US;
        if before.is_some() && !is_due {
            return;
        }
        family.fitted_us = at_us;
        let Some((curve, points)) = family.points() else { return };
        if !family.differs_from_published(&points) {
            return;
        }
        family.published = points.iter().map(|point| (point.gpus, point.rate_milli)).collect();
        let unit = if window.tells_tokens { "TOKENS" } else { "STEPS" };
        let about = [MODEL, &self.cluster, &name, unit, &at_us.to_string(), &family.windows.to_string()];
        let source = producer_name(&about);
        let count = points.len() as u32;
        let events = (0..).zip(points).map(|(seq, point)| {
            Event::Scaling(v1::ScalingCurve {
                envelope: envelope(&self.cluster, &source, at_us, seq),
                family: name.clone(),
                team: of.team.clone(),
                user_name: of.user_name.clone(),
                job_name: of.job_name.clone(),
                gpu_model: of.gpu_model.clone(),
                job_id: (!of.is_named()).then(|| job_id.to_owned()),
                unit: unit.into(),
                form: match curve.form() {
                    Form::Pollux(_) => "POLLUX",
                    Form::Amdahl(_) => "AMDAHL",
                }
                .into(),
                points: count,
                model: MODEL.into(),
                ..point
            })
        });
        let events = events.collect();
        self.out.push(Publication { source, events });
    }
}

impl Family {
    fn new(at_us: i64) -> Self {
        Self {
            observed: Observations::default(),
            steps: BTreeMap::new(),
            windows: 0,
            fitted_us: at_us,
            published: BTreeMap::new(),
            newest_us: at_us,
        }
    }

    /// The curve and its points: the sizes seen, and powers of two up to twice the largest. `None`
    /// below two different numbers of GPUs, because one says nothing about scaling.
    fn points(&self) -> Option<(Curve, Vec<v1::ScalingCurve>)> {
        let seen: BTreeSet<u32> = self.steps.keys().map(|size| size.gpus).collect();
        let most = *seen.last().filter(|_| seen.len() > 1)?;
        let curve = Curve::fit(&self.observed).ok()?;
        let usual = |gpus: Option<u32>| {
            let sizes = self.steps.iter().filter(|(size, _)| gpus.is_none_or(|gpus| size.gpus == gpus));
            sizes.max_by_key(|(size, (steps, _))| (*steps, std::cmp::Reverse(**size))).map(|(size, _)| *size)
        };
        let local_batch = usual(None)?.local_batch;
        let per_node = self.steps.keys().map(|size| size.gpus.div_ceil(size.nodes)).max()?;
        let powers = (0..=MAX_GPUS.ilog2()).map(|power| 1 << power);
        let sizes: BTreeSet<u32> =
            powers.take_while(|gpus| *gpus <= most.saturating_mul(2)).chain(seen).collect();
        let point = |gpus: u32| {
            let nodes = usual(Some(gpus)).map_or(gpus.div_ceil(per_node), |size| size.nodes);
            let rate = curve.throughput(Size { gpus, nodes, local_batch }).ok()?;
            let milli = |rate: f64| (rate * 1e3).round() as u64;
            let steps =
                self.steps.iter().filter(|(size, _)| size.gpus == gpus).map(|(_, (steps, _))| steps).sum();
            Some(v1::ScalingCurve {
                local_batch: local_batch.into(),
                gpus,
                nodes,
                rate_milli: milli(rate.value),
                low_milli: milli(rate.low),
                high_milli: milli(rate.high),
                seen_steps: steps,
                ..v1::ScalingCurve::default()
            })
        };
        let points = sizes.into_iter().map(point).collect::<Option<Vec<_>>>()?;
        Some((curve, points))
    }

    /// Whether `points` differ from the published curve.
    fn differs_from_published(&self, points: &[v1::ScalingCurve]) -> bool {
        let differs = |point: &v1::ScalingCurve| {
            let output = self.published.get(&point.gpus).copied();
            output.is_none_or(|output| {
                (point.rate_milli as f64 / output.max(1) as f64 - 1.0).abs() > MIN_RATE_CHANGE
            })
        };
        points.len() != self.published.len() || points.iter().any(differs)
    }
}

#[cfg(test)]
mod tests;
