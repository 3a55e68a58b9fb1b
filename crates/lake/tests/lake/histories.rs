//! Random histories: jobs with retries, steps and unusual ends, quotas, nodes and samples.
//! Everything follows from the seed.

use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::Event;
use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo, Missing, MissingReason};
use tidegate_events::v1::{
    CapacityEvent, CapacityEventKind, Envelope, GpuSampleBatch, JobEvent, JobEventKind, NodeEvent,
    NodeEventKind, PoolSample, StepReport,
};

const START_MS: i64 = 1_700_000_000_000;
const HOUR_MS: i64 = 3_600_000;

/// A job whose second attempt starts as the first one ends and runs on, beside other jobs that let
/// time pass.
pub fn retried_without_a_pause() -> Vec<Event> {
    let mut events = Vec::new();
    let mut attempt = |job_id: &str, attempt, from_hour, to_hour: Option<i64>| {
        let mut started = job_event("east", job_id, JobEventKind::Started, START_MS + from_hour * HOUR_MS);
        (started.attempt_id, started.gpus_milli) = (Some(attempt), Some(1_000));
        events.push(started);
        let Some(to_hour) = to_hour else { return };
        let mut ended = job_event("east", job_id, JobEventKind::Ended, START_MS + to_hour * HOUR_MS);
        (ended.attempt_id, ended.final_state) = (Some(attempt), Some("FAILED".into()));
        events.push(ended);
    };
    attempt("retried", 0, 0, Some(2));
    attempt("retried", 1, 2, None);
    for hour in 3..12 {
        attempt(&format!("other{hour}"), 0, hour, Some(hour + 1));
    }
    sealed(events.into_iter().map(Event::Job).collect())
}

/// A job that appears to wait for days: its start and end arrive last.
pub fn started_unnoticed() -> Vec<Event> {
    let event = |job_id: &str, kind, hour: i64| {
        let mut event = job_event("east", job_id, kind, START_MS + hour * HOUR_MS);
        (event.attempt_id, event.gpus_milli) = (Some(0), Some(4_000));
        if kind == JobEventKind::Ended {
            event.final_state = Some("COMPLETED".into());
        }
        Event::Job(event)
    };
    let others = (0..100).flat_map(|hour| {
        let name = format!("other{hour}");
        [JobEventKind::Started, JobEventKind::Ended].map(|kind| event(&name, kind, hour))
    });
    let mut events = vec![event("unnoticed", JobEventKind::Submitted, 0)];
    events.extend(others);
    events.push(event("unnoticed", JobEventKind::Started, 1));
    events.push(event("unnoticed", JobEventKind::Ended, 2));
    let is_late = |event: &Event| {
        matches!(event, Event::Job(job) if job.job_id == "unnoticed") && event.event_time_ms() > START_MS
    };
    let (late, mut arrivals): (Vec<Event>, Vec<Event>) = sealed(events).into_iter().partition(is_late);
    arrivals.extend(late);
    arrivals
}

/// Events of about `jobs` jobs on two clusters over some days, in the order in which they happened.
pub fn history(seed: u64, jobs: usize) -> Vec<Event> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut events = Vec::new();
    for id in 0..jobs {
        job(&mut rng, id, &mut events);
    }
    for _ in 0..jobs / 4 {
        events.push(quota(&mut rng));
        events.push(sample(&mut rng));
        node(&mut rng, &mut events);
        hold(&mut rng, &mut events);
        events.push(step(&mut rng));
    }
    for cluster in ["east", "west"] {
        let mut observed = job_event(cluster, "", JobEventKind::Observed, START_MS + 90 * HOUR_MS);
        observed.attempt_id = None;
        events.push(Event::Job(observed));
    }
    sealed(events)
}

