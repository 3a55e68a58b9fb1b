//! Nodes, jobs, held devices, training steps and GPU samples.

use rand::Rng;
use rand::seq::IndexedRandom;
use tidegate_events::Event;
use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo, Missing, MissingReason, Process};
use tidegate_events::v1::{GpuSampleBatch, JobEvent, JobEventKind, NodeEvent, NodeEventKind, StepReport};

use super::{HOUR_MS, MINUTE_MS, START_MS, Timeline, envelope, job_event};

/// Nodes of the cluster that has a scheduler, and their GPUs.
const NODES: [(&str, u32); 3] = [("n0", 4), ("n1", 4), ("n2", 2)];
/// Ticks of ten seconds in an agent's batch.
const TICKS: usize = 6;

pub(super) fn emit(timeline: &mut Timeline, jobs: u32) {
    for (node, gpus) in NODES {
        of_node(timeline, "east", node, gpus);
    }
    of_node(timeline, "west", "w0", 2);
    for number in 0..jobs {
        job(timeline, number);
    }
    for pod in 0..jobs.div_ceil(4) {
        held_by_pod(timeline, pod);
    }
    for cluster in ["east", "west"] {
        let mut at_ms = START_MS;
        while at_ms <= timeline.end_ms {
            timeline.emit(Event::Job(job_event(cluster, "", JobEventKind::Observed, at_ms)));
            at_ms += 20 * MINUTE_MS;
        }
    }
}

fn of_node(timeline: &mut Timeline, cluster: &str, node: &str, gpus: u32) {
    let node_event = |timeline: &mut Timeline, kind: NodeEventKind, at_ms: i64, more: NodeEvent| {
        let envelope = envelope(cluster, at_ms);
        timeline.emit(Event::Node(NodeEvent { envelope, kind: kind.into(), node: node.into(), ..more }));
    };
    let registered = NodeEvent {
        pool: Some("a".into()),
        gpu_model: Some("h100".into()),
        gpus_milli: Some(u64::from(gpus) * 1_000),
        ..NodeEvent::default()
    };
    let rack =
        NodeEvent { rack: Some(format!("r{gpus}")), switch: Some("s0".into()), ..NodeEvent::default() };
    node_event(timeline, NodeEventKind::NodeRegistered, START_MS, registered);
    node_event(timeline, NodeEventKind::NodeLabeled, START_MS, rack);
    // The ledger of the first minute is by stretches.
    let agent_started = START_MS + MINUTE_MS + 5_000;
    node_event(timeline, NodeEventKind::CollectorStarted, agent_started, NodeEvent::default());
    for number in 0..(timeline.end_ms - START_MS) / (2 * HOUR_MS) + 1 {
        let (at_ms, device) = (timeline.time(), timeline.rng.random_range(0..gpus));
        let of_device = NodeEvent {
            gpu_uuid: Some(format!("GPU-{node}-{device}")),
            gpu_index: Some(device),
            fault_id: Some(format!("{node}/{number}")),
            fault_class: Some("memory".into()),
            xid: Some(79),
            ..NodeEvent::default()
        };
        let drained = NodeEvent { state: Some("IDLE+DRAIN".into()), ..NodeEvent::default() };
        let idle = NodeEvent { state: Some("IDLE".into()), ..NodeEvent::default() };
        for (kind, later_ms, more) in [
            (NodeEventKind::FaultStarted, 0, &of_device),
            (NodeEventKind::Xid, 1_000, &of_device),
            (NodeEventKind::DeviceLost, 2_000, &of_device),
            (NodeEventKind::StateChanged, 9_000, &drained),
            (NodeEventKind::DeviceFound, 5 * MINUTE_MS, &of_device),
            (NodeEventKind::FaultEnded, 6 * MINUTE_MS, &of_device),
            (NodeEventKind::StateChanged, 7 * MINUTE_MS, &idle),
        ] {
            node_event(timeline, kind, at_ms + later_ms, more.clone());
        }
    }
    let mut at_ms = START_MS;
    while at_ms < timeline.end_ms {
        // Not every node has an agent.
        if node != "n1" && timeline.rng.random_bool(0.8) {
            samples(timeline, cluster, node, gpus, at_ms);
        }
        at_ms += MINUTE_MS;
    }
}

