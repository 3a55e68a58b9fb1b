//! Processes share the partitions of a group: no partition belongs to two members at a time, and
//! none stays unassigned for long.

use std::collections::BTreeSet;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tidegate_log::{
    EventLog, KafkaLog, KafkaOptions, LogError, Member, RebalanceEvent, TopicConfig, TopicPartition,
};
use tidegate_testing::conformance::batch;

use crate::broker::{self, Cluster};
use crate::wire::{ONE_PARTITION, at};

const PARTITIONS: u32 = 6;
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(50);

/// A member, and what it may work on right now.
struct Worker {
    member: Box<dyn Member>,
    held: BTreeSet<TopicPartition>,
    leaving: Vec<TopicPartition>,
    lost: usize,
}

impl Worker {
    fn join(log: &dyn EventLog) -> Self {
        let member = log.join("g", &["t"]).unwrap();
        Self { member, held: BTreeSet::new(), leaving: Vec::new(), lost: 0 }
    }

    fn step(&mut self, patience: Duration) {
        // From here on the announced ones may be another member's.
        self.leaving.drain(..).for_each(|at| assert!(self.held.remove(&at)));
        match self.member.poll(patience).unwrap() {
            Some(RebalanceEvent::Assigned(gained)) => self.held.extend(gained),
            Some(RebalanceEvent::Revoking(leaving)) => self.leaving = leaving,
            Some(RebalanceEvent::Lost(lost)) => {
                self.lost += lost.len();
                lost.iter().for_each(|at| assert!(self.held.remove(at)));
            }
            None => {}
        }
    }
}

/// Polls all in turn until they hold everything, each something; fails as soon as two hold the
/// same.
fn share_out(workers: &mut [Worker], partitions: u32) {
    let began = Instant::now();
    loop {
        workers.iter_mut().for_each(|worker| worker.step(STEP));
        let held: Vec<_> = workers.iter().map(|worker| worker.held.len()).collect();
        let all: BTreeSet<_> = workers.iter().flat_map(|worker| &worker.held).collect();
        assert_eq!(all.len(), held.iter().sum::<usize>(), "two members hold the same partition");
        let fair = held.iter().all(|held| *held >= partitions as usize / workers.len());
        if all.len() == partitions as usize && fair {
            return;
        }
        assert!(began.elapsed() < PATIENCE, "they hold {held:?}");
    }
}

pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        thread::sleep(STEP);
    }
}

fn log_with_topic(properties: &[(&str, &str)]) -> Option<(KafkaLog, KafkaOptions)> {
    let mut options = broker::options(&broker::shared()?);
    options.properties = properties.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let log = KafkaLog::open(options.clone()).unwrap();
    log.create_topic("t", TopicConfig { partitions: PARTITIONS, ..ONE_PARTITION }).unwrap();
    Some((log, options))
}

#[test]
fn two_and_three_members_share_the_partitions_without_overlap() {
    let Some((log, _)) = log_with_topic(&[]) else { return };
    let mut workers: Vec<_> = (0..2).map(|_| Worker::join(&log)).collect();
    share_out(&mut workers, PARTITIONS);
    workers.push(Worker::join(&log));
    share_out(&mut workers, PARTITIONS);
    workers.remove(0);
    share_out(&mut workers, PARTITIONS);
    let rebalances: Vec<_> = workers.iter().map(|worker| worker.member.rebalances()).collect();
    println!("rebalances as each of those left saw them: {rebalances:?}");
    assert!(rebalances.iter().all(|seen| (1..40).contains(seen)), "{rebalances:?}");
    assert_eq!(workers.iter().map(|worker| worker.lost).sum::<usize>(), 0);
}

