//! The curve of one family of jobs: a fit to windows of its steps, renewed as they change.
//!
//! A window of steps at one size gives one observation, its median step, so single slow steps
//! hardly count. A fit uses all windows of a family, which keeps what was learnt at other sizes. It
//! is renewed when a size is new, when the number of windows has doubled, and once a day. At each
//! size older windows fade, so that a family that became faster is believed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Curve, Observations, Size};

/// A family is also refitted after this many windows, where the last doubling was long ago …
const REFIT_WINDOWS: u64 = 64;
/// … and when a window comes this long after the last fit.
const REFIT_INTERVAL_US: i64 = 86_400_000_000;
/// Age at which a window counts half. After a family became faster, nine tenths of the new speed
/// are believed after log2 10 x 2 = 6.6 days; one odd day among steady ones moves the estimate by
/// less than a third (1 - 2^-0.5 = 0.29). There are hundreds of windows a day, so their noise asks
/// for no longer memory.
const HALF_LIFE_US: i64 = 2 * 86_400_000_000;
/// Smallest change of a rate that is published, as a share.
const MIN_RATE_CHANGE: f64 = 0.01;
/// Sizes kept; further ones are not learnt.
const MAX_SIZES: usize = 24;
/// Most GPUs of a published point.
const MAX_GPUS: u32 = 1 << 16;

/// Steps of a family at one size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepWindow {
    /// The size.
    pub size: Size,
    /// Median step, seconds.
    pub median_s: f64,
    /// Number of steps.
    pub steps: u64,
    /// When the last of them ended, µs.
    pub newest_us: i64,
}

/// One size on a family's curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FamilyPoint {
    /// The size: GPUs, the nodes they are spread over, and units each processes in a step.
    pub size: Size,
    /// Thousandths of a unit per second: expected, and the quantiles 10 % and 90 %.
    pub rate_milli: u64,
    /// See `rate_milli`.
    pub low_milli: u64,
    /// See `rate_milli`.
    pub high_milli: u64,
    /// Steps observed at this number of GPUs; 0 if the value is extrapolated.
    pub seen_steps: u64,
}

/// What the windows of a family taught, and the curve last published.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct FamilyCurve {
    observed: Observations,
    /// Steps by size, and when the last of them ended.
    steps: BTreeMap<Size, (u64, i64)>,
    windows: u64,
    fitted_us: i64,
    /// Published rate by GPUs.
    published: BTreeMap<u32, u64>,
}

impl FamilyCurve {
    /// A family first seen at `at_us`.
    pub fn new(at_us: i64) -> Self {
        Self {
            observed: Observations::default(),
            steps: BTreeMap::new(),
            windows: 0,
            fitted_us: at_us,
            published: BTreeMap::new(),
        }
    }

    /// Number of windows learnt.
    pub fn windows(&self) -> u64 {
        self.windows
    }

    /// Number of sizes learnt.
    pub fn sizes(&self) -> usize {
        self.steps.len()
    }

    /// Learns a window at `at_us`. Returns the curve and its points where they are to be published:
    /// the sizes seen, and powers of two up to twice the largest.
    pub fn learn(&mut self, window: &StepWindow, at_us: i64) -> Option<(Curve, Vec<FamilyPoint>)> {
        let StepWindow { size, median_s, steps, newest_us } = *window;
        let before = self.steps.get(&size).copied();
        if before.is_none() && self.steps.len() >= MAX_SIZES {
            return None;
        }
        let age_us = before.map_or(0, |(_, last_us)| newest_us.saturating_sub(last_us).max(0));
        let keep = 0.5_f64.powf(age_us as f64 / HALF_LIFE_US as f64);
        self.observed.add_fading(size, median_s, steps, keep).ok()?;
        let (sum, last_us) = before.unwrap_or((0, newest_us));
        self.steps.insert(size, (sum.saturating_add(steps), last_us.max(newest_us)));
        self.windows += 1;
        let is_due = self.windows.is_power_of_two()
            || self.windows.is_multiple_of(REFIT_WINDOWS)
            || at_us.saturating_sub(self.fitted_us) >= REFIT_INTERVAL_US;
        if before.is_some() && !is_due {
            return None;
        }
        self.fitted_us = at_us;
        let (curve, points) = self.points()?;
        if !self.differs_from_published(&points) {
            return None;
        }
        self.published = points.iter().map(|point| (point.size.gpus, point.rate_milli)).collect();
        Some((curve, points))
    }

    /// The curve and its points. `None` below two different numbers of GPUs, because one says
    /// nothing about scaling.
    fn points(&self) -> Option<(Curve, Vec<FamilyPoint>)> {
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
            let size = Size { gpus, nodes, local_batch };
            let rate = curve.throughput(size).ok()?;
            let milli = |rate: f64| (rate * 1e3).round() as u64;
            let seen_steps =
                self.steps.iter().filter(|(size, _)| size.gpus == gpus).map(|(_, (steps, _))| steps).sum();
            Some(FamilyPoint {
                size,
                rate_milli: milli(rate.value),
                low_milli: milli(rate.low),
                high_milli: milli(rate.high),
                seen_steps,
            })
        };
        let points = sizes.into_iter().map(point).collect::<Option<Vec<_>>>()?;
        Some((curve, points))
    }

    /// Whether `points` differ from the published curve.
    fn differs_from_published(&self, points: &[FamilyPoint]) -> bool {
        let differs = |point: &FamilyPoint| {
            let output = self.published.get(&point.size.gpus).copied();
            output.is_none_or(|output| {
                (point.rate_milli as f64 / output.max(1) as f64 - 1.0).abs() > MIN_RATE_CHANGE
            })
        };
        points.len() != self.published.len() || points.iter().any(differs)
    }
}
