//! Survival of jobs: GPU-weighted Kaplan–Meier on a logarithmic grid of ages.

use serde::{Deserialize, Serialize};

/// Shortest age resolved, seconds.
const MIN_AGE_S: f64 = 60.0;
/// Longest: 90 days.
const MAX_AGE_S: f64 = 90.0 * 86_400.0;
/// Cells of the grid: each 7 % longer than the one before.
const CELLS: usize = 180;
/// Weight of a pseudo-observation, in mean observations, so that no cell with a single job says
/// "never" or "always".
const PRIOR: f64 = 0.5;

/// One lifetime within the learning window.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Life {
    /// Age at the start of observation, seconds: jobs older than the window enter late (left
    /// truncation).
    pub(super) entry: f64,
    /// Age at its end, or now.
    pub(super) exit: f64,
    /// Whether it ended.
    pub(super) ended: bool,
    /// GPUs.
    pub(super) weight: f64,
}

/// Survival by age: log-linear in the logarithm of age between grid points, S(0) = 1.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Survival {
    /// ln S at each edge; edge 0 is age 0.
    #[serde(with = "grid")]
    log: [f64; CELLS + 1],
}

/// The grid as a sequence: serde itself knows arrays of up to 32 values.
mod grid {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::CELLS;

    pub fn serialize<S: Serializer>(grid: &[f64; CELLS + 1], to: S) -> Result<S::Ok, S::Error> {
        grid.as_slice().serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<[f64; CELLS + 1], D::Error> {
        let grid = Vec::<f64>::deserialize(from)?;
        let cells = grid.len();
        grid.try_into().map_err(|_| D::Error::custom(format!("{cells} cells instead of {}", CELLS + 1)))
    }
}

impl Survival {
    /// Product-limit estimate: the hazard of a cell is the weight that ended in it over the weight
    /// at risk, where a life that enters or is censored inside counts half.
    pub(super) fn fit(lives: impl Iterator<Item = Life>) -> Self {
        let (mut ended, mut risk) = ([0.0; CELLS], [0.0; CELLS + 1]);
        let (mut half, mut weight, mut count) = ([0.0; CELLS], 0.0, 0.0);
        for life in lives.filter(|l| l.exit > l.entry || (l.ended && l.exit >= l.entry)) {
            let (from, to) = (cell(life.entry), cell(life.exit));
            risk[from] += life.weight;
            risk[to + 1] -= life.weight;
            if life.ended {
                ended[to] += life.weight;
            } else {
                half[to] += life.weight / 2.0;
            }
            if life.entry > 0.0 && from < to {
                half[from] += life.weight / 2.0;
            }
            weight += life.weight;
            count += 1.0;
        }
        let mean = if count > 0.0 { weight / count } else { 1.0 };
        let whole = (ended.iter().sum::<f64>() + PRIOR * mean) / (risk_total(&risk) + 4.0 * PRIOR * mean);
        let (mut log, mut at_risk) = ([0.0; CELLS + 1], 0.0);
        for i in 0..CELLS {
            at_risk += risk[i];
            let exposed = (at_risk - half[i]).max(0.0) + PRIOR * mean;
            let hazard = ((ended[i] + PRIOR * mean * whole) / exposed).clamp(0.0, 0.9999);
            log[i + 1] = log[i] + (1.0 - hazard).ln();
        }
        Self { log }
    }

    /// ln S at an age in seconds; beyond the grid the hazard of its last two octaves continues.
    pub(super) fn log_at(&self, age: f64) -> f64 {
        let place = place(age);
        let i = (place as usize).min(CELLS);
        if i >= CELLS {
            let slope = (self.log[CELLS] - self.log[CELLS - 20]) / 20.0;
            return self.log[CELLS] + slope * (place - CELLS as f64);
        }
        self.log[i] + (place - i as f64) * (self.log[i + 1] - self.log[i])
    }
}

/// Place of an age on the grid, in cells.
fn place(age: f64) -> f64 {
    let per_cell = (MAX_AGE_S / MIN_AGE_S).ln() / (CELLS - 1) as f64;
    if age < MIN_AGE_S { (age / MIN_AGE_S).max(0.0) } else { 1.0 + (age / MIN_AGE_S).ln() / per_cell }
}

fn cell(age: f64) -> usize {
    (place(age) as usize).min(CELLS - 1)
}

fn risk_total(steps: &[f64; CELLS + 1]) -> f64 {
    let mut at = 0.0;
    steps[..CELLS]
        .iter()
        .map(|s| {
            at += s;
            at
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keeps(survival: &Survival, age: f64, more: f64) -> f64 {
        (survival.log_at(age + more) - survival.log_at(age)).exp()
    }

    fn life(exit: f64, ended: bool) -> Life {
        Life { entry: 0.0, exit, ended, weight: 1.0 }
    }

    #[test]
    fn half_of_the_jobs_last_past_the_median() {
        let lives = (0..1000).map(|i| life(if i % 2 == 0 { 600.0 } else { 36_000.0 }, true));
        let survival = Survival::fit(lives);
        assert!((keeps(&survival, 0.0, 3600.0) - 0.5).abs() < 0.01);
        assert!((keeps(&survival, 3600.0, 3600.0) - 1.0).abs() < 0.02);
        assert!(keeps(&survival, 3600.0, 48.0 * 3600.0) < 0.1);
    }

    #[test]
    fn the_censored_count_until_they_are_censored() {
        // 50 end at ten minutes, 50 are censored before: of 50 at risk all end.
        let lives = (0..100).map(|i| if i < 50 { life(100.0, false) } else { life(600.0, true) });
        assert!(keeps(&Survival::fit(lives), 0.0, 700.0) < 0.05);
        // No job ends, so the estimate stays near one.
        assert!(keeps(&Survival::fit((0..100).map(|_| life(6000.0, false))), 0.0, 3600.0) > 0.9);
    }

    #[test]
    fn weights_are_gpus_and_late_entries_bear_no_early_risk() {
        let heavy = Life { weight: 9.0, ..life(36_000.0, true) };
        let survival = Survival::fit((0..200).map(|i| if i % 2 == 0 { heavy } else { life(600.0, true) }));
        assert!((keeps(&survival, 0.0, 3600.0) - 0.9).abs() < 0.01);
        let late = Life { entry: 30_000.0, exit: 36_000.0, ended: true, weight: 100.0 };
        let survival = Survival::fit((0..200).map(|i| if i % 2 == 0 { late } else { life(600.0, true) }));
        assert!(keeps(&survival, 0.0, 3600.0) < 0.05);
    }

    #[test]
    fn it_falls_with_age_and_stays_a_probability() {
        let survival = Survival::fit((1..500).map(|i| life(f64::from(i) * 977.0, i % 3 != 0)));
        let mut last = 1.0;
        for age in (0..200).map(|i| f64::from(i) * 100_000.0) {
            let s = survival.log_at(age).exp();
            assert!((0.0..=last).contains(&s), "{age} {s} {last}");
            last = s;
        }
    }
}
