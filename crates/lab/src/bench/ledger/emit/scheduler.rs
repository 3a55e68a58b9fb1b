//! Job events of the Slurm watcher, and holds of prologs.

use tidegate_events::{Event, FinalState, v1};
use v1::JobEventKind as Kind;

use super::{SEEN_MS, SourcedEvent, WATCHER, agent};
use crate::bench::ledger::day::{Attempt, Day, Job};
use crate::bench::ledger::fleet::{Part, SHARED};

/// Period of the watcher's heartbeat.
const OBSERVED_EVERY_MS: i64 = 60_000;
const TIME_LIMIT_MS: u64 = 86_400_000;

pub(super) fn events(day: &Day) -> Vec<SourcedEvent> {
    let mut said = Vec::new();
    let mut holds = 0;
    for job in &day.jobs {
        said.push(submitted(day, job, job.submit_ms));
        if let Some(reason) = job.reason {
            // A wait starts at the poll that showed it.
            let mut waiting = event(&job.id, Kind::Waiting, job.submit_ms + SEEN_MS);
            waiting.reason = Some(reason.into());
            said.push(watched(waiting));
        }
        for (number, attempt) in job.attempts.iter().enumerate() {
            if number > 0 {
                said.push(submitted(day, job, attempt.span.from_ms));
            }
            said.extend(of_attempt(day, job, attempt));
            for unit in &attempt.units {
                said.extend(prolog(day, job, attempt, *unit, holds));
                holds += 1;
            }
        }
    }
    let minutes = (day.span.from_ms..=day.span.to_ms).step_by(OBSERVED_EVERY_MS as usize);
    // Emitted after everything before it.
    said.extend(minutes.map(|at_ms| SourcedEvent {
        at_ms: at_ms + SEEN_MS * 2,
        ..watched(event("", Kind::Observed, at_ms))
    }));
    said
}

fn event(job: &str, kind: Kind, at_ms: i64) -> v1::JobEvent {
    let envelope = Some(v1::Envelope { event_time_ms: at_ms, ..Default::default() });
    v1::JobEvent { envelope, kind: kind.into(), job_id: job.into(), ..Default::default() }
}

fn watched(job: v1::JobEvent) -> SourcedEvent {
    let event = Event::Job(job);
    SourcedEvent { source: WATCHER.into(), at_ms: event.event_time_ms() + SEEN_MS, event }
}

/// A job event with owner and requested or held resources.
fn described(job: &Job, kind: Kind, at_ms: i64) -> v1::JobEvent {
    v1::JobEvent {
        team: Some(job.team.into()),
        user_name: Some(job.user.clone()),
        pool: Some(job.pool.into()),
        qos: Some("normal".into()),
        gpus_milli: job.asked_milli,
        ..event(&job.id, kind, at_ms)
    }
}

/// The requested shape: as many nodes and GPUs per node as it gets.
fn submitted(day: &Day, job: &Job, at_ms: i64) -> SourcedEvent {
    let units = job.attempts.first().map_or(&[][..], |attempt| &attempt.units);
    let mut nodes: Vec<usize> = units.iter().map(|unit| day.fleet.units[*unit].node).collect();
    nodes.dedup();
    let on_each = job.asked_milli.map(|milli| milli / nodes.len().max(1) as u64);
    let submitted = described(job, Kind::Submitted, at_ms);
    watched(v1::JobEvent {
        job_name: Some(job.name.into()),
        time_limit_ms: Some(TIME_LIMIT_MS),
        asked_node_count: Some(nodes.len() as u32),
        asked_gpus_per_node_milli: on_each,
        ..submitted
    })
}

/// Start, devices and end. Slurm names whole devices only.
fn of_attempt(day: &Day, job: &Job, attempt: &Attempt) -> Vec<SourcedEvent> {
    let (from_ms, to_ms) = (attempt.span.from_ms, attempt.span.to_ms);
    let unit = |unit: &usize| &day.fleet.units[*unit];
    let mut nodes: Vec<&str> =
        attempt.units.iter().map(|u| day.fleet.nodes[unit(u).node].name.as_str()).collect();
    nodes.dedup();
    let start = described(job, Kind::Started, from_ms);
    let mut said = vec![watched(v1::JobEvent {
        attempt_id: Some(from_ms),
        nodes: Some(nodes.join(",")),
        node_count: Some(nodes.len() as u32),
        ..start
    })];
    let whole = || attempt.units.iter().map(unit).filter(|unit| unit.part == Part::Whole);
    for (kind, at_ms) in [(Kind::DeviceHeld, from_ms), (Kind::DeviceReleased, to_ms)] {
        said.extend(whole().map(|unit| {
            let node = &day.fleet.nodes[unit.node].name;
            watched(v1::JobEvent {
                attempt_id: Some(from_ms),
                hold_id: Some(format!("slurm/{}/{from_ms}/{node}/{}", job.id, unit.gpu)),
                node: Some(node.clone()),
                gpu_index: Some(unit.gpu as u32),
                hold_quality: Some("EXACT".into()),
                hold_evidence: Some("slurm".into()),
                ..event(&job.id, kind, at_ms)
            })
        }));
    }
    said.push(watched(v1::JobEvent {
        attempt_id: Some(from_ms),
        final_state: Some(attempt.state.as_str().into()),
        exit_code: Some(if attempt.state == FinalState::Completed { 0 } else { 1 }),
        ..event(&job.id, Kind::Ended, to_ms)
    }));
    said
}

/// A hold from prolog and epilog; for whole devices on shared nodes, beside Slurm's own account.
fn prolog(day: &Day, job: &Job, attempt: &Attempt, unit: usize, hold: u64) -> Vec<SourcedEvent> {
    let unit = &day.fleet.units[unit];
    let node = &day.fleet.nodes[unit.node];
    if node.pool != SHARED {
        return Vec::new();
    }
    let (device, share_milli) = match &unit.part {
        Part::Whole => (&node.gpus[unit.gpu].device, None),
        Part::Half => (&node.gpus[unit.gpu].device, Some(500)),
        Part::Slice { device, .. } => (device, None),
    };
    let quality = if share_milli.is_some() { "SHARED_ESTIMATED" } else { "EXACT" };
    let ends = [(Kind::DeviceHeld, attempt.span.from_ms), (Kind::DeviceReleased, attempt.span.to_ms)];
    let said = ends.map(|(kind, at_ms)| {
        let event = Event::Job(v1::JobEvent {
            hold_id: Some(format!("{}/0d1e2f3a/{hold}", node.name)),
            node: Some(node.name.clone()),
            gpu_uuid: Some(device.uuid.clone()),
            mig_uuid: device.mig_uuid.clone(),
            gpu_index: Some(device.index),
            hold_quality: Some(quality.into()),
            hold_evidence: Some("prolog".into()),
            share_milli,
            ..event(&job.id, kind, at_ms)
        });
        SourcedEvent { source: agent(day, unit.node), at_ms: at_ms + SEEN_MS, event }
    });
    said.into_iter().collect()
}
