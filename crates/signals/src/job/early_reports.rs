//! Step reports taken ahead of event-time order. They change the detector and its output, and no
//! other state of the job.

use tidegate_events::v1;

use super::publication::step_report;
use super::{JobMonitor, Phase};
use crate::publication::Publication;

impl JobMonitor {
    /// The current run, if the detector has its shape and it is not over: its reports need not
    /// wait.
    pub fn current_run(&self) -> Option<u32> {
        (matches!(self.phase, Phase::Watching { .. }) && !self.is_over).then_some(self.run)
    }

    /// Whether a report belongs to the [current run](Self::current_run): the same attempt, the same
    /// number of ranks.
    pub fn is_of_current_run(&self, report: &v1::StepReport) -> bool {
        let Phase::Watching { world: known } = &self.phase else { return false };
        let world = report.world_size.filter(|world| *world > 0);
        (report.attempt_id.is_none() || report.attempt_id == self.attempt)
            && (world.is_none() || world == *known)
    }

    /// Whether a report belongs to an attempt that is over, and so changes nothing.
    pub fn is_of_past_attempt(&self, report: &v1::StepReport) -> bool {
        report.attempt_id.is_some_and(|id| self.past_attempts.contains(&id))
    }

    /// Takes a report of a step that ended at `end_us`, and decides the steps up to `until_us` that
    /// all ranks have reported. [`settle`](Self::settle) returns the signals.
    pub fn observe_early(&mut self, report: &v1::StepReport, end_us: i64, until_us: i64) {
        let Some(detector) = &mut self.detector else { return };
        detector.step(&step_report(report, self.run, end_us));
        detector.advance_whole(until_us);
        self.early_reports += 1;
        // Settling looks at every rank, so it is done once per round of reports; often enough that
        // steps do not pile up behind one that misses a rank.
        if self.early_reports.is_multiple_of(detector.ranks().max(1) as u64) {
            detector.advance_settled(until_us);
        }
    }

    /// Decides the steps that no rank will report more of, and returns the signals since the last
    /// call.
    pub fn settle(&mut self, until_us: i64) -> Vec<Publication> {
        if let Some(detector) = &mut self.detector {
            detector.advance_settled(until_us);
        }
        self.collect()
    }

    /// Event-time order has come to a report of `at_us` that was taken early.
    pub fn mark_observed(&mut self, at_us: i64) {
        self.newest_us = self.newest_us.max(at_us);
    }
}
