//! One agent: everything it gets is in the log once and in order, whatever the log does meanwhile.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use tidegate_collect::agent::spool::SpoolOptions;
use tidegate_collect::agent::{AgentOptions, Clock, End};
use tidegate_events::Event;
use tidegate_events::v1::NodeEventKind;
use tidegate_log::{EventLog, KafkaLog};

use crate::broker;
use crate::kit::*;

const ENOUGH: Duration = Duration::from_secs(60);

#[test]
fn readings_and_events_reach_the_log() {
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::embedded());
    let agent = start(options(dir.path()), &log);
    agent.started(Some("580.1".into()));
    let sink = agent.sink();
    for tick in 0..50 {
        for device in &devices() {
            sink.reading(reading(device, 1_000_000 + tick * 20));
        }
    }
    sink.event(numbered(7));
    assert!(agent.stop(ENOUGH, "the test is over"));
    let events = check_numbers(&*log.log, 0);
    let started = node_events(&events, NodeEventKind::CollectorStarted).remove(0);
    assert_eq!((started.node.as_str(), started.driver_version.as_deref()), ("n1", Some("580.1")));
    assert!(!started.boot_id.unwrap().is_empty() && started.program_version.is_some());
    let stopped = node_events(&events, NodeEventKind::CollectorStopped).remove(0);
    assert_eq!(stopped.reason.as_deref(), Some("the test is over"));
    assert_eq!(numbers(&events), [7]);
    let envelope = events[0].envelope().unwrap();
    assert_eq!((envelope.cluster.as_str(), envelope.source.as_str()), ("c", "agent/n1"));
    assert!(envelope.observed_time_ms > 0);

    let batches = batches(&events);
    let ticks: usize = batches.iter().map(|batch| batch.tick_delta_ms.len() + 1).sum();
    assert_eq!(ticks, 50);
    for batch in &batches {
        assert_eq!((batch.node.as_str(), batch.devices.len()), ("n1", 8));
        let first = reading(&devices()[0], batch.first_tick_ms);
        let value = batch.columns.iter().find(|column| column.name == "power_mw").unwrap().value_delta[0];
        assert_eq!(tidegate_collect::Value::Is(value), first.get(tidegate_collect::Metric::Power));
    }
}

#[test]
fn an_invalid_event_becomes_a_dead_letter() {
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::embedded());
    let agent = start(options(dir.path()), &log);
    let mut wrong = numbered(1);
    let Event::Node(event) = &mut wrong else { panic!() };
    event.kind = 0;
    agent.sink().event(wrong);
    agent.sink().event(numbered(2));
    assert!(agent.store().is_ok());
    assert_eq!(agent.stats().dead_letters, 1);
    assert!(agent.stop(ENOUGH, ""));
    let events = check_numbers(&*log.log, 0);
    let letter = events
        .iter()
        .find_map(|event| if let Event::DeadLetter(letter) = event { Some(letter) } else { None });
    assert!(letter.unwrap().reason.contains("kind 0"), "{letter:?}");
    assert_eq!(numbers(&events), [2]);
}

/// Appends fail before and after they reach the log, and the agent restarts in between.
#[test]
fn failures_and_restarts_lose_and_duplicate_nothing() {
    let seed = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(u64::from(std::process::id()));
    println!("TIDEGATE_SEED={seed}");
    let mut random = Random::new(seed);
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::embedded());
    let mut emitted = 0;
    for _ in 0..8 {
        let mishaps = (0..random.below(4)).map(|_| match random.below(3) {
            0 => Mishap::None,
            1 => Mishap::Unreached,
            _ => Mishap::Unanswered,
        });
        *log.trouble.ahead.lock().unwrap() = mishaps.collect();
        let agent = start(options(dir.path()), &log);
        for _ in 0..1 + random.below(20) {
            let event = if random.below(2) == 0 {
                numbered(emitted)
            } else {
                large(emitted, random.below(50_000) as usize)
            };
            agent.sink().event(event);
            emitted += 1;
            if random.below(3) == 0 {
                agent.store().unwrap();
            }
        }
        agent.stop(Duration::from_millis(random.below(400)), "");
    }
    log.trouble.ahead.lock().unwrap().clear();
    assert!(start(options(dir.path()), &log).stop(ENOUGH, ""));
    let events = check_numbers(&*log.log, 0);
    assert_eq!(events.len() as u64, emitted);
    let epochs: std::collections::BTreeSet<_> =
        events.iter().map(|event| event.envelope().unwrap().epoch).collect();
    assert_eq!(epochs.len(), 1, "one life of the spool");
}

