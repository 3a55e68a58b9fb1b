//! How families of jobs scale: their steps by size, and the curve fitted to them when they show
//! something new.
//!
//! A window of steps at one size becomes one observation, its median step: a slow step in between
//! moves it little. Fits are of all windows of a family, so what was learnt of a size stays; they
//! are made when a size is new, when windows have doubled, and once a day.
//!
//! A window in which a part of the job was slow says nothing of how it scales and is left out
//! (`slow`). Of one size, windows fade with time, so that a family that was made faster is
//! believed.

mod slow;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tidegate_events::{Event, JobFamily, v1};
use tidegate_insight::advice::scaling::{Curve, Form, Observations, Size};

use super::{Publication, US_PER_S, envelope, source};
use slow::{KNOWN_US, Slow};

/// Version of the fit, part of what is said.
const MODEL: &str = "scaling-2";
/// Steps of a window.
const WINDOW_STEPS: usize = 100;
/// Windows of a family after which it is looked at again and again, where the last doubling was
/// long ago.
const LOOKED_AT_EVERY: u64 = 64;
/// … and a window that comes so long after the last look.
const LOOKED_AT_AFTER_US: i64 = 86_400 * US_PER_S;
/// Time after which a window counts for half. Of a family that was made faster nine tenths are
/// believed after log2 10 x 2 = 6.6 days, and one odd day among steady ones is less than a third of
/// the truth (1 - 2^-0.5 = 0.29). Windows are hundreds a day, so their noise is not what asks for
/// more.
const HALF_LIFE_US: i64 = 2 * 86_400 * US_PER_S;
/// A rate that changed by less is not said again, as a share.
const CHANGE: f64 = 0.01;
/// Sizes kept of a family, families and jobs of a cluster. Further sizes are not learned; of
/// families and jobs the one that was silent longest goes.
const MOST_SIZES: usize = 24;
const MOST_FAMILIES: usize = 1_024;
const MOST_JOBS: usize = 4_096;
/// Most GPUs that are spoken of, and nodes that are told apart.
const MOST_GPUS: u32 = 1 << 16;
/// A window waits so long: until what is counted against it was said, whatever the order in which
/// jobs' signals and steps are used.
const RIPE_US: i64 = KNOWN_US + 30 * US_PER_S;
/// GPUs of a node, where neither reports nor the allocation name nodes.
const USUAL_NODE_GPUS: u32 = 8;

/// Steps of a job at one size.
#[derive(Debug, Clone)]
struct Window {
    world: u32,
    /// Longest duration of each step, µs, without checkpoints.
    steps: BTreeMap<u64, u64>,
    reports: u64,
    tokens: u128,
    tells_tokens: bool,
    nodes: BTreeSet<String>,
    /// From the begin of its first step to the end of its last, µs since 1970.
    span_us: Option<(i64, i64)>,
}

/// A window that is whole. It waits until it is known whether the job was slow.
#[derive(Debug, Clone)]
struct Whole {
    size: Size,
    median_s: f64,
    steps: u64,
    tells_tokens: bool,
    span_us: (i64, i64),
}

#[derive(Debug, Clone)]
struct Run {
    family: JobFamily,
    /// Nodes of the allocation; 0: not told.
    hosts: u32,
    window: Option<Window>,
    whole: VecDeque<Whole>,
    slow: Slow,
    newest_us: i64,
}

#[derive(Debug, Clone)]
struct Family {
    observed: Observations,
    /// By size: steps, and when the last of them were.
    steps: BTreeMap<Size, (u64, i64)>,
    windows: u64,
    looked_us: i64,
    /// What was said: rate by GPUs.
    said: BTreeMap<u32, u64>,
    newest_us: i64,
}

/// Scaling of the jobs of one cluster.
#[derive(Debug, Clone)]
pub struct Curves {
    cluster: String,
    runs: BTreeMap<String, Run>,
    /// By name, and whether tokens are counted.
    families: BTreeMap<(String, bool), Family>,
    out: Vec<Publication>,
}

impl Curves {
    pub fn new(cluster: &str) -> Self {
        Self { cluster: cluster.into(), runs: BTreeMap::new(), families: BTreeMap::new(), out: Vec::new() }
    }

