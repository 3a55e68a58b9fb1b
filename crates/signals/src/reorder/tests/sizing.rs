//! Sizing advice, from jobs, nodes and prices in the order of the log.

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;

/// Monday, 2026-01-05T00:00:00Z, ms.
const START_MS: i64 = 1_767_571_200_000;
const HOUR_MS: i64 = 3_600_000;
const DAYS: i64 = 23;
const NOW_MS: i64 = START_MS + 60 * 24 * HOUR_MS;

fn sealed(mut event: Event, source: &str, at_ms: i64) -> Event {
    let envelope = event.envelope_mut();
    (envelope.cluster, envelope.source) = ("c".into(), source.into());
    (envelope.event_time_ms, envelope.observed_time_ms) = (at_ms, at_ms);
    event.seal();
    event
}

fn price(pool: Option<&str>, contract: &str, micros: u64, at_ms: i64) -> Event {
    let event = v1::CapacityEvent {
        kind: v1::CapacityEventKind::PriceSet.into(),
        owner: "total".into(),
        pool: pool.map(str::to_owned),
        contract: Some(contract.into()),
        price_micros_per_gpu_hour: Some(micros),
        currency: Some("EUR".into()),
        entered_ms: Some(at_ms),
        ..v1::CapacityEvent::default()
    };
    sealed(Event::Capacity(event), "price", at_ms)
}

/// In pool p a job of 12 GPUs for 12 hours each day, and an endless job of 4; a node of 8 GPUs;
/// prices, another one in the third week, and one of the year to come.
fn input() -> Vec<Event> {
    let job = |kind: v1::JobEventKind, id: String, gpus: u64, at_ms| {
        let event = v1::JobEvent {
            kind: kind.into(),
            job_id: id,
            attempt_id: Some(1),
            pool: Some("p".into()),
            gpus_milli: Some(gpus * 1_000),
            ..v1::JobEvent::default()
        };
        sealed(Event::Job(event), "slurm", at_ms)
    };
    let node = v1::NodeEvent {
        kind: v1::NodeEventKind::NodeRegistered.into(),
        node: "n".into(),
        pool: Some("p".into()),
        gpus_milli: Some(8_000),
        ..v1::NodeEvent::default()
    };
    let mut events = vec![
        price(None, "on_demand", 4_000_000, START_MS - HOUR_MS),
        price(Some("p"), "reserved", 2_000_000, START_MS),
        price(Some("p"), "reserved", 3_000_000, START_MS + 16 * 24 * HOUR_MS),
        price(Some("p"), "reserved", 1_000_000, START_MS + 400 * 24 * HOUR_MS),
        sealed(Event::Node(node), "slurm", START_MS),
        job(v1::JobEventKind::Started, "base".into(), 4, START_MS),
    ];
    for day in 0..DAYS {
        let at_ms = START_MS + day * 24 * HOUR_MS;
        events.push(job(v1::JobEventKind::Started, format!("j{day}"), 12, at_ms));
        events.push(job(v1::JobEventKind::Ended, format!("j{day}"), 12, at_ms + 12 * HOUR_MS));
    }
    events
}

fn advice(output: Vec<Publication>) -> Vec<Publication> {
    output.into_iter().filter(|it| matches!(it.events.first(), Some(Event::Sizing(_)))).collect()
}

fn end_us() -> i64 {
    (START_MS + DAYS * 24 * HOUR_MS) * 1_000
}

fn all_at_once(events: Vec<Event>) -> Vec<Publication> {
    let mut reorder = Reorder::new(i64::MIN);
    for event in events {
        reorder.push(event, NOW_MS);
    }
    reorder.advance(end_us());
    advice(reorder.take())
}

#[test]
fn advice_is_the_same_in_any_order_and_however_the_watermark_moves() {
    let output = all_at_once(input());
    // The seven days of the first week, Mondays 14 and 21, and day 16 for the pool, whose price
    // changes. The total has no reserved price.
    assert_eq!(output.len(), 9 + 10);
    let of_day_16 = output.iter().flat_map(|it| &it.events).find_map(|event| match event {
        Event::Sizing(it) if event.event_time_ms() == START_MS + 16 * 24 * HOUR_MS && it.term == "WEEK" => {
            Some(it)
        }
        _ => None,
    });
    let week = of_day_16.unwrap();
    // 16 and 4 GPUs, half of the time each. At 3 of 4 a second node costs 8 x 24 x 3 = 576 and
    // saves 4 x 12 x 8 = 384; the first one saves 4 x (12 x 8 + 12 x 4) = 576, which is no gain.
    assert_eq!((week.name.as_str(), week.advised_gpus, week.break_even_ppm), ("p", Some(0), Some(750_000)));
    let total = output.iter().flat_map(|it| &it.events).find_map(|event| match event {
        Event::Sizing(it) if it.name == "total" => Some(it),
        _ => None,
    });
    assert_eq!(total.unwrap().reason.as_deref(), Some("NO_RESERVED_PRICE"));
    let mut twice = input();
    twice.extend(input());
    twice.shuffle(&mut ChaCha8Rng::seed_from_u64(1));
    assert_eq!(all_at_once(twice), output);
    for seed in 2..5 {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut events = input();
        events.sort_by_cached_key(|event| (event.event_time_ms() / (7 * HOUR_MS), random.random::<u32>()));
        let (mut reorder, mut published) = (Reorder::new(i64::MIN), Vec::new());
        for event in events {
            if let Some(at_us) = reorder.push(event, NOW_MS) {
                reorder.advance(at_us - 8 * HOUR_MS * 1_000);
            }
            assert_eq!((reorder.counts().late, reorder.counts().rejected), (0, 0));
            if random.random_bool(0.05) {
                published.extend(reorder.take());
                reorder = restored(&reorder);
            }
        }
        reorder.advance(end_us());
        published.extend(reorder.take());
        assert_eq!(advice(published), output, "seed {seed}");
    }
}
