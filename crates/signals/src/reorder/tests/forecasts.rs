//! Coverage signals of forecasts, recomputed by hand.

use super::*;

/// Jobs that begin and end on the hour, so that hourly means are known: 4 GPUs for ten days, then
/// ever more.
const DAYS: i64 = 20;

fn demand_of(hour: i64) -> u64 {
    match hour / 24 {
        0..10 => 4,
        // A parabola: a forecast of no change is too low each time.
        _ => 4 + (hour - 240).pow(2) as u64 / 8,
    }
}

fn growing() -> Vec<Event> {
    let mut events = Vec::new();
    let input = |kind: v1::JobEventKind, hour: i64, gpus: u64| {
        let event = v1::JobEvent {
            kind: kind.into(),
            job_id: format!("g{hour}"),
            team: Some("t".into()),
            gpus_milli: Some(gpus * 1_000),
            ..v1::JobEvent::default()
        };
        Event::Job(event)
    };
    for hour in 0..DAYS * 24 {
        let at_ms = START_MS + hour * 3_600_000;
        events.push(sealed(input(v1::JobEventKind::Submitted, hour, demand_of(hour)), at_ms));
        events.push(sealed(input(v1::JobEventKind::Ended, hour, demand_of(hour)), at_ms + 3_600_000));
    }
    events
}

fn coverage_of(output: &[Publication]) -> Vec<v1::CoverageSignal> {
    let events = output.iter().flat_map(|publication| publication.events.iter());
    events
        .filter_map(|event| if let Event::Coverage(signal) = event { Some(signal.clone()) } else { None })
        .collect()
}

#[test]
fn coverage_signals_match_a_recount() {
    let input = |mut events: Vec<Event>, seed: Option<u64>, restart_every_hours: i64| {
        let (mut reorder, mut output) = (Reorder::new(i64::MIN), Vec::new());
        let end_us = (START_MS + DAYS * 86_400_000) * 1_000;
        if let Some(seed) = seed {
            events.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
        }
        for event in events {
            reorder.push(event, NOW_MS + DAYS * 86_400_000);
        }
        for hour in 1..=DAYS * 24 {
            // Hour by hour in order, or all at once in random order.
            if seed.is_none() || hour == DAYS * 24 {
                reorder.advance(end_us - (DAYS * 24 - hour) * 3_600_000_000);
            }
            if hour % restart_every_hours == 0 {
                output.extend(reorder.take());
                reorder = restored(&reorder);
            }
        }
        output.extend(reorder.take());
        sorted(output)
    };
    let output = input(growing(), None, i64::MAX);
    assert_eq!(input(growing(), Some(1), i64::MAX), output);
    assert_eq!(input(growing(), None, 77), output, "restarts from snapshots change nothing");

    let total = |kind: i32| kind == i32::from(v1::SeriesKind::Total);
    let events = || output.iter().flat_map(|publication| publication.events.iter());
    let forecasts: Vec<&v1::Forecast> = events()
        .filter_map(|event| if let Event::Forecast(f) = event { Some(f) } else { None })
        .filter(|f| total(f.kind))
        .collect();
    let mut signals = coverage_of(&output);
    signals.retain(|signal| total(signal.kind));
    signals.sort_by_key(|signal| signal.envelope.as_ref().unwrap().event_time_ms);
    let hours = |reach: v1::ForecastReach| match reach {
        v1::ForecastReach::NextStep => 1..2,
        v1::ForecastReach::WithinDay => 2..25,
        _ => 25..169,
    };
    let quantile = |f: &v1::Forecast, ppm: u32| {
        f.gpus_milli[f.level_ppm.iter().position(|level| *level == ppm).unwrap()]
    };
    let mut before: BTreeMap<i32, (i32, i64)> = BTreeMap::new();
    for signal in &signals {
        let at_ms = signal.envelope.as_ref().unwrap().event_time_ms;
        let (mut scores, mut weights, mut inside, mut below) = (0, 0.0, 0.0, 0.0);
        let over = forecasts.iter().filter(|f| hours(signal.reach()).contains(&f.horizon));
        let over: Vec<_> = over.filter(|f| f.target_ms + 3_600_000 <= at_ms).collect();
        let newest_ms = over.iter().map(|f| f.target_ms).max().unwrap();
        for f in over {
            let truth = 1_000 * demand_of((f.target_ms - START_MS) / 3_600_000);
            let weight = 0.5f64.powf((newest_ms - f.target_ms) as f64 / 86_400_000.0 / 14.0);
            scores += 1;
            weights += weight;
            inside +=
                weight * f64::from(u8::from((quantile(f, 100_000)..=quantile(f, 900_000)).contains(&truth)));
            below += weight * f64::from(u8::from(truth <= quantile(f, 950_000)));
        }
        assert_eq!(signal.scores, scores, "{signal:?}");
        assert!((f64::from(signal.inside80_ppm) - 1e6 * inside / weights).abs() < 2.0, "{signal:?}");
        assert!((f64::from(signal.below95_ppm) - 1e6 * below / weights).abs() < 2.0, "{signal:?}");
        // Published on a change and at midnight; `since` is the time of the last change.
        let last = before.insert(signal.reach, (signal.state, signal.since_ms));
        match last.filter(|(state, _)| *state == signal.state) {
            Some((_, since_ms)) => assert_eq!((at_ms % 86_400_000, signal.since_ms), (0, since_ms)),
            None => assert_eq!(signal.since_ms, at_ms),
        }
    }
    let states = |reach: v1::ForecastReach| {
        let of = signals.iter().filter(|signal| signal.reach() == reach);
        let mut states: Vec<v1::CoverageState> = of.map(v1::CoverageSignal::state).collect();
        states.dedup();
        states
    };
    let day = states(v1::ForecastReach::WithinDay);
    assert_eq!(day, [v1::CoverageState::Holds, v1::CoverageState::TooLow]);
}
