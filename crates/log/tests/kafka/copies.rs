//! An embedded log is copied to Kafka: the same records at the same offsets, whenever the copy is
//! killed.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tempfile::TempDir;
use tidegate_log::{
    Batch, CopyOptions, CopyReport, CopyStep, EmbeddedLog, EventLog, KafkaLog, KafkaOptions, LogError, Place,
    Producer, Record, Spread, TopicConfig, TopicPartition, copy_to_kafka,
};
use tidegate_testing::conformance::{batch, read_all};

use crate::broker;
use crate::throughput::records;
use crate::wire::{ONE_PARTITION, at};

fn copy(from: &EmbeddedLog, to: &KafkaLog) -> Result<CopyReport, LogError> {
    copy_to_kafka(from, to, CopyOptions::default(), &mut |_| {})
}

fn embedded(dir: &Path) -> EmbeddedLog {
    EmbeddedLog::open(dir, Default::default()).unwrap()
}

fn place(topic: &str, partition: u32) -> TopicPartition {
    TopicPartition { topic: topic.into(), partition }
}

/// Two topics, several producers and groups; odd times, keys and payloads.
fn source() -> (TempDir, EmbeddedLog) {
    let dir = tempfile::tempdir().unwrap();
    let log = embedded(dir.path());
    let jobs = TopicConfig { partitions: 2, retain_ms: Some(90_000), retain_bytes: None };
    log.create_topic("jobs", jobs).unwrap();
    log.create_topic("empty", ONE_PARTITION).unwrap();
    for i in 0..40 {
        log.append(&place("jobs", i % 2), batch("agent/a", 3, u64::from(i / 2) * 25, 25)).unwrap();
        log.append(&place("jobs", 0), batch(&format!("import/sacct#{i:032x}"), 0, 0, 10)).unwrap();
    }
    let odd = Record {
        key: Bytes::from_static(b"\0\xff"),
        schema: u32::MAX,
        event_time_ms: i64::MIN,
        payload: Bytes::new(),
    };
    let producer = Producer { source: "odd".into(), epoch: 0 };
    log.append(&place("jobs", 1), Batch { producer, first_seq: 0, records: vec![odd] }).unwrap();
    log.commit_offset("sink", &place("jobs", 0), 333).unwrap();
    log.commit_offset("sink", &place("jobs", 1), 44).unwrap();
    log.commit_offset("other", &place("jobs", 1), 0).unwrap();
    (dir, log)
}

fn assert_same(from: &EmbeddedLog, to: &KafkaLog) {
    assert_eq!(from.topics().unwrap(), to.topics().unwrap());
    for (topic, config) in from.topics().unwrap() {
        for partition in 0..config.partitions {
            let at = place(&topic, partition);
            assert_eq!(from.extent(&at).unwrap(), to.extent(&at).unwrap(), "{at:?}");
            assert_eq!(read_all(from, &at), read_all(to, &at), "{at:?}");
        }
    }
}

#[test]
fn a_copy_keeps_offsets_producers_and_groups() {
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let (_dir, from) = source();
    let to = KafkaLog::open(options.clone()).unwrap();
    let mut steps = Vec::new();
    let report = copy_to_kafka(&from, &to, CopyOptions::default(), &mut |progress| {
        assert!(progress.offset <= progress.end);
        steps.push(progress.step);
    });
    let report = report.unwrap();
    let expected =
        CopyReport { topics: 2, partitions: 3, records: 1401, written: 1401, producers: 43, groups: 3 };
    assert_eq!(report, expected);
    assert!(steps.contains(&CopyStep::Copying) && steps.contains(&CopyStep::Comparing));
    assert_same(&from, &to);
    assert_eq!(to.committed_offset("sink", &place("jobs", 0)).unwrap(), Some(333));
    assert_eq!(to.committed_offset("sink", &place("jobs", 1)).unwrap(), Some(44));
    assert_eq!(to.committed_offset("other", &place("jobs", 1)).unwrap(), Some(0));

    // Again: nothing is written, no group goes back.
    to.commit_offset("sink", &place("jobs", 0), 400).unwrap();
    assert_eq!(copy(&from, &to).unwrap(), CopyReport { written: 0, ..expected });
    assert_eq!(to.committed_offset("sink", &place("jobs", 0)).unwrap(), Some(400));

    // Who appended to the embedded log goes on here, and what it repeats is known.
    let to = KafkaLog::open(options).unwrap();
    for i in 0..40 {
        let chunk = batch(&format!("import/sacct#{i:032x}"), 0, 0, 10);
        assert_eq!(to.append(&place("jobs", 0), chunk).unwrap().duplicates, 10);
    }
    let end = from.extent(&place("jobs", 1)).unwrap().end;
    let appended = to.append(&place("jobs", 1), batch("agent/a", 3, 490, 20)).unwrap();
    assert_eq!((appended.first_offset, appended.written, appended.duplicates), (end, 10, 10));
    let stale = to.append(&place("jobs", 1), batch("agent/a", 2, 0, 1));
    assert!(matches!(stale, Err(LogError::StaleEpoch { newest: 3, .. })), "{stale:?}");

    // It is in use now.
    let refused = copy(&from, &to).unwrap_err();
    println!("{refused}");
    assert!(matches!(refused, LogError::NoCopy { .. }), "{refused:?}");
}

