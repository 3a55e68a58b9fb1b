//! The reorder buffer with all detectors: the output depends on what events state alone, not on how
//! they arrive.

use std::collections::{BTreeMap, BTreeSet};

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::v1;
use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo};

use super::*;

mod forecasts;
mod jobs_and_nodes;
mod live;
mod memory;
mod pipelines;
mod scaling;
mod sizing;

/// 2026-01-01T00:00:00Z, ms.
const START_MS: i64 = 1_767_225_600_000;
pub(crate) const NOW_MS: i64 = START_MS + 30 * 86_400_000;
const RANKS: u32 = 16;
/// The planted straggler: rank 5, device 5 of n0, slow in these steps.
const SLOW_RANK: u32 = 5;
const SLOW_STEPS: std::ops::Range<u64> = 200..400;

/// An event as its observer sends it: of a step, who sees it has seen its end.
fn sealed(mut event: Event, at_ms: i64) -> Event {
    let took_ms = if let Event::Step(step) = &event { step.duration_us as i64 / 1_000 } else { 0 };
    let envelope = event.envelope_mut();
    (envelope.cluster, envelope.source) = ("c".into(), "test".into());
    (envelope.event_time_ms, envelope.observed_time_ms) = (at_ms, at_ms + took_ms);
    event.seal();
    event
}

fn job_event(kind: v1::JobEventKind, at_ms: i64) -> Event {
    let event = v1::JobEvent {
        kind: kind.into(),
        job_id: "j".into(),
        attempt_id: Some(1),
        team: Some("t".into()),
        gpus_milli: Some(16_000),
        nodes: Some("n0,n1".into()),
        ..v1::JobEvent::default()
    };
    sealed(Event::Job(event), at_ms)
}

/// Samples of one agent over ten seconds: eight devices, ten samples each.
fn samples(node: &str, at_ms: i64, slow: bool) -> Event {
    let devices = (0..8).map(|index| DeviceInfo {
        uuid: format!("GPU-{node}-{index}"),
        index,
        ..DeviceInfo::default()
    });
    let column = |name: &str, value: &dyn Fn(u32) -> i64| {
        let of_device = |device| std::iter::once(value(device)).chain(std::iter::repeat_n(0, 9));
        Column { name: name.into(), value_delta: (0..8).flat_map(of_device).collect(), ..Column::default() }
    };
    let is_slow = |device: u32| slow && node == "n0" && device == SLOW_RANK;
    let batch = v1::GpuSampleBatch {
        node: node.into(),
        devices: devices.collect(),
        first_tick_ms: at_ms,
        tick_delta_ms: vec![1_000; 9],
        columns: vec![
            column("sm_clock_mhz", &|device| if is_slow(device) { 1_150 } else { 1_500 + i64::from(device) }),
            column("throttle_reasons_bits", &|device| if is_slow(device) { 0x40 } else { 0 }),
        ],
        ..v1::GpuSampleBatch::default()
    };
    sealed(Event::GpuSamples(batch), at_ms)
}

/// A job of 16 ranks with a straggler, by partition: jobs, nodes, steps, samples of each node.
pub(crate) fn input() -> [Vec<Event>; 5] {
    input_where(600, &|step| if SLOW_STEPS.contains(&step) { 1.25 } else { 1.0 })
}

