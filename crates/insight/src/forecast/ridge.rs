//! Ridge regression of the change over each horizon, by normal equations that horizons share.
//!
//! Coordinate descent (linfa-elasticnet with `l1_ratio` 0) gives the same forecasts to 1e-3 (test
//! below), but takes some 70 ms a horizon instead of 0.07 ms (`examples/speed.rs`): it passes over
//! the whole matrix until it converges, and shares nothing between horizons. The factorisation is
//! linfa's.

use std::f64::consts::TAU;

use linfa_linalg::cholesky::CholeskyInplace;
use ndarray::Array2;
use serde::{Deserialize, Serialize};

/// Columns shared by all horizons: state at the origin and calendar.
const SHARED: usize = 20;
/// Columns of one horizon: the target's hour 1 to 3 days back, 1 and 2 weeks back.
const OWN: usize = 5;
const ALL: usize = SHARED + OWN;

/// Options of the regression.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Ridge {
    /// Steps a day.
    pub(super) day: usize,
    /// Penalty relative to the number of rows, on standardised columns, one step ahead; it grows
    /// with each day ahead.
    pub(super) penalty: f64,
    /// Most origins to learn from.
    pub(super) rows: usize,
}

impl Ridge {
    /// Steps needed to learn.
    pub(super) fn least(&self) -> usize {
        4 * self.day
    }

    /// Expected value at each of `horizons` (rising, from 1) after the end of `y`; `None` where
    /// fewer than two days of origins have a known target, or the series is constant.
    pub(super) fn predict(&self, y: &[f64], horizons: &[usize]) -> Vec<Option<f64>> {
        let now = y.len();
        let mut out = vec![None; horizons.len()];
        let mean = y.iter().sum::<f64>() / now.max(1) as f64;
        let spread = (y.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / now.max(1) as f64).sqrt();
        let changes = spread > 1e-12 * mean.abs().max(1.0);
        if now < self.least() || !changes {
            return out;
        }
        let z: Vec<f64> = y.iter().map(|v| (v - mean) / spread).collect();
        // Lags before the series repeat its first days; the first three days are not used as
        // origins.
        let first = now.saturating_sub(self.rows).max(3 * self.day);
        let shared = Shared::new(&z, first, self.day);
        let mut gram = Gram::default();
        for (i, &h) in horizons.iter().enumerate().rev() {
            let rows = (now + 1).saturating_sub(h + first);
            if rows < 2 * self.day {
                continue;
            }
            gram.extend(&shared, rows);
            out[i] =
                self.one(&z, &shared, &gram, h, rows).map(|v| v * spread + mean).filter(|v| v.is_finite());
        }
        out
    }

    /// Fits horizon `h` on the first `rows` origins and predicts it at the last.
    fn one(&self, z: &[f64], shared: &Shared, gram: &Gram, h: usize, rows: usize) -> Option<f64> {
        let n = rows as f64;
        let base = anchor_weight(h, self.day);
        let anchors: Vec<f64> = (0..=shared.count).map(|r| shared.anchor(r, base)).collect();
        let own: Vec<Vec<f64>> =
            lags(h, self.day).iter().map(|&lag| shared.lagged(z, h, lag, &anchors)).collect();
        let target: Vec<f64> = (0..rows).map(|r| z[shared.first + r + h - 1] - anchors[r]).collect();
        let column = |j: usize| if j < SHARED { &shared.columns[j] } else { &own[j - SHARED] };
        let mut means = [0.0; ALL];
        let mut products = [0.0; ALL];
        for j in 0..ALL {
            means[j] = if j < SHARED { gram.sums[j] / n } else { sum(&column(j)[..rows]) / n };
            products[j] = dot(&column(j)[..rows], &target);
        }
        let target_mean = sum(&target) / n;
        let mut matrix = Array2::<f64>::zeros((ALL, ALL));
        for j in 0..ALL {
            for k in 0..=j {
                let product = if j < SHARED {
                    gram.products[j][k]
                } else {
                    dot(&column(j)[..rows], &column(k)[..rows])
                };
                matrix[[j, k]] = product / n - means[j] * means[k];
            }
        }
        let penalty = self.penalty * (1.0 + h as f64 / self.day as f64);
        // Penalises standardised columns without scaling them: the weight is each column's
        // variance.
        for j in 0..ALL {
            let variance = matrix[[j, j]];
            matrix[[j, j]] = variance * (1.0 + penalty) + 1e-9;
        }
        matrix.cholesky_inplace_dirty().ok()?;
        let mut weights = [0.0; ALL];
        for j in 0..ALL {
            weights[j] = products[j] / n - means[j] * target_mean;
        }
        solve(&matrix, &mut weights);
        let mut value = target_mean + anchors[shared.count];
        for j in 0..ALL {
            value += weights[j] * (column(j)[shared.count] - means[j]);
        }
        value.is_finite().then_some(value)
    }
}