    /// Takes what an event of a job tells of what it is, and on how many nodes it runs (0: not
    /// told).
    pub fn job(&mut self, job_id: &str, family: &JobFamily, hosts: u32, at_us: i64) {
        let run = self.run(job_id, at_us);
        run.family.merge(family);
        if hosts > 0 && hosts != run.hosts {
            (run.hosts, run.window) = (hosts, None);
        }
    }

    /// The job is over at `at_us`.
    pub fn ended(&mut self, job_id: &str, at_us: i64) {
        let Some(mut run) = self.runs.remove(job_id) else { return };
        for whole in std::mem::take(&mut run.whole) {
            self.close(job_id, &run, &whole, at_us);
        }
    }

    /// Takes what is said of a slow part of a job.
    pub fn slowed(&mut self, signal: &v1::StragglerSignal) {
        if let Some(run) = self.runs.get_mut(&signal.job_id) {
            run.slow.told(signal);
        }
    }

    /// Takes one rank's report of a step that ended at `end_us`.
    pub fn step(&mut self, report: &v1::StepReport, end_us: i64) {
        let Some(world) = report.world_size.filter(|world| (1..=MOST_GPUS).contains(world)) else { return };
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
        run.whole.extend(whole.and_then(|window| window.whole(run.hosts)));
        let is_ripe = |whole: &Whole| end_us.saturating_sub(whole.span_us.1) >= RIPE_US;
        if !run.whole.front().is_some_and(is_ripe) {
            return;
        }
        let Some(mut run) = self.runs.remove(&report.job_id) else { return };
        while let Some(whole) = run.whole.pop_front_if(|whole| is_ripe(whole)) {
            self.close(&report.job_id, &run, &whole, end_us);
            run.slow.forget(whole.span_us.1);
        }
        self.runs.insert(report.job_id.clone(), run);
    }

    /// Hands over what was said since the last call.
    pub fn take(&mut self) -> Vec<Publication> {
        std::mem::take(&mut self.out)
    }

    /// The job's run, which was heard of at `at_us`.
    fn run(&mut self, job_id: &str, at_us: i64) -> &mut Run {
        if !self.runs.contains_key(job_id) && self.runs.len() >= MOST_JOBS {
            // One that reports no steps goes before one that does.
            let oldest = self.runs.iter().min_by_key(|(_, run)| (run.window.is_some(), run.newest_us));
            if let Some(oldest) = oldest.map(|(job, _)| job.clone()) {
                self.runs.remove(&oldest);
            }
        }
        let new = || Run {
            family: JobFamily::default(),
            hosts: 0,
            window: None,
            whole: VecDeque::new(),
            slow: Slow::default(),
            newest_us: at_us,
        };
        let run = self.runs.entry(job_id.to_owned()).or_insert_with(new);
        run.newest_us = run.newest_us.max(at_us);
        run
    }

