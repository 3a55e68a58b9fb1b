//! Items from device metrics: bottlenecks, sharing, placement, energy and memory.

use crate::bench::ledger::loads::{load_of_job, load_of_piece};
use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tidegate_server::QueryService;

use super::{Fact, MINUTE_MS, Question, exact, is_whole, list, unseen_of};
use crate::bench::ledger::day::{Activity, Attempt, Day, Job};
use crate::bench::ledger::facts::energy_mj;
use crate::bench::ledger::fleet::{Part, Span, WHOLE};
use crate::bench::ledger::truth::{joined, overlap_ms};
use tidegate_demo::levels::Doing;
use tidegate_demo::levels::EMPTY_BYTES;
use tidegate_workspace::{CommandError, ask};

/// Item 6: minutes with the planted bottleneck, and memory growth.
pub(super) fn walls(day: &Day) -> Vec<Question> {
    let mut questions = Vec::new();
    for job in &day.jobs {
        let [attempt] = &job.attempts[..] else { continue };
        if let Some(bottleneck) = job.bottleneck {
            let span = match attempt.training() {
                Some(training) => match (training.steps.first(), training.steps.last()) {
                    (Some(first), Some(last)) => Span { from_ms: first.from_ms, to_ms: last.end_ms() },
                    _ => continue,
                },
                None => attempt.span,
            };
            let first_ms = (span.from_ms + MINUTE_MS - 1).div_euclid(MINUTE_MS) * MINUTE_MS;
            let minutes = (span.to_ms - first_ms).div_euclid(MINUTE_MS).max(0);
            let sql = format!(
                "count(*) FROM bottleneck_1m WHERE job_id = '{}' AND label = '{}' AND window_start >= to_timestamp_millis({first_ms}) \
                 AND window_start < to_timestamp_millis({})",
                job.id,
                bottleneck.label(),
                first_ms + minutes * MINUTE_MS
            );
            questions.push(exact("wall", format!("minutes of {}", bottleneck.label()), sql, minutes));
        }
        if job.growth > 0 {
            let sql = format!("sum(bytes_per_hour) FROM memory_growth WHERE job_id = '{}'", job.id);
            questions.push(exact("wall", "growth of memory, bytes an hour", sql, job.growth).within(1_000.0));
        }
    }
    questions
}

/// Item 7: time on shared GPUs, its split, and interference.
pub(super) fn sharing(day: &Day) -> Vec<Question> {
    let mut shared: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
    for gpu in day.fleet.nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.units.len() > 1) {
        let held = |unit: usize| day.pieces(unit).filter(|piece| piece.by.is_some()).map(|piece| piece.span);
        for unit in &gpu.units {
            let others =
                joined(gpu.units.iter().filter(|other| *other != unit).flat_map(|o| held(*o)).collect());
            let ms: i64 = held(*unit).map(|span| overlap_ms(&others, span)).sum();
            let how = if day.fleet.units[*unit].part == Part::Half { "shared" } else { "mig" };
            let sums = shared.entry(how).or_default();
            *sums = (sums.0 + ms, sums.1 + ms * day.fleet.units[*unit].weight());
        }
    }
    let mut questions = Vec::new();
    for (how, (ms, weighted)) in shared {
        let from = format!("FROM shared_devices WHERE how = '{how}'");
        questions.push(exact("sharing", format!("{how}: ms"), format!("sum(held_ms) {from}"), ms));
        let parts = format!("sum(part_gpu_ms) {from}");
        // Each period is rounded down.
        questions.push(exact("sharing", format!("{how}: GPU-ms"), parts, weighted / WHOLE).within(100.0));
    }
    let is_slowed = |job: &&Job| {
        job.attempts.iter().filter_map(Attempt::training).any(|training| training.habits.slower.is_some())
    };
    let slowed: Vec<&Job> = day.jobs.iter().filter(is_slowed).collect();
    let suspected = "count(DISTINCT job_id) FROM interference WHERE is_suspected = 1";
    let of_them = format!("{suspected} AND job_id IN {}", list(slowed.iter().copied()));
    questions.push(exact(
        "sharing",
        "jobs that others are suspected to slow down",
        suspected,
        slowed.len() as i64,
    ));
    questions.push(exact("sharing", "of them those that others do", of_them, slowed.len() as i64));
    questions
}

/// Item 8: racks of multi-node gangs.
pub(super) fn placement(day: &Day) -> Vec<Question> {
    let racks = |attempt: &Attempt| {
        let node = |unit: &usize| day.fleet.units[*unit].node;
        let nodes: BTreeSet<usize> = attempt.units.iter().map(node).collect();
        let racks: BTreeSet<&str> = nodes.iter().map(|node| day.fleet.nodes[*node].rack.as_str()).collect();
        if nodes.len() > 1 { racks.len() as i64 } else { 0 }
    };
    let all = day.jobs.iter().flat_map(|job| &job.attempts).map(racks).sum();
    vec![exact("placement", "racks of gangs", "sum(racks) FROM gang_spread WHERE node_count > 1", all)]
}

