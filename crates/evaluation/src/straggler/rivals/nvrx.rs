//! NVIDIA's resiliency extension: scores of section times (its `straggler` package, defaults of
//! `identify_stragglers`).

use super::frames::{Edges, Frames};
use crate::straggler::method::{Alarm, Method, Target};
use crate::straggler::scene::Message;
use crate::straggler::statistics::median;

/// Report interval of its documentation, and the threshold of all four of its scores.
const EVERY_US: i64 = 300_000_000;
const THRESHOLD: f64 = 0.75;

/// Reference of a rank's median.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The fastest rank of the job: the relative score as published.
    AllRanks,
    /// The fastest rank of its role.
    Group,
    /// Its own best so far: the individual score.
    OwnBest,
}

/// Every 300 s: reference over the rank's own median of the computing section; a straggler is below
/// 0.75.
#[derive(Debug)]
pub struct Nvrx {
    against: Against,
    frames: Frames,
    times: Vec<Vec<f64>>,
    best: Vec<f64>,
    next_us: Option<i64>,
    edges: Edges,
}

impl Nvrx {
    /// With one of its scores.
    pub fn new(against: Against) -> Self {
        let (frames, edges) = (Frames::default(), Edges::default());
        Self { against, frames, times: Vec::new(), best: Vec::new(), next_us: None, edges }
    }

    fn report(&mut self, now_us: i64) {
        let medians: Vec<f64> =
            self.times.iter_mut().map(|times| median(times).unwrap_or(f64::NAN)).collect();
        let roles = self.frames.shape.as_ref().map(|shape| shape.role.clone()).unwrap_or_default();
        let groups = if self.against == Against::Group {
            roles.iter().max().map_or(1, |&max| max as usize + 1)
        } else {
            1
        };
        let group = |rank: usize| if groups == 1 { 0 } else { roles[rank] as usize };
        let mut fastest = vec![f64::INFINITY; groups];
        for (rank, &own) in medians.iter().enumerate() {
            fastest[group(rank)] = fastest[group(rank)].min(own);
        }
        for (rank, &own) in medians.iter().enumerate() {
            self.best[rank] = self.best[rank].min(own);
            let reference =
                if self.against == Against::OwnBest { self.best[rank] } else { fastest[group(rank)] };
            self.edges.set(rank, reference / own < THRESHOLD, Target::Rank(rank as u32), now_us);
        }
        self.times.iter_mut().for_each(Vec::clear);
    }
}

impl Method for Nvrx {
    fn name(&self) -> &'static str {
        match self.against {
            Against::AllRanks => "NVRx relative 0.75, all ranks",
            Against::Group => "NVRx relative 0.75, in group",
            Against::OwnBest => "NVRx individual 0.75",
        }
    }

    fn observe(&mut self, message: &Message) {
        if self.frames.observe(message) {
            let ranks = self.frames.shape.as_ref().map_or(0, |shape| shape.node.len());
            self.times = vec![Vec::new(); ranks];
            self.best = vec![f64::INFINITY; ranks];
            self.next_us = None;
            self.edges.reset();
        }
    }

    fn advance(&mut self, watermark_us: i64) {
        while let Some(frame) = self.frames.next(watermark_us) {
            for (times, &own) in self.times.iter_mut().zip(&frame.compute_s) {
                if own.is_finite() {
                    times.push(own);
                }
            }
            let next_us = *self.next_us.get_or_insert(frame.end_us + EVERY_US);
            if frame.end_us >= next_us {
                self.next_us = Some(frame.end_us + EVERY_US);
                self.report(frame.end_us);
            }
        }
    }

    fn take(&mut self) -> Vec<Alarm> {
        self.edges.take()
    }
}
