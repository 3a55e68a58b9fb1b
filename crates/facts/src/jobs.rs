//! Jobs that have not ended: their families and ages; and the run times of those that have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tidegate_autopilot::state::Job;
use tidegate_events::v1::{JobEvent, JobEventKind as Kind};
use tidegate_events::{FinalState, GPU_MILLI, JobFamily, Micros, Millis};

use crate::bounded::drop_silent;
use crate::restarts::Restarts;
use crate::run_times::RunTimes;

/// Open jobs kept; beyond it a quarter goes, those silent longest.
const MAX_OPEN: usize = 200_000;

/// A restarted job ends early if its last attempt took less than this part of the one that was
/// stopped. Nodes differ in speed, so not every shorter one does.
const EARLY: (i64, i64) = (3, 4);

/// What events said of a job so far.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct OpenJob {
    #[serde(with = "family_fields")]
    pub family: JobFamily,
    /// Start of the attempt that runs.
    pub since_ms: Option<i64>,
    /// Run time of its earlier attempts.
    ran_ms: i64,
    /// Run time of the longest of them after which it went back into the queue.
    stopped_ms: i64,
    /// GPUs of its first attempt, thousandths.
    first_gpus_milli: Option<u64>,
    /// It ran at several sizes, so its attempts do not compare.
    is_resized: bool,
    gpus: u32,
    limit_ms: Option<i64>,
    newest_ms: i64,
}

/// Jobs of one cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Jobs {
    open: BTreeMap<String, OpenJob>,
    run_times: RunTimes,
    restarts: Restarts,
}

impl Jobs {
    pub fn observe(&mut self, event: &JobEvent, at_ms: i64) {
        if event.step_id.is_some() || event.job_id.is_empty() {
            return;
        }
        let is_attempt = event.attempt_id.is_some();
        match event.kind() {
            Kind::Ended if is_over(event) => self.end(event, at_ms),
            Kind::DeviceHeld | Kind::DeviceReleased | Kind::Observed | Kind::Unspecified => {}
            kind => {
                drop_silent(&mut self.open, &event.job_id, MAX_OPEN, |job| job.newest_ms);
                let job = self.open.entry(event.job_id.clone()).or_default();
                job.learn(event, at_ms);
                match kind {
                    Kind::Started => job.start(event, at_ms),
                    Kind::Ended if is_attempt => job.stop(event, at_ms),
                    Kind::Resized => job.is_resized = true,
                    _ => {}
                }
            }
        }
    }

    /// Family of a job; without a name if no event named it.
    pub fn family(&self, job_id: &str) -> String {
        let nameless = JobFamily::default();
        self.open.get(job_id).map_or(&nameless, |job| &job.family).name(job_id)
    }

    pub fn open(&self, job_id: &str) -> Option<&OpenJob> {
        self.open.get(job_id)
    }

    /// Adds the expected end of a job that runs, the work that one with a curve has left, and
    /// whether such jobs resume.
    pub fn enrich(&self, id: &str, job: &mut Job, at_us: i64) {
        let Some(known) = self.open.get(id) else { return };
        if job.checkpoint.resumes.is_none() {
            job.checkpoint.resumes = self.restarts.resume(known.family.team.as_deref().unwrap_or_default());
        }
        let running_since_us = job.running_since_us();
        if running_since_us.is_none() && job.curve.is_none() {
            return;
        }
        let run_us = running_since_us.map_or(0, |since| at_us.saturating_sub(since).max(0));
        let run_ms = Micros(run_us).floor_millis().0;
        let gpus = if job.gpus > 0 { job.gpus } else { known.gpus };
        let age_ms = known.ran_ms.saturating_add(run_ms);
        // The limit is that of one attempt.
        let limit_ms = known.limit_ms.map(|limit| limit.saturating_add(known.ran_ms));
        let Some(left) = self.run_times.remaining(&known.family, gpus, age_ms, limit_ms) else { return };
        let at = |left_ms: i64| at_us.saturating_add(Millis(left_ms).to_micros().0);
        if running_since_us.is_some() && job.expected_end_us.is_none() {
            job.expected_end_us = Some(at(left.median_ms));
            job.end_within_us = Some((at(left.low_ms), at(left.high_ms)));
        }
        if job.remaining_work_ms.is_none()
            && let Some(curve) = &job.curve
        {
            let size = if running_since_us.is_some() { job.held_gpus() } else { gpus };
            let work = i128::from(left.median_ms) * i128::from(curve.rate_ppm(size)) / 1_000_000;
            job.remaining_work_ms = i64::try_from(work).ok();
        }
    }