/// Item 9: energy of jobs whose devices were observed throughout.
pub(super) fn energy(day: &Day, unseen: &[Vec<Span>]) -> Vec<Question> {
    let unseen = unseen_of(day, unseen);
    let mut hidden = BTreeSet::new();
    for (unit, unseen) in unseen.iter().enumerate() {
        let pieces = day.pieces(unit).filter(|piece| overlap_ms(unseen, piece.span) > 0);
        hidden.extend(pieces.filter_map(|piece| piece.by).map(|by| by.job));
    }
    let seen = |whole: bool, mj: &[i64]| {
        let is_meant = |(place, job): &(usize, &Job)| {
            !hidden.contains(place) && job.attempts.iter().all(|attempt| is_whole(day, attempt)) == whole
        };
        let jobs: Vec<(usize, &Job)> = day.jobs.iter().enumerate().filter(is_meant).collect();
        let expected: i64 = jobs.iter().map(|(place, _)| mj[*place]).sum();
        let edges: f64 = jobs.iter().map(|(place, job)| edge_mj(day, *place, job)).sum();
        let from = format!("FROM job_energy WHERE job_id IN {}", list(jobs.into_iter().map(|(_, job)| job)));
        (format!("sum(energy_mj) {from}"), expected, edges / expected.max(1) as f64 * 1e6)
    };
    let (whole, mj, allowed) = seen(true, &energy_mj(day));
    let (parts, of_parts, allowed_of_parts) = seen(false, &by_parts_mj(day));
    vec![
        exact("energy", "of jobs on whole GPUs, mJ", whole, mj).within(allowed),
        // The counter belongs to the whole GPU; units are not measured.
        exact("energy", "of jobs on parts of GPUs, their parts of the GPU's, mJ", parts, of_parts)
            .within(allowed_of_parts),
    ]
}

/// Largest misattributed energy at the ends of a job's holds. A minute in which a device changes
/// hands is split by time; in the middle, the error is a quarter minute of the power difference.
fn edge_mj(day: &Day, place: usize, job: &Job) -> f64 {
    let load = load_of_job(day, place);
    let watts = (load.levels(Doing::Compute).power_mw - load.levels(Doing::Idle).power_mw) / 1e3;
    let units: i64 =
        job.attempts.iter().flat_map(|attempt| &attempt.units).map(|u| day.fleet.units[*u].weight()).sum();
    2.0 * (MINUTE_MS / 4) as f64 * watts * units as f64 / WHOLE as f64
}

/// Energy of jobs on parts of GPUs, proportional to the part, mJ.
fn by_parts_mj(day: &Day) -> Vec<i64> {
    let mut uj = vec![0.0; day.jobs.len()];
    for gpu in day.fleet.nodes.iter().flat_map(|node| &node.gpus).filter(|gpu| gpu.units.len() > 1) {
        let share = |unit: usize| day.fleet.units[unit].weight() as f64 / WHOLE as f64;
        for unit in &gpu.units {
            let mut held: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
            for piece in day.pieces(*unit) {
                if let Some(by) = piece.by {
                    held.entry(by.job).or_default().push(piece.span);
                }
            }
            for (job, spans) in held {
                let spans = joined(spans);
                for other in &gpu.units {
                    for piece in day.pieces(*other) {
                        let power_mw = load_of_piece(day, *other, &piece).levels(piece.doing).power_mw;
                        uj[job] +=
                            share(*unit) * share(*other) * power_mw * overlap_ms(&spans, piece.span) as f64;
                    }
                }
            }
        }
    }
    uj.into_iter().map(|uj| (uj / 1e3).round() as i64).collect()
}

#[derive(Deserialize)]
struct OfJob {
    job_id: String,
    bytes: i64,
}

/// Item 7: peak memory of jobs on whole GPUs.
pub(super) async fn memory(service: &QueryService, day: &Day) -> Result<Fact, CommandError> {
    let sql = "SELECT job_id, memory_p999_bytes AS bytes FROM right_size WHERE held = 'whole' AND memory_p999_bytes IS NOT NULL";
    let rows: Vec<OfJob> = ask(service, sql).await?;
    let jobs: BTreeMap<&str, usize> =
        day.jobs.iter().enumerate().map(|(place, job)| (job.id.as_str(), place)).collect();
    let had = |place: usize| {
        let job = &day.jobs[place];
        let is_empty = |attempt: &Attempt| match &attempt.work {
            Activity::Training(_) => false,
            Activity::Phases(phases) => phases.iter().all(|(_, doing)| *doing == Doing::Nothing),
        };
        let own = if job.attempts.iter().all(is_empty) { 0 } else { load_of_job(day, place).memory_bytes };
        let is_meant = job.growth == 0 && job.attempts.iter().all(|attempt| is_whole(day, attempt));
        is_meant.then_some(EMPTY_BYTES + own)
    };
    let known: Vec<(i64, i64)> =
        rows.iter().filter_map(|row| Some((row.bytes, had(*jobs.get(row.job_id.as_str())?)?))).collect();
    let found = known.iter().filter(|(bytes, had)| bytes == had).count() as i64;
    let expected = known.len() as i64;
    let error_ppm = (found - expected) as f64 / expected.max(1) as f64 * 1e6;
    let what = "jobs whose need of memory is what they had".into();
    Ok(Fact { item: "sharing", what, expected, found, error_ppm, allowed_ppm: 0.0 })
}
