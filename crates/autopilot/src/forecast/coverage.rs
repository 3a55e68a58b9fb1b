//! Coverage of bounds: each bound is kept until its period ends and compared with the highest
//! demand in it.

use std::collections::VecDeque;

/// Fewest ended bounds before a share is reported.
const ENOUGH: usize = 20;
/// Bounds looked back on.
const KEPT: usize = 4_032;

/// Bounds issued for one series, and how many held.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    /// Open bounds: last step, bound, and highest value since.
    open: VecDeque<(i64, f64, Option<f64>)>,
    /// Newest last.
    held: VecDeque<bool>,
    kept: usize,
}

impl Coverage {
    /// Records a bound valid up to and including step `last`.
    pub fn issue(&mut self, last: i64, bound: f64) {
        self.open.push_back((last, bound, None));
    }

    /// Records the value of a step; steps come in order. Returns for each bound that ended whether
    /// it held, oldest first.
    pub fn observe(&mut self, step: i64, value: f64) -> Vec<bool> {
        let mut over = Vec::new();
        while self.open.front().is_some_and(|(last, ..)| *last < step) {
            let Some((_, bound, highest)) = self.open.pop_front() else { break };
            // A bound without any value in its period says nothing.
            let Some(highest) = highest else { continue };
            if self.held.len() == KEPT {
                self.kept -= usize::from(self.held.pop_front() == Some(true));
            }
            let held = highest <= bound;
            self.held.push_back(held);
            self.kept += usize::from(held);
            over.push(held);
        }
        for (.., highest) in &mut self.open {
            *highest = Some(highest.map_or(value, |seen| seen.max(value)));
        }
        over
    }

    /// Share of the bounds that held, 0 to 1. `None`: too few have ended.
    pub fn share(&self) -> Option<f64> {
        (self.held.len() >= ENOUGH).then(|| self.kept as f64 / self.held.len() as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_holds_if_nothing_was_above_it_in_its_time() {
        let mut coverage = Coverage::default();
        for step in 0..40 {
            coverage.observe(step, if step % 4 == 0 { 9.0 } else { 1.0 });
            coverage.issue(step + 1, 5.0);
        }
        // Each bound covers only the next step; those issued at steps 3, 7, … 35 meet a 9. The last
        // one is still open, and the one before ends with step 39, which no later step has closed.
        assert_eq!(coverage.held.len(), 38);
        assert!((coverage.share().unwrap() - 29.0 / 38.0).abs() < 1e-12);
    }

    #[test]
    fn too_few_bounds_and_bounds_over_gaps_say_nothing() {
        let mut coverage = Coverage::default();
        for step in 0..100 {
            coverage.issue(step * 10 + 1, 5.0);
            coverage.observe(step * 10 + 5, 1.0);
        }
        assert_eq!(coverage.share(), None, "every bound was over before the next value came");
    }
}
