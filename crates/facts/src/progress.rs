//! Checkpoints and pauses of jobs, from the step reports of their first rank.
//!
//! What a save, a restart or a resize takes is measured on the jobs of a family: a job that has not
//! saved yet has the times of those before it.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tidegate_autopilot::state::Job;
use tidegate_events::Millis;
use tidegate_events::v1::{JobEvent, JobEventKind as Kind, StepReport};
use tidegate_events::{FinalState, Micros};

use crate::bounded::drop_silent;
use crate::jobs::Jobs;

/// Measurements kept of each pause of a family; their median counts.
const KEPT: usize = 9;
/// Families and jobs kept; beyond it a quarter of them goes, those silent longest.
const MAX_FAMILIES: usize = 4_096;
const MAX_JOBS: usize = 50_000;
/// A pause that seems longer is a report that came late.
const LONGEST_MS: i64 = 6 * 3_600_000;

/// Progress of the jobs of one cluster.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Progress {
    jobs: BTreeMap<String, Run>,
    families: BTreeMap<String, Pauses>,
    /// Time of the first step report. What began before it may have begun its steps unseen.
    reads_since_ms: Option<i64>,
}

/// A job's attempts, as far as its steps matter.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Run {
    /// It started or was resized then, and has reported no step since.
    awaits: Option<Awaited>,
    /// Its last attempt ended to go on with other devices.
    resizes: bool,
    /// Beginning of the last completed save.
    saved_us: Option<i64>,
    /// Times of the last steps of this attempt, µs, saves and loads apart.
    #[serde(skip_serializing_if = "Recent::is_empty")]
    steps: Recent,
    newest_ms: i64,
}

/// A pause that ends with the next step.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Awaited {
    since_ms: i64,
    is_resize: bool,
}

/// Measured pauses of a family, ms.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default)]
struct Pauses {
    save: Recent,
    restart: Recent,
    resize: Recent,
    newest_ms: i64,
}

/// The last measurements of one thing, at most [`KEPT`].
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
struct Recent(VecDeque<i64>);

impl Progress {
    /// Takes in an event of a job.
    pub fn job(&mut self, event: &JobEvent, at_ms: i64) {
        if event.step_id.is_some() || event.job_id.is_empty() {
            return;
        }
        let is_start = matches!(event.kind(), Kind::Started | Kind::Resized);
        if is_start {
            drop_silent(&mut self.jobs, &event.job_id, MAX_JOBS, |run| run.newest_ms);
            let run = self.jobs.entry(event.job_id.clone()).or_default();
            let is_resize = event.kind() == Kind::Resized || std::mem::take(&mut run.resizes);
            run.awaits = Some(Awaited { since_ms: at_ms, is_resize });
            run.steps = Recent::default();
            run.newest_ms = run.newest_ms.max(at_ms);
        } else if event.kind() == Kind::Ended {
            let state = event.final_state.as_deref().and_then(|state| state.parse::<FinalState>().ok());
            match (state, self.jobs.get_mut(&event.job_id)) {
                (Some(FinalState::Resized), Some(run)) => run.resizes = true,
                (Some(FinalState::Requeued | FinalState::Preempted | FinalState::NodeFail), _) => {}
                _ => {
                    self.jobs.remove(&event.job_id);
                }
            }
        }
    }

    /// Takes in a step that began at `at_ms`. Only steps of running jobs that the scheduler knows
    /// count, and of their ranks the first.
    pub fn step(&mut self, step: &StepReport, at_ms: i64, jobs: &Jobs) {
        let reads_since_ms = *self.reads_since_ms.get_or_insert(at_ms);
        let Some(since_ms) = jobs.open(&step.job_id).and_then(|job| job.since_ms) else { return };
        let Some(run) = self.jobs.get_mut(&step.job_id) else { return };
        if step.rank != 0 || at_ms < since_ms {
            return;
        }
        run.newest_ms = run.newest_ms.max(at_ms);
        let family = jobs.family(&step.job_id);
        drop_silent(&mut self.families, &family, MAX_FAMILIES, |pauses| pauses.newest_ms);
        let pauses = self.families.entry(family).or_default();
        pauses.newest_ms = pauses.newest_ms.max(at_ms);
        let us = |us: Option<u64>| us.and_then(|us| i64::try_from(us).ok()).unwrap_or(0);
        if let Some(awaited) = run.awaits.take_if(|awaited| awaited.since_ms <= at_ms)
            && awaited.since_ms >= reads_since_ms
        {
            let restored_ms = Micros(us(step.restore_us)).floor_millis().0;
            let took_ms = at_ms.saturating_sub(awaited.since_ms).saturating_add(restored_ms);
            if awaited.is_resize { &mut pauses.resize } else { &mut pauses.restart }.add(took_ms);
        }
        let save_us = us(step.checkpoint_us);
        let step_us = us(Some(step.duration_us)) - save_us - us(step.restore_us);
        if step_us > 0 {
            run.steps.push(step_us);
        }
        if save_us > 0 {
            pauses.save.add(Micros(save_us).floor_millis().0);
            // What was done while it saved is not in the checkpoint.
            let end_us = Millis(at_ms).to_micros().0.saturating_add(us(Some(step.duration_us)));
            run.saved_us = run.saved_us.max(Some(end_us.saturating_sub(save_us)));
        }
    }