#[test]
fn a_trimmed_log_begins_where_it_began() {
    let Some(servers) = broker::shared() else { return };
    let (_dir, from) = source();
    from.trim(&place("jobs", 0), 500).unwrap();
    from.trim(&place("jobs", 1), u64::MAX).unwrap();
    let extents: Vec<_> = (0..2).map(|p| from.extent(&place("jobs", p)).unwrap()).collect();
    assert!(extents[0].start > 400 && extents[1].start == extents[1].end);
    let to = KafkaLog::open(broker::options(&servers)).unwrap();
    let report = copy(&from, &to).unwrap();
    assert_eq!(report.records, extents[0].end - extents[0].start);
    assert_same(&from, &to);
    from.trim(&place("jobs", 0), 600).unwrap();
    to.trim(&place("jobs", 0), 800).unwrap();
    let refused = copy(&from, &to).unwrap_err();
    println!("{refused}");
    assert!(matches!(refused, LogError::NoCopy { .. }), "{refused:?}");
}

#[test]
fn a_target_that_holds_something_else_is_refused() {
    let Some(servers) = broker::shared() else { return };
    let (_dir, from) = source();
    // Appended in a transaction, whose end takes an offset: the same records, but no copy.
    let to = KafkaLog::open(broker::options(&servers)).unwrap();
    to.create_topic("jobs", TopicConfig { partitions: 2, ..ONE_PARTITION }).unwrap();
    to.append(&place("jobs", 0), batch("agent/a", 3, 0, 25)).unwrap();
    let refused = copy(&from, &to).unwrap_err();
    println!("{refused}");
    assert!(matches!(refused, LogError::NoCopy { offset: 25, .. }), "{refused:?}");

    let to = KafkaLog::open(broker::options(&servers)).unwrap();
    to.create_topic("jobs", ONE_PARTITION).unwrap();
    let refused = copy(&from, &to).unwrap_err();
    assert!(matches!(refused, LogError::TopicMismatch { existing: 1, wanted: 2, .. }), "{refused:?}");

    let to = KafkaLog::open(broker::options(&servers)).unwrap();
    to.create_topic("metrics", ONE_PARTITION).unwrap();
    to.append(&at("metrics"), batch("m", 0, 0, 1)).unwrap();
    let refused = copy(&from, &to).unwrap_err();
    println!("{refused}");
    assert!(matches!(refused, LogError::NoCopy { topic, .. } if topic == "metrics"));
}

/// By the last byte of the key; keys that end with a slash go everywhere.
fn by_last_byte(_: &str, key: &[u8], partitions: u32) -> Place {
    match key.last() {
        Some(b'/') | None => Place::All,
        Some(byte) => Place::One(u32::from(*byte) % partitions),
    }
}