fn samples(timeline: &mut Timeline, cluster: &str, node: &str, gpus: u32, at_ms: i64) {
    let rng = &mut timeline.rng;
    let mut column = |name: &str, values: &[i64]| {
        let mut column = Column { name: name.into(), ..Column::default() };
        for _ in 0..gpus {
            let values: Vec<i64> = (0..TICKS).map(|_| *values.choose(rng).unwrap_or(&0)).collect();
            column.value_delta.push(values[0]);
            column.value_delta.extend(values.windows(2).map(|pair| pair[1] - pair[0]));
        }
        column
    };
    let mut columns = vec![
        column("interval_us", &[10_000_000]),
        column("gpu_util_ppm", &[0, 0, 900_000]),
        column("sm_active_ppm", &[0, 700_000]),
        column("process_count", &[0, 1]),
        column("energy_mj", &[1_000]),
        column("ecc_corrected_count", &[3]),
    ];
    let mut unread =
        Column { name: "power_mw".into(), value_delta: vec![0; gpus as usize * TICKS], ..Column::default() };
    unread.missing.push(Missing { first: 0, count: 2, reason: MissingReason::Stale.into() });
    columns.push(unread);
    let device = |index: u32| DeviceInfo {
        uuid: format!("GPU-{node}-{index}"),
        index,
        model: "h100".into(),
        ..DeviceInfo::default()
    };
    timeline.emit(Event::GpuSamples(GpuSampleBatch {
        envelope: envelope(cluster, at_ms),
        node: node.into(),
        devices: (0..gpus).map(device).collect(),
        first_tick_ms: at_ms,
        tick_delta_ms: vec![10_000; TICKS - 1],
        columns,
        processes: vec![Process { pid: 7, last_tick: 3, memory_bytes: Some(1 << 30), ..Process::default() }],
    }));
}

/// A job that waits and runs up to two times, on whole GPUs of one node. Jobs differ in what the
/// scheduler reports and when: some are submitted without a GPU count, some wait without a shape.
fn job(timeline: &mut Timeline, number: u32) {
    let id = format!("j{number}");
    let (mut node, most) = *NODES.choose(&mut timeline.rng).unwrap_or(&NODES[0]);
    let mut gpus = timeline.rng.random_range(1..=most);
    let mut at_ms = timeline.time();
    let described = |kind, at_ms, gpus: u32| JobEvent {
        team: Some(format!("t{}", number % 3)),
        user_name: Some(format!("u{}", number % 5)),
        pool: Some("a".into()),
        job_name: Some(format!("train-{}", number % 4)),
        gpus_milli: Some(u64::from(gpus) * 1_000),
        ..job_event("east", &id, kind, at_ms)
    };
    let submitted = described(JobEventKind::Submitted, at_ms, gpus);
    timeline.emit(Event::Job(JobEvent {
        asked_node_count: Some(1),
        time_limit_ms: Some(8 * HOUR_MS as u64),
        gpus_milli: submitted.gpus_milli.filter(|_| number % 4 != 3),
        ..submitted
    }));
    at_ms += timeline.rng.random_range(1_000..20 * MINUTE_MS);
    let reason = ["Priority", "Resources", "QOSMaxJobsPerUserLimit"][number as usize % 3];
    let waiting = described(JobEventKind::Waiting, at_ms - 500, gpus);
    timeline.emit(Event::Job(JobEvent {
        reason: Some(reason.into()),
        asked_node_count: Some(1).filter(|_| number % 4 != 2),
        asked_gpus_per_node_milli: waiting.gpus_milli.filter(|_| number.is_multiple_of(2)),
        ..waiting
    }));
    for attempt in 0..timeline.rng.random_range(0..3_i64) {
        let end_ms = at_ms + timeline.rng.random_range(MINUTE_MS..50 * MINUTE_MS);
        let of_attempt = |kind, at_ms| JobEvent {
            attempt_id: Some(attempt),
            nodes: Some(node.into()),
            node_count: Some(1),
            ..described(kind, at_ms, gpus)
        };
        let model = Some("h100".to_owned()).filter(|_| timeline.rng.random_bool(0.5));
        timeline.emit(Event::Job(JobEvent { gpu_model: model, ..of_attempt(JobEventKind::Started, at_ms) }));
        for gpu in 0..gpus {
            let on_device = |kind, at_ms| JobEvent {
                hold_id: Some(format!("{id}/{attempt}/{gpu}")),
                node: Some(node.into()),
                gpu_index: Some(gpu),
                gpu_uuid: Some(format!("GPU-{node}-{gpu}")),
                ..of_attempt(kind, at_ms)
            };
            let held = |kind, at_ms| JobEvent {
                hold_quality: Some("EXACT".into()),
                hold_evidence: Some("slurm".into()),
                ..on_device(kind, at_ms)
            };
            let mut held_ms = at_ms;
            if timeline.rng.random_bool(0.3) {
                // An agent sees the job's process; minutes later the scheduler knows the device.
                timeline.emit(Event::Job(JobEvent {
                    attempt_id: None,
                    hold_id: Some(format!("process/{id}/{attempt}/{gpu}")),
                    hold_quality: Some("UNKNOWN".into()),
                    hold_evidence: Some("process".into()),
                    ..on_device(JobEventKind::DeviceHeld, at_ms + 500)
                }));
                held_ms += timeline.rng.random_range(1_000..(end_ms - at_ms));
            }
            timeline.emit(Event::Job(held(JobEventKind::DeviceHeld, held_ms)));
            if timeline.rng.random_bool(0.9) {
                timeline.emit(Event::Job(held(JobEventKind::DeviceReleased, end_ms)));
            }
        }
        timeline.emit(Event::Job(JobEvent {
            step_id: Some("0".into()),
            ..of_attempt(JobEventKind::Started, at_ms + 1_000)
        }));
        steps(timeline, &id, attempt, node, (at_ms, end_ms));
        if end_ms > timeline.end_ms {
            return;
        }
        let states = ["COMPLETED", "FAILED", "REQUEUED", "RESIZED", "TIMEOUT"];
        let state = *states.choose(&mut timeline.rng).unwrap_or(&"FAILED");
        timeline.emit(Event::Job(JobEvent {
            final_state: Some(state.into()),
            exit_code: Some(i32::from(state != "COMPLETED")),
            ..of_attempt(JobEventKind::Ended, end_ms)
        }));
        at_ms = end_ms;
        if state == "RESIZED" {
            (node, gpus) = *NODES.choose(&mut timeline.rng).unwrap_or(&NODES[0]);
        } else {
            at_ms += timeline.rng.random_range(0..5 * MINUTE_MS);
        }
    }
}

