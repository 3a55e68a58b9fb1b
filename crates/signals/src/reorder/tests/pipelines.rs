//! Pipelined jobs: a long stage blames nobody, a slow rank within a stage is blamed.

use std::ops::Range;

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// 2026-01-01T00:00:00Z, ms.
const START_MS: i64 = 1_767_225_600_000;
const NOW_MS: i64 = START_MS + 86_400_000;
/// Four stages of 16 ranks, each on two nodes of eight.
const RANKS: u32 = 64;
const STAGES: u32 = 4;
const MICRO_BATCHES: u32 = 8;
const LONG_STAGE: u32 = 2;
/// A rank of the first stage: 1.3 times slower, it is still faster than the long stage.
const SLOW_RANK: u32 = 5;
const SLOW_STEPS: Range<u64> = 260..360;

/// Reports of a job whose stage 2 has half as much work again.
fn steps(tells_place: bool, slow_rank: Option<u32>) -> Vec<Event> {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let started = v1::JobEvent {
        kind: v1::JobEventKind::Started.into(),
        job_id: "j".into(),
        ..v1::JobEvent::default()
    };
    let (mut events, mut at_us) = (vec![sealed(Event::Job(started), START_MS)], START_MS * 1_000);
    for step in 0..450_u64 {
        let compute: Vec<f64> = (0..RANKS)
            .map(|rank| {
                let longer = if rank / 16 == LONG_STAGE { 1.5 } else { 1.0 };
                let slower = if Some(rank) == slow_rank && SLOW_STEPS.contains(&step) { 1.3 } else { 1.0 };
                1.5e6 * longer * slower * random.random_range(0.997..1.003)
            })
            .collect();
        // Each micro-batch passes all stages; the longest stage sets the pace.
        let pace = (0..16)
            .map(|replica| {
                let stage = |stage: usize| compute[stage * 16 + replica];
                let longest = (0..4).map(stage).fold(0.0, f64::max);
                ((0..4).map(stage).sum::<f64>() + 7.0 * longest) / 8.0
            })
            .fold(0.0, f64::max);
        let duration_us = pace as u64 + 100_000;
        for (rank, compute_us) in (0..RANKS).zip(compute) {
            let mut event = Event::Step(v1::StepReport {
                job_id: "j".into(),
                rank,
                world_size: Some(RANKS),
                step,
                duration_us,
                compute_us: Some(compute_us as u64),
                communication_us: Some(100_000),
                data_wait_us: Some(0),
                node: Some(format!("n{}", rank / 8)),
                gpu_index: Some(rank % 8),
                pipeline_stage: tells_place.then_some(rank / 16),
                pipeline_stages: tells_place.then_some(STAGES),
                micro_batches: tells_place.then_some(MICRO_BATCHES),
                ..v1::StepReport::default()
            });
            let envelope = event.envelope_mut();
            (envelope.cluster, envelope.source) = ("c".into(), format!("r{rank}"));
            (envelope.event_time_ms, envelope.observed_time_ms) = (at_us / 1_000, at_us / 1_000);
            event.seal();
            events.push(event);
        }
        at_us += duration_us as i64;
    }
    events
}

fn output(events: Vec<Event>) -> Vec<v1::StragglerSignal> {
    let mut reorder = Reorder::new(i64::MIN);
    for event in events {
        reorder.push(event, NOW_MS);
    }
    reorder.advance((START_MS + 7_200_000) * 1_000);
    let events = reorder.take().into_iter().flat_map(|publication| publication.events);
    events
        .filter_map(|event| if let Event::Straggler(signal) = event { Some(signal) } else { None })
        .collect()
}

#[test]
fn a_long_stage_is_named_and_blames_nobody() {
    let signals = output(steps(true, None));
    let [signal] = &signals[..] else { panic!("{signals:#?}") };
    assert_eq!((signal.state(), signal.class.as_str()), (v1::SignalState::Confirmed, "STRUCTURAL"));
    assert_eq!((signal.cause.as_deref(), signal.pipeline_stage), (Some("LONG_STAGE"), Some(LONG_STAGE)));
    assert_eq!((signal.blame.as_str(), signal.rank, signal.node.as_deref()), ("NOBODY", None, None));
    // (1 + 1 + 1.5 + 1 + 7 x 1.5) / 8 = 1.875 of a stage's time. Spread evenly it would be (4 + 7)
    // / 8 x 1.125 = 1.547: 21 % less.
    assert!((205_000..225_000).contains(&signal.slowdown_ppm), "{signal:?}");
}

#[test]
fn without_positions_no_stage_is_named() {
    let signals = output(steps(false, None));
    assert!(signals.iter().all(|signal| signal.blame == "NOBODY" && signal.pipeline_stage.is_none()));
    assert!(
        signals.iter().any(|signal| signal.cause.as_deref() == Some("SLOWER_FROM_THE_START")),
        "{signals:#?}"
    );
}

#[test]
fn a_slow_rank_of_a_short_stage_is_found_beside_the_long_one() {
    let mut events = steps(true, Some(SLOW_RANK));
    let signals = output(events.clone());
    let (structural, blamed): (Vec<_>, Vec<_>) = signals.iter().partition(|signal| signal.blame == "NOBODY");
    assert_eq!(
        structural.iter().filter_map(|signal| signal.pipeline_stage).collect::<Vec<_>>(),
        [LONG_STAGE]
    );
    assert!(blamed.iter().all(|signal| (signal.rank, signal.pipeline_stage) == (Some(SLOW_RANK), Some(0))));
    let of = |state: v1::SignalState| blamed.iter().filter(|signal| signal.state() == state).count();
    assert_eq!([v1::SignalState::Confirmed, v1::SignalState::Cleared].map(of), [1, 1], "{blamed:#?}");
    let confirmed = blamed.iter().find(|signal| signal.state() == v1::SignalState::Confirmed).unwrap();
    assert!((250_000..350_000).contains(&confirmed.slowdown_ppm), "{confirmed:?}");
    // In any order.
    events.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    assert_eq!(output(events), signals);
}
