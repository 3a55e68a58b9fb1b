//! Steps assembled from the reports that arrived, as input of the rivals.

use std::collections::BTreeMap;

use tidegate_insight::straggler::JobShape;

use crate::straggler::method::{Alarm, Level, Target};
use crate::straggler::scene::{Message, MessageBody};

/// One step of all ranks.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Latest end of the ranks, µs since 1970.
    pub(crate) end_us: i64,
    /// Longest duration, s.
    pub(crate) duration_s: f64,
    /// Own computing by rank, s; NaN where no report came.
    pub(crate) compute_s: Vec<f64>,
    /// Input waiting by rank, s.
    pub(crate) data_s: Vec<f64>,
    heard: usize,
}

/// Assembles reports into steps. A step is over when all ranks have reported or the watermark has
/// passed it.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    pub(crate) shape: Option<JobShape>,
    open: BTreeMap<u64, Frame>,
    done: Option<u64>,
}

impl Frames {
    /// Takes a message. Returns whether an attempt starts.
    pub(crate) fn observe(&mut self, message: &Message) -> bool {
        match &message.body {
            MessageBody::Shape(shape) => {
                self.shape = Some(shape.clone());
                self.open.clear();
                self.done = None;
                return true;
            }
            MessageBody::Step(report) => {
                let Some(shape) = self.shape.as_ref().filter(|shape| shape.attempt == report.attempt) else {
                    return false;
                };
                let (ranks, rank) = (shape.node.len(), report.rank as usize);
                if rank >= ranks || self.done.is_some_and(|done| report.step <= done) {
                    return false;
                }
                let frame = self.open.entry(report.step).or_insert_with(|| Frame {
                    end_us: report.end_us,
                    duration_s: 0.0,
                    compute_s: vec![f64::NAN; ranks],
                    data_s: vec![f64::NAN; ranks],
                    heard: 0,
                });
                frame.heard += usize::from(frame.compute_s[rank].is_nan());
                frame.end_us = frame.end_us.max(report.end_us);
                frame.duration_s = frame.duration_s.max(report.duration_us as f64 / 1e6);
                let seconds = |us: Option<u64>| us.map_or(f64::NAN, |us| us as f64 / 1e6);
                frame.compute_s[rank] = seconds(report.compute_us);
                frame.data_s[rank] = seconds(report.data_us);
            }
            MessageBody::Device(_) | MessageBody::Fault(_) => {}
        }
        false
    }

    /// The next step that is over.
    pub(crate) fn next(&mut self, watermark_us: i64) -> Option<Frame> {
        let entry = self.open.first_entry()?;
        let full = entry.get().heard == entry.get().compute_s.len();
        if !full && entry.get().end_us > watermark_us {
            return None;
        }
        self.done = Some(*entry.key());
        Some(entry.remove())
    }
}

/// Edge detection for a rule that holds or not for each target: an alarm when it becomes true.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    on: Vec<bool>,
    next: u64,
    alarms: Vec<Alarm>,
}

impl Edges {
    pub(crate) fn set(&mut self, at: usize, on: bool, target: Target, said_us: i64) {
        if self.on.len() <= at {
            self.on.resize(at + 1, false);
        }
        if on && !self.on[at] {
            self.next += 1;
            self.alarms.push(Alarm {
                key: self.next,
                level: Level::Confirmed,
                target,
                class: None,
                said_us,
                heard_us: said_us,
            });
        }
        self.on[at] = on;
    }

    /// A new attempt: the rule holds for no target.
    pub(crate) fn reset(&mut self) {
        self.on.clear();
    }

    pub(crate) fn take(&mut self) -> Vec<Alarm> {
        std::mem::take(&mut self.alarms)
    }
}