#[test]
fn the_spool_drains_in_order_when_the_log_is_back() {
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::embedded());
    log.go_away(true);
    let agent = start(options(dir.path()), &log);
    for number in 0..300 {
        agent.sink().event(large(number, 20_000));
    }
    agent.store().unwrap();
    wait_until("an attempt failed", || agent.stats().failed_attempts > 0);
    assert!(events(&*log.log).values().all(Vec::is_empty));
    log.go_away(false);
    assert!(agent.stop(ENOUGH, ""));
    assert_eq!(check_numbers(&*log.log, 0).len(), 300);
}

#[test]
fn at_the_limit_the_oldest_are_dropped_and_the_loss_is_reported() {
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::embedded());
    log.go_away(true);
    let spool = SpoolOptions { dir: dir.path().into(), limit_bytes: 4 << 20, take_over: false };
    let agent = start(AgentOptions { spool, ..options(dir.path()) }, &log);
    for number in 0..400 {
        agent.sink().event(large(number, 20_000));
        if number % 20 == 0 {
            agent.store().unwrap();
        }
    }
    agent.store().unwrap();
    let bytes: u64 =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < (6 << 20), "{bytes} bytes on disk");
    let dropped = agent.stats().dropped;
    assert!(dropped > 100, "{dropped}");
    log.go_away(false);
    assert!(agent.stop(ENOUGH, ""));
    let events = check_numbers(&*log.log, dropped);
    let reports = node_events(&events, NodeEventKind::RecordsDropped);
    assert_eq!(reports.iter().filter_map(|event| event.count).sum::<u64>(), dropped);
    assert!(
        reports[0].description.as_ref().unwrap().contains("limit of 4194304 bytes; event times "),
        "{reports:?}"
    );
}

/// A clock that only the test advances.
#[derive(Default)]
struct SetClock {
    wall_ms: AtomicI64,
    steady_ms: AtomicI64,
}

impl SetClock {
    fn run(&self, ms: i64) {
        self.wall_ms.fetch_add(ms, Ordering::SeqCst);
        self.steady_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn wall_ms(&self) -> i64 {
        self.wall_ms.load(Ordering::SeqCst)
    }

    fn steady_ms(&self) -> i64 {
        self.steady_ms.load(Ordering::SeqCst)
    }
}

#[test]
fn a_clock_that_jumps_back_an_hour_is_reported_and_mixes_nothing() {
    const BEGIN_MS: i64 = 1_800_000_000_000;
    const HOUR_MS: i64 = 3_600_000;
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::embedded());
    let clock = Arc::new(SetClock::default());
    clock.run(BEGIN_MS);
    let flush = Duration::from_secs(10);
    let agent = start(AgentOptions { clock: clock.clone(), flush, ..options(dir.path()) }, &log);
    let tick = || {
        clock.run(1_000);
        devices().iter().for_each(|device| agent.sink().reading(reading(device, clock.wall_ms())));
    };
    (0..25).for_each(|_| tick());
    clock.wall_ms.fetch_sub(HOUR_MS, Ordering::SeqCst);
    (0..15).for_each(|_| tick());
    assert!(agent.stop(ENOUGH, ""));
    let events = check_numbers(&*log.log, 0);
    let steps = node_events(&events, NodeEventKind::ClockStepped);
    assert_eq!(steps.iter().map(|step| step.amount_ms.unwrap()).collect::<Vec<_>>(), [-HOUR_MS]);
    let mut ticks = Vec::new();
    for batch in batches(&events) {
        assert!(batch.tick_delta_ms.iter().all(|delta| *delta == 1_000), "{:?}", batch.tick_delta_ms);
        assert!(batch.columns.iter().all(|column| column.missing.is_empty()));
        ticks.extend((0..=batch.tick_delta_ms.len() as i64).map(|tick| batch.first_tick_ms + tick * 1_000));
    }
    let expected = (1..=25).map(|tick| BEGIN_MS + tick * 1_000);
    let expected: Vec<_> = expected.chain((26..=40).map(|tick| BEGIN_MS - HOUR_MS + tick * 1_000)).collect();
    assert_eq!(ticks, expected);
}

