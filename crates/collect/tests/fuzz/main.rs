//! Fuzzers of everything that reads bytes from outside. Inputs are mutations of the seeds in the
//! repository and of the corpus in `tests/corpus`: a parser may refuse them, and may neither panic
//! nor hang nor take memory without bound.
//!
//! A process of its own runs each parser, with little address space. It writes an input down before
//! it tries it, so one that ends the process is known. `tests/fuzz.sh` runs them for hours.

#![allow(clippy::unwrap_used)]
#![cfg(feature = "otlp")]

mod mutate;
mod targets;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use mutate::Mutator;
use targets::Target;

/// Address space of a fuzzer, KiB: what the test program maps, and what a parser may take.
const ADDRESS_SPACE_KIB: u64 = 1 << 20;
/// Longest input, bytes.
const MAX_INPUT_BYTES: usize = 64 << 10;
/// Longest time that one input may take, on a machine that is busy with other tests too.
const MAX_TIME: Duration = Duration::from_secs(30);
/// Time for each parser, unless `TIDEGATE_FUZZ_SECONDS` says otherwise.
const SECONDS: u64 = 1;

fn corpus(target: &str) -> PathBuf {
    targets::repository("tests/corpus").join(target)
}

#[test]
fn no_input_from_outside_ends_a_process() {
    // On a disk, to write an input down takes a hundred times as long as to parse it.
    let memory = Path::new("/dev/shm");
    let folder = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let only = std::env::var("TIDEGATE_FUZZ_TARGET").ok();
    let chosen = |target: &&Target| only.as_deref().is_none_or(|only| only == target.name);
    let mut tried = 0;
    for target in targets::all().filter(chosen) {
        let input = folder.path().join(target.name);
        let program = std::env::current_exe().unwrap();
        let ended = Command::new("sh")
            .args(["-c", &format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\"")])
            .arg(program)
            .args(["--exact", "fuzzer", "--ignored", "--nocapture"])
            .env("TIDEGATE_FUZZER", target.name)
            .env("TIDEGATE_FUZZ_INPUT", &input)
            .env("TMPDIR", folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        if !ended.status.success() {
            let kept = std::env::temp_dir().join(format!("tidegate-fuzz-{}", target.name));
            let copied = std::fs::copy(&input, &kept);
            panic!(
                "{} ended with {}; the input is in {} ({copied:?} bytes), for {}\n{}",
                target.name,
                ended.status,
                kept.display(),
                corpus(target.name).display(),
                String::from_utf8_lossy(&ended.stderr)
            );
        }
        let inputs = said.lines().find_map(|line| line.strip_prefix("inputs ")).unwrap();
        println!("{:<16}{inputs}", target.name);
        tried += inputs.split(' ').next().unwrap().parse::<u64>().unwrap();
    }
    assert!(tried > 0, "no parser is called {}", only.unwrap_or_default());
}

/// One fuzzer, as the test above runs it.
#[test]
#[ignore = "run by no_input_from_outside_ends_a_process"]
fn fuzzer() {
    let name = std::env::var("TIDEGATE_FUZZER").expect("the parser to try");
    let target = targets::all().find(|target| target.name == name).unwrap();
    let seconds = std::env::var("TIDEGATE_FUZZ_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let mut seeds = (target.seeds)();
    assert!(!seeds.is_empty(), "{name} has no seed");
    let stored = std::fs::read_dir(corpus(target.name)).into_iter().flatten();
    let mut stored: Vec<_> = stored.map(|file| file.unwrap().path()).collect();
    stored.sort();
    seeds.extend(stored.iter().map(|file| std::fs::read(file).unwrap()));

    end_process_on_panics();
    let mut attempts = Attempts::new(target);
    seeds.iter().for_each(|seed| attempts.attempt(seed));
    let seed = std::env::var("TIDEGATE_FUZZ_SEED").map_or(1, |text| text.parse().unwrap());
    let mut mutator = Mutator::new(seed, seeds);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        attempts.attempt(&mutator.next(MAX_INPUT_BYTES));
    }
    println!(
        "\ninputs {} of {seconds} s, the longest took {} ms",
        attempts.tried,
        attempts.longest.as_millis()
    );
    // Not by returning: the receiver and the exporter have threads that still wait.
    std::process::exit(0);
}

/// A panic counts on whichever thread it is: a runtime would catch that of a task.
fn end_process_on_panics() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
}

/// When the attempt began that runs.
static BEGUN: Mutex<Option<Instant>> = Mutex::new(None);

struct Attempts {
    parse: targets::Parser,
    /// The file that holds the input.
    note: PathBuf,
    tried: u64,
    longest: Duration,
}

impl Attempts {
    fn new(target: &Target) -> Self {
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(Duration::from_secs(1));
                let begun = *BEGUN.lock().unwrap();
                assert!(
                    begun.is_none_or(|begun| begun.elapsed() < MAX_TIME),
                    "it took more than {MAX_TIME:?}"
                );
            }
        });
        let note = Path::new(&std::env::var_os("TIDEGATE_FUZZ_INPUT").unwrap()).to_owned();
        Self { parse: (target.start)(), note, tried: 0, longest: Duration::ZERO }
    }

    fn attempt(&mut self, input: &[u8]) {
        std::fs::write(&self.note, input).unwrap();
        let begun = Instant::now();
        *BEGUN.lock().unwrap() = Some(begun);
        (self.parse)(input);
        *BEGUN.lock().unwrap() = None;
        self.longest = self.longest.max(begun.elapsed());
        self.tried += 1;
    }
}
