//! CUSUM bank: many series watched for an upward change, each with its own baseline (Page 1954), in
//! flat arrays, O(1) per value.
//!
//! Values are logarithms of ratios, or shares of a step; a change of 0.05 is 5 %.

use serde::{Deserialize, Serialize};

use super::history::{DEPTH, Rows};
use super::order_statistics;
use super::settings::Settings;

/// Parameters that differ between kinds of series.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Tuning {
    /// Lower bound of the noise (standard deviation).
    pub noise_floor: f64,
    /// Smallest change that matters.
    pub effect_floor: f64,
    /// Upper bound to which noise may raise that change.
    pub effect_cap: f64,
    /// Smallest slack, in units of noise.
    pub slack: f64,
    /// Values far from the baseline do not move it, even without a suspicion.
    pub cautious: bool,
    /// Values are deviations already, so the baseline is zero.
    pub centred: bool,
}

/// Deviations of a series from its baseline over some rows.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Window {
    pub count: usize,
    pub median: f32,
    /// Share of rows above half of the effect.
    pub above: f32,
}

/// The series of one kind.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct CusumBank {
    tuning: Tuning,
    settings: Settings,
    limit: f64,
    pub values: Rows,
    /// Rows so far.
    rows: u64,
    base: Vec<f32>,
    noise: Vec<f32>,
    slack: Vec<f32>,
    clip: Vec<f32>,
    bound: Vec<f32>,
    sum: Vec<f32>,
    /// Row at which the sum was last zero.
    zero: Vec<u64>,
    /// An episode is about the series: no new suspicion, and the baseline is kept.
    held: Vec<bool>,
    /// The reference of the series is itself slow: the baseline is kept.
    frozen: Vec<bool>,
    /// First row that may count for a baseline; rows of an episode may not.
    clean: Vec<u64>,
    /// Row before which a failed suspicion is not retried.
    retry: Vec<u64>,
    effect: f32,
    /// Series above their bound at the last row.
    pub alarms: Vec<u32>,
    scratch: Vec<f32>,
    deviations: Vec<f32>,
}

impl CusumBank {
    pub fn new(series: usize, watched: usize, tuning: Tuning, settings: &Settings) -> Self {
        Self {
            tuning,
            settings: *settings,
            limit: settings.limit(watched),
            values: Rows::new(series),
            rows: 0,
            base: vec![f32::NAN; series],
            noise: vec![tuning.noise_floor as f32; series],
            slack: vec![0.0; series],
            clip: vec![0.0; series],
            bound: vec![f32::INFINITY; series],
            sum: vec![0.0; series],
            zero: vec![0; series],
            held: vec![false; series],
            frozen: vec![false; series],
            clean: vec![0; series],
            retry: vec![0; series],
            effect: tuning.effect_cap as f32,
            alarms: Vec::new(),
            scratch: Vec::with_capacity(DEPTH),
            deviations: vec![f32::NAN; series],
        }
    }

    pub fn effect(&self) -> f32 {
        self.effect
    }

    pub fn noise(&self, series: usize) -> f32 {
        self.noise[series]
    }

    pub fn base(&self, series: usize) -> f32 {
        self.base[series]
    }

    pub fn width(&self) -> usize {
        self.base.len()
    }

    /// First row after the sum left zero.
    pub fn left_zero(&self, series: usize) -> u64 {
        self.zero[series] + 1
    }

    pub fn hold(&mut self, series: usize, held: bool) {
        self.held[series] = held;
        self.sum[series] = 0.0;
        self.zero[series] = self.rows.saturating_sub(1);
        self.clean[series] = self.rows;
    }

    /// Keeps a baseline while its reference is itself slow.
    pub fn freeze(&mut self, series: usize, frozen: bool) {
        if frozen != self.frozen[series] {
            self.frozen[series] = frozen;
            self.clean[series] = self.rows;
        }
    }

    pub fn any_frozen(&self) -> bool {
        self.frozen.contains(&true)
    }

