//! Scaling curves of job families: step times by size, and the curve that is refitted as they
//! change.
//!
//! Windows in which a part of the job was slow say nothing about scaling and are left out
//! ([`slow_periods`]); when a family is fitted anew, [`FamilyCurve`] decides.

mod slow_periods;
mod window;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, JobFamily, v1};
use tidegate_insight::advice::scaling::{FamilyCurve, Form, StepWindow};

use crate::publication::{Publication, envelope, producer_name};
use crate::time::US_PER_S;
use slow_periods::{HINDSIGHT_US, SlowPeriods};
use window::{ClosedWindow, Window};

/// Version of the fit, part of the producer name.
const MODEL: &str = "scaling-2";
/// Steps per window.
const WINDOW_STEPS: usize = 100;
/// Families and jobs kept per cluster; beyond it the longest silent one is dropped.
const MAX_FAMILIES: usize = 1_024;
const MAX_JOBS: usize = 4_096;
/// Most GPUs and nodes counted in a window.
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
    curve: FamilyCurve,
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
        let new = || Family { curve: FamilyCurve::new(at_us), newest_us: at_us };
        let family = self.families.entry(key).or_insert_with(new);
        family.newest_us = at_us;
        let ClosedWindow { size, median_s, steps, span_us, .. } = *window;
        let window_seen = StepWindow { size, median_s, steps, newest_us: span_us.1 };
        let Some((curve, points)) = family.curve.learn(&window_seen, at_us) else { return };
        let unit = if window.tells_tokens { "TOKENS" } else { "STEPS" };
        let about =
            [MODEL, &self.cluster, &name, unit, &at_us.to_string(), &family.curve.windows().to_string()];
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
                local_batch: point.size.local_batch.into(),
                gpus: point.size.gpus,
                nodes: point.size.nodes,
                rate_milli: point.rate_milli,
                low_milli: point.low_milli,
                high_milli: point.high_milli,
                seen_steps: point.seen_steps,
                points: count,
                model: MODEL.into(),
            })
        });
        let events = events.collect();
        self.out.push(Publication { source, events });
    }
}

#[cfg(test)]
mod tests;
