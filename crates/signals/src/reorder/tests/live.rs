//! Latency of signals after the last rank's report, on a simulated clock: events are appended as
//! agents do, and the log is polled as the program does.

use super::*;
use crate::RunMode;

/// Poll interval, ms, as in `tidegate insight`.
const LOOK_MS: i64 = 250;
/// Agents send what they have every two seconds.
const FLUSH_MS: i64 = 2_000;

/// In every 80 steps 25 are slow by two fifths, some 57 s, as ranks and their device show.
fn episodes() -> [Vec<Event>; 5] {
    input_where(1_400, &|step| if step >= 120 && step % 80 < 25 { 1.4 } else { 1.0 })
}

fn end_ms(event: &Event) -> i64 {
    match event {
        Event::Step(step) => event.event_time_ms() + step.duration_us as i64 / 1_000,
        // Ten samples, one a second.
        Event::GpuSamples(_) => event.event_time_ms() + 9_000,
        _ => event.event_time_ms(),
    }
}

/// When each event is appended, ms: with its node's next delivery, up to 300 ms on the network; job
/// and node events come seconds late.
fn appended(events: Vec<Event>, seed: u64) -> Vec<(i64, Event)> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut network: BTreeMap<(bool, i64), i64> = BTreeMap::new();
    let mut appended: Vec<(i64, Event)> = events
        .into_iter()
        .map(|event| {
            let (is_other, delay_ms) = match &event {
                Event::Step(step) => (step.rank >= 8, 0),
                Event::GpuSamples(batch) => (batch.node == "n1", 0),
                _ => return (end_ms(&event) + random.random_range(1_000..9_000), event),
            };
            let phase_ms = if is_other { 1_300 } else { 0 };
            let flush_ms = (end_ms(&event) - phase_ms).div_euclid(FLUSH_MS) * FLUSH_MS + FLUSH_MS + phase_ms;
            let way_ms = *network.entry((is_other, flush_ms)).or_insert_with(|| random.random_range(50..300));
            (flush_ms + way_ms + delay_ms, event)
        })
        .collect();
    appended.sort_by_key(|(at_ms, _)| *at_ms);
    appended
}

/// The output for events as they are appended, and for each straggler signal its delay after the
/// last report of the step that decided it.
fn live(events: Vec<Event>, seed: u64) -> (Vec<Publication>, Vec<i64>) {
    let input = appended(events, seed);
    let mut last_ms: BTreeMap<i64, i64> = BTreeMap::new();
    for (at_ms, event) in input.iter().filter(|(_, event)| matches!(event, Event::Step(_))) {
        let last = last_ms.entry(end_ms(event)).or_insert(*at_ms);
        *last = (*last).max(*at_ms);
    }
    let (mut reorder, mut newest_us) = (Reorder::new(i64::MIN), i64::MIN);
    let (mut output, mut delays_ms) = (Vec::new(), Vec::new());
    let mut input = input.into_iter().peekable();
    let mut now_ms = START_MS;
    while input.peek().is_some() {
        now_ms += LOOK_MS;
        while let Some((_, event)) = input.next_if(|(at_ms, _)| *at_ms <= now_ms) {
            newest_us = newest_us.max(reorder.push(event, now_ms).unwrap_or(i64::MIN));
        }
        reorder.advance(newest_us.saturating_sub(RunMode::Live.lag_us()));
        let new = reorder.take();
        delays_ms.extend(stragglers(&new).iter().map(|signal| now_ms - last_ms[&signal.said_ms]));
        output.extend(new);
    }
    reorder.advance(end_us());
    output.extend(reorder.take());
    assert_eq!(reorder.counts().late, 0);
    delays_ms.sort_unstable();
    (sorted(output), delays_ms)
}

fn at(delays_ms: &[i64], share: f64) -> i64 {
    delays_ms[((delays_ms.len() - 1) as f64 * share).round() as usize]
}

#[test]
fn live_signals_come_within_two_seconds_and_equal_a_replay() {
    // The evidence lag equals the lookahead: early steps never need evidence that is not closed
    // yet.
    let lag_us = tidegate_insight::straggler::Settings::default().evidence_lag_us;
    assert_eq!((lag_us, RunMode::Live.lag_us()), (bypass::LOOKAHEAD_US, bypass::LOOKAHEAD_US));
    let (expected, _) = all_at_once(episodes().concat());
    let mut all = Vec::new();
    for seed in 1..4 {
        let (output, delays_ms) = live(episodes().concat(), seed);
        assert_eq!(output, expected, "seed {seed}");
        all.extend(delays_ms);
    }
    all.sort_unstable();
    println!(
        "{} signals, p50 {} ms, p99 {} ms, most {} ms",
        all.len(),
        at(&all, 0.5),
        at(&all, 0.99),
        all[all.len() - 1]
    );
    assert!(all.len() >= 3 * 45, "{}", all.len());
    // Polling every 250 ms costs half of that in the median, and all of it at most.
    assert!(at(&all, 0.5) <= 250 && at(&all, 0.99) <= 2_000, "{all:?}");
}

#[test]
fn evidence_names_the_class_later_and_delays_no_signal() {
    let (output, _) = live(episodes().concat(), 1);
    let signals = stragglers(&output);
    let of = |episode: u64| {
        let mut of: Vec<_> = signals.iter().filter(|signal| signal.episode == episode).collect();
        of.sort_by_key(|signal| signal.revision);
        of.iter().map(|signal| (signal.state(), signal.class.as_str(), signal.said_ms)).collect::<Vec<_>>()
    };
    let first = of(1);
    // Clocks are known 20 s later: a suspicion before that has no cause yet.
    assert_eq!((first[0].0, first[0].1), (v1::SignalState::Suspect, "COMPUTE_SILENT"), "{first:?}");
    let named = first.iter().find(|(_, class, _)| *class == "COMPUTE_THERMAL").unwrap();
    assert!((15_000..45_000).contains(&(named.2 - first[0].2)), "{first:?}");
    let mut stated = first.iter().filter(|(state, ..)| *state != v1::SignalState::Cleared);
    assert!(stated.next_back().is_some_and(|(_, class, _)| *class == "COMPUTE_THERMAL"), "{first:?}");
    // Without device samples the signals come as soon, without the class.
    let [jobs, nodes, steps, ..] = episodes();
    let (without, delays_ms) = live([jobs, nodes, steps].concat(), 1);
    assert!(at(&delays_ms, 0.99) <= 2_000, "{delays_ms:?}");
    assert!(stragglers(&without).iter().all(|signal| signal.class == "COMPUTE_SILENT"));
    let begun = |output: &[Publication]| {
        let signals = stragglers(output);
        signals.iter().filter(|signal| signal.revision == 0).map(|s| s.said_ms).collect::<BTreeSet<_>>()
    };
    assert_eq!(begun(&without), begun(&output));
}

#[test]
fn a_lost_report_delays_its_step_until_its_rank_reports_again() {
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut partitions = episodes();
    partitions[2].retain(|_| !random.random_bool(0.01));
    let (expected, _) = all_at_once(partitions.concat());
    let (output, delays_ms) = live(partitions.concat(), 1);
    assert_eq!(output, expected);
    // One step of 2.3 s and one delivery more, not twenty seconds.
    assert!(
        at(&delays_ms, 0.99) <= 2_300 + FLUSH_MS + 2 * LOOK_MS && at(&delays_ms, 0.5) <= 1_000,
        "{delays_ms:?}"
    );
}
