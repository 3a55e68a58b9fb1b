//! Median and five median absolute deviations in the group: the pattern rule of EROICA (NSDI'26),
//! on step reports.

use super::frames::{Edges, Frames};
use crate::straggler::method::{Alarm, Method, Target};
use crate::straggler::scene::Message;
use crate::straggler::statistics::median;

const DEVIATIONS: f64 = 5.0;
const LONGER: f64 = 1.05;

/// At every step: a rank whose computing is beyond median + 5 MAD of its role, and 5 % above that
/// median.
#[derive(Debug, Default)]
pub struct Spread {
    frames: Frames,
    edges: Edges,
}

impl Spread {
    /// A new instance.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Method for Spread {
    fn name(&self) -> &'static str {
        "median + 5 MAD in group"
    }

    fn observe(&mut self, message: &Message) {
        if self.frames.observe(message) {
            self.edges.reset();
        }
    }

    fn advance(&mut self, watermark_us: i64) {
        while let Some(frame) = self.frames.next(watermark_us) {
            let Some(shape) = self.frames.shape.as_ref() else { return };
            for role in 0..=shape.role.iter().copied().max().unwrap_or(0) {
                let ranks = || (0..shape.role.len()).filter(|&rank| shape.role[rank] == role);
                let mut own: Vec<f64> =
                    ranks().map(|rank| frame.compute_s[rank]).filter(|x| x.is_finite()).collect();
                let Some(middle) = median(&mut own) else { continue };
                own.iter_mut().for_each(|x| *x = (*x - middle).abs());
                let Some(mad) = median(&mut own) else { continue };
                let bound = (middle + DEVIATIONS * mad).max(LONGER * middle);
                for rank in ranks() {
                    // A rank without report keeps its state.
                    if frame.compute_s[rank].is_finite() {
                        self.edges.set(
                            rank,
                            frame.compute_s[rank] > bound,
                            Target::Rank(rank as u32),
                            frame.end_us,
                        );
                    }
                }
            }
        }
    }

    fn take(&mut self) -> Vec<Alarm> {
        self.edges.take()
    }
}