/// Batches of samples of some nodes over some hours: ten ticks of one to three devices each, some
/// values unread.
pub fn samples(seed: u64, batches: usize) -> Vec<Event> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let one = |number: usize| {
        let (node, devices) = (rng.random_range(0..4), rng.random_range(1..4_usize));
        let time = START_MS + number as i64 * 600_000 + rng.random_range(0..60_000);
        let device = |device: usize| DeviceInfo {
            uuid: format!("GPU-{node}{device}"),
            index: device as u32,
            ..DeviceInfo::default()
        };
        let mut column = |name: &str| {
            let mut column = Column { name: name.into(), ..Column::default() };
            column.value_delta.resize_with(devices * 10, || rng.random_range(-9..99));
            let (first, count) = (rng.random_range(0..devices * 10), rng.random_range(0..8));
            let end = (first + count).min(devices * 10);
            column.value_delta[first..end].fill(0);
            let (first, count) = (first as u32, (end - first) as u32);
            column.missing.push(Missing { first, count, reason: MissingReason::Stale.into() });
            column
        };
        Event::GpuSamples(GpuSampleBatch {
            envelope: envelope(if node % 2 == 0 { "east" } else { "west" }, time),
            node: format!("n{node}"),
            devices: (0..devices).map(device).collect(),
            first_tick_ms: time,
            tick_delta_ms: vec![1_000; 9],
            columns: vec![column("power_mw"), column("energy_mj"), column("fan_speed_ppm")],
            processes: Vec::new(),
        })
    };
    sealed((0..batches).map(one).collect())
}

/// A tick of a GPU.
pub fn samples_at(time: i64) -> Event {
    Event::GpuSamples(GpuSampleBatch {
        envelope: envelope("east", time),
        node: "n0".into(),
        devices: vec![DeviceInfo { uuid: "GPU-0".into(), ..DeviceInfo::default() }],
        first_tick_ms: time,
        columns: vec![Column { name: "power_mw".into(), value_delta: vec![400_000], ..Column::default() }],
        ..GpuSampleBatch::default()
    })
}

/// The events with their ids, in order of their times.
pub fn sealed(mut events: Vec<Event>) -> Vec<Event> {
    for (seq, event) in events.iter_mut().enumerate() {
        event.envelope_mut().source = "test".into();
        event.envelope_mut().seq = seq as u64;
        event.seal();
    }
    events.sort_by_key(Event::event_time_ms);
    events
}

pub fn envelope(cluster: &str, time: i64) -> Option<Envelope> {
    Some(Envelope {
        cluster: cluster.into(),
        event_time_ms: time,
        observed_time_ms: time,
        ..Envelope::default()
    })
}

pub fn job_event(cluster: &str, job_id: &str, kind: JobEventKind, time: i64) -> JobEvent {
    JobEvent {
        envelope: envelope(cluster, time),
        job_id: job_id.into(),
        kind: kind.into(),
        ..JobEvent::default()
    }
}

fn job(rng: &mut ChaCha8Rng, id: usize, events: &mut Vec<Event>) {
    let cluster = *["east", "west"].choose(rng).unwrap();
    let name = format!("j{id}");
    let gpus_milli = *[250, 333, 500, 1_000, 2_000, 8_000, 64_000].choose(rng).unwrap();
    let mut time = START_MS + rng.random_range(0..72 * HOUR_MS);
    let mut submitted = job_event(cluster, &name, JobEventKind::Submitted, time);
    submitted.gpus_milli = Some(gpus_milli);
    submitted.team = rng.random_bool(0.9).then(|| format!("t{}", rng.random_range(0..4)));
    submitted.user_name = Some(format!("u{}", rng.random_range(0..9)));
    submitted.pool = Some((*["a100", "h100"].choose(rng).unwrap()).into());
    events.push(Event::Job(submitted.clone()));
    for attempt in 0..rng.random_range(0..4_i64) {
        // Schedulers start a retry in the same millisecond in which the attempt before it ended.
        time += if rng.random_bool(0.3) { 0 } else { rng.random_range(0..5 * HOUR_MS) };
        let mut started = JobEvent {
            kind: JobEventKind::Started.into(),
            envelope: envelope(cluster, time),
            ..submitted.clone()
        };
        started.attempt_id = Some(attempt);
        events.push(Event::Job(started.clone()));
        if rng.random_bool(0.3) {
            let mut step = started.clone();
            step.step_id = Some("0".into());
            events.push(Event::Job(step));
        }
        if rng.random_bool(0.3) {
            let mut held = job_event(cluster, &name, JobEventKind::DeviceHeld, time + 700);
            (held.hold_id, held.attempt_id) = (Some(format!("h{attempt}")), Some(attempt + 50));
            events.push(Event::Job(held));
        }
        if rng.random_bool(0.1) {
            return;
        }
        time += rng.random_range(0..30 * HOUR_MS);
        let mut ended = job_event(cluster, &name, JobEventKind::Ended, time);
        ended.attempt_id = Some(attempt);
        let state = *["COMPLETED", "FAILED", "REQUEUED", "RESIZED", "TIMEOUT"].choose(rng).unwrap();
        ended.final_state = Some(state.into());
        ended.exit_code = Some(rng.random_range(0..3));
        events.push(Event::Job(ended));
    }
    if rng.random_bool(0.2) {
        let mut waiting = job_event(cluster, &name, JobEventKind::Waiting, time + 30_000);
        (waiting.reason, waiting.gpus_milli) = (Some("Priority".into()), Some(16_000));
        events.push(Event::Job(waiting));
    }
    if rng.random_bool(0.2) {
        let mut cancelled = job_event(cluster, &name, JobEventKind::Ended, time + 60_000);
        cancelled.final_state = Some("CANCELLED".into());
        events.push(Event::Job(cancelled));
    }
}