    /// It is known whether the job was slow in a window: if not, it is an observation of its
    /// family.
    fn close(&mut self, job_id: &str, run: &Run, window: &Whole, at_us: i64) {
        if run.slow.touches(window.span_us) {
            return;
        }
        let of = &run.family;
        let name = of.name(job_id);
        let key = (name.clone(), window.tells_tokens);
        if !self.families.contains_key(&key) && self.families.len() >= MOST_FAMILIES {
            let oldest = self.families.iter().min_by_key(|(_, family)| family.newest_us);
            if let Some(oldest) = oldest.map(|(key, _)| key.clone()) {
                self.families.remove(&oldest);
            }
        }
        let family = self.families.entry(key).or_insert_with(|| Family::new(at_us));
        family.newest_us = at_us;
        let Whole { size, median_s, steps, .. } = *window;
        let before = family.steps.get(&size).copied();
        if before.is_none() && family.steps.len() >= MOST_SIZES {
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
            || family.windows.is_multiple_of(LOOKED_AT_EVERY)
            || at_us.saturating_sub(family.looked_us) >= LOOKED_AT_AFTER_US;
        if before.is_some() && !is_due {
            return;
        }
        family.looked_us = at_us;
        let Some((curve, points)) = family.points() else { return };
        if !family.is_news(&points) {
            return;
        }
        family.said = points.iter().map(|point| (point.gpus, point.rate_milli)).collect();
        let unit = if window.tells_tokens { "TOKENS" } else { "STEPS" };
        let about = [MODEL, &self.cluster, &name, unit, &at_us.to_string(), &family.windows.to_string()];
        let source = source(&about);
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

impl Window {
    fn new(world: u32) -> Self {
        Self {
            world,
            steps: BTreeMap::new(),
            reports: 0,
            tokens: 0,
            tells_tokens: false,
            nodes: BTreeSet::new(),
            span_us: None,
        }
    }

    fn take(&mut self, report: &v1::StepReport, took_us: u64, end_us: i64) {
        let begin_us = end_us.saturating_sub(i64::try_from(report.duration_us).unwrap_or(i64::MAX));
        let (from_us, to_us) = self.span_us.unwrap_or((begin_us, end_us));
        self.span_us = Some((from_us.min(begin_us), to_us.max(end_us)));
        let longest = self.steps.entry(report.step).or_default();
        *longest = (*longest).max(took_us);
        self.reports += 1;
        self.tells_tokens |= report.tokens.is_some();
        self.tokens += u128::from(report.tokens.unwrap_or(0));
        if let Some(node) = report.node.as_ref().filter(|node| !self.nodes.contains(*node))
            && self.nodes.len() < MOST_GPUS as usize
        {
            self.nodes.insert(node.clone());
        }
    }

    fn whole(&self, hosts: u32) -> Option<Whole> {
        Some(Whole {
            size: self.size(hosts),
            median_s: self.median_s(),
            steps: self.steps.len() as u64,
            tells_tokens: self.tells_tokens,
            span_us: self.span_us?,
        })
    }

    /// Seconds of the median step.
    fn median_s(&self) -> f64 {
        let mut times: Vec<u64> = self.steps.values().copied().collect();
        times.sort_unstable();
        times.get(times.len() / 2).map_or(0.0, |us| *us as f64 / 1e6)
    }

    /// One rank a GPU. Tokens are the mean of all ranks: where one tells those of all, each has its
    /// part.
    fn size(&self, hosts: u32) -> Size {
        let named = u32::try_from(self.nodes.len()).unwrap_or(MOST_GPUS);
        let nodes = match (named, hosts) {
            (0, 0) => self.world.div_ceil(USUAL_NODE_GPUS),
            (0, hosts) => hosts,
            (named, _) => named,
        };
        let mean = self.tokens / u128::from(self.reports.max(1));
        let local_batch = if self.tells_tokens { rounded(mean) } else { 1 };
        Size { gpus: self.world, nodes: nodes.clamp(1, self.world), local_batch }
    }
}

/// To five significant bits, so that sequences of uneven length are not a size each: off by 3 % at
/// most. At least 1.
fn rounded(tokens: u128) -> u32 {
    let bits = u128::BITS - tokens.leading_zeros();
    let shift = bits.saturating_sub(5);
    let half = if shift > 0 { 1_u128 << (shift - 1) } else { 0 };
    u32::try_from((tokens + half) >> shift << shift).unwrap_or(u32::MAX).max(1)
}

impl Family {
    fn new(at_us: i64) -> Self {
        Self {
            observed: Observations::default(),
            steps: BTreeMap::new(),
            windows: 0,
            looked_us: at_us,
            said: BTreeMap::new(),
            newest_us: at_us,
        }
    }

    /// The curve and its points: sizes seen, and powers of two up to twice the largest. `None`
    /// before two numbers of GPUs were seen: one says nothing of how a job scales.
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
        let powers = (0..=MOST_GPUS.ilog2()).map(|power| 1 << power);
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

    /// Whether `points` say something else than what was said.
    fn is_news(&self, points: &[v1::ScalingCurve]) -> bool {
        let differs = |point: &v1::ScalingCurve| {
            let said = self.said.get(&point.gpus).copied();
            said.is_none_or(|said| (point.rate_milli as f64 / said.max(1) as f64 - 1.0).abs() > CHANGE)
        };
        points.len() != self.said.len() || points.iter().any(differs)
    }
}

#[cfg(test)]
mod tests;
