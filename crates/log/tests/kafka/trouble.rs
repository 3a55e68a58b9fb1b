//! Brokers that stand still, cannot be reached, go in numbers, or have no space left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_log::{EventLog, KafkaLog, KafkaOptions, LogError, TopicConfig};
use tidegate_testing::conformance::{batch, read_all, record};
use tidegate_testing::needs;

use crate::broker::{self, Cluster};
use crate::crash::{
    DoneAtLast, PARTITIONS, SOURCES, Source, all_get_on, append_until, check, count_after, retried,
};
use crate::refusals::noise;
use crate::wire::{ONE_PARTITION, at};

/// Processor time that this thread has used.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

/// No bound here is a time of the clock, which a busy machine exceeds: the broker goes on when the
/// test says so, and the handle with little patience gives up while one with more still waits.
#[test]
fn appends_wait_for_a_broker_that_stands_still() {
    if !broker::installed() {
        return;
    }
    // Otherwise the broker is out of the cluster after nine seconds, which is the next test.
    let cluster = Cluster::start(1, "broker.session.timeout.ms=120000");
    let patient = KafkaOptions { timeout: Duration::from_secs(90), ..broker::options(&cluster.servers()) };
    let hasty = KafkaOptions { timeout: Duration::from_secs(5), ..patient.clone() };
    let log = retried(|| KafkaLog::open(patient.clone()));
    retried(|| log.create_topic("t", ONE_PARTITION));
    for source in ["a", "b"] {
        let appended = retried(|| log.append(&at("t"), batch(source, 0, 0, 10)));
        assert_eq!(appended.written + appended.duplicates, 10);
    }
    let goes_on = AtomicBool::new(false);
    cluster.freeze_node(0);
    let (began, used) = (Instant::now(), processor_time());
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(6));
            goes_on.store(true, Ordering::SeqCst);
            cluster.thaw_node(0);
        });
        assert_eq!(log.append(&at("t"), batch("a", 0, 10, 10)).unwrap().written, 10);
        assert!(goes_on.load(Ordering::SeqCst), "it was acknowledged by a broker that stood still");
    });
    let (waited, used) = (began.elapsed(), processor_time() - used);
    println!("appended after {waited:?} with {used:?} of work, {:?}", log.stats());
    assert!(used < waited / 10, "{used:?} of work while it waited for {waited:?}");

    // For longer than a call may take.
    let log_hasty = retried(|| KafkaLog::open(hasty.clone()));
    let appended = retried(|| log_hasty.append(&at("t"), batch("a", 0, 20, 10)));
    assert_eq!(appended.written + appended.duplicates, 10);
    cluster.freeze_node(0);
    thread::scope(|scope| {
        let began = Instant::now();
        let waits = scope.spawn(|| log.append(&at("t"), batch("b", 0, 10, 10)));
        let refused = log_hasty.append(&at("t"), batch("a", 0, 30, 10)).unwrap_err();
        println!("after {:?}: {refused}", began.elapsed());
        assert!(matches!(refused, LogError::KafkaUnavailable { seconds: 5, .. }), "{refused:?}");
        assert!(began.elapsed() >= hasty.timeout, "it gave up after {:?}", began.elapsed());
        assert!(!waits.is_finished(), "one that may wait for {:?} was done first", patient.timeout);
        cluster.thaw_node(0);
        assert_eq!(waits.join().unwrap().unwrap().written, 10);
    });
    let appended = retried(|| log_hasty.append(&at("t"), batch("a", 0, 30, 10)));
    assert_eq!(appended.written + appended.duplicates, 10);
    let read = read_all(&log, &at("t"));
    for (source, count) in [("a", 40), ("b", 20)] {
        let own = read.iter().filter(|stored| stored.record.key == format!("cluster/{source}"));
        let own: Vec<_> = own.map(|stored| stored.record.clone()).collect();
        assert_eq!(own, (0..count).map(|seq| record(source, seq)).collect::<Vec<_>>());
    }
    assert_eq!(read.len(), 60, "lost, twice or somebody else's");
}

/// A broker that was away for longer than its session is out of the cluster for a moment, and then
/// says that there are no brokers. librdkafka takes that for good: each client that asks in that
/// moment never finds a broker again.
#[test]
fn clients_that_heard_of_no_brokers_are_replaced() {
    if !broker::installed() {
        return;
    }
    // It tells the controller more slowly that it is back, and clients ask more often.
    let cluster = Cluster::start(1, "broker.heartbeat.interval.ms=2000");
    let mut options =
        KafkaOptions { timeout: Duration::from_secs(90), ..broker::options(&cluster.servers()) };
    options.properties.insert("topic.metadata.refresh.interval.ms".into(), "20".into());
    let log = retried(|| KafkaLog::open(options.clone()));
    retried(|| log.create_topic("t", ONE_PARTITION));
    retried(|| log.append(&at("t"), batch("a", 0, 0, 10)));
    retried(|| log.commit_offset("group", &at("t"), 5));
    assert_eq!(read_all(&log, &at("t")).len(), 10);
    // Whether it is out of the cluster for that moment is a race between its own threads.
    let mut count = 10;
    while log.stats().opened == 1 && count < 90 {
        cluster.freeze_node(0);
        thread::sleep(Duration::from_secs(4));
        cluster.thaw_node(0);
        let appended = retried(|| log.append(&at("t"), batch("a", 0, count, 10)));
        assert_eq!(appended.written + appended.duplicates, 10);
        count += 10;
    }
    println!("{count} records, {:?}", log.stats());
    if log.stats().opened == 1 {
        needs::note("no client asked at the moment at which there were no brokers");
    }
    let read: Vec<_> = read_all(&log, &at("t")).into_iter().map(|stored| stored.record).collect();
    assert_eq!(read, (0..count).map(|seq| record("a", seq)).collect::<Vec<_>>());
    retried(|| log.create_topic("u", ONE_PARTITION));
    assert_eq!(retried(|| log.committed_offset("group", &at("t"))), Some(5));
}