/// A device of a pod, which no scheduler reports. Some are held for days, and of some only the end
/// is observed.
fn hold(rng: &mut ChaCha8Rng, events: &mut Vec<Event>) {
    let from = START_MS + rng.random_range(0..72 * HOUR_MS);
    let to = from + rng.random_range(0..40 * HOUR_MS);
    let (pod, hold_id) =
        (format!("pod{}", rng.random_range(0..9)), format!("h{}", rng.random_range(0..1_000)));
    for (kind, time) in [(JobEventKind::DeviceHeld, from), (JobEventKind::DeviceReleased, to)] {
        if rng.random_bool(0.9) {
            let mut held = job_event("west", &pod, kind, time);
            held.hold_id = Some(hold_id.clone());
            held.hold_quality = Some((*["EXACT", "UNKNOWN"].choose(rng).unwrap()).into());
            events.push(Event::Job(held));
        }
    }
}

fn step(rng: &mut ChaCha8Rng) -> Event {
    Event::Step(StepReport {
        envelope: envelope("east", START_MS + rng.random_range(0..3 * HOUR_MS)),
        job_id: format!("j{}", rng.random_range(0..3)),
        rank: rng.random_range(0..4),
        step: rng.random_range(0..1_000),
        duration_us: rng.random_range(0..5_000_000),
        tokens: rng.random_bool(0.5).then_some(4_096),
        ..StepReport::default()
    })
}

fn quota(rng: &mut ChaCha8Rng) -> Event {
    Event::Capacity(CapacityEvent {
        envelope: envelope("east", START_MS + rng.random_range(0..72) * HOUR_MS),
        kind: CapacityEventKind::QuotaSet.into(),
        owner: format!("t{}", rng.random_range(0..3)),
        gpus_milli: Some(rng.random_range(0..4) * 8_000),
        ..CapacityEvent::default()
    })
}

fn sample(rng: &mut ChaCha8Rng) -> Event {
    Event::PoolSample(PoolSample {
        envelope: envelope("east", START_MS + rng.random_range(0..4_000) * 60_000),
        owner: "t0".into(),
        interval_ms: 60_000,
        quota_gpus_milli: Some(8_000),
        held_gpus_milli: Some(rng.random_range(0..9) * 1_000),
        ..PoolSample::default()
    })
}

fn node(rng: &mut ChaCha8Rng, events: &mut Vec<Event>) {
    let from = START_MS + rng.random_range(0..72 * HOUR_MS);
    let fault_id = format!("f{}", rng.random_range(0..1_000_000));
    let node = format!("n{}", rng.random_range(0..5));
    for (kind, time) in [
        (NodeEventKind::FaultStarted, from),
        (NodeEventKind::FaultEnded, from + rng.random_range(0..HOUR_MS)),
        (NodeEventKind::Xid, from + 1_000),
        (NodeEventKind::DeviceLost, from + 1_000),
        (NodeEventKind::StateChanged, from + rng.random_range(0..HOUR_MS)),
    ] {
        events.push(Event::Node(NodeEvent {
            envelope: envelope("west", time),
            kind: kind.into(),
            node: node.clone(),
            fault_id: Some(fault_id.clone()),
            ..NodeEvent::default()
        }));
    }
}