#[test]
fn a_copy_may_be_spread_over_more_partitions() {
    let Some(servers) = broker::shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let from = embedded(dir.path());
    from.create_topic("jobs", ONE_PARTITION).unwrap();
    for i in 0..20 {
        let mut some = batch("a", 0, i * 50, 50);
        for (n, record) in some.records.iter_mut().enumerate() {
            record.key = Bytes::from(if n == 49 { "c/".to_owned() } else { format!("c/{}", n % 10) });
        }
        from.append(&at("jobs"), some).unwrap();
    }
    let to = KafkaLog::open(broker::options(&servers)).unwrap();
    let options = CopyOptions { spread: Some(Spread { partitions: 3, place: &by_last_byte }) };
    let report = copy_to_kafka(&from, &to, options, &mut |_| {}).unwrap();
    assert_eq!((report.records, report.written), (1000, 980 + 3 * 20));
    for partition in 0..3 {
        let ours = |record: &Record| match by_last_byte("jobs", &record.key, 3) {
            Place::One(one) => one == partition,
            Place::All => true,
        };
        let expected = read_all(&from, &at("jobs")).into_iter().map(|stored| stored.record).filter(ours);
        let found = read_all(&to, &place("jobs", partition)).into_iter().map(|stored| stored.record);
        assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }
    assert_eq!(copy_to_kafka(&from, &to, options, &mut |_| {}).unwrap().written, 0);
    from.trim(&at("jobs"), 100).unwrap();
    let refused = copy_to_kafka(&from, &to, options, &mut |_| {}).unwrap_err();
    assert!(matches!(refused, LogError::NoCopy { .. }), "{refused:?}");
}

const URL: &str = "TIDEGATE_COPY_URL";
const DIR: &str = "TIDEGATE_COPY_DIR";
const SPREAD: &str = "TIDEGATE_COPY_SPREAD";

/// Copies, saying each step, until it is done or killed.
fn copy_in_child() {
    let from = embedded(Path::new(&env::var(DIR).unwrap()));
    let to = KafkaLog::open(KafkaOptions::new(env::var(URL).unwrap().parse().unwrap())).unwrap();
    let spread = env::var(SPREAD).is_ok().then_some(Spread { partitions: 3, place: &by_last_byte });
    let mut out = std::io::stdout();
    let report = copy_to_kafka(&from, &to, CopyOptions { spread }, &mut |progress| {
        out.write_all(format!("\nstep {progress:?}\n").as_bytes()).unwrap();
    });
    println!("\ndone {:?}", report.unwrap());
}

/// Runs a copy in a process of its own and kills it `life` after its first step of the kind;
/// whether it was still running.
fn run_and_kill(
    test: &str,
    options: &KafkaOptions,
    dir: &Path,
    spread: bool,
    (step, life): (&str, Duration),
) -> bool {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([&format!("copies::{test}"), "--exact", "--nocapture"]);
    command.env(URL, options.url.to_string()).env(DIR, dir);
    if spread {
        command.env(SPREAD, "1");
    }
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let pid = child.id().to_string();
    let (mut killer, mut done) = (None, false);
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        done |= line.starts_with("done");
        if line.starts_with("step") && line.contains(step) && killer.is_none() {
            let pid = pid.clone();
            killer = Some(thread::spawn(move || {
                thread::sleep(life);
                Command::new("kill").args(["-9", &pid]).output().unwrap();
            }));
        }
    }
    let status = child.wait().unwrap();
    killer.into_iter().for_each(|killer| killer.join().unwrap());
    assert!(done || !status.success(), "it ended by itself without getting done");
    !done
}

fn large_source(dir: &Path, count: u64, trim: u64) -> EmbeddedLog {
    let log = embedded(dir);
    log.create_topic("jobs", TopicConfig { partitions: 2, ..ONE_PARTITION }).unwrap();
    for i in 0..count / 10_000 {
        let producer = Producer { source: format!("import/sacct#{i}"), epoch: 0 };
        let records = records(i * 10_000, 10_000);
        log.append(&place("jobs", (i % 2) as u32), Batch { producer, first_seq: 0, records }).unwrap();
    }
    log.trim(&place("jobs", 1), trim).unwrap();
    log
}