#[test]
fn clock_skew_is_reported_from_its_start_to_its_end() {
    let (dir, log) = (tempfile::tempdir().unwrap(), Log::embedded());
    let compare_clocks = Duration::from_millis(1);
    let agent = start(AgentOptions { compare_clocks, ..options(dir.path()) }, &log);
    let trouble = &log.trouble;
    let mut asked = 0;
    for (number, ahead_ms) in [0, 5_000, 500, 0].into_iter().enumerate() {
        trouble.clock_ahead_ms.store(ahead_ms, Ordering::SeqCst);
        agent.sink().event(numbered(number as u64));
        asked += 1;
        wait_until("the clocks were compared", || trouble.clocks_asked.load(Ordering::SeqCst) >= asked);
        // Its clock event is delivered too, after which the clocks are compared again.
        agent.store().unwrap();
        wait_until("all was delivered", || agent.is_drained());
        asked = trouble.clocks_asked.load(Ordering::SeqCst);
    }
    assert!(agent.stop(ENOUGH, ""));
    let skews = node_events(&check_numbers(&*log.log, 0), NodeEventKind::ClockSkewed);
    let amounts: Vec<_> = skews.iter().map(|skew| skew.amount_ms.unwrap()).collect();
    assert!(amounts.len() >= 2, "{amounts:?}");
    let (end, skewed) = amounts.split_last().unwrap();
    assert!((-1_000..=1_000).contains(end), "{amounts:?}");
    assert!(skewed.iter().all(|amount| (-7_000..-3_000).contains(amount)), "{amounts:?}");
}

/// A log that was replaced by an empty one knows fewer numbers than the agent.
#[test]
fn delivery_continues_with_a_replaced_log() {
    let (dir, old, new) = (tempfile::tempdir().unwrap(), Log::embedded(), Log::embedded());
    let agent = start(options(dir.path()), &old);
    (0..5).for_each(|number| agent.sink().event(numbered(number)));
    assert!(agent.stop(ENOUGH, ""));
    let agent = start(options(dir.path()), &new);
    (5..9).for_each(|number| agent.sink().event(numbered(number)));
    assert!(agent.stop(ENOUGH, ""));
    assert_eq!(numbers(&check_numbers(&*new.log, 5)), [5, 6, 7, 8]);
}

#[test]
fn a_broker_that_dies_and_comes_back_gets_everything_in_order() {
    if !broker::installed() {
        return;
    }
    let mut cluster = broker::Cluster::start(1, "");
    let dir = tempfile::tempdir().unwrap();
    let mut kafka = broker::options(&cluster.servers());
    kafka.timeout = Duration::from_secs(3);
    let log = Log::of(Arc::new(KafkaLog::open(kafka).unwrap()));
    let agent = start(options(dir.path()), &log);
    let mut emitted = 0;
    for round in 0..2 {
        for _ in 0..40 {
            agent.sink().event(large(emitted, 10_000));
            emitted += 1;
            agent.store().unwrap();
        }
        if round == 0 {
            wait_until("some are delivered", || agent.stats().delivered > 0);
            cluster.kill_node(0);
            agent.sink().event(large(emitted, 10_000));
            emitted += 1;
            wait_until("an attempt failed", || agent.stats().failed_attempts > 0);
        }
    }
    cluster.start_node(0);
    cluster.wait_until_ready();
    wait_until("all is delivered", || agent.stats().delivered == emitted);
    agent.request_end();
    assert_eq!(agent.wait(), End::Requested);
    assert!(agent.stop(ENOUGH, ""));
    assert_eq!(check_numbers(&*log.log, 0).len() as u64, emitted);
}

/// Without a sink, from the log itself: the broker's time.
#[test]
fn a_broker_has_a_clock() {
    let Some(servers) = broker::shared() else { return };
    let log = KafkaLog::open(broker::options(&servers)).unwrap();
    for _ in 0..2 {
        let now_ms = || tidegate_collect::agent::SystemClock.wall_ms();
        let before_ms = now_ms();
        let said = log.clock().unwrap().unwrap();
        let may = before_ms - said.uncertainty_ms..=now_ms() + said.uncertainty_ms;
        assert!(may.contains(&said.at_ms), "{said:?} is not in {may:?}");
        assert!(said.uncertainty_ms < 5_000, "{said:?}");
    }
    assert_eq!(log.topics().unwrap(), [], "its topic is none of the log's");
    assert!(
        log.create_topic(
            "clock",
            tidegate_log::TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None }
        )
        .is_err()
    );
}