/// Weight of the last week's mean against the last value as the anchor of a target. Shrinking to
/// "no change" is right for an hour and wrong for a week.
fn anchor_weight(h: usize, day: usize) -> f64 {
    ((h as f64 - day as f64 / 4.0) / (3.0 * day as f64)).clamp(0.0, 1.0)
}

/// Lags of the columns of horizon `h`, in steps before the target; all known at the origin.
fn lags(h: usize, day: usize) -> [usize; OWN] {
    let (d, w) = (h.div_ceil(day) * day, h.div_ceil(7 * day) * 7 * day);
    [d, d + day, d + 2 * day, w, w + 7 * day]
}

struct Shared {
    day: usize,
    /// First origin learned from.
    first: usize,
    /// Origins learned from; the row after them is the present.
    count: usize,
    columns: Vec<Vec<f64>>,
    last: Vec<f64>,
    week: Vec<f64>,
}

impl Shared {
    fn new(z: &[f64], first: usize, day: usize) -> Self {
        let count = z.len() - first;
        let mut columns = vec![Vec::new(); SHARED];
        let mut sums = vec![0.0; z.len() + 1];
        for (i, v) in z.iter().enumerate() {
            sums[i + 1] = sums[i] + v;
        }
        let mean = |t: usize, n: usize| (sums[t] - sums[t - n.min(t)]) / n.min(t) as f64;
        let (mut last, mut week) = (Vec::with_capacity(count + 1), Vec::with_capacity(count + 1));
        for t in first..=z.len() {
            let value = z[t - 1];
            let means = [day / 4, day, 7 * day, 14 * day].map(|n| mean(t, n.max(1)));
            let state = [
                value,
                value - z[t - 2],
                value - z[t - 3],
                value - z[t - 4],
                means[0] - value,
                means[1] - value,
                means[2] - value,
                means[3] - value,
            ];
            for (column, v) in columns.iter_mut().zip(state) {
                column.push(v);
            }
            for k in 0..3 {
                for (p, period) in [day, 7 * day].into_iter().enumerate() {
                    let angle = TAU * (k + 1) as f64 * (t % period) as f64 / period as f64;
                    columns[8 + 6 * p + 2 * k].push(angle.sin());
                    columns[9 + 6 * p + 2 * k].push(angle.cos());
                }
            }
            last.push(value);
            week.push(means[2]);
        }
        Self { day, first, count, columns, last, week }
    }

    fn anchor(&self, row: usize, weight: f64) -> f64 {
        (1.0 - weight) * self.last[row] + weight * self.week[row]
    }

    /// The value `lag` steps before each origin's target, relative to the anchor.
    fn lagged(&self, z: &[f64], h: usize, lag: usize, anchors: &[f64]) -> Vec<f64> {
        (0..=self.count)
            .map(|r| {
                let target = self.first + r + h - 1;
                let at = if target >= lag { target - lag } else { target % self.day };
                z[at] - anchors[r]
            })
            .collect()
    }
}

/// Products of the shared columns over the origins so far. Horizons come longest first; each adds
/// the origins that the longer one lacked.
#[derive(Default)]
struct Gram {
    rows: usize,
    sums: [f64; SHARED],
    products: [[f64; SHARED]; SHARED],
}

impl Gram {
    fn extend(&mut self, shared: &Shared, rows: usize) {
        for j in 0..SHARED {
            let a = &shared.columns[j][self.rows..rows];
            self.sums[j] += sum(a);
            for k in 0..=j {
                self.products[j][k] += dot(a, &shared.columns[k][self.rows..rows]);
            }
        }
        self.rows = rows;
    }
}

