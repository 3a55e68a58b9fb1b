//! Track record of past forecasts: residuals give the spread, scores the weights, coverage the
//! calibration. Only known truth is used, so a replayed forecast equals the one made at the time.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::distribution::{LEVELS, quantiles_of_weighted};

/// Members with one value per horizon; their spread comes from residuals.
pub(super) const POINT_MEMBERS: usize = 4;
/// All members: the above and the quantiles of the last week.
pub(super) const MEMBERS: usize = POINT_MEMBERS + 1;

/// Levels by which members are weighed, as indices into `LEVELS`: 0.1, 0.3, 0.5, 0.7, 0.9, 0.95.
const SCORED: [usize; 6] = [2, 6, 10, 14, 18, 19];

/// Bounds of the horizon buckets, in steps for a day of 24.
const BUCKETS: [usize; 8] = [1, 3, 6, 12, 24, 48, 96, 168];
pub(super) const BUCKET_COUNT: usize = BUCKETS.len() + 1;

/// Bucket of horizon `h`.
pub(super) fn bucket(h: usize, day: usize) -> usize {
    BUCKETS.partition_point(|bound| *bound * day < h * 24)
}

/// Quantiles on all levels.
pub(super) type Row = [f64; LEVELS.len()];

/// A recorded forecast whose truth is not fully known.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    origin: usize,
    /// By anchor.
    points: Vec<[Option<f64>; POINT_MEMBERS]>,
    members: Vec<[Option<[f64; SCORED.len()]>; MEMBERS]>,
    /// Published q10, q50, q90.
    whole: Vec<[f64; 3]>,
}

/// Settings of the trailing window.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Tuning {
    /// Steps between records.
    pub(super) stride: usize,
    /// Residuals kept per member and horizon.
    pub(super) kept: usize,
    /// Factor on a residual's weight for each newer one.
    pub(super) fade: f64,
    /// Factor on a score's weight for each newer origin in the same bucket.
    pub(super) forget: f64,
    /// Exponent of the inverse score.
    pub(super) power: f64,
    /// Number of scores that weigh as much as the prior.
    pub(super) prior: f64,
    /// Step size of the adaptive calibration.
    pub(super) rate: f64,
}

/// Initial logarithm of the widening. An average of members errs less than each, so within a day
/// their mean spread is too wide. Days ahead, residuals are too few and too alike.
const WIDENED: [[f64; 2]; BUCKET_COUNT] =
    [[0.0; 2], [-0.1; 2], [-0.1; 2], [-0.1; 2], [-0.1; 2], [0.0; 2], [0.1; 2], [0.2; 2], [0.2; 2]];

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Trailing {
    anchors: Vec<usize>,
    day: usize,
    tuning: Tuning,
    records: VecDeque<Record>,
    /// By member and anchor: truth less point, oldest first.
    residuals: Vec<VecDeque<f64>>,
    /// By bucket and member: weighted pinball and weight.
    scores: [[(f64, f64); MEMBERS]; BUCKET_COUNT],
    /// By bucket: logarithm of the widening below and above the median.
    widening: [[f64; 2]; BUCKET_COUNT],
}

impl Trailing {
    pub(super) fn new(anchors: &[usize], day: usize, tuning: Tuning) -> Self {
        Self {
            anchors: anchors.to_vec(),
            day,
            tuning,
            records: VecDeque::new(),
            residuals: vec![VecDeque::new(); POINT_MEMBERS * anchors.len()],
            scores: [[(0.0, 0.0); MEMBERS]; BUCKET_COUNT],
            widening: WIDENED,
        }
    }

    /// Records a forecast made at `origin`.
    pub(super) fn record(
        &mut self,
        origin: usize,
        points: Vec<[Option<f64>; POINT_MEMBERS]>,
        members: &[[Option<Row>; MEMBERS]],
        whole: &[Row],
    ) {
        let pick = |row: &Row| SCORED.map(|level| row[level]);
        self.records.push_back(Record {
            origin,
            points,
            members: members.iter().map(|members| members.each_ref().map(|p| p.as_ref().map(pick))).collect(),
            whole: whole.iter().map(|row| [row[2], row[10], row[18]]).collect(),
        });
    }

