//! Sliding window: the job's last steps against those before, at 10 % (the baseline Greyhound
//! compares with).

use std::collections::VecDeque;

use super::frames::{Edges, Frames};
use crate::straggler::method::{Alarm, Method, Target};
use crate::straggler::scene::Message;

const RECENT: usize = 10;
const BEFORE: usize = 50;
const LONGER: f64 = 1.1;

/// The mean of the last 10 steps is more than 10 % above that of the 50 before. Names no subject.
#[derive(Debug, Default)]
pub struct Window {
    frames: Frames,
    steps: VecDeque<f64>,
    edges: Edges,
}

impl Window {
    /// A new instance.
    pub fn new() -> Self {
        Self::default()
    }
}

impl Method for Window {
    fn name(&self) -> &'static str {
        "sliding window 10 %, job"
    }

    fn observe(&mut self, message: &Message) {
        if self.frames.observe(message) {
            self.steps.clear();
            self.edges.reset();
        }
    }

    fn advance(&mut self, watermark_us: i64) {
        while let Some(frame) = self.frames.next(watermark_us) {
            self.steps.push_back(frame.duration_s);
            if self.steps.len() <= BEFORE + RECENT {
                continue;
            }
            self.steps.pop_front();
            let before: f64 = self.steps.iter().take(BEFORE).sum::<f64>() / BEFORE as f64;
            let recent: f64 = self.steps.iter().skip(BEFORE).sum::<f64>() / RECENT as f64;
            self.edges.set(0, recent > LONGER * before, Target::Job, frame.end_us);
        }
    }

    fn take(&mut self) -> Vec<Alarm> {
        self.edges.take()
    }
}
