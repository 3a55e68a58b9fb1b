//! An agent is killed at random instants: everything it stored is in the log, once and in order.
//!
//! `TIDEGATE_CRASH_RUNS` sets the number of kills; `TIDEGATE_CRASH_SEED` repeats the instants of a
//! failed run.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use tidegate_collect::agent::{Agent, Connect};
use tidegate_collect::log_sink::{DirectLogSink, LogSink};
use tidegate_log::{DataDir, EmbeddedLog, EventLog, KafkaLog, KafkaOptions};

use crate::broker;
use crate::kit::*;

const SPOOL: &str = "TIDEGATE_LIVE_SPOOL";
const LOG: &str = "TIDEGATE_LIVE_LOG";
const FIRST: &str = "TIDEGATE_LIVE_FIRST";

/// The process to kill.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let (spool, log) = (env::var(SPOOL).unwrap(), env::var(LOG).unwrap());
    let first: u64 = env::var(FIRST).unwrap().parse().unwrap();
    let connect: Connect = match log.strip_prefix("kafka://") {
        Some(_) => {
            let options = kafka(&log);
            Box::new(move || {
                let log = KafkaLog::open(options.clone())?;
                Ok(Box::new(DirectLogSink::new(Arc::new(log), 3)) as Box<dyn LogSink>)
            })
        }
        None => Box::new(move || {
            Ok(Box::new(DirectLogSink::open_folder(DataDir::open(&log)?)?) as Box<dyn LogSink>)
        }),
    };
    let agent = Agent::start(options(Path::new(&spool)), connect).unwrap();
    agent.started(None);
    thread::scope(|scope| {
        scope.spawn(|| {
            for tick in 0.. {
                let at_ms = 1_800_000_000_000 + first as i64 * 1_000_000 + tick * 10;
                devices().iter().for_each(|device| agent.sink().reading(reading(device, at_ms)));
                thread::sleep(Duration::from_millis(10));
            }
        });
        let mut random = Random::new(first + u64::from(std::process::id()));
        let mut next = first;
        loop {
            for _ in 0..1 + random.below(8) {
                agent.sink().event(numbered(next));
                next += 1;
            }
            agent.store().unwrap();
            std::io::stdout().write_all(format!("\nstored {next}\n").as_bytes()).unwrap();
            thread::sleep(Duration::from_millis(random.below(20)));
        }
    });
}

fn kafka(url: &str) -> KafkaOptions {
    let mut options = KafkaOptions::new(url.parse().unwrap());
    options.progress_partitions = 3;
    options.transaction_timeout = Duration::from_secs(5);
    options
}

/// Runs the process and kills it. Returns the number before which everything is stored.
fn run_and_kill(spool: &Path, log: &str, first: u64, life: Duration) -> u64 {
    let mut command = this_test("kills::child");
    let child = command.arg("--ignored").env(SPOOL, spool).env(LOG, log).env(FIRST, first.to_string());
    let mut child = child.stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let reader = thread::spawn(move || {
        let stored =
            lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("stored ")?.parse::<u64>().ok());
        stored.last()
    });
    let killed_at = Instant::now() + life;
    while Instant::now() < killed_at {
        assert!(child.try_wait().unwrap().is_none(), "the process ended by itself");
        thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    reader.join().unwrap().unwrap_or(first)
}

/// Kills processes in turn, lets one finish, and checks the log.
fn kill_again_and_again(
    runs: usize,
    log: &str,
    open: impl Fn() -> Arc<dyn EventLog>,
    finish: impl Fn(&Path),
) {
    let number = |name| env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = number("TIDEGATE_CRASH_SEED").unwrap_or(u64::from(std::process::id()));
    println!("TIDEGATE_CRASH_SEED={seed}");
    let mut random = Random::new(seed);
    let spool = tempfile::tempdir().unwrap();
    // Runs use separate ranges of numbers, to tell stored events from unstored ones.
    let mut stored = Vec::new();
    for run in 0..number("TIDEGATE_CRASH_RUNS").map_or(runs, |runs| runs as usize) as u64 {
        let life = Duration::from_millis(150 + random.below([400, 2_500][run as usize % 2]));
        let first = run * 1_000_000;
        stored.push((first, run_and_kill(spool.path(), log, first, life)));
    }
    finish(spool.path());
    let events = check_numbers(&*open(), 0);
    let numbers = numbers(&events);
    assert!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "each once and in order");
    for (first, next) in &stored {
        let found = numbers.iter().filter(|number| (first..next).contains(number)).count() as u64;
        assert_eq!(found, next - first, "of those stored from {first} on");
    }
    let epochs: std::collections::BTreeSet<_> =
        events.iter().map(|event| event.envelope().unwrap().epoch).collect();
    assert_eq!(epochs.len(), 1, "all of it is one life of the spool");
    println!("{} records, {} of them batches, {} kills", events.len(), batches(&events).len(), stored.len());
    assert!(stored.iter().any(|(first, next)| first < next), "no process got as far as storing anything");
}

#[test]
fn killed_agents_lose_and_duplicate_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("data");
    let open =
        || Arc::new(EmbeddedLog::open(folder.join("log"), Default::default()).unwrap()) as Arc<dyn EventLog>;
    let finish = |spool: &Path| {
        let folder = folder.clone();
        let connect: Connect = Box::new(move || {
            Ok(Box::new(DirectLogSink::open_folder(DataDir::open(&folder)?)?) as Box<dyn LogSink>)
        });
        let agent = Agent::start(options(spool), connect).unwrap();
        assert!(agent.stop(PATIENCE, "the end"));
        drop(agent);
    };
    kill_again_and_again(8, folder.to_str().unwrap(), open, finish);
}

#[test]
fn agents_killed_while_appending_to_kafka_lose_and_duplicate_nothing() {
    let Some(servers) = broker::shared() else { return };
    let url = broker::options(&servers).url.to_string();
    let open = || Arc::new(KafkaLog::open(kafka(&url)).unwrap()) as Arc<dyn EventLog>;
    let finish = |spool: &Path| {
        let options_of_log = kafka(&url);
        let connect: Connect = Box::new(move || {
            let log = KafkaLog::open(options_of_log.clone())?;
            Ok(Box::new(DirectLogSink::new(Arc::new(log), 3)) as Box<dyn LogSink>)
        });
        assert!(Agent::start(options(spool), connect).unwrap().stop(PATIENCE, "the end"));
    };
    kill_again_and_again(6, &url, open, finish);
}
