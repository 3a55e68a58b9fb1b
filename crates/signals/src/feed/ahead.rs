//! Steps ahead of the order: a job's detector hears reports as they come, and says what it finds
//! when every rank of a step has spoken.
//!
//! What it says is the same as if all had waited, because nothing that comes later bears on it. A
//! step is decided on when no rank will tell more of it, in order of steps; what devices showed
//! counts [`AHEAD_US`] after it was (`Settings::evidence_lag_us`), when windows of it are closed;
//! and at what else changes a job (its end, another attempt, another size) reports stop and wait
//! for the order. Only what comes to the log later than reports of a later time may be outrun so: a
//! resize that is told ten seconds late finds ten seconds of steps judged in the old shape.

use tidegate_events::v1;

use super::{Feed, Name, Place, Told, US_PER_S};

/// How far ahead of the order steps may be used. The evidence that they rest on is older.
pub(super) const AHEAD_US: i64 = 20 * US_PER_S;
/// Reports of the last step may be of a moment after the end that the scheduler tells, in whole
/// seconds.
const AFTER_END_US: i64 = 2 * US_PER_S;

impl Feed {
    /// Holds an event back until its place in the order is passed.
    pub(super) fn line_up(&mut self, place: Place, cluster: String, told: Told) {
        // Told twice, it may have run ahead already.
        if self.waiting.contains_key(&place) {
            return;
        }
        if let Some(job_id) = job_of(&told) {
            let name = (cluster.clone(), job_id.to_owned());
            self.lines.entry(name.clone()).or_default().insert(place);
            self.touched.insert(name);
        }
        self.waiting.insert(place, (cluster, told));
    }

    /// The order has come to an event.
    pub(super) fn leave_line(&mut self, cluster: &str, told: &Told, place: Place) {
        let Some(job_id) = job_of(told) else { return };
        let name = (cluster.to_owned(), job_id.to_owned());
        let Some(line) = self.lines.get_mut(&name) else { return };
        line.remove(&place);
        if line.is_empty() {
            self.lines.remove(&name);
        }
    }

    /// The order has come to `now_us`, ticks included: tells the job's detector the reports that
    /// came of times up to [`AHEAD_US`] later.
    pub(super) fn run_ahead(&mut self, name: &Name, now_us: i64) {
        let Some(job) = self.jobs.get_mut(name) else { return };
        let Some(run) = job.runs() else { return };
        let end_us = now_us.saturating_add(AHEAD_US);
        let mut until_us = end_us;
        let mut passed: Vec<Place> = Vec::new();
        for place in self.lines.get(name).into_iter().flatten() {
            if place.0 > until_us {
                break;
            }
            match self.waiting.get_mut(place) {
                Some((_, Told::Step(report, ran_in))) if job.is_in_shape(report) => {
                    job.hear(report, place.0, end_us);
                    *ran_in = Some(run);
                    passed.push(*place);
                }
                Some((_, Told::Step(report, _))) if job.is_past(report) => {}
                Some((_, Told::Job(fact, ..))) if fact.kind == v1::JobEventKind::Ended => {
                    until_us = until_us.min(place.0.saturating_add(AFTER_END_US));
                }
                _ => break,
            }
        }
        let said = job.settle(end_us);
        if let Some(line) = self.lines.get_mut(name) {
            passed.iter().for_each(|place| {
                line.remove(place);
            });
            if line.is_empty() {
                self.lines.remove(name);
            } else {
                self.touched.insert(name.clone());
            }
        }
        self.say(name, said);
    }
}

/// The job whose line an event stands in: what changes a job, and may not be outrun.
fn job_of(told: &Told) -> Option<&str> {
    match told {
        Told::Job(fact, ..) if fact.kind != v1::JobEventKind::Submitted => Some(&fact.job_id),
        Told::Step(report, _) => Some(&report.job_id),
        _ => None,
    }
}
