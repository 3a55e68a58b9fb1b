//! The journal on the embedded log and on a real Kafka: of several processes that take the lease at
//! once, exactly one holds it, and all of them read the same.
//!
//! Without Kafka its tests are skipped; with `CI=true` they fail.

#![allow(clippy::unwrap_used)]

/// The brokers of the log's tests, of which not everything is used here.
#[allow(dead_code)]
#[path = "../../../log/tests/kafka/broker.rs"]
mod broker;

use std::sync::{Arc, Barrier};

use tidegate_autopilot::executor::{ExecutorState, Journal, JournalEntry, JournalEvent};
use tidegate_autopilot::intent::Lease;
use tidegate_control::LogJournal;
use tidegate_events::SchemaId;
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, KafkaLog, TopicConfig};

const HOLDERS: usize = 3;
const GENERATIONS: u64 = 5;

fn lease(holder: usize, generation: u64) -> JournalEntry {
    let lease = Lease { holder: holder.to_string(), generation, until_us: 90_000_000 };
    JournalEntry { at_us: 60_000_000, generation, event: JournalEvent::Lease(lease) }
}

/// `open` gives each holder a log of its own, as separate processes have.
fn one_of_several_gets_it(open: &(dyn Fn() -> Arc<dyn EventLog> + Sync)) {
    let topic = TopicConfig { partitions: 3, retain_ms: None, retain_bytes: None };
    open().create_topic(SchemaId::AutopilotEvent.topic(), topic).unwrap();
    let barrier = &Barrier::new(HOLDERS);
    let life = |holder: usize| {
        let mut journal = LogJournal::open(open(), "c", &holder.to_string()).unwrap();
        let (mut known, mut had, mut all) = (ExecutorState::default(), Vec::new(), Vec::new());
        for generation in 1..=GENERATIONS {
            barrier.wait();
            journal.append(vec![lease(holder, generation)]).unwrap();
            let read = journal.read().unwrap();
            assert!(read.contains(&lease(holder, generation)), "what was written is read back");
            all.extend(read.clone());
            read.into_iter().for_each(|entry| known.fold(entry));
            let has = known.lease.as_ref().is_some_and(|own| own.holder == holder.to_string());
            had.extend(
                (has && known.lease.as_ref().is_some_and(|own| own.generation == generation))
                    .then_some(generation),
            );
        }
        barrier.wait();
        all.extend(journal.read().unwrap());
        (had, all)
    };
    let lives: Vec<(Vec<u64>, Vec<JournalEntry>)> = std::thread::scope(|scope| {
        let life = &life;
        let running: Vec<_> = (0..HOLDERS).map(|holder| scope.spawn(move || life(holder))).collect();
        running.into_iter().map(|life| life.join().unwrap()).collect()
    });
    let mut had: Vec<u64> = lives.iter().flat_map(|(had, _)| had.clone()).collect();
    had.sort_unstable();
    assert_eq!(had, (1..=GENERATIONS).collect::<Vec<_>>(), "each generation has one holder");
    // All read the same in the same order.
    assert_eq!(lives[0].1.len(), HOLDERS * GENERATIONS as usize);
    assert!(lives.iter().all(|(_, all)| *all == lives[0].1));
    // Another cluster's journal is separate.
    let mut elsewhere = LogJournal::open(open(), "d", "0").unwrap();
    elsewhere.append(vec![lease(0, 1)]).unwrap();
    assert_eq!(elsewhere.read().unwrap(), [lease(0, 1)]);
}

#[test]
fn on_the_embedded_log_one_of_several_gets_the_lease() {
    let folder = tempfile::tempdir().unwrap();
    let log: Arc<dyn EventLog> =
        Arc::new(EmbeddedLog::open(folder.path(), EmbeddedOptions::default()).unwrap());
    one_of_several_gets_it(&|| Arc::clone(&log));
}

#[test]
fn on_kafka_one_of_several_gets_the_lease() {
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    one_of_several_gets_it(&|| Arc::new(KafkaLog::open(options.clone()).unwrap()));
}