/// The same job with a number of steps and a slowdown per step of the slow rank.
pub(crate) fn input_where(steps: u64, slower: &dyn Fn(u64) -> f64) -> [Vec<Event>; 5] {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let mut partitions: [Vec<Event>; 5] = Default::default();
    partitions[0].push(job_event(v1::JobEventKind::Submitted, START_MS - 60_000));
    partitions[0].push(job_event(v1::JobEventKind::Started, START_MS));
    let (mut at_us, mut slow_ms) = (START_MS * 1_000, Vec::new());
    for step in 0..steps {
        let compute: Vec<u64> = (0..RANKS)
            .map(|rank| {
                let slower = if rank == SLOW_RANK { slower(step) } else { 1.0 };
                (1_500_000.0 * slower * random.random_range(0.995..1.005)) as u64
            })
            .collect();
        let duration_us = compute.iter().max().unwrap() + 200_000;
        for (rank, compute_us) in (0..RANKS).zip(compute) {
            let node = format!("n{}", rank / 8);
            let report = v1::StepReport {
                job_id: "j".into(),
                attempt_id: Some(1),
                rank,
                world_size: Some(RANKS),
                step,
                duration_us,
                compute_us: Some(compute_us),
                communication_us: Some(duration_us - compute_us),
                data_wait_us: Some(0),
                gpu_uuid: Some(format!("GPU-{node}-{}", rank % 8)),
                gpu_index: Some(rank % 8),
                node: Some(node),
                ..v1::StepReport::default()
            };
            partitions[2].push(sealed(Event::Step(report), at_us / 1_000));
        }
        if slower(step) > 1.0 {
            slow_ms.push(at_us / 1_000..(at_us + duration_us as i64) / 1_000);
        }
        at_us += duration_us as i64;
    }
    let end_ms = at_us / 1_000;
    for at_ms in (START_MS..end_ms).step_by(10_000) {
        for node in 0..2 {
            partitions[3 + node].push(samples(
                &format!("n{node}"),
                at_ms,
                slow_ms.iter().any(|slow| slow.contains(&at_ms)),
            ));
        }
    }
    let xid = v1::NodeEvent {
        kind: v1::NodeEventKind::Xid.into(),
        node: "n1".into(),
        gpu_uuid: Some("GPU-n1-2".into()),
        gpu_index: Some(2),
        xid: Some(79),
        ..v1::NodeEvent::default()
    };
    partitions[1].push(sealed(Event::Node(xid), end_ms - 30_000));
    partitions[0].push(job_event(v1::JobEventKind::Ended, end_ms + 5_000));
    partitions
}

fn end_us() -> i64 {
    (START_MS + 86_400_000) * 1_000
}

/// Output sorted by producer name; runs may publish in different orders.
fn sorted(mut output: Vec<Publication>) -> Vec<Publication> {
    output.sort_by(|a, b| a.source.cmp(&b.source));
    output
}

fn all_at_once(events: impl IntoIterator<Item = Event>) -> (Vec<Publication>, Counts) {
    all_until(events, end_us())
}

fn all_until(events: impl IntoIterator<Item = Event>, until_us: i64) -> (Vec<Publication>, Counts) {
    let mut reorder = Reorder::new(i64::MIN);
    for event in events {
        reorder.push(event, NOW_MS);
    }
    reorder.advance(until_us);
    (sorted(reorder.take()), reorder.counts())
}

fn stragglers(output: &[Publication]) -> Vec<&v1::StragglerSignal> {
    let events = output.iter().flat_map(|publication| &publication.events);
    events
        .filter_map(|event| if let Event::Straggler(signal) = event { Some(signal) } else { None })
        .collect()
}

#[test]
fn the_planted_straggler_is_found_named_and_cleared() {
    let (output, counts) = all_at_once(input().concat());
    assert_eq!(counts.late, 0);
    let signals = stragglers(&output);
    assert!(
        signals.iter().all(|s| (s.rank, s.node.as_deref()) == (Some(SLOW_RANK), Some("n0"))),
        "{signals:#?}"
    );
    let of = |state: v1::SignalState| signals.iter().filter(|s| s.state() == state).count();
    assert_eq!([v1::SignalState::Confirmed, v1::SignalState::Cleared].map(of), [1, 1], "{signals:#?}");
    let confirmed = signals.iter().find(|s| s.state() == v1::SignalState::Confirmed).unwrap();
    // Earlier steps take 1.7 s; the rank is slow from the 200th on.
    let onset_s = (confirmed.onset_ms - START_MS) as f64 / 1_000.0;
    assert!((330.0..350.0).contains(&onset_s), "{onset_s}");
    assert_eq!(
        (confirmed.class.as_str(), confirmed.gpu_uuid.as_deref()),
        ("COMPUTE_THERMAL", Some("GPU-n0-5"))
    );
    assert!((200_000..300_000).contains(&confirmed.slowdown_ppm), "{confirmed:?}");
    assert!(confirmed.evidence.iter().any(|line| line.contains("value=")), "{confirmed:?}");
    assert_eq!((confirmed.attempt_id, confirmed.episode), (Some(1), 1));
    let revisions: BTreeSet<u32> = signals.iter().map(|s| s.revision).collect();
    assert_eq!(revisions.len(), signals.len(), "each statement has a number of its own");
}