#[test]
fn a_partition_changes_hands_only_when_its_holder_polls_again() {
    let Some((log, _)) = log_with_topic(&[]) else { return };
    let mut first = [Worker::join(&log)];
    share_out(&mut first, PARTITIONS);
    let [mut first] = first;
    let mut second = Worker::join(&log);
    let began = Instant::now();
    while first.leaving.is_empty() {
        first.step(STEP);
        second.step(STEP);
        assert!(began.elapsed() < PATIENCE, "nothing is to leave");
    }
    println!("{} are to leave after {:?}", first.leaving.len(), began.elapsed());
    let offsets: Vec<_> = first.leaving.iter().map(|at| (at.clone(), 0)).collect();
    for _ in 0..30 {
        second.step(Duration::from_millis(100));
        assert!(second.held.is_empty(), "{:?} went over before the holder was ready", second.held);
    }
    first.member.commit(&offsets).unwrap();
    until("the commit is seen", || log.committed_offset("g", &offsets[0].0).unwrap() == Some(0));
    share_out(&mut [first, second], PARTITIONS);
}

/// A commit must not block, even while other members of the group do not poll.
#[test]
fn commits_do_not_wait_for_other_members() {
    let Some((log, _)) = log_with_topic(&[]) else { return };
    for partition in 0..PARTITIONS {
        let here = TopicPartition { topic: "t".into(), partition };
        log.append(&here, batch("a", 0, 0, 9)).unwrap();
    }
    let mut workers: Vec<_> = (0..2).map(|_| Worker::join(&log)).collect();
    share_out(&mut workers, PARTITIONS);
    let mut longest = Duration::ZERO;
    let mut commit_all = |workers: &mut [Worker], offset: u64| {
        for worker in workers {
            worker.step(Duration::from_millis(5));
            let offsets: Vec<_> = worker.held.iter().map(|at| (at.clone(), offset)).collect();
            let began = Instant::now();
            worker.member.commit(&offsets).unwrap();
            longest = longest.max(began.elapsed());
        }
    };
    for _ in 0..3 {
        workers.push(Worker::join(&log));
        until("all have a share", || {
            commit_all(&mut workers, 5);
            workers.iter().all(|worker| !worker.held.is_empty())
        });
        workers.remove(0);
    }
    share_out(&mut workers, PARTITIONS);
    commit_all(&mut workers, 9);
    println!("longest commit: {longest:?}");
    assert!(longest < Duration::from_secs(1), "a commit took {longest:?}");
    until("all offsets are seen", || {
        workers.iter_mut().for_each(|worker| worker.step(Duration::ZERO));
        (0..PARTITIONS).all(|partition| {
            let here = TopicPartition { topic: "t".into(), partition };
            log.committed_offset("g", &here).unwrap() == Some(9)
        })
    });
}

