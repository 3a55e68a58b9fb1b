//! A process that appends is killed at random instants; whatever it acknowledged must be there,
//! once, and in order.
//!
//! `TIDEGATE_CRASH_RUNS` sets the number of kills, `TIDEGATE_CRASH_SEED` repeats a failed run's
//! instants.

use std::collections::{HashMap, HashSet};
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Random, at, noise_batch, noise_record, this_test};
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, TopicConfig};
use tidegate_testing::conformance::read_all;

const SOURCES: u64 = 4;
const PARTITIONS: u32 = 2;
const DIR: &str = "TIDEGATE_CRASH_DIR";
const DONE: &str = "TIDEGATE_CRASH_DONE";

/// Small segments and tables, so that the kills also hit rolling, flushing and journal rotation.
const OPTIONS: EmbeddedOptions =
    EmbeddedOptions { segment_bytes: 4 << 20, segment_batches: 300, memory_table_bytes: 1 << 20 };

#[test]
fn killed_processes_lose_nothing_acknowledged() {
    if let Ok(dir) = env::var(DIR) {
        return append_until_killed(Path::new(&dir));
    }
    let number = |name| env::var(name).ok().and_then(|value| value.parse().ok());
    let runs: u64 = number("TIDEGATE_CRASH_RUNS").unwrap_or(8);
    let seed = number("TIDEGATE_CRASH_SEED").unwrap_or(u64::from(std::process::id()));
    println!("TIDEGATE_CRASH_SEED={seed}");
    let mut random = Random::new(seed);
    let dir = tempfile::tempdir().unwrap();
    let mut stored: HashMap<u64, u64> = HashMap::new();
    for run in 0..runs {
        // Early kills hit the creating and the opening of the log, late ones its steady state.
        let life_ms = [60, 80, 600, 600][run as usize % 4];
        let life = Duration::from_millis(random.below(life_ms));
        if run % 4 == 0 {
            let fresh = tempfile::tempdir().unwrap();
            let said = run_and_kill(fresh.path(), &HashMap::new(), life);
            check(fresh.path(), &HashMap::new(), &said);
        } else {
            let said = run_and_kill(dir.path(), &stored, life);
            stored = check(dir.path(), &stored, &said);
        }
    }
    assert!(runs < 3 || stored.values().sum::<u64>() > 0, "no run got as far as an acknowledgement");
}

/// The child: every source appends batches of random sizes and prints each attempt and
/// acknowledgement.
fn append_until_killed(dir: &Path) {
    let log = EmbeddedLog::open(dir, OPTIONS).unwrap();
    log.create_topic("t", TopicConfig { partitions: PARTITIONS, retain_ms: None, retain_bytes: None })
        .unwrap();
    let done: Vec<u64> = env::var(DONE).unwrap().split(',').map(|n| n.parse().unwrap()).collect();
    thread::scope(|scope| {
        for source in 0..SOURCES {
            // A few records earlier than known to be stored, as a producer does that missed an
            // answer.
            let mut next = done[source as usize].saturating_sub(5);
            let log = &log;
            scope.spawn(move || {
                let mut random = Random::new(source + next);
                loop {
                    let (count, bytes) = (1 + random.below(40), payload_bytes(source));
                    say(&format!("try {source} {}", next + count));
                    log.append(&at("t", source as u32 % PARTITIONS), noise_batch(source, next, count, bytes))
                        .unwrap();
                    say(&format!("ack {source} {}", next + count));
                    next += count;
                }
            });
        }
    });
}

/// Sources differ in size: some batches stay with their keys, some go to files of their own.
fn payload_bytes(source: u64) -> usize {
    [8, 60, 500, 3000][source as usize]
}

/// One write per line, so that a kill leaves whole lines.
fn say(line: &str) {
    std::io::stdout().write_all(format!("\n{line}\n").as_bytes()).unwrap();
}

/// What the child printed about each source.
#[derive(Default)]
struct Acknowledged {
    tried_ends: HashMap<u64, HashSet<u64>>,
    acknowledged: HashMap<u64, u64>,
}

fn run_and_kill(dir: &Path, stored: &HashMap<u64, u64>, life: Duration) -> Acknowledged {
    let done: Vec<_> = (0..SOURCES).map(|s| stored.get(&s).copied().unwrap_or(0).to_string()).collect();
    let mut command = this_test("crash::killed_processes_lose_nothing_acknowledged");
    let mut child = command
        .env(DIR, dir)
        .env(DONE, done.join(","))
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test runs itself");
    let stdout = BufReader::new(child.stdout.take().unwrap());
    let (send, lines) = mpsc::channel();
    let reader =
        thread::spawn(move || stdout.lines().map_while(Result::ok).all(|line| send.send(line).is_ok()));
    let killed_at = Instant::now() + life;
    let mut said = Acknowledged::default();
    while let Ok(line) = lines.recv_timeout(killed_at.saturating_duration_since(Instant::now())) {
        said.hear(&line);
    }
    assert!(
        child.try_wait().unwrap().is_none(),
        "the child ended by itself; run it with {DIR} set to see why"
    );
    child.kill().unwrap();
    child.wait().unwrap();
    lines.iter().for_each(|line| said.hear(&line));
    reader.join().unwrap();
    said
}

impl Acknowledged {
    fn hear(&mut self, line: &str) {
        let words: Vec<_> = line.split(' ').collect();
        let [what, source, end] = words[..] else { return };
        let (Ok(source), Ok(end)) = (source.parse(), end.parse()) else { return };
        match what {
            "try" => drop(self.tried_ends.entry(source).or_default().insert(end)),
            "ack" => drop(self.acknowledged.insert(source, end)),
            _ => {}
        }
    }
}

/// Opens what the child left and returns how many records each source has.
fn check(dir: &Path, before: &HashMap<u64, u64>, said: &Acknowledged) -> HashMap<u64, u64> {
    let log = EmbeddedLog::open(dir, OPTIONS).unwrap();
    let mut stored: HashMap<u64, u64> = HashMap::new();
    if log.topics().unwrap().is_empty() {
        assert!(before.is_empty() && said.acknowledged.is_empty(), "the topic is gone");
        return stored;
    }
    let report = log.verify().unwrap();
    for partition in 0..PARTITIONS {
        for found in read_all(&log, &at("t", partition)) {
            let source: u64 =
                std::str::from_utf8(&found.record.key).unwrap()["cluster/".len()..].parse().unwrap();
            let seq = stored.entry(source).or_default();
            assert_eq!(
                found.record,
                noise_record(source, *seq, payload_bytes(source)),
                "out of order, lost or twice"
            );
            *seq += 1;
        }
    }
    assert_eq!(report.records, stored.values().sum::<u64>());
    for source in 0..SOURCES {
        let count = stored.get(&source).copied().unwrap_or(0);
        let known = before.get(&source).copied().unwrap_or(0);
        let acknowledged = said.acknowledged.get(&source).copied().unwrap_or(0);
        assert!(
            count >= known.max(acknowledged),
            "source {source}: {count} stored, {acknowledged} acknowledged"
        );
        let whole = count == known || said.tried_ends.get(&source).is_some_and(|ends| ends.contains(&count));
        assert!(whole, "source {source}: {count} records end inside a batch");
    }
    stored
}