/// Solves `L Lᵀ x = b` in place; `L` in the lower triangle.
fn solve(factor: &Array2<f64>, b: &mut [f64; ALL]) {
    for j in 0..ALL {
        let known: f64 = (0..j).map(|k| factor[[j, k]] * b[k]).sum();
        b[j] = (b[j] - known) / factor[[j, j]];
    }
    for j in (0..ALL).rev() {
        let known: f64 = (j + 1..ALL).map(|k| factor[[k, j]] * b[k]).sum();
        b[j] = (b[j] - known) / factor[[j, j]];
    }
}

/// Inner product in eight partial sums: vectorised, and in the same order on every machine.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut lanes = [0.0; 8];
    let (x, y) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = x.remainder().iter().zip(y.remainder()).map(|(p, q)| p * q).sum();
    for (p, q) in x.zip(y) {
        for i in 0..8 {
            lanes[i] += p[i] * q[i];
        }
    }
    lanes.iter().sum::<f64>() + rest
}

fn sum(a: &[f64]) -> f64 {
    a.iter().sum()
}

#[cfg(test)]
mod tests {
    use linfa::{
        Dataset,
        traits::{Fit, Predict},
    };
    use linfa_elasticnet::ElasticNet;
    use ndarray::{Array1, Array2};

    use super::*;

    const DAY: usize = 24;

    fn ridge() -> Ridge {
        Ridge { day: DAY, penalty: 1.0, rows: 1008 }
    }

    fn series(n: usize) -> Vec<f64> {
        (0..n)
            .map(|t| {
                let noise = ((t * 7919 + 13) % 211) as f64 / 20.0;
                50.0 + 10.0 * (t as f64 * TAU / 24.0).sin() + noise + t as f64 / 100.0
            })
            .collect()
    }

    /// The same columns, standardised, through coordinate descent.
    fn by_linfa(y: &[f64], h: usize) -> f64 {
        let mean = y.iter().sum::<f64>() / y.len() as f64;
        let spread = (y.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / y.len() as f64).sqrt();
        let z: Vec<f64> = y.iter().map(|v| (v - mean) / spread).collect();
        let first = 3 * DAY;
        let shared = Shared::new(&z, first, DAY);
        let rows = z.len() + 1 - h - first;
        let base = anchor_weight(h, DAY);
        let anchors: Vec<f64> = (0..=shared.count).map(|r| shared.anchor(r, base)).collect();
        let mut columns = shared.columns.clone();
        columns.extend(lags(h, DAY).iter().map(|lag| shared.lagged(&z, h, *lag, &anchors)));
        let n = rows as f64;
        for column in &mut columns {
            let mean = sum(&column[..rows]) / n;
            let sd = (column[..rows].iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
            column.iter_mut().for_each(|v| *v = (*v - mean) / sd);
        }
        let x = Array2::from_shape_fn((rows, ALL), |(r, j)| columns[j][r]);
        let target = Array1::from_shape_fn(rows, |r| z[first + r + h - 1] - anchors[r]);
        let penalty = 1.0 + h as f64 / DAY as f64;
        let fitted = ElasticNet::params()
            .l1_ratio(0.0)
            .penalty(penalty)
            .max_iterations(1_000)
            .tolerance(1e-10)
            .fit(&Dataset::new(x, target))
            .unwrap();
        let now = Array2::from_shape_fn((1, ALL), |(_, j)| columns[j][shared.count]);
        (fitted.predict(&now)[0] + anchors[shared.count]) * spread + mean
    }

    #[test]
    fn it_is_the_ridge_of_linfa() {
        let y = series(700);
        for h in [1, 7, 24, 100] {
            let own = ridge().predict(&y, &[h])[0].unwrap();
            let linfa = by_linfa(&y, h);
            assert!((own - linfa).abs() < 1e-3, "{h}: {own} {linfa}");
        }
    }

    #[test]
    fn what_does_not_change_or_is_short_is_not_learned() {
        assert_eq!(ridge().predict(&[5.0; 500], &[1, 24]), [None, None]);
        assert_eq!(ridge().predict(&series(95), &[1]), [None]);
        let some = ridge().predict(&series(130), &[1, 100]);
        assert!(some[0].is_some() && some[1].is_none());
        assert_eq!(ridge().predict(&[], &[1]), [None]);
    }
}