#[test]
fn a_topic_made_later_is_shared_too() {
    let Some((log, _)) = log_with_topic(&[]) else { return };
    let member = log.join("g", &["t", "later"]).unwrap();
    let mut worker = [Worker { member, held: BTreeSet::new(), leaving: Vec::new(), lost: 0 }];
    share_out(&mut worker, PARTITIONS);
    log.create_topic("later", ONE_PARTITION).unwrap();
    let began = Instant::now();
    share_out(&mut worker, PARTITIONS + 1);
    println!("noticed after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// The shortest that a broker allows by default.
const SHORT: [(&str, &str); 2] = [("session.timeout.ms", "6000"), ("max.poll.interval.ms", "6000")];

#[test]
fn a_member_that_stops_polling_loses_all_and_may_rejoin() {
    let Some((log, _)) = log_with_topic(&SHORT) else { return };
    let mut workers = [Worker::join(&log), Worker::join(&log)];
    share_out(&mut workers, PARTITIONS);
    let [mut slow, other] = workers;
    let mut others = [other];
    let began = Instant::now();
    while others[0].held.len() < PARTITIONS as usize {
        others[0].step(STEP);
        assert!(began.elapsed() < PATIENCE, "the partitions of the slow one stay with it");
    }
    println!("taken over after {:?}", began.elapsed());
    slow.step(Duration::from_secs(1));
    assert_eq!((slow.lost, slow.held.len()), (3, 0), "it must hear of it before it does anything else");
    let [other] = others;
    share_out(&mut [slow, other], PARTITIONS);
}

/// Announced as leaving, and then silent for too long: what is left is lost as well.
#[test]
fn a_member_silent_during_revocation_loses_the_rest() {
    let Some((log, _)) = log_with_topic(&SHORT) else { return };
    let mut first = [Worker::join(&log)];
    share_out(&mut first, PARTITIONS);
    let [mut first] = first;
    let mut second = Worker::join(&log);
    let began = Instant::now();
    while first.leaving.is_empty() {
        first.step(STEP);
        second.step(STEP);
        assert!(began.elapsed() < PATIENCE, "nothing is to leave");
    }
    while second.held.len() < PARTITIONS as usize {
        second.step(STEP);
        assert!(began.elapsed() < PATIENCE, "the partitions of the silent one stay with it");
    }
    while !first.held.is_empty() {
        first.step(STEP);
        second.step(STEP);
        assert!(began.elapsed() < PATIENCE, "it still believes to hold {:?}", first.held);
    }
    assert_eq!(first.lost, 3);
    share_out(&mut [first, second], PARTITIONS);
}

const URL: &str = "TIDEGATE_MEMBER_URL";

#[test]
fn the_partitions_of_a_killed_process_are_taken_over() {
    if let Ok(url) = env::var(URL) {
        let mut options = KafkaOptions::new(url.parse().unwrap());
        options.properties = SHORT.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
        let mut worker = Worker::join(&KafkaLog::open(options).unwrap());
        loop {
            worker.step(STEP);
            std::io::stdout().write_all(format!("\nheld {}\n", worker.held.len()).as_bytes()).unwrap();
        }
    }
    let Some((log, options)) = log_with_topic(&SHORT) else { return };
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["members::the_partitions_of_a_killed_process_are_taken_over", "--exact", "--nocapture"]);
    let mut child = command.env(URL, options.url.to_string()).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == format!("held {PARTITIONS}")), "it gets all while it is alone");
    let reader = thread::spawn(move || lines.for_each(drop));

    let mut worker = Worker::join(&log);
    let began = Instant::now();
    while worker.held.len() < 3 {
        worker.step(STEP);
        assert!(began.elapsed() < PATIENCE, "the two do not share");
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap();
    let began = Instant::now();
    share_out(&mut [worker], PARTITIONS);
    println!("taken over after {:?}", began.elapsed());
}

/// Kafka takes the progress of a group from its members alone; that must not look like a broker
/// that is down.
#[test]
fn non_members_may_read_a_groups_offsets_but_not_commit() {
    let Some((log, _)) = log_with_topic(&[]) else { return };
    log.append(&at("t"), batch("a", 0, 0, 9)).unwrap();
    let mut workers = [Worker::join(&log)];
    share_out(&mut workers, PARTITIONS);
    workers[0].member.commit(&[(at("t"), 7)]).unwrap();
    until("the commit is seen", || log.committed_offset("g", &at("t")).unwrap() == Some(7));
    let began = Instant::now();
    let refused = log.commit_offset("g", &at("t"), 8).unwrap_err();
    assert!(matches!(refused, LogError::KafkaRefused { .. }), "{refused:?}");
    assert!(refused.to_string().contains("commit as a member"), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    drop(workers);
    log.commit_offset("g", &at("t"), 8).unwrap();
    assert_eq!(log.committed_offset("g", &at("t")).unwrap(), Some(8));
}

/// While the brokers are away a member waits; it leaves without waiting for them for long, and goes
/// on once they are back.
#[test]
fn members_outlive_their_broker() {
    if !broker::installed() {
        return;
    }
    let mut cluster = Cluster::start(1, "");
    let mut options = broker::options(&cluster.servers());
    options.timeout = Duration::from_secs(10);
    let log = KafkaLog::open(options).unwrap();
    log.create_topic("t", TopicConfig { partitions: PARTITIONS, ..ONE_PARTITION }).unwrap();
    let mut workers = [Worker::join(&log), Worker::join(&log)];
    share_out(&mut workers, PARTITIONS);
    cluster.kill_node(0);
    workers.iter_mut().for_each(|worker| (0..10).for_each(|_| worker.step(STEP)));
    let [leaving, staying] = workers;
    let began = Instant::now();
    drop(leaving);
    println!("left after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(15), "{:?}", began.elapsed());
    cluster.start_node(0);
    cluster.wait_until_ready();
    share_out(&mut [staying], PARTITIONS);
}