#[test]
fn a_killed_copy_goes_on_where_it_was() {
    let test = "a_killed_copy_goes_on_where_it_was";
    if env::var(URL).is_ok() {
        return copy_in_child();
    }
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let dir = tempfile::tempdir().unwrap();
    drop(large_source(dir.path(), 400_000, 100_000));
    let mut kills = 0;
    let steps = [
        ("Copying", 30),
        ("Copying", 300),
        ("Filling", 0),
        ("Filling", 10),
        ("Copying", 30),
        ("Comparing", 20),
    ];
    for (step, life) in steps {
        let killed = run_and_kill(test, &options, dir.path(), false, (step, Duration::from_millis(life)));
        kills += u32::from(killed);
    }
    let (from, to) = (embedded(dir.path()), KafkaLog::open(options).unwrap());
    let report = copy(&from, &to).unwrap();
    println!("{kills} kills, then {report:?}");
    assert!(kills >= 3, "only {kills} kills came in time");
    assert_eq!(report.records, 300_000);
    assert_same(&from, &to);
}

#[test]
fn a_killed_spread_goes_on_where_it_was() {
    let test = "a_killed_spread_goes_on_where_it_was";
    if env::var(URL).is_ok() {
        return copy_in_child();
    }
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let dir = tempfile::tempdir().unwrap();
    drop(large_source(dir.path(), 400_000, 0));
    let mut kills = 0;
    for life in [200, 700, 1500] {
        let kill = ("Copying", Duration::from_millis(life));
        kills += u32::from(run_and_kill(test, &options, dir.path(), true, kill));
    }
    let (from, to) = (embedded(dir.path()), KafkaLog::open(options).unwrap());
    let spread = Some(Spread { partitions: 3, place: &by_last_byte });
    let report = copy_to_kafka(&from, &to, CopyOptions { spread }, &mut |_| {}).unwrap();
    println!("{kills} kills, then {report:?}");
    assert!(kills >= 2, "only {kills} kills came in time");
    assert_eq!(report.records, 400_000);
    assert!(report.written < 400_000, "nothing was left of the killed runs");
}

/// The second takes over, and the first stops by itself.
#[test]
fn of_two_concurrent_copies_one_finishes() {
    let test = "of_two_concurrent_copies_one_finishes";
    if env::var(URL).is_ok() {
        return copy_in_child();
    }
    let Some(servers) = broker::shared() else { return };
    let options = broker::options(&servers);
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    dirs.iter().for_each(|dir| drop(large_source(dir.path(), 400_000, 0)));
    let to = KafkaLog::open(options.clone()).unwrap();
    let from = embedded(dirs[0].path());
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            // Slow, so that the second finds it at work.
            copy_to_kafka(&from, &to, CopyOptions::default(), &mut |_| {
                thread::sleep(Duration::from_millis(400))
            })
        });
        thread::sleep(Duration::from_secs(2));
        let killed = run_and_kill(test, &options, dirs[1].path(), false, ("never", Duration::ZERO));
        assert!(!killed, "the second did not get done");
        let refused = first.join().unwrap().unwrap_err();
        println!("{refused}");
        assert!(refused.to_string().contains("another copy"), "{refused}");
    });
    assert_eq!(copy(&from, &to).unwrap().written, 0);
    assert_same(&from, &to);
}

/// To be run by hand, in a release build: `... --test kafka -- --ignored --nocapture
/// speed_of_a_copy`
#[test]
#[ignore = "a measurement"]
fn speed_of_a_copy() {
    let Some(servers) = broker::shared() else { return };
    let dir = tempfile::tempdir().unwrap();
    let from = large_source(dir.path(), 2_000_000, 0);
    let spread = Spread { partitions: 8, place: &by_last_byte };
    for spread in [None, Some(spread)] {
        let to = KafkaLog::open(broker::options(&servers)).unwrap();
        let (began, mut compared) = (Instant::now(), Instant::now());
        let report = copy_to_kafka(&from, &to, CopyOptions { spread }, &mut |progress| {
            if progress.step != CopyStep::Comparing {
                compared = Instant::now();
            }
        });
        let report = report.unwrap();
        let rate = report.records as f64 / began.elapsed().as_secs_f64();
        println!("{rate:.0} records/s, compared as well; {:?}, {report:?}", began.elapsed());
    }
}
