//! Brokers that stand still, cannot be reached, go in numbers, or have no space left.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_log::{EventLog, KafkaLog, LogError, TopicConfig};
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

#[test]
fn appends_wait_for_a_broker_that_stands_still() {
    if !broker::installed() {
        return;
    }
    let cluster = Cluster::start(1, "");
    let mut options = broker::options(&cluster.servers());
    options.timeout = Duration::from_secs(30);
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    log.append(&at("t"), batch("a", 0, 0, 10)).unwrap();
    let still = Duration::from_secs(6);
    cluster.freeze_node(0);
    let (began, used) = (Instant::now(), processor_time());
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(still);
            cluster.thaw_node(0);
        });
        assert_eq!(log.append(&at("t"), batch("a", 0, 10, 10)).unwrap().written, 10);
    });
    let used = processor_time() - used;
    assert!(used < still / 10, "{used:?} of work while it waited");
    println!("appended {:?} after the broker went on, {:?}", began.elapsed() - still, log.stats());
    assert!(began.elapsed() >= still && began.elapsed() < still + Duration::from_secs(15));

    // For longer than a call may take.
    options.timeout = Duration::from_secs(5);
    let hasty = KafkaLog::open(options).unwrap();
    let appended = retried(|| hasty.append(&at("t"), batch("a", 0, 20, 10)));
    assert_eq!(appended.written + appended.duplicates, 10);
    cluster.freeze_node(0);
    let began = Instant::now();
    let refused = hasty.append(&at("t"), batch("a", 0, 30, 10)).unwrap_err();
    println!("after {:?}: {refused}", began.elapsed());
    assert!(matches!(refused, LogError::KafkaUnavailable { .. }), "{refused:?}");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    cluster.thaw_node(0);
    let appended = retried(|| hasty.append(&at("t"), batch("a", 0, 30, 10)));
    assert_eq!(appended.written + appended.duplicates, 10);
    println!("works again {:?} later", began.elapsed());
    let read: Vec<_> = read_all(&log, &at("t")).into_iter().map(|stored| stored.record).collect();
    assert_eq!(read, (0..40).map(|seq| record("a", seq)).collect::<Vec<_>>());
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
