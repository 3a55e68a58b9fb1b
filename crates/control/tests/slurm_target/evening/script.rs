//! Events that the evening's script puts on the log: forecasts, signals and jobs, as insight and
//! the watcher would.

use std::path::Path;

use tidegate_events::{Event, v1};
use tidegate_log::{Batch, EventLog, Producer, TopicPartition};

use crate::site::now_us;

const HOUR_MS: i64 = 3_600_000;

/// Events of one line of the script, with their times.
fn events_of(line: &str, now_ms: i64) -> Vec<(i64, Event)> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words[at].parse::<i64>().unwrap();
    let now = |event| vec![(now_ms, event)];
    let (kind, name) = (v1::SeriesKind::Team.into(), words[1].to_owned());
    match words[0] {
        // Demand of a team in this hour, and in all later ones.
        "demand" => (0..48)
            .map(|hour| {
                let gpus = u64::try_from(number(if hour == 0 { 2 } else { 3 })).unwrap();
                let forecast = v1::Forecast {
                    kind,
                    name: name.clone(),
                    target_ms: now_ms / HOUR_MS * HOUR_MS + hour * HOUR_MS,
                    step_ms: HOUR_MS as u64,
                    horizon: hour as u32 + 1,
                    level_ppm: vec![100_000, 500_000, 950_000, 990_000],
                    gpus_milli: vec![gpus * 1_000; 4],
                    model: "evening".into(),
                    ..v1::Forecast::default()
                };
                (now_ms, Event::Forecast(forecast))
            })
            .collect(),
        "holds" => now(Event::Coverage(v1::CoverageSignal {
            kind,
            name,
            reach: v1::ForecastReach::WithinDay.into(),
            state: v1::CoverageState::Holds.into(),
            since_ms: now_ms,
            scores: 300,
            inside80_ppm: 800_000,
            below95_ppm: 960_000,
            model: "evening".into(),
            ..v1::CoverageSignal::default()
        })),
        "slow" | "fast" => now(Event::Straggler(v1::StragglerSignal {
            state: if words[0] == "slow" { v1::SignalState::Confirmed } else { v1::SignalState::Cleared }
                .into(),
            job_id: name,
            episode: 1,
            blame: "NODE".into(),
            node: Some(words[2].into()),
            slowdown_ppm: 300_000,
            ..v1::StragglerSignal::default()
        })),
        "healthy" => now(Event::NodeHealth(v1::NodeSignal {
            state: v1::NodeHealthState::Healthy.into(),
            node: name,
            bad_ppm: 1_000,
            ..v1::NodeSignal::default()
        })),
        "started" => vec![(now_ms, job(&name, v1::JobEventKind::Started))],
        // Twelve jobs of its size, of which each ran for ten hours.
        "history" => (0..12)
            .flat_map(|ended| {
                let (id, at_ms) = (format!("past-{ended}"), now_ms - 24 * HOUR_MS);
                let events = [v1::JobEventKind::Started, v1::JobEventKind::Ended].map(|kind| job(&id, kind));
                [at_ms, at_ms + 10 * HOUR_MS].into_iter().zip(events)
            })
            .collect(),
        other => panic!("{other} is no event"),
    }
}

fn job(id: &str, kind: v1::JobEventKind) -> Event {
    Event::Job(v1::JobEvent {
        kind: kind.into(),
        job_id: id.into(),
        attempt_id: Some(1),
        team: Some("research".into()),
        gpus_milli: Some(16_000),
        final_state: (kind == v1::JobEventKind::Ended).then(|| "COMPLETED".into()),
        ..v1::JobEvent::default()
    })
}

/// Appends the events of all lines. The log drops those that an earlier process appended.
pub fn append_new(log: &dyn EventLog, script: &Path) {
    let text = std::fs::read_to_string(script).unwrap_or_default();
    for (number, line) in text.lines().enumerate() {
        let source = format!("evening/{number}");
        let mut records = Vec::new();
        let mut topic = "";
        for (seq, (at_ms, mut event)) in events_of(line, now_us() / 1_000).into_iter().enumerate() {
            let envelope = event.envelope_mut();
            (envelope.cluster, envelope.source, envelope.seq) =
                ("tidegate".into(), source.clone(), seq as u64);
            (envelope.event_time_ms, envelope.observed_time_ms) = (at_ms, at_ms);
            topic = event.schema().topic();
            records.push(event.record().unwrap().into());
        }
        let at = TopicPartition { topic: topic.into(), partition: 0 };
        log.append(&at, Batch { producer: Producer { source, epoch: 0 }, first_seq: 0, records }).unwrap();
    }
}
