//! Sources that are named by their content, as the chunks of an import are: hundreds of them, one
//! producer.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use tidegate_log::{
    Batch, EventLog, KafkaLog, KafkaOptions, LogError, Producer, TopicConfig, TopicPartition,
};
use tidegate_testing::conformance::{batch, read_all};

use crate::broker;
use crate::throughput::records;
use crate::wire::{ONE_PARTITION, at};

fn chunk(number: u64) -> Batch {
    batch(&format!("import/sacct#{number:032x}"), 0, 0, 5)
}

/// How often each payload is in the topic's partitions.
fn counted(log: &dyn EventLog, partitions: u32) -> HashMap<Vec<u8>, u32> {
    let mut counted = HashMap::new();
    for partition in 0..partitions {
        for stored in read_all(log, &TopicPartition { topic: "jobs".into(), partition }) {
            *counted.entry(stored.record.payload.to_vec()).or_default() += 1;
        }
    }
    counted
}

#[test]
fn hundreds_of_chunks_need_one_producer() {
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("jobs", TopicConfig { partitions: 2, ..ONE_PARTITION }).unwrap();
    let place = |number: u64| TopicPartition { topic: "jobs".into(), partition: number as u32 % 2 };
    for number in 0..200 {
        assert_eq!(log.append(&place(number), chunk(number)).unwrap().written, 5);
    }
    assert_eq!(log.stats().opened, 1, "{:?}", log.stats());
    // The same source numbers its records from 0 in each partition and in each epoch.
    assert_eq!(log.append(&place(1), chunk(0)).unwrap().written, 5);
    let mut newer = chunk(0);
    newer.producer.epoch = 3;
    assert_eq!(log.append(&place(1), newer).unwrap().written, 5);
    assert!(matches!(log.append(&place(1), chunk(0)), Err(LogError::StaleEpoch { newest: 3, .. })));
    let mut gap = chunk(7);
    gap.first_seq = 6;
    assert!(matches!(log.append(&place(7), gap), Err(LogError::SequenceGap { expected: 5, .. })));
    assert_eq!(log.stats().opened, 1, "{:?}", log.stats());

    let again = KafkaLog::open(options).unwrap();
    for number in 0..200 {
        assert_eq!(again.append(&place(number), chunk(number)).unwrap().duplicates, 5);
    }
    assert_eq!((again.stats().opened, again.stats().records), (1, 0));
    assert_eq!(counted(&again, 2).values().sum::<u32>(), 200 * 5 + 10);
}

/// Half of the chunks are the same, as of two exports that overlap; they take the producer from
/// each other.
#[test]
fn two_imports_at_a_time_lose_and_double_nothing() {
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let logs: Vec<_> = (0..2).map(|_| KafkaLog::open(options.clone()).unwrap()).collect();
    logs[0].create_topic("jobs", ONE_PARTITION).unwrap();
    let began = Instant::now();
    thread::scope(|scope| {
        for (log, first) in logs.iter().zip([0, 100]) {
            scope.spawn(move || {
                for number in first..first + 200 {
                    let appended = log.append(&at("jobs"), chunk(number)).unwrap();
                    assert_eq!(appended.written + appended.duplicates, 5);
                }
            });
        }
    });
    println!("{:?}, {:?}", began.elapsed(), logs.iter().map(KafkaLog::stats).collect::<Vec<_>>());
    let counted = counted(&logs[0], 1);
    assert_eq!(counted.len(), 300 * 5, "lost");
    assert!(counted.values().all(|times| *times == 1), "twice");
    let opened: u64 = logs.iter().map(|log| log.stats().opened).sum();
    assert!(opened < 60, "they undo each other's work: {opened} producers opened");
}

const URL: &str = "TIDEGATE_FAMILY_URL";

/// Each import starts from the beginning, as `tidegate import` does, and dies at some chunk.
#[test]
fn killed_imports_lose_and_double_nothing() {
    if let Ok(url) = env::var(URL) {
        let log = KafkaLog::open(KafkaOptions::new(url.parse().unwrap())).unwrap();
        for number in 0.. {
            log.append(&at("jobs"), chunk(number)).unwrap();
            std::io::stdout().write_all(format!("\nchunk {number}\n").as_bytes()).unwrap();
        }
    }
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("jobs", ONE_PARTITION).unwrap();
    let mut reached = 0;
    for run in 1..5 {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["families::killed_imports_lose_and_double_nothing", "--exact", "--nocapture"]);
        let mut child = command.env(URL, options.url.to_string()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut chunks = lines.filter_map(|line| line.strip_prefix("chunk ")?.parse::<u64>().ok());
        reached = chunks.by_ref().take_while(|number| *number < run * 17).last().unwrap_or(reached);
        child.kill().unwrap();
        child.wait().unwrap();
    }
    for number in 0..reached + 40 {
        let appended = log.append(&at("jobs"), chunk(number)).unwrap();
        assert!(
            number > reached || appended.duplicates == 5,
            "chunk {number} was acknowledged: {appended:?}"
        );
    }
    let counted = counted(&log, 1);
    assert_eq!(counted.len() as u64, (reached + 40) * 5);
    assert!(counted.values().all(|times| *times == 1), "twice");
}

/// To be run by hand, in a release build: `... --test kafka -- --ignored --nocapture
/// chunks_of_an_import`
#[test]
#[ignore = "a measurement"]
fn chunks_of_an_import() {
    let Some(servers) = broker::shared() else { return };
    for separator in ['/', '#'] {
        let log = KafkaLog::open(broker::options(&servers)).unwrap();
        log.create_topic("jobs", ONE_PARTITION).unwrap();
        let (count, size) = (100, 16_384);
        let batches = (0..count).map(|number| {
            let producer = Producer { source: format!("import/sacct{separator}{number:032x}"), epoch: 0 };
            Batch { producer, first_seq: 0, records: records(number * size, size) }
        });
        let batches: Vec<_> = batches.collect();
        let began = Instant::now();
        for batch in batches {
            log.append(&at("jobs"), batch).unwrap();
        }
        let rate = (count * size) as f64 / began.elapsed().as_secs_f64();
        println!("{count} chunks import/sacct{separator}HASH: {rate:.0} records/s, {:?}", log.stats());
    }
}