#[test]
fn a_complete_step_waits_for_neither_tick_nor_watermark() {
    let (output, _) = all_at_once(input().concat());
    let confirmed =
        stragglers(&output).into_iter().find(|s| s.state() == v1::SignalState::Confirmed).unwrap();
    // The step ended within this millisecond; the watermark is 20 s behind.
    let watermark_us = (confirmed.said_ms + 1) * 1_000 - bypass::LOOKAHEAD_US;
    assert_ne!(confirmed.said_ms.rem_euclid(10_000), 0);
    let mut reorder = Reorder::new(i64::MIN);
    for event in input().concat() {
        reorder.push(event, NOW_MS);
    }
    reorder.advance(watermark_us - 1_000_000);
    assert!(!stragglers(&reorder.take()).contains(&confirmed));
    reorder.advance(watermark_us);
    assert!(stragglers(&reorder.take()).contains(&confirmed));
}

#[test]
fn a_fault_counts_for_the_node() {
    let (output, _) = all_at_once(input().concat());
    let nodes = output.iter().flat_map(|p| &p.events).filter_map(|event| match event {
        Event::NodeHealth(signal) => Some((signal.node.as_str(), signal.state())),
        _ => None,
    });
    let of_n1: Vec<_> = nodes.filter(|(node, _)| *node == "n1").map(|(_, state)| state).collect();
    assert!(of_n1.len() == 1 && of_n1[0] != v1::NodeHealthState::Healthy, "{of_n1:?}");
}

#[test]
fn interleavings_duplicates_and_watermarks_change_nothing() {
    assert!(!assert_same_in_any_order(&input(), end_us()).is_empty());
}

/// What a process that starts from a snapshot of the state goes on with.
fn restored(reorder: &Reorder) -> Reorder {
    let bytes = postcard::to_extend(reorder, Vec::new()).unwrap();
    let restored: Reorder = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(postcard::to_extend(&restored, Vec::new()).unwrap(), bytes, "nothing is lost on the way");
    restored
}

/// Output of the partitions of a log, after checking that other interleavings, duplicates in random
/// order, other watermarks, and restarts from snapshots at random places give the same.
fn assert_same_in_any_order(partitions: &[Vec<Event>], until_us: i64) -> Vec<Publication> {
    let (expected, _) = all_until(partitions.concat(), until_us);
    let parts = 0..partitions.len();
    // Partitions in another order, each event twice, shuffled.
    let mut twice = partitions.concat();
    twice.extend(partitions.concat());
    twice.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    assert_eq!(all_until(twice, until_us).0, expected);
    // Piece by piece, with the watermark behind the slowest partition.
    for seed in 2..6 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut reorder = Reorder::new(i64::MIN);
        let mut output = Vec::new();
        let (mut next, mut newest) = (vec![0; parts.len()], vec![i64::MIN; parts.len()]);
        while parts.clone().any(|p| next[p] < partitions[p].len()) {
            let p = random.random_range(parts.clone());
            let piece = random.random_range(1..400);
            for event in partitions[p].iter().skip(next[p]).take(piece) {
                newest[p] = newest[p].max(reorder.push(event.clone(), NOW_MS).unwrap());
            }
            next[p] = (next[p] + piece).min(partitions[p].len());
            let open = parts.clone().filter(|p| next[*p] < partitions[*p].len());
            reorder
                .advance(open.map(|p| newest[p]).min().unwrap_or(i64::MAX).min(until_us).saturating_sub(1));
            assert_eq!(reorder.counts().late, 0, "seed {seed}");
            if seed >= 4 && random.random_bool(0.1) {
                output.extend(reorder.take());
                reorder = restored(&reorder);
            }
        }
        reorder.advance(until_us);
        assert_eq!(reorder.counts().late, 0, "seed {seed}");
        output.extend(reorder.take());
        assert_eq!(sorted(output), expected, "seed {seed}");
    }
    expected
}

