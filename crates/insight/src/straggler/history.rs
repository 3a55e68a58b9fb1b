//! Recent steps of a job, for decisions and late reports.

use serde::{Deserialize, Serialize};

/// Steps kept. A power of two.
pub(super) const DEPTH: usize = 256;

/// Ring of rows, one per step for a fixed number of series. NaN means unknown.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Rows {
    width: usize,
    values: Vec<f32>,
}

impl Rows {
    pub fn new(width: usize) -> Self {
        Self { width, values: vec![f32::NAN; width * DEPTH] }
    }

    /// Row of step `seq`, counted in order of closing.
    pub fn row(&self, seq: u64) -> &[f32] {
        let start = place(seq) * self.width;
        &self.values[start..start + self.width]
    }

    pub fn row_mut(&mut self, seq: u64) -> &mut [f32] {
        let start = place(seq) * self.width;
        &mut self.values[start..start + self.width]
    }

    pub fn get(&self, seq: u64, series: usize) -> f32 {
        self.values[place(seq) * self.width + series]
    }
}

fn place(seq: u64) -> usize {
    seq as usize & (DEPTH - 1)
}

/// What all series of a step share.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct Step {
    pub number: u64,
    /// Median of the ranks' ends.
    pub end_us: i64,
    /// Median duration, seconds.
    pub duration: f32,
    /// Logarithm of the job's median computing time; changes with the work of the whole job.
    pub level: f32,
}

/// Recent steps, numbered in order of closing.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct History {
    steps: Vec<Step>,
    /// Steps closed so far.
    pub closed: u64,
    /// Computing time of each rank, seconds, as reported.
    pub compute: Rows,
    /// Logarithm of each class's reference.
    pub reference: Rows,
    /// Lower quartile of the waits for input over the job, seconds.
    pub data_reference: Rows,
}

impl History {
    pub fn new(ranks: usize, classes: usize) -> Self {
        let none = Step { number: 0, end_us: 0, duration: f32::NAN, level: f32::NAN };
        Self {
            steps: vec![none; DEPTH],
            closed: 0,
            compute: Rows::new(ranks),
            reference: Rows::new(classes),
            data_reference: Rows::new(1),
        }
    }

    /// Starts a step. Its rows are to be written under the number returned.
    pub fn begin(&mut self, step: Step) -> u64 {
        let seq = self.closed;
        self.steps[place(seq)] = step;
        self.closed += 1;
        seq
    }

    pub fn step(&self, seq: u64) -> &Step {
        &self.steps[place(seq)]
    }

    pub fn set_level(&mut self, seq: u64, level: f32) {
        self.steps[place(seq)].level = level;
    }

    /// Oldest step still kept.
    pub fn oldest(&self) -> u64 {
        self.closed.saturating_sub(DEPTH as u64)
    }

    /// The closed step with number `step`, if still kept.
    pub fn find(&self, step: u64) -> Option<u64> {
        (self.oldest()..self.closed).rev().find(|&seq| self.step(seq).number == step)
    }

    /// First step of the shortest window that ends with `seq`, does not begin before `since`, has
    /// at least `steps` steps and lasts at least `time_us`. A step counts for at most twice
    /// `usual_us`, because a pause is no evidence. `None` if there is no such window yet.
    pub fn window(&self, since: u64, seq: u64, steps: u64, time_us: i64, usual_us: f64) -> Option<u64> {
        const MOST: u64 = DEPTH as u64 - 16;
        let (mut time, mut count) = (0.0, 0);
        for at in (since.max(self.oldest())..=seq).rev() {
            let duration = f64::from(self.step(at).duration) * 1e6;
            time += if duration.is_finite() { duration.min(2.0 * usual_us) } else { usual_us };
            count += 1;
            if count >= MOST || (count >= steps && time >= time_us as f64) {
                return Some(at);
            }
        }
        None
    }

    /// Start of step `seq` in event time.
    pub fn begin_us(&self, seq: u64) -> i64 {
        let step = self.step(seq);
        let duration =
            if step.duration.is_finite() { (f64::from(step.duration) * 1e6).round() as i64 } else { 0 };
        step.end_us.saturating_sub(duration)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_what_it_keeps_and_only_that() {
        let mut history = History::new(1, 1);
        for number in 0..300 {
            history.begin(Step { number: number * 2, end_us: 10, duration: 4e-6, level: 0.0 });
        }
        assert_eq!(history.oldest(), 44);
        assert_eq!(history.find(88), Some(44));
        assert_eq!(history.find(86), None);
        assert_eq!(history.find(89), None);
        assert_eq!(history.begin_us(50), 6);
    }

    #[test]
    fn rows_are_overwritten_by_age() {
        let mut rows = Rows::new(2);
        rows.row_mut(3).copy_from_slice(&[1.0, 2.0]);
        assert_eq!(rows.get(3, 1), 2.0);
        rows.row_mut(3 + DEPTH as u64)[1] = 5.0;
        assert_eq!(rows.row(3), &[1.0, 5.0]);
    }
}