    /// Adds a job's last checkpoint and what disturbing it takes.
    pub fn enrich(&self, id: &str, job: &mut Job, jobs: &Jobs) {
        let checkpoint = &mut job.checkpoint;
        if let Some(run) = self.jobs.get(id) {
            checkpoint.last_us = checkpoint.last_us.or(run.saved_us);
            checkpoint.step_us = checkpoint.step_us.or(run.steps.median());
        }
        let Some(pauses) = self.families.get(&jobs.family(id)) else { return };
        checkpoint.save_ms = checkpoint.save_ms.or(pauses.save.median());
        checkpoint.restart_ms = checkpoint.restart_ms.or(pauses.restart.median());
        checkpoint.resize_ms = checkpoint.resize_ms.or(pauses.resize.median());
    }
}

impl Recent {
    fn add(&mut self, took_ms: i64) {
        if (0..=LONGEST_MS).contains(&took_ms) {
            self.push(took_ms);
        }
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn push(&mut self, value: i64) {
        self.0.push_back(value);
        if self.0.len() > KEPT {
            self.0.pop_front();
        }
    }

    fn median(&self) -> Option<i64> {
        let mut sorted: Vec<i64> = self.0.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(job: &str, at_ms: i64, kind: Kind) -> (JobEvent, i64) {
        let event = JobEvent {
            kind: kind.into(),
            job_id: job.into(),
            attempt_id: Some(1),
            team: Some("t".into()),
            job_name: Some("train".into()),
            gpus_milli: Some(8_000),
            ..JobEvent::default()
        };
        (event, at_ms)
    }

    struct Both(Jobs, Progress);

    impl Both {
        fn job(&mut self, (event, at_ms): (JobEvent, i64)) {
            self.0.observe(&event, at_ms);
            self.1.job(&event, at_ms);
        }

        fn step(&mut self, job: &str, rank: u32, at_ms: i64, save_ms: u64, restore_ms: u64) {
            let step = StepReport {
                job_id: job.into(),
                rank,
                duration_us: 10_000_000 + save_ms * 1_000,
                checkpoint_us: (save_ms > 0).then_some(save_ms * 1_000),
                restore_us: (restore_ms > 0).then_some(restore_ms * 1_000),
                ..StepReport::default()
            };
            self.1.step(&step, at_ms, &self.0);
        }
    }

    #[test]
    fn pauses_are_measured_by_family_and_checkpoints_by_job() {
        let mut seen = Both(Jobs::default(), Progress::default());
        seen.step("0", 0, 0, 0, 0);
        seen.job(started("1", 100_000, Kind::Started));
        seen.step("1", 1, 130_000, 7_000, 9_000);
        seen.step("1", 0, 140_000, 0, 5_000);
        seen.step("1", 0, 150_000, 20_000, 0);
        seen.job(started("1", 200_000, Kind::Resized));
        seen.step("1", 0, 212_000, 0, 0);
        let run = &seen.1.jobs["1"];
        assert_eq!(run.saved_us, Some(160_000_000), "the save began 20 s before the step's end");
        let pauses = &seen.1.families["t/-/train/-"];
        let medians = [&pauses.save, &pauses.restart, &pauses.resize].map(Recent::median);
        assert_eq!(medians, [Some(20_000), Some(45_000), Some(12_000)]);
        // One step since the resize; the saves and loads are no part of a step.
        assert_eq!(seen.1.jobs["1"].steps.0, [10_000_000]);
        // A step of an unknown job, or from before its start, is nobody's.
        seen.step("2", 0, 220_000, 1_000, 0);
        seen.job(started("3", 300_000, Kind::Started));
        seen.step("3", 0, 299_000, 1_000, 0);
        assert_eq!((seen.1.jobs.len(), seen.1.jobs["3"].saved_us), (2, None));
        seen.job(started("1", 400_000, Kind::Ended));
        assert!(!seen.1.jobs.contains_key("1"));
    }
}