    pub fn is_frozen(&self, series: usize) -> bool {
        self.frozen[series]
    }

    /// Sets a baseline that is known from elsewhere.
    pub fn rebase(&mut self, series: usize, base: f32) {
        self.base[series] = base;
    }

    pub fn is_held(&self, series: usize) -> bool {
        self.held[series]
    }

    pub fn may_try(&self, series: usize) -> bool {
        self.retry[series] <= self.rows
    }

    pub fn retry_after(&mut self, series: usize, rows: u64) {
        self.retry[series] = self.rows + rows;
    }

    /// Takes the row written as `seq`: one value per series, NaN where it is missing.
    pub fn advance(&mut self, seq: u64) {
        self.alarms.clear();
        let row = self.values.row(seq);
        // The first steps of a run are slow everywhere: caches, compilation, first touches of
        // memory.
        let row = if seq < u64::from(self.settings.skip_steps) { &[] } else { row };
        for (series, &value) in row.iter().enumerate() {
            if value.is_nan() {
                continue;
            }
            // Without a baseline the difference is NaN, and `max` makes the sum zero.
            let change = (value - self.base[series]).min(self.clip[series]).max(-self.clip[series]);
            let sum = (self.sum[series] + change - self.slack[series]).max(0.0);
            if sum == 0.0 {
                self.zero[series] = seq;
            }
            self.sum[series] = sum.min(2.0 * self.bound[series]);
            if sum > self.bound[series] && !self.held[series] {
                self.alarms.push(series as u32);
            }
        }
        self.rows = seq + 1;
        let every = u64::from(self.settings.baseline_every.max(1));
        let first = self.rows == u64::from(self.settings.warm_steps.max(2));
        if first || (self.rows > u64::from(self.settings.warm_steps) && self.rows.is_multiple_of(every)) {
            self.learn();
        }
    }

    /// Learns baselines, noise and the effect from the last rows, and derives the thresholds.
    fn learn(&mut self) {
        let most = u64::from(self.settings.baseline_steps).clamp(10, DEPTH as u64 - 16);
        let back = self.rows.min(most);
        let mut spreads: Vec<f32> = Vec::with_capacity(self.width());
        for series in 0..self.width() {
            self.scratch.clear();
            for seq in (self.rows - back).max(self.clean[series])..self.rows {
                let value = self.values.get(seq, series);
                if value.is_finite() {
                    self.scratch.push(value);
                }
            }
            if self.scratch.len() < self.settings.warm_steps as usize / 2 {
                continue;
            }
            let (middle, spread) = order_statistics::median_and_deviation(&mut self.scratch);
            self.deviations[series] = spread;
            spreads.push(spread);
            let base = self.base[series];
            let far =
                self.frozen[series] || (self.tuning.cautious && (middle - base).abs() > 0.5 * self.effect);
            if self.tuning.centred {
                self.base[series] = 0.0;
            } else if base.is_nan() || (self.rows <= most && !self.held[series] && !far) {
                self.base[series] = middle;
            } else if !self.held[series] && !far {
                self.base[series] = 0.9 * base + 0.1 * middle;
            }
        }
        let spread = order_statistics::median(&mut spreads);
        if spread.is_nan() {
            return;
        }
        // A short past does not show yet how far the series wander.
        let short = (most as f64 / back as f64).sqrt();
        let effect = self.settings.effect_noise * f64::from(spread) * short;
        self.effect = effect.min(self.tuning.effect_cap).max(self.tuning.effect_floor) as f32;
        self.derive(back, 1.4826 * spread);
    }

