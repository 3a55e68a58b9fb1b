//! A job that reports no steps: its devices are watched by their counters alone, until its first
//! report. Counters blame a device for throttling and for a clock below its peers', never for being
//! idle: in a synchronous job all wait for one.

use std::collections::BTreeSet;

use tidegate_insight::straggler::{Detector, JobShape, Settings};

use super::{MOST_RANKS, Phase, Place, WatchedJob};
use crate::Publication;

impl WatchedJob {
    /// Whether it runs and has reported no step.
    pub fn is_quiet(&self) -> bool {
        !self.over && !self.has_steps && matches!(self.phase, Phase::Idle | Phase::Quiet)
    }

    /// Watches the devices at `places` from `now_us` on. A device that was not known is a reason to
    /// begin anew, one that shows nothing for a while is none. Only of a job that [is
    /// quiet](Self::is_quiet).
    pub fn watch_devices(&mut self, mut places: Vec<Place>, now_us: i64) -> Vec<Publication> {
        places.truncate(MOST_RANKS as usize);
        let is_watched = matches!(self.phase, Phase::Quiet)
            && (self.ranks == places || {
                let known: BTreeSet<&Place> = self.ranks.iter().collect();
                places.iter().all(|place| known.contains(place))
            });
        if is_watched || places.is_empty() || !self.is_quiet() {
            return Vec::new();
        }
        let said = self.stop(now_us);
        let names: BTreeSet<&String> = places.iter().filter_map(|place| place.node.as_ref()).collect();
        self.nodes = names.into_iter().cloned().collect();
        let number = |place: &Place| {
            let at = place.node.as_ref().and_then(|node| self.nodes.binary_search(node).ok());
            at.map_or(u32::MAX, |at| at as u32)
        };
        self.run += 1;
        let shape = JobShape {
            attempt: self.run,
            node: places.iter().map(number).collect(),
            role: vec![0; places.len()],
            stages: 1,
            micro_batches: 1,
        };
        (self.ranks, self.by_devices, self.phase) = (places, true, Phase::Quiet);
        self.newest_us = self.newest_us.max(now_us);
        match &mut self.detector {
            Some(detector) => detector.restart(shape),
            None => self.detector = Some(Detector::new(shape, Settings::default())),
        }
        said
    }

    /// Its last device was let go of. What reports steps is over when they or the scheduler say so.
    pub fn released(&mut self, at_us: i64) -> Vec<Publication> {
        if matches!(self.phase, Phase::Quiet) { self.stop(at_us) } else { Vec::new() }
    }
}
