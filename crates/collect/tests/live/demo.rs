//! The demo: a plausible node, the same for the same seed.

use std::sync::Arc;
use std::time::Duration;

use tidegate_collect::demo::{Demo, DemoOptions, start};
use tidegate_collect::{Metric, Reading, Value};
use tidegate_events::v1::NodeEventKind::*;

use crate::sink::Recorded;

const MIDNIGHT: i64 = 1_760_000_000_000 / 86_400_000 * 86_400_000;

fn day(seed: u64, step_ms: i64) -> (Vec<Reading>, Vec<tidegate_events::v1::NodeEvent>) {
    let mut demo = Demo::new(DemoOptions { seed, ..DemoOptions::default() });
    let (mut readings, mut events) = (Vec::new(), Vec::new());
    for tick in (MIDNIGHT..MIDNIGHT + 86_400_000).step_by(step_ms as usize) {
        let (r, e) = demo.tick(tick);
        readings.extend(r);
        events.extend(e);
    }
    (readings, events)
}

fn is(reading: &Reading, metric: Metric) -> i64 {
    match reading.get(metric) {
        Value::Is(value) => value,
        other => panic!("{metric:?} is {other:?}"),
    }
}

#[test]
fn the_same_seed_gives_the_same_day() {
    let (one, two, other) = (day(7, 60_000), day(7, 60_000), day(8, 60_000));
    let text = |day: &(Vec<Reading>, _)| format!("{:?}", day.0);
    assert_eq!(text(&one), text(&two));
    assert_eq!(one.1, two.1);
    assert_ne!(text(&one), text(&other));
}

#[test]
fn a_day_is_plausible() {
    let (readings, events) = day(1, 10_000);
    assert_eq!(readings.len(), 8 * 8_640);
    let mean = |hours: std::ops::Range<i64>| {
        let within = |r: &&Reading| hours.contains(&((r.tick_ms - MIDNIGHT) / 3_600_000));
        let (sum, count) =
            readings.iter().filter(within).fold((0, 0), |(s, c), r| (s + is(r, Metric::SmActive), c + 1));
        sum / count
    };
    // Nights are quieter only over many days; over one it is chance, so only the whole is tested
    // here.
    assert!((200_000..800_000).contains(&mean(0..24)), "{}", mean(0..24));
    for gpu in 0..8 {
        let mine: Vec<_> = readings.iter().filter(|r| r.device.index == gpu).collect();
        // Energy is power over time, to the rounding of each step.
        let drawn: i64 = mine[1..].iter().map(|r| is(r, Metric::Power) * 10).sum();
        assert!((is(mine[mine.len() - 1], Metric::Energy) - drawn).abs() <= mine.len() as i64);
        assert!(mine.windows(2).all(|two| is(two[0], Metric::Energy) <= is(two[1], Metric::Energy)));
        for reading in &mine {
            assert!(is(reading, Metric::TensorActive) <= is(reading, Metric::SmActive));
            assert!(is(reading, Metric::Power) <= is(reading, Metric::PowerLimit));
            assert!(is(reading, Metric::FramebufferUsed) < is(reading, Metric::FramebufferTotal));
            assert_eq!(is(reading, Metric::Processes), reading.processes.len() as i64);
        }
    }
    assert!(
        readings.iter().any(|r| is(r, Metric::Processes) == 1 && is(r, Metric::SmActive) < 10_000),
        "held, idle"
    );
    assert!(readings.iter().any(|r| is(r, Metric::Processes) == 0), "free");
    let xids = events.iter().filter(|e| e.kind() == Xid).count();
    assert!((5..60).contains(&xids), "one an hour on the mean: {xids}");
    assert!(events.iter().all(|e| e.kind() != Xid || e.pid.is_some() && e.fault_level.is_some()));
}

#[test]
fn it_runs_by_the_clock() {
    let sink = Arc::new(Recorded::default());
    let options = DemoOptions { interval: Duration::from_millis(100), devices: 2, ..DemoOptions::default() };
    let source = start(options, Arc::clone(&sink) as _).unwrap();
    let recorded = sink.until("five ticks", |recorded| recorded.of(1).len() >= 5);
    source.stop();
    recorded.each_tick_once(2, 100);
    assert_eq!(recorded.of_kind(NodeRegistered)[0].gpus_milli, Some(2_000));
}
