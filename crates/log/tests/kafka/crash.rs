//! Brokers and producers are killed while records are appended: nothing acknowledged is lost,
//! nothing is there twice.
//!
//! `TIDEGATE_CRASH_RUNS` sets the number of kills.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_log::{EventLog, KafkaLog, KafkaOptions, LogError, StoredRecord, TopicConfig, TopicPartition};
use tidegate_testing::conformance::{batch, read_all, record};

use crate::broker::{self, Cluster};
use crate::wire::{ONE_PARTITION, at};

pub const SOURCES: u64 = 3;
pub const PARTITIONS: u32 = 2;
const PATIENCE: Duration = Duration::from_secs(120);

fn runs(usual: usize) -> usize {
    env::var("TIDEGATE_CRASH_RUNS").ok().and_then(|runs| runs.parse().ok()).unwrap_or(usual)
}

fn place(source: u64) -> TopicPartition {
    TopicPartition { topic: "t".into(), partition: source as u32 % PARTITIONS }
}

/// Counts of a source's appends.
#[derive(Default)]
pub struct Source {
    pub acknowledged: AtomicU64,
    errors: AtomicU64,
}

/// Records of the batch that a source appends after this many.
pub fn count_after(acknowledged: u64) -> u64 {
    1 + acknowledged % 40
}

