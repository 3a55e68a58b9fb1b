//! What a test needs of the machine: Kafka, Slurm, root, a program.
//!
//! Where it is missing, the test says so with [`skip`] and ends. `cargo test` counts it as passed,
//! since Rust's tests know nothing else; so each skip is also a line of the file that
//! `TIDEGATE_SKIPPED` names, from which `tests/run.sh` counts. With `CI=true` a test whose need is
//! missing fails.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::thread;

/// Names the file that gets a line of each test that was skipped.
const FILE: &str = "TIDEGATE_SKIPPED";

/// Notes that this test does not run here, and why.
///
/// # Panics
/// With `CI=true`, and where the note cannot be written.
pub fn skip(why: &str) {
    let required = env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!required, "{why}; with CI=true nothing is skipped");
    note(why);
}

/// Notes that this test does not run, whatever the machine: it is for the long form, or has no work
/// here by design.
///
/// # Panics
/// The note cannot be written.
pub fn note(why: &str) {
    let test = thread::current().name().unwrap_or("?").to_owned();
    println!("skipped: {why}");
    let Some(file) = env::var_os(FILE) else { return };
    let line = format!("{test}\t{}\n", why.replace(['\n', '\t'], " "));
    OpenOptions::new().create(true).append(true).open(file).unwrap().write_all(line.as_bytes()).unwrap();
}

/// Why `what` cannot be had, by a command that brings it or shows that it is here; `None` if it
/// can.
pub fn missing(what: &str, command: &mut Command) -> Option<String> {
    let said = match command.output() {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("{what} cannot be had: {said}"))
}

/// Whether the command succeeds that brings `what` a test needs; otherwise the test is skipped.
pub fn can(what: &str, command: &mut Command) -> bool {
    let missing = missing(what, command);
    missing.iter().for_each(|why| skip(why));
    missing.is_none()
}

/// Whether proofs run in their long form: `TIDEGATE_LONG=1`.
pub fn is_long() -> bool {
    env::var("TIDEGATE_LONG").is_ok_and(|long| long == "1")
}