#[test]
fn late_and_repeated_events_do_no_harm() {
    let mut events = input().concat();
    events.shuffle(&mut ChaCha8Rng::seed_from_u64(9));
    // One event in a hundred comes after all others were decided; then everything once more.
    let late = events.split_off(events.len() - events.len() / 100);
    let is_end =
        |event: &Event| matches!(event, Event::Job(job) if job.kind() != v1::JobEventKind::Submitted);
    let (jobs, late): (Vec<Event>, Vec<Event>) = late.into_iter().partition(is_end);
    events.extend(jobs);
    let mut reorder = Reorder::new(i64::MIN);
    for event in &events {
        reorder.push(event.clone(), NOW_MS);
    }
    reorder.advance(end_us());
    let output = reorder.take();
    let confirmed = |output: &[Publication]| {
        let signals = stragglers(output);
        signals.iter().filter(|s| s.state() == v1::SignalState::Confirmed).map(|s| s.rank).collect::<Vec<_>>()
    };
    assert_eq!(confirmed(&output), [Some(SLOW_RANK)]);
    for event in late.iter().chain(&events) {
        reorder.push(event.clone(), NOW_MS);
        reorder.advance(end_us());
    }
    assert_eq!(confirmed(&reorder.take()), []);
    assert_eq!(reorder.counts().late as usize, late.len() + events.len());
}

#[test]
fn steps_of_a_job_that_nobody_has_named_are_counted_and_change_nothing() {
    let [_, _, steps, ..] = input();
    let mut reorder = Reorder::new(i64::MIN);
    for event in steps.iter().cloned() {
        reorder.push(event, NOW_MS);
    }
    reorder.advance(end_us());
    assert_eq!((reorder.take(), reorder.memory().held_bytes), (Vec::new(), 0));
    assert_eq!(reorder.memory().unknown_jobs, steps.len() as u64);
}

#[test]
fn a_start_and_steps_are_enough() {
    let [mut jobs, _, steps, ..] = input();
    jobs.truncate(2);
    let (output, _) = all_at_once(jobs.into_iter().chain(steps));
    let signals = stragglers(&output);
    assert!(signals.iter().any(|s| s.state() == v1::SignalState::Confirmed && s.rank == Some(SLOW_RANK)));
    assert!(signals.iter().all(|s| s.class == "COMPUTE_SILENT"), "clocks were not sampled: {signals:#?}");
}

#[test]
fn garbage_does_not_panic_and_is_counted() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut reorder = Reorder::new(i64::MIN);
    let odd = [0, 1, 7, u64::from(u32::MAX), i64::MAX as u64, u64::MAX];
    for n in 0..3_000 {
        let mut pick = || odd[random.random_range(0..odd.len())];
        let at_ms = START_MS.wrapping_add((pick() as i64).wrapping_mul(if n % 7 == 0 { -1 } else { 1 }));
        let job_id = format!("j{}", n % 5);
        let event = match n % 4 {
            0 => Event::Step(v1::StepReport {
                job_id,
                attempt_id: (n % 3 == 0).then(|| pick() as i64),
                rank: pick() as u32,
                world_size: Some(pick() as u32),
                step: pick(),
                duration_us: pick(),
                compute_us: Some(pick()),
                node: Some(String::new()),
                ..v1::StepReport::default()
            }),
            1 => Event::Job(v1::JobEvent {
                kind: (n % 12) as i32,
                job_id: if n % 11 == 0 { "x".repeat(5_000) } else { job_id },
                attempt_id: Some(pick() as i64),
                gpus_milli: Some(pick()),
                nodes: Some(",,a,".into()),
                pool: Some(String::new()),
                ..v1::JobEvent::default()
            }),
            2 => Event::Node(v1::NodeEvent {
                kind: (n % 20) as i32,
                node: "n".into(),
                gpu_uuid: (n % 3 == 0).then(|| "g".into()),
                xid: Some(pick() as u32),
                ..v1::NodeEvent::default()
            }),
            _ => Event::GpuSamples(v1::GpuSampleBatch {
                node: "n".into(),
                devices: vec![DeviceInfo { uuid: "g".into(), ..DeviceInfo::default() }],
                first_tick_ms: at_ms,
                tick_delta_ms: vec![pick() as i64 % 1_000; 2],
                columns: vec![Column {
                    name: "pcie_replay_count".into(),
                    value_delta: vec![pick() as i64; 3],
                    ..Column::default()
                }],
                ..v1::GpuSampleBatch::default()
            }),
        };
        reorder.push(sealed(event, at_ms), NOW_MS);
        if n % 50 == 0 {
            reorder.advance(START_MS * 1_000 + n * 1_000_000);
        }
    }
    reorder.advance(end_us());
    let counts = reorder.counts();
    assert!(counts.rejected > 100 && counts.used > 100, "{counts:?}");
}
