//! Expected step time for a rank's tokens: `compute = a * tokens + b * sum(length^2) + c` by ridge
//! regression (ResiHP's form), one fit per role over the last 500 steps. It removes what uneven
//! sequences explain; without token counts it does nothing.

use serde::{Deserialize, Serialize};

/// Steps between fits, and batches of steps that a fit covers.
const BATCH: u32 = 50;
const BATCHES: usize = 10;
/// Ridge penalty relative to the features' own spread.
const RIDGE: f64 = 1e-3;

/// Sums over a batch of rows.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Sums {
    n: f64,
    tokens: f64,
    squared: f64,
    time: f64,
    tokens2: f64,
    tokens_squared: f64,
    squared2: f64,
    tokens_time: f64,
    squared_time: f64,
    time2: f64,
}

impl Sums {
    fn row(&mut self, tokens: f64, squared: f64, time: f64) {
        self.n += 1.0;
        self.tokens += tokens;
        self.squared += squared;
        self.time += time;
        self.tokens2 += tokens * tokens;
        self.tokens_squared += tokens * squared;
        self.squared2 += squared * squared;
        self.tokens_time += tokens * time;
        self.squared_time += squared * time;
        self.time2 += time * time;
    }

    fn add(&mut self, other: &Sums) {
        self.n += other.n;
        self.tokens += other.tokens;
        self.squared += other.squared;
        self.time += other.time;
        self.tokens2 += other.tokens2;
        self.tokens_squared += other.tokens_squared;
        self.squared2 += other.squared2;
        self.tokens_time += other.tokens_time;
        self.squared_time += other.squared_time;
        self.time2 += other.time2;
    }
}

/// A linear fit, relative to the role's mean time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Fit {
    tokens_mean: f64,
    squared_mean: f64,
    /// Time per token and per squared token, over the mean time.
    per_token: f64,
    per_squared: f64,
    /// Share of the variance explained.
    explained: f64,
}

/// The fits of a job's roles.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Workload {
    roles: Vec<Role>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Role {
    now: Sums,
    steps: u32,
    past: Vec<Sums>,
    next: usize,
    fit: Option<Fit>,
}

impl Workload {
    pub fn new(roles: usize) -> Self {
        Self { roles: vec![Role::default(); roles] }
    }

    /// Divisor for a computing time: 1 for the role's mean workload, or without a fit.
    pub fn expected(&self, role: u32, tokens: f32, squared: f32) -> f32 {
        self.roles[role as usize].fit.map_or(1.0, |fit| fit.expected(tokens, squared))
    }

    /// Share of the variance of a role's times that its workload explains; zero without token
    /// counts.
    pub fn explained(&self, role: u32) -> f64 {
        self.roles[role as usize].fit.map_or(0.0, |fit| fit.explained)
    }

    /// Takes one rank's step: tokens, squared tokens (NaN: unknown), seconds.
    pub fn row(&mut self, role: u32, tokens: f32, squared: f32, time: f32) {
        if tokens.is_nan() || !time.is_finite() {
            return;
        }
        let squared = if squared.is_nan() { 0.0 } else { f64::from(squared) };
        self.roles[role as usize].now.row(f64::from(tokens), squared, f64::from(time));
    }

    /// Ends a step. Fits are renewed every 50 steps, the first after 10.
    pub fn end_step(&mut self) {
        for role in &mut self.roles {
            role.steps += 1;
            let full = role.steps >= BATCH;
            if !(full || role.past.is_empty() && role.steps == 10) {
                continue;
            }
            let mut all = role.now;
            role.past.iter().for_each(|sums| all.add(sums));
            role.fit = fit(&all);
            if full {
                let sums = std::mem::take(&mut role.now);
                role.steps = 0;
                if role.past.len() < BATCHES {
                    role.past.push(sums);
                } else {
                    role.past[role.next] = sums;
                    role.next = (role.next + 1) % BATCHES;
                }
            }
        }
    }
}

impl Fit {
    fn expected(&self, tokens: f32, squared: f32) -> f32 {
        if tokens.is_nan() {
            return 1.0;
        }
        let squared = if squared.is_nan() { self.squared_mean } else { f64::from(squared) };
        let expected = 1.0
            + self.per_token * (f64::from(tokens) - self.tokens_mean)
            + self.per_squared * (squared - self.squared_mean);
        // A poor fit at absurd workloads must not dominate a ratio.
        expected.clamp(0.1, 10.0) as f32
    }
}