    fn end(&mut self, event: &JobEvent, at_ms: i64) {
        let Some(mut job) = self.open.remove(&event.job_id) else { return };
        let before_ms = job.ran_ms;
        job.pause(at_ms);
        let is_comparable = job.stopped_ms > 0 && !job.is_resized;
        if is_comparable && final_state(event) == Some(FinalState::Completed) {
            let early_ms = job.stopped_ms / EARLY.1 * EARLY.0;
            let probability = self.run_times.ends_within(&job.family, job.gpus, before_ms, early_ms);
            let team = job.family.team.as_deref().unwrap_or_default();
            self.restarts.add(team, job.ran_ms - before_ms < early_ms, probability, at_ms);
        }
        if job.ran_ms > 0 && job.gpus > 0 {
            self.run_times.add(&job.family, job.gpus, job.ran_ms);
        }
    }
}

impl OpenJob {
    fn learn(&mut self, event: &JobEvent, at_ms: i64) {
        self.family.learn(event);
        self.newest_ms = self.newest_ms.max(at_ms);
        if let Some(limit) = event.time_limit_ms {
            self.limit_ms = i64::try_from(limit).ok();
        }
        // The size it asked for: a resized job keeps its class.
        let gpus = event.gpus_milli.map_or(0, |milli| milli.div_ceil(GPU_MILLI));
        if self.gpus == 0 || event.kind() == Kind::Submitted {
            self.gpus = u32::try_from(gpus).unwrap_or(u32::MAX).max(self.gpus);
        }
    }

    fn start(&mut self, event: &JobEvent, at_ms: i64) {
        self.since_ms = Some(at_ms);
        if let Some(milli) = event.gpus_milli {
            self.is_resized |= *self.first_gpus_milli.get_or_insert(milli) != milli;
        }
    }

    fn stop(&mut self, event: &JobEvent, at_ms: i64) {
        let before_ms = self.ran_ms;
        self.pause(at_ms);
        if is_requeued(event) {
            self.stopped_ms = self.stopped_ms.max(self.ran_ms - before_ms);
        } else {
            self.is_resized = true;
        }
    }

    /// Its attempt ends, and another may follow.
    fn pause(&mut self, at_ms: i64) {
        if let Some(since_ms) = self.since_ms.take() {
            self.ran_ms = self.ran_ms.saturating_add(at_ms.saturating_sub(since_ms).max(0));
        }
    }
}

/// Whether no attempt of the job follows. One whose node failed or that was preempted may come
/// back, and says nothing of how long such jobs run.
pub(crate) fn is_over(event: &JobEvent) -> bool {
    !matches!(
        final_state(event),
        Some(FinalState::Requeued | FinalState::Resized | FinalState::Preempted | FinalState::NodeFail)
    )
}

/// Whether the job goes back into the queue.
pub(crate) fn is_requeued(event: &JobEvent) -> bool {
    matches!(final_state(event), Some(FinalState::Requeued | FinalState::Preempted | FinalState::NodeFail))
}

fn final_state(event: &JobEvent) -> Option<FinalState> {
    event.final_state.as_deref().and_then(|state| state.parse().ok())
}

/// Fields of a family in a snapshot.
mod family_fields {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tidegate_events::JobFamily;

    type Fields = (Option<String>, Option<String>, Option<String>, Option<String>);

