//! Step reports that bypass the reorder buffer: a job's detector takes them as they come, and
//! decides on a step once every rank has reported it.
//!
//! The result is the same as if all of them had waited, because nothing that comes later bears on
//! it. Steps are decided in order, and only when no rank will report more of them. Device evidence
//! counts [`LOOKAHEAD_US`] after it was measured (`Settings::evidence_lag_us`), when its windows
//! are closed. And at any other event that changes the job (its end, another attempt, another size)
//! reports stop and wait for the order. One case differs: an event that reaches the log later than
//! reports of a later time. A resize that arrives ten seconds late finds ten seconds of steps
//! decided in the old shape.

use tidegate_events::v1;

use super::Reorder;
use super::buffer::OrderKey;
use crate::detectors::JobKey;
use crate::input::Input;
use crate::time::US_PER_S;

/// How far ahead of the order steps may be processed. The evidence that they rest on is older.
pub(super) const LOOKAHEAD_US: i64 = 20 * US_PER_S;
/// Schedulers report an end in whole seconds, so reports of the last step may be of a moment after
/// it.
const END_GRACE_US: i64 = 2 * US_PER_S;

impl Reorder {
    /// Feeds a job's detector the waiting reports of times up to [`LOOKAHEAD_US`] after `now_us`.
    /// The order, ticks included, has come to `now_us`.
    pub(super) fn process_early_steps(&mut self, name: &JobKey, now_us: i64) {
        let Some(job) = self.detectors.job_mut(name) else { return };
        let Some(run) = job.current_run() else { return };
        let end_us = now_us.saturating_add(LOOKAHEAD_US);
        let mut until_us = end_us;
        let mut processed: Vec<OrderKey> = Vec::new();
        let waiting = self.buffer.by_job.get(name).into_iter().flatten();
        for key in waiting {
            if key.0 > until_us {
                break;
            }
            match self.buffer.events.get_mut(key) {
                Some((_, Input::Step { report, processed_in })) if job.is_of_current_run(report) => {
                    if self.watch.enter_event(key.2) {
                        continue;
                    }
                    job.observe_early(report, key.0, end_us);
                    *processed_in = Some(run);
                    processed.push(*key);
                }
                Some((_, Input::Step { report, .. })) if job.is_of_past_attempt(report) => {}
                Some((_, Input::Job { fact, .. })) if fact.kind == v1::JobEventKind::Ended => {
                    until_us = until_us.min(key.0.saturating_add(END_GRACE_US));
                }
                _ => break,
            }
        }
        self.watch.enter_job(name);
        let signals = job.settle(end_us);
        if self.buffer.remove_from_job(name, &processed) {
            self.buffer.received.insert(name.clone());
        }
        self.detectors.emit(name, signals);
        self.detectors.recount(name);
    }
}