    /// Takes the value of step `at`, the truth of all recorded forecasts of it.
    pub(super) fn observe_truth(&mut self, at: usize, y: f64) {
        let longest = self.anchors.last().copied().unwrap_or(0);
        while self.records.front().is_some_and(|r| r.origin + longest <= at) {
            self.records.pop_front();
        }
        for record in &self.records {
            let Some(h) = (at + 1).checked_sub(record.origin) else { continue };
            let Ok(i) = self.anchors.binary_search(&h) else { continue };
            let bucket = bucket(h, self.day);
            for (k, point) in record.points[i].iter().enumerate() {
                let Some(point) = point else { continue };
                let residuals = &mut self.residuals[k * self.anchors.len() + i];
                if residuals.len() == self.tuning.kept {
                    residuals.pop_front();
                }
                residuals.push_back(y - point);
            }
            let each = anchors_in(&self.anchors, bucket, self.day);
            let keep = self.tuning.forget.powf(1.0 / each);
            for (score, part) in self.scores[bucket].iter_mut().zip(&record.members[i]) {
                let Some(part) = part else { continue };
                score.0 = keep * score.0 + pinball(part, y);
                score.1 = keep * score.1 + 1.0;
            }
            let [low, middle, high] = record.whole[i];
            // Overlapping forecasts miss together; one burst must not count as many.
            let alone = (self.tuning.stride as f64 / h as f64).min(1.0);
            let width = self.tuning.rate * alone / each;
            let [below, above] = &mut self.widening[bucket];
            if low < middle || y < low {
                *below += width * (f64::from(u8::from(y < low)) - 0.1);
            }
            if high > middle || y > high {
                *above += width * (f64::from(u8::from(y > high)) - 0.1);
            }
            *below = below.clamp(-0.7, 1.1);
            *above = above.clamp(-0.7, 1.1);
        }
    }

    /// Quantiles of the signed residuals of member `k` at anchor `i`; `None` below `least`
    /// residuals.
    pub(super) fn spread(
        &self,
        k: usize,
        i: usize,
        least: usize,
        scratch: &mut Vec<(f64, f64)>,
    ) -> Option<Row> {
        let residuals = &self.residuals[k * self.anchors.len() + i];
        if residuals.len() < least {
            return None;
        }
        scratch.clear();
        let mut weight = 1.0;
        for residual in residuals.iter().rev() {
            scratch.push((*residual, weight));
            weight *= self.tuning.fade;
        }
        scratch.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        Some(quantiles_of_weighted(scratch))
    }

    /// Weights of the members at horizon `h`: the prior times a power of the inverse trailing
    /// pinball. The power grows with the number of scores.
    pub(super) fn weights(&self, h: usize, prior: [f64; MEMBERS]) -> [f64; MEMBERS] {
        let bucket = bucket(h, self.day);
        let scores = self.scores[bucket];
        let best = scores.iter().filter(|s| s.1 > 0.0).map(|s| s.0 / s.1).fold(f64::INFINITY, f64::min);
        // A floor, so that a member that never erred is no better than one that hardly did.
        let worst = scores.iter().filter(|s| s.1 > 0.0).map(|s| s.0 / s.1).fold(0.0, f64::max);
        let floor = (1e-6 * worst).max(f64::MIN_POSITIVE);
        let each = anchors_in(&self.anchors, bucket, self.day);
        let mut weights = prior;
        for (weight, (sum, count)) in weights.iter_mut().zip(scores) {
            if count > 0.0 {
                // Forecasts of far horizons overlap, and are right or wrong together.
                let origins = count / each * (self.tuning.stride as f64 / h as f64).min(1.0);
                let power = self.tuning.power * origins / (origins + self.tuning.prior);
                // Never zero, because all other members may have no value.
                *weight =
                    (*weight).max(1e-9) * ((sum / count).max(floor) / best.max(floor)).powf(-power).max(1e-9);
            }
        }
        weights
    }

    /// Factors on the spread below and above the median at horizon `h`.
    pub(super) fn widening(&self, h: usize) -> [f64; 2] {
        self.widening[bucket(h, self.day)].map(f64::exp)
    }
}

fn anchors_in(anchors: &[usize], wanted: usize, day: usize) -> f64 {
    anchors.iter().filter(|h| bucket(**h, day) == wanted).count().max(1) as f64
}

fn pinball(part: &[f64; SCORED.len()], y: f64) -> f64 {
    SCORED
        .iter()
        .zip(part)
        .map(|(level, q)| {
            let (level, e) = (LEVELS[*level], y - q);
            (level * e).max((level - 1.0) * e)
        })
        .sum()
}