    /// Slack, clip and bound of each series. The slack covers the error of a baseline of few steps:
    /// 2.5 / sqrt(n).
    fn derive(&mut self, behind: u64, common: f32) {
        let half = 0.5 * self.effect;
        let slack = (self.tuning.slack + 2.5 / (behind as f64).sqrt()) as f32;
        for series in 0..self.width() {
            let own = 1.4826 * self.deviations[series];
            if self.held[series] && self.bound[series].is_finite() {
                continue;
            }
            let noise = (self.tuning.noise_floor as f32).max(common).max(own);
            self.noise[series] = noise;
            self.slack[series] = (slack * noise).max(half);
            self.clip[series] = clip(&self.settings, noise, half);
            self.bound[series] = self.limit as f32 * noise.max(half);
        }
    }

    /// Starts from what an earlier run of the job learnt, so that a change is detected before this
    /// run has a baseline. Only where the baselines of the old run lie close together.
    pub fn inherit(&mut self, old: &CusumBank) {
        let mut bases: Vec<f32> = old.base.iter().copied().filter(|base| base.is_finite()).collect();
        if bases.len() * 2 < old.width().max(1) {
            return;
        }
        let (base, spread) = order_statistics::median_and_deviation(&mut bases);
        let mut noises = old.noise.clone();
        let noise = order_statistics::median(&mut noises);
        if 1.4826 * spread > 0.5 * old.tuning.effect_floor as f32 {
            return;
        }
        self.effect = old.effect;
        self.base.fill(base);
        self.noise.fill(noise);
        let half = 0.5 * self.effect;
        let slack = (self.tuning.slack + 2.5 / f64::from(self.settings.warm_steps.max(4)).sqrt()) as f32;
        self.slack.fill((slack * noise).max(half) + 1.5 * spread);
        self.clip.fill(clip(&self.settings, noise, half));
        self.bound.fill(self.limit as f32 * noise.max(half));
    }

    /// Deviation of a series from its baseline at row `seq`; NaN if unknown.
    pub fn deviation(&self, seq: u64, series: usize) -> f32 {
        self.values.get(seq, series) - self.base[series]
    }

    /// Median deviation of several series at row `seq`.
    pub fn deviation_of(&mut self, seq: u64, series: &[u32]) -> f32 {
        if let [one] = series {
            return self.deviation(seq, *one as usize);
        }
        self.scratch.clear();
        for &one in series {
            let value = self.values.get(seq, one as usize) - self.base[one as usize];
            if value.is_finite() {
                self.scratch.push(value);
            }
        }
        order_statistics::median(&mut self.scratch)
    }

    /// Smallest known deviation in rows `from..to`.
    pub fn least(&mut self, series: &[u32], from: u64, to: u64) -> f32 {
        (from..to).map(|seq| self.deviation_of(seq, series)).fold(f32::NAN, f32::min)
    }

    /// Window of rows `from..to`; of several series, of their median row by row.
    pub fn window(&mut self, series: &[u32], from: u64, to: u64) -> Window {
        self.window_without(series, from, to, 0)
    }

    /// As [`window`](Self::window), without the `burst` consecutive rows of the largest sum.
    pub fn window_without(&mut self, series: &[u32], from: u64, to: u64, burst: usize) -> Window {
        let mut found = [f32::NAN; DEPTH];
        let mut rows = 0;
        for seq in from.max(self.rows.saturating_sub(DEPTH as u64))..to.min(self.rows) {
            found[rows] = self.deviation_of(seq, series);
            rows += 1;
        }
        let first = greatest_run(&found[..rows], burst);
        found[first..(first + burst).min(rows)].fill(f32::NAN);
        let mut count = 0;
        for row in 0..rows {
            if found[row].is_finite() {
                found[count] = found[row];
                count += 1;
            }
        }
        let found = &mut found[..count];
        let above = found.iter().filter(|value| **value > 0.5 * self.effect).count();
        Window { count, above: above as f32 / count.max(1) as f32, median: order_statistics::median(found) }
    }
}

/// Start of the `length` consecutive values with the largest sum; unknown values count zero.
fn greatest_run(values: &[f32], length: usize) -> usize {
    let known = |value: &f32| if value.is_finite() { *value } else { 0.0 };
    let sums =
        values.windows(length.clamp(1, values.len().max(1))).map(|run| run.iter().map(known).sum::<f32>());
    sums.enumerate()
        .fold((0, f32::NEG_INFINITY), |most, (at, sum)| if sum > most.1 { (at, sum) } else { most })
        .0
}