/// Runs `disturb` while several sources append, and checks afterwards that each record is there
/// once and in order.
fn under_load(cluster: &mut Cluster, disturb: impl FnOnce(&mut Cluster, &[Source])) {
    let options = broker::options(&cluster.servers());
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("t", TopicConfig { partitions: PARTITIONS, ..ONE_PARTITION }).unwrap();
    let sources: Vec<_> = (0..SOURCES).map(|_| Source::default()).collect();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| append_until(&log, &sources, &done));
        let _done = DoneAtLast(&done);
        all_get_on(&sources);
        disturb(cluster, &sources);
        all_get_on(&sources);
    });
    check(&options, &sources);
    println!("{:?}", log.stats());
}

fn acknowledged(sources: &[Source]) -> Vec<u64> {
    sources.iter().map(|source| source.acknowledged.load(Ordering::SeqCst)).collect()
}

#[test]
fn two_brokers_of_three_may_die_at_once_and_come_back() {
    if !broker::installed() {
        return;
    }
    let mut cluster = Cluster::start(3, "");
    under_load(&mut cluster, |cluster, sources| {
        cluster.kill_node(0);
        cluster.kill_node(1);
        let before = acknowledged(sources);
        thread::sleep(Duration::from_secs(8));
        // What was on its way may have had its copies before they died, and a source learns of it
        // late.
        for (number, (before, after)) in before.into_iter().zip(acknowledged(sources)).enumerate() {
            let on_its_way = before + count_after(before);
            assert!(
                after <= on_its_way,
                "source {number} acknowledged with one copy of three: {before}, {after}"
            );
        }
        cluster.start_node(0);
        cluster.start_node(1);
        let began = Instant::now();
        all_get_on(sources);
        println!("all sources got on {:?} after the brokers were started again", began.elapsed());
        cluster.wait_until_in_sync();
    });
}

/// The others take over what it led; once it goes on, it must not take it for its own any more.
#[test]
fn a_broker_that_cannot_be_reached_is_replaced() {
    if !broker::installed() {
        return;
    }
    let mut cluster = Cluster::start(3, "replica.lag.time.max.ms=4000");
    under_load(&mut cluster, |cluster, sources| {
        for node in 0..3 {
            cluster.freeze_node(node);
            let began = Instant::now();
            all_get_on(sources);
            println!("node {} is away, all sources got on after {:?}", node + 1, began.elapsed());
            thread::sleep(Duration::from_secs(6).saturating_sub(began.elapsed()));
            cluster.thaw_node(node);
            all_get_on(sources);
            cluster.wait_until_in_sync();
        }
    });
}

#[test]
fn a_broker_without_space_loses_nothing() {
    if !broker::installed() {
        return;
    }
    let Some(mut cluster) = Cluster::start_on_a_small_disk(96 << 20) else {
        return needs::note("this user may not mount a small disk");
    };
    let ballast = cluster.disk().path("ballast");
    std::fs::write(&ballast, vec![0; 40 << 20]).unwrap();
    let mut options = broker::options(&cluster.servers());
    options.timeout = Duration::from_secs(10);
    let log = KafkaLog::open(options).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    let large = |seq: u64| {
        let mut large = batch("a", 0, seq, 1);
        large.records[0].payload = noise(500_000);
        large
    };
    let mut acknowledged = 0;
    let refused = loop {
        match log.append(&at("t"), large(acknowledged)) {
            Ok(_) => acknowledged += 1,
            Err(refused) => break refused,
        }
        assert!(acknowledged < 1000, "the disk never filled up");
    };
    println!("{acknowledged} records, then: {refused}");
    assert!(matches!(refused, LogError::KafkaUnavailable { .. }), "{refused:?}");
    assert!(refused.to_string().contains("disks are not full"), "{refused}");
    assert!(acknowledged > 20, "it was full from the beginning");
    std::fs::remove_file(&ballast).unwrap();
    cluster.kill_node(0);
    cluster.start_node(0);
    cluster.wait_until_ready();
    let appended = retried(|| log.append(&at("t"), large(acknowledged)));
    assert_eq!(appended.written + appended.duplicates, 1);
    retried(|| log.append(&at("t"), large(acknowledged + 1)));
    let times: Vec<_> = read_all(&log, &at("t")).iter().map(|s| s.record.event_time_ms).collect();
    let expected: Vec<_> = (0..acknowledged + 2).map(|seq| record("a", seq).event_time_ms).collect();
    assert_eq!(times, expected, "lost, twice or out of order");
}
