//! Events of the fleet beside samples: device holds, jobs, nodes.

use tidegate_events::{Event, v1};
use v1::{JobEventKind as Job, NodeEventKind as Node};

use super::{CLUSTER, FIRST_TICK_MS, Fleet, POOL};
use crate::bench::codec::gpu::DEVICES;
use crate::bench::fleet::plan;

/// Source of what the scheduler's watcher reports.
const WATCHER: &str = "watch/slurm/prod-h100";
/// Delay between an event and its observation.
const SEEN_MS: i64 = 2_000;
/// How often the watcher asks the scheduler.
const ASKED_EVERY_MS: i64 = 10_000;

/// All events, in order of time.
pub fn events(fleet: &Fleet, length_ms: i64) -> Vec<Event> {
    let names: Vec<&str> = fleet.nodes.iter().map(|node| node.name.as_str()).collect();
    let started = |name: &&str| [registered(name, FIRST_TICK_MS), collector_started(name, FIRST_TICK_MS)];
    let mut events: Vec<Event> = names.iter().flat_map(started).collect();
    events.extend(fleet.plan.jobs.iter().flat_map(|job| of_job(&names, job, true)));
    events.extend((0..=length_ms / 60_000).map(|minute| observed(FIRST_TICK_MS + minute * 60_000)));
    sealed(events, 1)
}

/// The events in order of time, named as the `epoch`-th life of their sources reports them.
pub fn sealed(mut events: Vec<Event>, epoch: u64) -> Vec<Event> {
    events.sort_by_key(Event::event_time_ms);
    let mut seq = 0;
    for event in &mut events {
        let at_ms = event.event_time_ms();
        let envelope = event.envelope_mut();
        envelope.cluster = CLUSTER.into();
        if envelope.source.is_empty() {
            (envelope.source, envelope.seq) = (WATCHER.into(), seq);
            seq += 1;
        }
        envelope.epoch = epoch;
        envelope.observed_time_ms = at_ms + SEEN_MS;
    }
    events
}

fn envelope(at_ms: i64) -> Option<v1::Envelope> {
    Some(v1::Envelope { event_time_ms: at_ms, ..Default::default() })
}

/// A node joins the cluster.
pub fn registered(name: &str, at_ms: i64) -> Event {
    Event::Node(v1::NodeEvent {
        envelope: envelope(at_ms),
        kind: Node::NodeRegistered.into(),
        node: name.into(),
        pool: Some(POOL.into()),
        gpu_model: Some("h100".into()),
        gpus_milli: Some(DEVICES as u64 * 1_000),
        evidence: Some("slurm".into()),
        ..Default::default()
    })
}

/// The agent of a node starts.
pub fn collector_started(name: &str, at_ms: i64) -> Event {
    let mut started = v1::NodeEvent {
        envelope: envelope(at_ms),
        kind: Node::CollectorStarted.into(),
        node: name.into(),
        program_version: Some(env!("CARGO_PKG_VERSION").into()),
        ..Default::default()
    };
    // The source of its samples.
    started.envelope.get_or_insert_default().source = format!("agent/{name}");
    Event::Node(started)
}

/// The scheduler answers the watcher.
pub fn observed(at_ms: i64) -> Event {
    job("", Job::Observed, at_ms)
}

fn job(id: &str, kind: Job, at_ms: i64) -> Event {
    Event::Job(v1::JobEvent {
        envelope: envelope(at_ms),
        kind: kind.into(),
        job_id: id.into(),
        ..Default::default()
    })
}

/// What the scheduler answers of a job that still waits when it is asked next.
pub fn waiting(it: &plan::Job) -> Option<Event> {
    let asked_ms = it.submitted_ms + ASKED_EVERY_MS;
    (asked_ms < it.from_ms).then(|| {
        Event::Job(v1::JobEvent {
            envelope: envelope(asked_ms),
            kind: Job::Waiting.into(),
            job_id: it.id.clone(),
            reason: Some("Resources".into()),
            asked_node_count: Some(it.nodes.end - it.nodes.start),
            asked_gpus_per_node_milli: Some(u64::from(it.gpus.end - it.gpus.start) * 1_000),
            ..Default::default()
        })
    })
}

/// All events of a job; `with_devices`: where prologs report which devices it holds.
pub fn of_job(names: &[&str], it: &plan::Job, with_devices: bool) -> Vec<Event> {
    let nodes = &names[it.nodes.start as usize..it.nodes.end as usize];
    let described = |kind: Job, at_ms: i64| v1::JobEvent {
        envelope: envelope(at_ms),
        kind: kind.into(),
        job_id: it.id.clone(),
        team: Some(it.team.into()),
        user_name: Some(it.user.clone()),
        pool: Some(POOL.into()),
        gpus_milli: Some(it.gpu_count() * 1_000),
        ..Default::default()
    };
    let mut events = vec![
        Event::Job(described(Job::Submitted, it.submitted_ms)),
        Event::Job(v1::JobEvent {
            attempt_id: Some(it.from_ms),
            nodes: Some(nodes.join(",")),
            node_count: Some(nodes.len() as u32),
            ..described(Job::Started, it.from_ms)
        }),
    ];
    for node in nodes.iter().filter(|_| with_devices) {
        for gpu in it.gpus.clone() {
            for (kind, at_ms) in [(Job::DeviceHeld, it.from_ms), (Job::DeviceReleased, it.to_ms)] {
                events.push(Event::Job(v1::JobEvent {
                    envelope: envelope(at_ms),
                    kind: kind.into(),
                    job_id: it.id.clone(),
                    attempt_id: Some(it.from_ms),
                    hold_id: Some(format!("slurm/{}/{node}/{gpu}", it.id)),
                    node: Some((*node).into()),
                    gpu_index: Some(gpu),
                    hold_quality: Some("EXACT".into()),
                    hold_evidence: Some("slurm".into()),
                    ..Default::default()
                }));
            }
        }
    }
    events.push(Event::Job(v1::JobEvent {
        attempt_id: Some(it.from_ms),
        final_state: Some("COMPLETED".into()),
        exit_code: Some(0),
        ..described(Job::Ended, it.to_ms)
    }));
    events
}

/// GPU-ms of the fleet, and the part held by jobs.
pub fn gpu_ms(fleet: &Fleet, length_ms: i64) -> (i64, i64) {
    let held = fleet.plan.jobs.iter().map(|job| job.gpu_count() as i64 * (job.to_ms - job.from_ms)).sum();
    (fleet.nodes.len() as i64 * DEVICES as i64 * length_ms, held)
}
