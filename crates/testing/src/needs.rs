//! Skips tests whose requirements the machine lacks: Kafka, Slurm, root, a program.
//!
//! Such a test calls [`skip`] and returns. `cargo test` counts it as passed, because it has no
//! notion of skipping at run time. So each skip also adds a line to the file that
//! `TIDEGATE_SKIPPED` names, and `tests/run.sh` counts those. With `CI=true` the test fails
//! instead.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;
use std::thread;

/// Environment variable with the path of the file that gets a line for each skipped test.
const FILE: &str = "TIDEGATE_SKIPPED";

/// Records that this test is skipped because the machine lacks something, and why.
///
/// # Panics
/// With `CI=true`, or if the record cannot be written.
pub fn skip(why: &str) {
    let required = env::var("CI").is_ok_and(|ci| ci == "true");
    assert!(!required, "{why}; with CI=true nothing is skipped");
    note(why);
}

/// Records that this test is skipped by design: it belongs to the long run, or has nothing to do in
/// this build. Allowed with `CI=true`.
///
/// # Panics
/// The record cannot be written.
pub fn note(why: &str) {
    let test = thread::current().name().unwrap_or("?").to_owned();
    println!("skipped: {why}");
    let Some(file) = env::var_os(FILE) else { return };
    let line = format!("{test}\t{}\n", why.replace(['\n', '\t'], " "));
    OpenOptions::new().create(true).append(true).open(file).unwrap().write_all(line.as_bytes()).unwrap();
}

/// Runs a command that starts or finds `what`; returns why that failed, or `None` if it succeeded.
pub fn missing(what: &str, command: &mut Command) -> Option<String> {
    let said = match command.output() {
        Ok(output) if output.status.success() => return None,
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("{what} cannot be had: {said}"))
}

/// As [`missing`], but [skips](skip) the test on failure; returns whether the command succeeded.
pub fn can(what: &str, command: &mut Command) -> bool {
    let missing = missing(what, command);
    missing.iter().for_each(|why| skip(why));
    missing.is_none()
}

/// Whether long-running tests run in full: `TIDEGATE_LONG=1`.
pub fn is_long() -> bool {
    env::var("TIDEGATE_LONG").is_ok_and(|long| long == "1")
}
