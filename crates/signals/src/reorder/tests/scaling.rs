//! Scaling curves of families, from jobs and steps in the order of the log.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// 2026-01-01T00:00:00Z, ms.
const START_MS: i64 = 1_767_225_600_000;
const NOW_MS: i64 = START_MS + 30 * 86_400_000;
const STEPS: u64 = 120;

fn sealed(mut event: Event, source: &str, at_ms: i64) -> Event {
    let envelope = event.envelope_mut();
    (envelope.cluster, envelope.source) = ("c".into(), source.into());
    (envelope.event_time_ms, envelope.observed_time_ms) = (at_ms, at_ms);
    event.seal();
    event
}

/// A job named `name` on `world` GPUs: 1 s a step, 0.2 s more over two nodes.
fn job(job_id: &str, name: &str, world: u32, start_ms: i64) -> Vec<Event> {
    let step_ms = if world > 8 { 1_200 } else { 1_000 };
    let end_ms = start_ms + STEPS as i64 * step_ms + 60_000;
    let input = |kind: v1::JobEventKind, at_ms| {
        let event = v1::JobEvent {
            kind: kind.into(),
            job_id: job_id.into(),
            attempt_id: Some(1),
            team: Some("t".into()),
            job_name: Some(name.into()),
            gpus_milli: Some(u64::from(world) * 1_000),
            ..v1::JobEvent::default()
        };
        sealed(Event::Job(event), job_id, at_ms)
    };
    let mut events = vec![input(v1::JobEventKind::Started, start_ms), input(v1::JobEventKind::Ended, end_ms)];
    for step in 0..STEPS {
        for rank in 0..world {
            let report = v1::StepReport {
                job_id: job_id.into(),
                attempt_id: Some(1),
                rank,
                world_size: Some(world),
                step,
                duration_us: step_ms as u64 * 1_000,
                tokens: Some(2_048),
                node: Some(format!("{job_id}-{}", rank / 8)),
                ..v1::StepReport::default()
            };
            let at_ms = start_ms + step as i64 * step_ms;
            events.push(sealed(Event::Step(report), &format!("{job_id}/{rank}"), at_ms));
        }
    }
    events
}

/// Two sizes of one family at the same time, and another family.
fn input() -> Vec<Event> {
    let jobs = [("a", "train", 4, 0), ("b", "train", 16, 30_000), ("x", "other", 8, 0)];
    jobs.into_iter()
        .flat_map(|(id, name, world, after_ms)| job(id, name, world, START_MS + after_ms))
        .collect()
}

fn curves(output: Vec<Publication>) -> Vec<Publication> {
    let is_curve = |publication: &Publication| matches!(publication.events.first(), Some(Event::Scaling(_)));
    output.into_iter().filter(is_curve).collect()
}

fn end_us() -> i64 {
    (START_MS + 3_600_000) * 1_000
}

fn all_at_once(events: Vec<Event>) -> Vec<Publication> {
    let mut reorder = Reorder::new(i64::MIN);
    for event in events {
        reorder.push(event, NOW_MS);
    }
    reorder.advance(end_us());
    curves(reorder.take())
}

#[test]
fn jobs_of_one_name_at_two_sizes_make_a_curve_in_any_order() {
    let output = all_at_once(input());
    let [curve] = &output[..] else { panic!("{output:#?}") };
    let points: Vec<&v1::ScalingCurve> = curve
        .events
        .iter()
        .filter_map(|event| if let Event::Scaling(point) = event { Some(point) } else { None })
        .collect();
    assert!(points.iter().all(|point| point.family == "t/-/train/-" && point.unit == "TOKENS"));
    assert_eq!(points.iter().map(|point| point.gpus).collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32]);
    // 16 x 2,048 tokens in 1.2 s.
    let sixteen = points[4];
    assert!((sixteen.rate_milli as f64 / 27_306_667.0 - 1.0).abs() < 0.03, "{sixteen:?}");
    assert_eq!((sixteen.nodes, sixteen.seen_steps, points[5].nodes), (2, 100, 4));
    // Shuffled with duplicates; and piece by piece with a watermark behind.
    let mut twice = input();
    twice.extend(input());
    twice.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    assert_eq!(all_at_once(twice), output);
    for seed in 2..5 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut events = input();
        events.sort_by_cached_key(|event| (event.event_time_ms() / 7_000, random.random::<u32>()));
        let (mut reorder, mut published) = (Reorder::new(i64::MIN), Vec::new());
        for event in events {
            let at_us = reorder.push(event, NOW_MS).unwrap();
            reorder.advance(at_us - 10_000_000);
            assert_eq!(reorder.counts().late, 0);
            if random.random_bool(0.01) {
                published.extend(reorder.take());
                reorder = restored(&reorder);
            }
        }
        reorder.advance(end_us());
        published.extend(reorder.take());
        assert_eq!(curves(published), output, "seed {seed}");
    }
}