/// Ridge on the two centred features, each in units of its spread; the mean is not penalised.
fn fit(sums: &Sums) -> Option<Fit> {
    const FEWEST_ROWS: f64 = 30.0;
    let n = sums.n;
    if n < FEWEST_ROWS {
        return None;
    }
    let (tokens_mean, squared_mean, time_mean) = (sums.tokens / n, sums.squared / n, sums.time / n);
    let tt = sums.tokens2 / n - tokens_mean * tokens_mean;
    let ss = sums.squared2 / n - squared_mean * squared_mean;
    let yy = sums.time2 / n - time_mean * time_mean;
    let ty = sums.tokens_time / n - tokens_mean * time_mean;
    let sy = sums.squared_time / n - squared_mean * time_mean;
    let ts = sums.tokens_squared / n - tokens_mean * squared_mean;
    // Cancellation leaves about 1e-12 of the squares; less spread than that counts as none.
    let spread = |variance: f64, mean: f64| if variance > 1e-9 * mean * mean { variance.sqrt() } else { 0.0 };
    let (t, s) = (spread(tt, tokens_mean), spread(ss, squared_mean));
    let time = spread(yy, time_mean);
    if time_mean <= 0.0 || (t == 0.0 && s == 0.0) || time == 0.0 {
        return None;
    }
    let unit = |value: f64, scale: f64| if scale > 0.0 { value / scale } else { 0.0 };
    let (a, b, c) = (1.0 + RIDGE, unit(unit(ts, t), s), 1.0 + RIDGE);
    let (u, v) = (unit(ty, t), unit(sy, s));
    let determinant = a * c - b * b;
    let (on_t, on_s) = ((c * u - b * v) / determinant, (a * v - b * u) / determinant);
    let explained = ((on_t * u + on_s * v) / yy).clamp(0.0, 1.0);
    let fit = Fit {
        tokens_mean,
        squared_mean,
        per_token: unit(on_t, t) / time_mean,
        per_squared: unit(on_s, s) / time_mean,
        explained,
    };
    (fit.per_token.is_finite() && fit.per_squared.is_finite()).then_some(fit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_line_it_was_given() {
        let mut workload = Workload::new(1);
        for step in 0..50_u32 {
            for rank in 0..8_u32 {
                let tokens = 1000.0 + 37.0 * ((step * 7 + rank * 13) % 23) as f32;
                let squared = 1e6 + 1e4 * ((step * 5 + rank * 3) % 19) as f32;
                workload.row(0, tokens, squared, 0.2 + 2e-4 * tokens + 3e-7 * squared);
            }
            workload.end_step();
        }
        let time = |tokens: f32, squared: f32| 0.2 + 2e-4 * tokens + 3e-7 * squared;
        let ratio = workload.expected(0, 1800.0, 1.15e6) / workload.expected(0, 1000.0, 1.0e6);
        let truth = time(1800.0, 1.15e6) / time(1000.0, 1.0e6);
        assert!((ratio / truth - 1.0).abs() < 2e-3, "{ratio} {truth}");
        assert!(workload.explained(0) > 0.99);
    }

    #[test]
    fn no_tokens_or_equal_tokens_explain_nothing() {
        let mut workload = Workload::new(2);
        for step in 0..100 {
            for _ in 0..4 {
                workload.row(0, f32::NAN, f32::NAN, 1.0);
                workload.row(1, 4096.0, 1e6, 1.0 + 0.01 * (step % 3) as f32);
            }
            workload.end_step();
        }
        assert_eq!(workload.expected(0, 5.0, 5.0), 1.0);
        assert_eq!(workload.expected(1, 9000.0, 5.0), 1.0);
    }

    #[test]
    fn agrees_with_linfa_ridge_when_hardly_penalised() {
        use linfa::prelude::*;
        let rows: Vec<(f64, f64)> = (0..200)
            .map(|i| (f64::from(i % 17), 3.0 + 0.5 * f64::from(i % 17) + 0.1 * f64::from(i % 5)))
            .collect();
        let mut sums = Sums::default();
        rows.iter().for_each(|(x, y)| sums.row(*x, 0.0, *y));
        // linfa-elasticnet 0.8.1 centres the target but not the features, so they are centred here.
        let middle = rows.iter().map(|row| row.0).sum::<f64>() / 200.0;
        let records = ndarray::Array2::from_shape_fn((200, 1), |(i, _)| rows[i].0 - middle);
        let targets = ndarray::Array1::from_iter(rows.iter().map(|row| row.1));
        let model = linfa_elasticnet::ElasticNet::<f64>::ridge()
            .penalty(1e-6)
            .fit(&linfa::Dataset::new(records, targets))
            .unwrap();
        let ours = fit(&sums).unwrap();
        let mean = sums.time / sums.n;
        let (ours, theirs) = (ours.per_token * mean, model.hyperplane()[0]);
        assert!((ours - theirs).abs() < 2e-3, "{ours} {theirs}");
    }
}