/// Largest deviation that one step may add.
fn clip(settings: &Settings, noise: f32, half: f32) -> f32 {
    let times = if 2.0 * noise < half { settings.quiet_clip } else { settings.clip };
    times as f32 * noise.max(half)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bank(series: usize) -> CusumBank {
        let tuning = Tuning {
            noise_floor: 0.005,
            effect_floor: 0.05,
            effect_cap: 0.10,
            slack: 0.5,
            cautious: false,
            centred: false,
        };
        CusumBank::new(series, series, tuning, &Settings::default())
    }

    fn push(bank: &mut CusumBank, seq: u64, row: &[f32]) {
        bank.values.row_mut(seq).copy_from_slice(row);
        bank.advance(seq);
    }

    #[test]
    fn a_large_change_is_over_the_bound_after_three_rows() {
        let mut bank = bank(8);
        for seq in 0..100 {
            push(&mut bank, seq, &[0.02; 8]);
            assert!(bank.alarms.is_empty());
        }
        assert_eq!((bank.effect(), bank.base(0)), (0.05, 0.02));
        // Limit ln(0.5 * 8 * 2e5) - 1.166 = 12.43, at 0.025 a unit 0.311. Each row adds 0.15
        // (clipped) - 0.025, so three rows exceed it.
        let mut row = [0.02; 8];
        row[3] = 0.30;
        for seq in 100..102 {
            push(&mut bank, seq, &row);
            assert!(bank.alarms.is_empty());
        }
        push(&mut bank, 102, &row);
        assert_eq!(bank.alarms, vec![3]);
        assert_eq!(bank.left_zero(3), 100);
        let window = bank.window(&[3], 100, 103);
        assert_eq!((window.count, window.above), (3, 1.0));
        assert!((window.median - 0.28).abs() < 1e-6);
    }

    #[test]
    fn a_missing_value_changes_nothing_and_a_held_baseline_stands() {
        let mut bank = bank(4);
        for seq in 0..60 {
            push(&mut bank, seq, &[0.0, f32::NAN, 0.1, 0.0]);
        }
        assert!(bank.base(1).is_nan());
        bank.hold(2, true);
        for seq in 60..260 {
            push(&mut bank, seq, &[0.0, f32::NAN, 0.5, 0.5]);
        }
        assert_eq!(bank.base(2), 0.1);
        assert!(bank.base(3) > 0.0);
        assert!(!bank.alarms.contains(&1));
    }

    #[test]
    fn noise_raises_the_effect_floor_up_to_the_cap() {
        let mut bank = bank(4);
        for seq in 0..200_u64 {
            let sign = if seq % 2 == 0 { 0.03 } else { -0.03 };
            push(&mut bank, seq, &[sign; 4]);
        }
        assert!((bank.effect() - 0.075).abs() < 1e-6);
    }

    #[test]
    fn the_greatest_run_is_left_out_and_no_other() {
        let mut bank = bank(1);
        for seq in 0..100 {
            push(&mut bank, seq, &[0.0]);
        }
        // A burst of three among steps of 0.04; one step is unknown.
        for (seq, value) in (100..).zip([0.04, 0.5, 0.5, 0.4, f32::NAN, 0.04, 0.02, 0.04]) {
            push(&mut bank, seq, &[value]);
        }
        assert_eq!(bank.window(&[0], 100, 108).count, 7);
        let rest = bank.window_without(&[0], 100, 108, 3);
        // 0.04, 0.04, 0.02 and 0.04 are left; three of four are above half of 0.05.
        assert_eq!((rest.count, rest.above), (4, 0.75));
        assert!((rest.median - 0.04).abs() < 1e-6);
        assert_eq!(bank.window_without(&[0], 100, 102, 3).count, 0);
    }
}
