//! Facts of the day beyond sums by class, for comparison with other systems.

use crate::bench::ledger::loads::load_of_job;
use serde::Serialize;

use super::class::Class;
use super::day::{Day, Incident, Job};
use super::fleet::{Span, WHOLE};
use super::scenes::QUOTA;
use super::truth::Truth;

#[derive(Debug, Serialize)]
pub struct Facts {
    from_ms: i64,
    to_ms: i64,
    /// GPU time by class, pool, team and job; free time has no team and job.
    time: Vec<Time>,
    jobs: Vec<OfJob>,
    waits: Vec<Wait>,
}

#[derive(Debug, Serialize)]
struct Time {
    class: Class,
    pool: &'static str,
    team: Option<&'static str>,
    job_id: Option<String>,
    gpu_ms: f64,
}

/// Facts of a job over all attempts.
#[derive(Debug, Serialize)]
struct OfJob {
    job_id: String,
    name: &'static str,
    attempts: usize,
    units: usize,
    /// The straggling rank.
    straggler: Option<u32>,
    /// Over all ranks, repeated steps included.
    tokens: u64,
    model_gflops: u64,
    /// Steps that were kept: number of the last one plus 1.
    steps: u64,
    /// Energy of the held devices, proportional for shares and slices.
    energy_mj: i64,
}

#[derive(Debug, Serialize)]
struct Wait {
    job_id: String,
    team: &'static str,
    pool: &'static str,
    since_ms: i64,
    until_ms: i64,
    gpus_milli: u64,
    reason: &'static str,
    /// Constraint of the wait: quota, shape, gang, or capacity.
    constraint: &'static str,
}

impl Facts {
    pub fn new(day: &Day, truth: &Truth) -> Self {
        let time = |(cell, time): (&super::truth::Cell, &i64)| Time {
            class: cell.class,
            pool: cell.pool,
            team: cell.team,
            job_id: cell.job.clone(),
            gpu_ms: *time as f64 / WHOLE as f64,
        };
        Self {
            from_ms: day.span.from_ms,
            to_ms: day.span.to_ms,
            time: truth.0.iter().map(time).collect(),
            jobs: (0..day.jobs.len())
                .zip(energy_mj(day))
                .map(|(job, energy)| of_job(&day.jobs[job], energy))
                .collect(),
            waits: day.jobs.iter().filter_map(|job| wait(day, job)).collect(),
        }
    }
}

/// Energy of each job, mJ.
pub(super) fn energy_mj(day: &Day) -> Vec<i64> {
    let mut uj = vec![0.0; day.jobs.len()];
    for (place, unit) in day.fleet.units.iter().enumerate() {
        let share = unit.weight() as f64 / WHOLE as f64;
        let held = day.pieces(place).filter_map(|piece| Some((piece, piece.by?)));
        for (piece, by) in held {
            let power_mw = load_of_job(day, by.job).levels(piece.doing).power_mw;
            uj[by.job] += power_mw * share * piece.span.length_ms() as f64;
        }
    }
    uj.into_iter().map(|uj| (uj / 1e3).round() as i64).collect()
}

fn of_job(job: &Job, energy_mj: i64) -> OfJob {
    let trainings = || job.attempts.iter().filter_map(|attempt| attempt.training());
    let of_steps = |one: fn((u64, u64)) -> u64| {
        trainings().map(|t| one(t.tokens()) * t.steps.len() as u64 * u64::from(t.ranks)).sum()
    };
    OfJob {
        job_id: job.id.clone(),
        name: job.name,
        attempts: job.attempts.len(),
        units: job.attempts.first().map_or(0, |attempt| attempt.units.len()),
        straggler: trainings().find_map(|training| training.habits.straggler),
        tokens: of_steps(|(tokens, _)| tokens),
        model_gflops: of_steps(|(_, flops)| flops / 1_000_000_000),
        steps: trainings().flat_map(|t| &t.steps).map(|step| step.number + 1).max().unwrap_or(0),
        energy_mj,
    }
}

fn wait(day: &Day, job: &Job) -> Option<Wait> {
    Some(Wait {
        job_id: job.id.clone(),
        team: job.team,
        pool: job.pool,
        since_ms: job.submit_ms,
        until_ms: job.attempts.first()?.span.from_ms,
        gpus_milli: job.asked_milli.unwrap_or(0),
        reason: job.reason?,
        constraint: constraint(day, job)?,
    })
}

/// Constraint that a job waited for.
pub(super) fn constraint(day: &Day, job: &Job) -> Option<&'static str> {
    let (reason, until_ms) = (job.reason?, job.attempts.first()?.span.from_ms);
    let waited = Span { from_ms: job.submit_ms, to_ms: until_ms };
    let class = day.conditions.iter().find_map(|condition| match condition.what {
        Incident::Waits(pool, class) if pool == job.pool && condition.span == waited => Some(class),
        _ => None,
    });
    Some(match class {
        _ if reason == QUOTA => "quota",
        Some(Class::Fragmented) => "shape",
        Some(Class::GangWait) => "gang",
        _ => "capacity",
    })
}
