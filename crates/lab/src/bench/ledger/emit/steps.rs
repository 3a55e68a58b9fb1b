//! Step reports as the client of training jobs sends them, one per rank and step.

use serde::Serialize;
use tidegate_events::{Event, v1};

use super::{Emitter, SourcedEvent, agent};
use crate::bench::ledger::day::Day;
use crate::bench::ledger::training::{Parts, STEPS_PER_EPOCH, Training};
use tidegate_workspace::CommandError;

/// Sums over all reports, as `training_1m` has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Sums {
    pub reports: i64,
    pub duration_us: i64,
    pub compute_us: i64,
    pub communication_us: i64,
    pub data_wait_us: i64,
    pub checkpoint_us: i64,
    pub restore_us: i64,
    pub tokens: i64,
}

/// A report to emit.
#[derive(Clone, Copy)]
struct Due {
    at_ms: i64,
    job: usize,
    attempt: usize,
    /// Step index; `None` for the restored checkpoint.
    step: Option<usize>,
}

pub(super) fn emit(day: &Day, emitter: &mut Emitter<'_>) -> Result<Sums, CommandError> {
    let mut due = Vec::new();
    for (job, attempt) in
        day.jobs.iter().enumerate().flat_map(|(job, j)| (0..j.attempts.len()).map(move |a| (job, a)))
    {
        let Some(training) = day.jobs[job].attempts[attempt].training() else { continue };
        let restored = training.restore.map(|restore| (restore.from_ms + restore.duration_ms, None));
        let steps = training.steps.iter().enumerate().map(|(place, step)| (step.end_ms(), Some(place)));
        due.extend(restored.into_iter().chain(steps).map(|(at_ms, step)| Due { at_ms, job, attempt, step }));
    }
    due.sort_by_key(|due| due.at_ms);
    let mut sums = Sums::default();
    for due in due {
        let attempt = &day.jobs[due.job].attempts[due.attempt];
        let Some(training) = attempt.training() else { continue };
        for (rank, unit) in (0_u32..).zip(&attempt.units) {
            let unit = &day.fleet.units[*unit];
            let node = &day.fleet.nodes[unit.node];
            let report = v1::StepReport {
                job_id: day.jobs[due.job].id.clone(),
                node: Some(node.name.clone()),
                gpu_uuid: Some(node.gpus[unit.gpu].device.uuid.clone()),
                ..report(training, due.step, rank)
            };
            sums.add(&report);
            let event = Event::Step(report);
            emitter.emit(SourcedEvent { source: agent(day, unit.node), at_ms: due.at_ms, event })?;
        }
    }
    Ok(sums)
}

fn report(training: &Training, step: Option<usize>, rank: u32) -> v1::StepReport {
    let us = |ms: i64| ms.unsigned_abs() * 1_000;
    let of = |from_ms: i64, step: u64, duration_ms: i64, parts: Parts| v1::StepReport {
        envelope: Some(v1::Envelope { event_time_ms: from_ms, ..Default::default() }),
        rank,
        world_size: Some(training.ranks),
        step,
        duration_us: us(duration_ms),
        compute_us: Some(us(parts.compute_ms)),
        communication_us: Some(us(parts.communication_ms)),
        data_wait_us: Some(us(parts.data_ms)),
        checkpoint_us: Some(us(parts.checkpoint_ms)),
        ..Default::default()
    };
    match (step.map(|place| &training.steps[place]), training.restore) {
        (Some(step), _) => {
            let (tokens, model_flops) = training.tokens();
            v1::StepReport {
                tokens: Some(tokens),
                model_flops: Some(model_flops),
                flops_convention: Some("6n".into()),
                precision: Some("bf16".into()),
                data_epoch: Some(step.number / STEPS_PER_EPOCH),
                ..of(step.from_ms, step.number, step.duration_ms(), training.parts(step, rank))
            }
        }
        // The restored checkpoint: named by the step that saved it.
        (None, Some(restore)) => {
            let parts = Parts { data_ms: 0, compute_ms: 0, communication_ms: 0, checkpoint_ms: 0 };
            v1::StepReport {
                restore_us: Some(us(restore.duration_ms)),
                ..of(restore.from_ms, restore.step, restore.duration_ms, parts)
            }
        }
        (None, None) => v1::StepReport::default(),
    }
}

impl Sums {
    fn add(&mut self, report: &v1::StepReport) {
        let of = |value: Option<u64>| value.unwrap_or(0).cast_signed();
        self.reports += 1;
        self.duration_us += of(Some(report.duration_us));
        self.compute_us += of(report.compute_us);
        self.communication_us += of(report.communication_us);
        self.data_wait_us += of(report.data_wait_us);
        self.checkpoint_us += of(report.checkpoint_us);
        self.restore_us += of(report.restore_us);
        self.tokens += of(report.tokens);
    }
}
