//! Whether bounds held: each is kept until its time is over, and compared with the highest demand
//! meanwhile.

use std::collections::VecDeque;

/// Bounds scored before a share is told.
const ENOUGH: usize = 20;
/// Bounds looked back on.
const KEPT: usize = 4_032;

/// Bounds of one series that were told, and how many held.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    /// Of each bound that is open: its last step, the bound, the highest value seen since.
    open: VecDeque<(i64, f64, Option<f64>)>,
    /// Newest last.
    held: VecDeque<bool>,
    kept: usize,
}

impl Coverage {
    /// Puts a bound that holds until step `last` included on record.
    pub fn issue(&mut self, last: i64, bound: f64) {
        self.open.push_back((last, bound, None));
    }

    /// Takes the value of a step; steps come in order. Tells of the bounds that are over with it
    /// whether they held, oldest first.
    pub fn observe(&mut self, step: i64, value: f64) -> Vec<bool> {
        let mut over = Vec::new();
        while self.open.front().is_some_and(|(last, ..)| *last < step) {
            let Some((_, bound, highest)) = self.open.pop_front() else { break };
            // A bound over whose time nothing was seen says nothing.
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

    /// Share of the bounds that held, 0 to 1; `None` while too few are over.
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
        // Each bound covers the next step only; those told at steps 3, 7, … 35 see a 9. The last
        // one is still open, and the one before it ends with step 39, which no later step has
        // closed.
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