    pub fn serialize<S: Serializer>(family: &JobFamily, to: S) -> Result<S::Ok, S::Error> {
        let JobFamily { team, user_name, job_name, gpu_model } = family;
        (team, user_name, job_name, gpu_model).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<JobFamily, D::Error> {
        let (team, user_name, job_name, gpu_model) = Fields::deserialize(from)?;
        Ok(JobFamily { team, user_name, job_name, gpu_model })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: Kind, id: &str, state: Option<FinalState>) -> JobEvent {
        JobEvent {
            kind: kind.into(),
            job_id: id.into(),
            attempt_id: Some(1),
            team: Some("t".into()),
            gpus_milli: Some(8_000),
            final_state: state.map(|state| state.to_string()),
            ..JobEvent::default()
        }
    }

    /// Jobs that were stopped after four hours, and completed `last_ms` after they started again.
    fn restarted(state: FinalState, again_gpus: u64, last_ms: i64) -> Option<bool> {
        const HOUR_MS: i64 = 3_600_000;
        let mut jobs = Jobs::default();
        // Others run for one to ten hours.
        for n in 0..200 {
            let id = format!("other-{n}");
            jobs.observe(&event(Kind::Started, &id, None), 0);
            jobs.observe(
                &event(Kind::Ended, &id, Some(FinalState::Completed)),
                HOUR_MS + n * HOUR_MS * 9 / 200,
            );
        }
        for n in 0..20 {
            let id = format!("{n}");
            jobs.observe(&event(Kind::Started, &id, None), 0);
            jobs.observe(&event(Kind::Ended, &id, Some(state)), 4 * HOUR_MS);
            let again = JobEvent { gpus_milli: Some(again_gpus * 1_000), ..event(Kind::Started, &id, None) };
            jobs.observe(&again, 5 * HOUR_MS);
            jobs.observe(&event(Kind::Ended, &id, Some(FinalState::Completed)), 5 * HOUR_MS + last_ms);
        }
        jobs.restarts.resume("t")
    }

    #[test]
    fn restarted_jobs_show_whether_they_resume() {
        const HOUR_MS: i64 = 3_600_000;
        use FinalState::{NodeFail, Preempted, Requeued, Resized};
        assert_eq!(restarted(Preempted, 8, 2 * HOUR_MS), Some(true));
        assert_eq!(restarted(Requeued, 8, 6 * HOUR_MS), Some(false));
        assert_eq!(restarted(NodeFail, 8, 3 * HOUR_MS + 1), Some(false), "a faster node");
        // On more GPUs it would end early anyway.
        let mut jobs = Jobs::default();
        jobs.observe(&event(Kind::Started, "a", None), 0);
        jobs.observe(&event(Kind::Resized, "a", None), 1);
        assert!(jobs.open("a").unwrap().is_resized);
        assert_eq!(restarted(Preempted, 16, 2 * HOUR_MS), None);
        assert_eq!(restarted(Resized, 8, 2 * HOUR_MS), None);
    }

    #[test]
    fn attempts_add_up_and_what_comes_twice_or_from_year_1_breaks_nothing() {
        let mut jobs = Jobs::default();
        let ran = |jobs: &Jobs| jobs.open("a").map(|job| (job.ran_ms, job.since_ms));
        jobs.observe(&event(Kind::Started, "a", None), 1_000);
        jobs.observe(&event(Kind::Ended, "a", Some(FinalState::Requeued)), 5_000);
        jobs.observe(&event(Kind::Ended, "a", Some(FinalState::Requeued)), 5_000);
        assert_eq!(ran(&jobs), Some((4_000, None)), "an end that comes twice counts once");
        jobs.observe(&event(Kind::Started, "a", None), 7_000);
        jobs.observe(&event(Kind::Ended, "a", Some(FinalState::Completed)), 9_000);
        assert_eq!(ran(&jobs), None);
        jobs.observe(&event(Kind::Ended, "a", Some(FinalState::Completed)), 9_000);
        assert_eq!(ran(&jobs), None, "what has ended does not come back");
        for (from_ms, to_ms) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN)] {
            jobs.observe(&event(Kind::Started, "b", None), from_ms);
            jobs.observe(&event(Kind::Ended, "b", Some(FinalState::Completed)), to_ms);
        }
        assert!(jobs.open("b").is_none());
        // Stopped and restarted at impossible times, and completed twice.
        for (from_ms, to_ms) in [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN)] {
            for state in [FinalState::Preempted, FinalState::Completed, FinalState::Completed] {
                jobs.observe(&event(Kind::Started, "c", None), from_ms);
                jobs.observe(&event(Kind::Ended, "c", Some(state)), to_ms);
            }
        }
        assert_eq!(jobs.restarts.resume("t"), None, "one restarted job shows nothing");
    }
}
