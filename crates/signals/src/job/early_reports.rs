//! A job's reports ahead of the order of events: none of these changes anything but what its
//! detector knows and says.

use tidegate_events::v1;

use super::publication::step_report;
use super::{JobMonitor, Phase};
use crate::publication::Publication;

impl JobMonitor {
    /// The run whose shape the detector knows, if there is one and it is not over: its reports need
    /// not wait.
    pub fn current_run(&self) -> Option<u32> {
        (matches!(self.phase, Phase::Watching { .. }) && !self.is_over).then_some(self.run)
    }

    /// The report is of the run that [current run](Self::current_run), and not of another attempt or of other
    /// ranks.
    pub fn is_of_current_run(&self, report: &v1::StepReport) -> bool {
        let Phase::Watching { world: known } = &self.phase else { return false };
        let world = report.world_size.filter(|world| *world > 0);
        (report.attempt_id.is_none() || report.attempt_id == self.attempt)
            && (world.is_none() || world == *known)
    }

    /// The report is of an attempt that is over, and changes nothing.
    pub fn is_of_past_attempt(&self, report: &v1::StepReport) -> bool {
        report.attempt_id.is_some_and(|id| self.past_attempts.contains(&id))
    }

    /// Takes a report of a step that ended at `end_us`, and decides on steps that are whole. What
    /// it finds is said by [`settle`](Self::settle). Everything up to `until_us` may be used.
    pub fn observe_early(&mut self, report: &v1::StepReport, end_us: i64, until_us: i64) {
        let Some(detector) = &mut self.detector else { return };
        detector.step(&step_report(report, self.run, end_us));
        detector.advance_whole(until_us);
        self.early_reports += 1;
        // Looked for seldom, as it looks at every rank; often enough that steps do not pile up
        // behind one that misses a rank.
        if self.early_reports.is_multiple_of(detector.ranks().max(1) as u64) {
            detector.advance_settled(until_us);
        }
    }

    /// Decides on steps that no rank will tell more of, and says what was found since the last
    /// call.
    pub fn settle(&mut self, until_us: i64) -> Vec<Publication> {
        if let Some(detector) = &mut self.detector {
            detector.advance_settled(until_us);
        }
        self.collect()
    }

    /// The order of events has come to a report of `at_us` that was heard ahead of it.
    pub fn mark_observed(&mut self, at_us: i64) {
        self.newest_us = self.newest_us.max(at_us);
    }
}
