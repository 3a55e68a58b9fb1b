//! A job that reports no steps is watched by its devices' counters, until its first report.
//! Counters accuse a device of throttling and of a clock below its peers', never of idling: in a
//! synchronous job all devices wait for the slowest.

use std::collections::BTreeSet;

use tidegate_insight::straggler::{Detector, JobShape, Settings};

use super::{JobMonitor, MAX_RANKS, Phase};
use crate::publication::Publication;
use crate::roles::RankLocation;

impl JobMonitor {
    /// Whether the job runs and has reported no step.
    pub fn reports_no_steps(&self) -> bool {
        !self.is_over && !self.has_steps && matches!(self.phase, Phase::Idle | Phase::DevicesOnly)
    }

    /// Watches the devices at `locations` from `now_us` on. A new device restarts the detector; a
    /// device that is silent for a while does not. Only for a job that [reports no
    /// steps](Self::reports_no_steps).
    pub fn watch_devices(&mut self, mut locations: Vec<RankLocation>, now_us: i64) -> Vec<Publication> {
        locations.truncate(MAX_RANKS as usize);
        let is_watched = matches!(self.phase, Phase::DevicesOnly)
            && (self.locations == locations || {
                let known: BTreeSet<&RankLocation> = self.locations.iter().collect();
                locations.iter().all(|location| known.contains(location))
            });
        if is_watched || locations.is_empty() || !self.reports_no_steps() {
            return Vec::new();
        }
        let output = self.close_run(now_us);
        let names: BTreeSet<&String> =
            locations.iter().filter_map(|location| location.node.as_ref()).collect();
        self.nodes = names.into_iter().cloned().collect();
        let number = |location: &RankLocation| {
            let at = location.node.as_ref().and_then(|node| self.nodes.binary_search(node).ok());
            at.map_or(u32::MAX, |at| at as u32)
        };
        self.run += 1;
        let shape = JobShape {
            attempt: self.run,
            node: locations.iter().map(number).collect(),
            role: vec![0; locations.len()],
            stages: 1,
            micro_batches: 1,
        };
        (self.locations, self.by_devices, self.phase) = (locations, true, Phase::DevicesOnly);
        self.newest_us = self.newest_us.max(now_us);
        match &mut self.detector {
            Some(detector) => detector.restart(shape),
            None => self.detector = Some(Detector::new(shape, Settings::default())),
        }
        output
    }

    /// The last device was released. A job that reports steps ends when they or the scheduler say
    /// so.
    pub fn devices_released(&mut self, at_us: i64) -> Vec<Publication> {
        if matches!(self.phase, Phase::DevicesOnly) { self.close_run(at_us) } else { Vec::new() }
    }
}