/// Appends for each source until `done`; an append that fails is repeated as it is.
pub fn append_until(log: &dyn EventLog, sources: &[Source], done: &AtomicBool) {
    thread::scope(|scope| {
        for (number, source) in sources.iter().enumerate() {
            scope.spawn(move || {
                while !done.load(Ordering::SeqCst) {
                    let next = source.acknowledged.load(Ordering::SeqCst);
                    let count = count_after(next);
                    match log.append(&place(number as u64), batch(&format!("s{number}"), 0, next, count)) {
                        Ok(appended) => {
                            assert_eq!(appended.written + appended.duplicates, count);
                            source.acknowledged.store(next + count, Ordering::SeqCst);
                        }
                        Err(LogError::KafkaUnavailable { .. }) => {
                            source.errors.fetch_add(1, Ordering::SeqCst);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
}

/// Ends the appends, when all is well and when the test fails.
pub struct DoneAtLast<'a>(pub &'a AtomicBool);

impl Drop for DoneAtLast<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Kills and starts nodes in turn while appends go on, each time waiting until every source got on.
fn kill_nodes_under_load(cluster: &mut Cluster, nodes: usize, kills: usize, options: KafkaOptions) {
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("t", TopicConfig { partitions: PARTITIONS, ..ONE_PARTITION }).unwrap();
    let sources: Vec<_> = (0..SOURCES).map(|_| Source::default()).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| append_until(&log, &sources, &done));
        let _done = DoneAtLast(&done);
        for kill in 0..kills {
            all_get_on(&sources);
            let node = kill % nodes;
            cluster.kill_node(node);
            if nodes > 1 {
                all_get_on(&sources);
            }
            cluster.start_node(node);
            cluster.wait_until_in_sync();
            println!("node {} killed and started again, {:?}", node + 1, log.stats());
        }
        all_get_on(&sources);
    });
    check(&options, &sources);
    let errors: u64 = sources.iter().map(|source| source.errors.load(Ordering::SeqCst)).sum();
    println!("{:?}, {errors} appends had to be repeated by their callers", log.stats());
}

/// Waits until each source has had several appends acknowledged from now on.
pub fn all_get_on(sources: &[Source]) {
    let began = Instant::now();
    for (number, source) in sources.iter().enumerate() {
        let before = source.acknowledged.load(Ordering::SeqCst);
        while source.acknowledged.load(Ordering::SeqCst) < before + 100 {
            assert!(began.elapsed() < PATIENCE, "source {number} does not get on after {before}");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Each source's records are there once, in order, up to what was acknowledged.
pub fn check(options: &KafkaOptions, sources: &[Source]) {
    let log = KafkaLog::open(options.clone()).unwrap();
    let all: Vec<StoredRecord> = (0..PARTITIONS)
        .flat_map(|partition| read_all(&log, &TopicPartition { topic: "t".into(), partition }))
        .collect();
    for (number, source) in sources.iter().enumerate() {
        let (name, acknowledged) = (format!("s{number}"), source.acknowledged.load(Ordering::SeqCst));
        let own: Vec<_> = all.iter().filter(|s| s.record.key == format!("cluster/{name}")).collect();
        for (seq, stored) in (0..).zip(&own) {
            assert_eq!(stored.record, record(&name, seq), "out of order, lost or twice");
        }
        assert_eq!(own.len() as u64, acknowledged, "{name}");
    }
    println!("{} records, none lost, none twice", all.len());
}

#[test]
fn a_killed_broker_loses_and_doubles_nothing() {
    if !broker::installed() {
        return;
    }
    let mut cluster = Cluster::start(1, "");
    let options = broker::options(&cluster.servers());
    kill_nodes_under_load(&mut cluster, 1, runs(3), options);
}

#[test]
fn one_broker_of_three_may_die_at_any_time() {
    if !broker::installed() {
        return;
    }
    let mut cluster = Cluster::start(3, "");
    let options = broker::options(&cluster.servers());
    kill_nodes_under_load(&mut cluster, 3, runs(3), options);
}

/// A broker that is down for longer than an append waits: the append fails with that error and may
/// be repeated.
#[test]
fn an_append_to_a_broker_that_is_down_fails_in_time_and_may_be_repeated() {
    if !broker::installed() {
        return;
    }
    let mut cluster = Cluster::start(1, "");
    let patient = broker::options(&cluster.servers());
    let hasty = KafkaOptions { timeout: Duration::from_secs(4), ..patient.clone() };
    // Four seconds are for a broker that is gone. One that is there may take longer on a busy
    // machine.
    let log = retried(|| KafkaLog::open(hasty.clone()));
    retried(|| log.create_topic("t", ONE_PARTITION));
    retried(|| log.append(&at("t"), batch("a", 0, 0, 10)));
    cluster.kill_node(0);
    let began = Instant::now();
    let refused = log.append(&at("t"), batch("a", 0, 10, 10)).unwrap_err();
    println!("{refused}");
    assert!(matches!(refused, LogError::KafkaUnavailable { seconds: 4, .. }), "{refused:?}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    let unanswered = log.extent(&at("t")).unwrap_err();
    assert!(matches!(unanswered, LogError::KafkaUnavailable { .. }), "{unanswered:?}");
    cluster.start_node(0);
    cluster.wait_until_ready();
    let appended = retried(|| log.append(&at("t"), batch("a", 0, 10, 10)));
    assert_eq!(appended.written + appended.duplicates, 10);
    let log = KafkaLog::open(patient).unwrap();
    let read: Vec<_> = read_all(&log, &at("t")).into_iter().map(|stored| stored.record).collect();
    assert_eq!(read, (0..20).map(|seq| record("a", seq)).collect::<Vec<_>>());
}

pub fn retried<T>(mut call: impl FnMut() -> Result<T, LogError>) -> T {
    let began = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    }
}

const URL: &str = "TIDEGATE_CRASH_URL";
const NEXT: &str = "TIDEGATE_CRASH_NEXT";

/// The producer dies, at any instant of a transaction; the next one of the source repeats its last
/// append.
#[test]
fn killed_producers_lose_and_double_nothing() {
    if let Ok(url) = env::var(URL) {
        return append_until_killed(KafkaOptions::new(url.parse().unwrap()));
    }
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    let mut next = 0;
    for run in 0..runs(4) {
        let life = Duration::from_millis(40 + 61 * run as u64 % 200);
        let (acknowledged, tried) = run_and_kill(&options, next, life);
        // A new process of the source: it finishes or gives up what the killed one left.
        let appended = log.append(&at("t"), batch("a", 0, acknowledged, tried - acknowledged)).unwrap();
        assert_eq!(appended.written + appended.duplicates, tried - acknowledged);
        next = tried;
        let read: Vec<_> = read_all(&log, &at("t")).into_iter().map(|stored| stored.record).collect();
        assert_eq!(read, (0..next).map(|seq| record("a", seq)).collect::<Vec<_>>(), "after run {run}");
    }
    println!("{next} records, none lost, none twice");
}

fn append_until_killed(options: KafkaOptions) {
    let log = KafkaLog::open(options).unwrap();
    let mut next: u64 = env::var(NEXT).unwrap().parse().unwrap();
    loop {
        let count = 1 + next % 300;
        std::io::stdout().write_all(format!("\ntry {}\n", next + count).as_bytes()).unwrap();
        log.append(&at("t"), batch("a", 0, next, count)).unwrap();
        next += count;
        std::io::stdout().write_all(format!("\nack {next}\n").as_bytes()).unwrap();
    }
}

/// What the process had acknowledged, and what it tried, when it was killed `life` after its first
/// acknowledgement.
fn run_and_kill(options: &KafkaOptions, next: u64, life: Duration) -> (u64, u64) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["crash::killed_producers_lose_and_double_nothing", "--exact", "--nocapture"]);
    command.env(URL, options.url.to_string()).env(NEXT, next.to_string());
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (mut acknowledged, mut tried, mut killer) = (next, next, None);
    for line in stdout.lines().map_while(Result::ok) {
        if let Some(end) = line.strip_prefix("try ") {
            tried = end.parse().unwrap();
        } else if let Some(end) = line.strip_prefix("ack ") {
            acknowledged = end.parse().unwrap();
            if killer.is_none() {
                let pid = child.id().to_string();
                killer = Some(thread::spawn(move || {
                    thread::sleep(life);
                    assert!(Command::new("kill").args(["-9", &pid]).status().unwrap().success());
                }));
            }
        }
    }
    child.wait().unwrap();
    killer.expect("nothing was acknowledged").join().unwrap();
    (acknowledged, tried)
}
