//! Fuzzers of everything that reads bytes from outside. Inputs are mutations of the seeds in the
//! repository and of the corpus in `tests/corpus`: a parser may refuse them, and may neither panic
//! nor take memory without bound.
//!
//! A process of its own runs each parser, with little address space. It writes an input down before
//! it tries it, so one that ends the process is known. `tests/fuzz.sh` runs them for minutes.

mod mutate;
mod targets;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use mutate::Mutator;
use targets::{TARGETS, Target};

/// Address space of a fuzzer, KiB: what the test program maps, and what a parser may take.
const ADDRESS_SPACE_KIB: u64 = 3 << 20;
/// Longest input, bytes.
const MAX_INPUT_BYTES: usize = 64 << 10;
/// Longest time that one input may take.
const MAX_TIME: Duration = Duration::from_secs(5);
/// Time for each parser, unless `TIDEGATE_FUZZ_SECONDS` says otherwise.
const SECONDS: u64 = 1;

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/corpus").join(target)
}

#[test]
fn no_input_from_outside_ends_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let only = std::env::var("TIDEGATE_FUZZ_TARGET").ok();
    let mut tried = 0;
    for target in TARGETS.iter().filter(|target| only.as_deref().is_none_or(|only| only == target.name)) {
        let input = folder.path().join(target.name);
        let program = std::env::current_exe().unwrap();
        let ended = Command::new("sh")
            .args(["-c", &format!("ulimit -v {ADDRESS_SPACE_KIB}; exec \"$0\" \"$@\"")])
            .arg(program)
            .args(["--exact", "fuzz::fuzzer", "--ignored", "--nocapture"])
            .env("TIDEGATE_FUZZER", target.name)
            .env("TIDEGATE_FUZZ_INPUT", &input)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ended.stdout);
        if !ended.status.success() {
            let kept = std::env::temp_dir().join(format!("tidegate-fuzz-{}", target.name));
            std::fs::copy(&input, &kept).unwrap();
            panic!(
                "{} ended with {}; the input is in {}, for {}\n{}",
                target.name,
                ended.status,
                kept.display(),
                corpus(target.name).display(),
                String::from_utf8_lossy(&ended.stderr)
            );
        }
        let inputs = said.lines().find_map(|line| line.strip_prefix("inputs ")).unwrap();
        println!("{:<24}{inputs}", target.name);
        tried += inputs.split(' ').next().unwrap().parse::<u64>().unwrap();
    }
    assert!(tried > 100, "{tried} inputs");
}

/// One fuzzer, as the test above runs it.
#[test]
#[ignore = "run by no_input_from_outside_ends_a_process"]
fn fuzzer() {
    let Ok(name) = std::env::var("TIDEGATE_FUZZER") else { return };
    let note = PathBuf::from(std::env::var_os("TIDEGATE_FUZZ_INPUT").unwrap());
    let target = TARGETS.iter().find(|target| target.name == name).unwrap();
    let seconds = std::env::var("TIDEGATE_FUZZ_SECONDS").map_or(SECONDS, |text| text.parse().unwrap());
    let mut seeds = (target.seeds)();
    let stored = std::fs::read_dir(corpus(target.name)).into_iter().flatten();
    seeds.extend(stored.map(|file| std::fs::read(file.unwrap().path()).unwrap()));
    assert!(!seeds.is_empty(), "{name} has no seed");
    let (mut inputs, mut longest) = (0_u64, Duration::ZERO);
    for seed in &seeds {
        longest = longest.max(attempt(target, seed, &note));
        inputs += 1;
    }
    let seed = std::env::var("TIDEGATE_FUZZ_SEED").map_or(1, |text| text.parse().unwrap());
    let mut mutator = Mutator::new(seed, seeds);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        let input = mutator.next(MAX_INPUT_BYTES);
        longest = longest.max(attempt(target, &input, &note));
        inputs += 1;
    }
    println!("\ninputs {inputs} of {seconds} s, the longest took {} ms", longest.as_millis());
}

fn attempt(target: &Target, input: &[u8], note: &Path) -> Duration {
    std::fs::write(note, input).unwrap();
    let begun = Instant::now();
    (target.parse)(input);
    let took = begun.elapsed();
    assert!(took < MAX_TIME, "an input took {took:?}");
    took
}