fn steps(timeline: &mut Timeline, job: &str, attempt: i64, node: &str, (from_ms, to_ms): (i64, i64)) {
    let mut at_ms = from_ms + 5_000;
    for step in 0.. {
        let took_ms = timeline.rng.random_range(20_000..2 * MINUTE_MS);
        if at_ms + took_ms > to_ms.min(timeline.end_ms) {
            return;
        }
        for rank in 0..2 {
            let took_us = took_ms as u64 * 1_000;
            timeline.emit(Event::Step(StepReport {
                envelope: envelope("east", at_ms),
                job_id: job.into(),
                attempt_id: Some(attempt),
                rank,
                world_size: Some(2),
                step,
                duration_us: took_us,
                compute_us: Some(took_us / 2),
                communication_us: Some(took_us / 8),
                data_wait_us: Some(took_us / 8),
                checkpoint_us: Some(if step % 5 == 4 { took_us / 8 } else { 0 }),
                tokens: Some(4_096),
                model_flops: Some(1 << 50),
                flops_convention: Some("6n".into()),
                precision: Some("bf16".into()),
                node: Some(node.into()),
                gpu_index: Some(rank),
                ..StepReport::default()
            }));
        }
        at_ms += took_ms;
    }
}

/// A device held by a pod, which no scheduler reports.
fn held_by_pod(timeline: &mut Timeline, pod: u32) {
    let from_ms = timeline.time();
    let to_ms = from_ms + timeline.rng.random_range(0..90 * MINUTE_MS);
    for (kind, at_ms) in [(JobEventKind::DeviceHeld, from_ms), (JobEventKind::DeviceReleased, to_ms)] {
        if at_ms < timeline.end_ms {
            timeline.emit(Event::Job(JobEvent {
                hold_id: Some(format!("pod{pod}/0")),
                hold_quality: Some("EXACT".into()),
                hold_evidence: Some("kubelet".into()),
                node: Some("w0".into()),
                gpu_index: Some(pod % 2),
                gpu_uuid: Some(format!("GPU-w0-{}", pod % 2)),
                ..job_event("west", &format!("pod{pod}"), kind, at_ms)
            }));
        }
    }
}
