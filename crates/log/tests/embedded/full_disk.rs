//! A disk that fills up: a clear error, nothing acknowledged lost, and work goes on once there is
//! space.
//!
//! Where the test may mount, the disk is a small memory file system; elsewhere it is a limit on the
//! size of files.

use std::env;
use std::path::Path;
use std::process::Command;

use crate::support::{ONE_PARTITION, at, noise_batch, this_test};
use tidegate_log::{EmbeddedLog, EmbeddedOptions, EventLog, LogError};
use tidegate_testing::conformance::read_all;

const PHASE: &str = "TIDEGATE_FULL_DISK_PHASE";
const DIR: &str = "TIDEGATE_FULL_DISK_DIR";
const TABLE_BYTES: &str = "TIDEGATE_FULL_DISK_TABLE_BYTES";
const ACKNOWLEDGED: &str = "TIDEGATE_FULL_DISK_ACKNOWLEDGED";
const RECORD_BYTES: usize = 40_000;

const SMALL_DISK: &str = r#"
set -e
mount -t tmpfs -o size=12m tmpfs "$TIDEGATE_FULL_DISK_DIR"
head -c 4000000 /dev/zero > "$TIDEGATE_FULL_DISK_DIR/ballast"
export TIDEGATE_FULL_DISK_ACKNOWLEDGED=$(
    TIDEGATE_FULL_DISK_PHASE=fill "$@" | tee /dev/stderr | sed -n 's/^acknowledged //p')
rm "$TIDEGATE_FULL_DISK_DIR/ballast"
TIDEGATE_FULL_DISK_PHASE=check "$@"
"#;

/// A little over the 64 MiB that the store sets aside for a journal at once.
const SMALL_FILES: &str = r#"
set -e
export TIDEGATE_FULL_DISK_ACKNOWLEDGED=$(trap '' XFSZ; ulimit -S -f 131200
    TIDEGATE_FULL_DISK_PHASE=fill "$@" | tee /dev/stderr | sed -n 's/^acknowledged //p')
TIDEGATE_FULL_DISK_PHASE=check "$@"
"#;

#[test]
fn a_full_disk_loses_nothing_acknowledged() {
    on_a_small_disk("a_full_disk_loses_nothing_acknowledged", EmbeddedOptions::default().memory_table_bytes);
}

/// Here tables are written in the background all the time, and run out of space as likely as the
/// journal.
#[test]
fn a_disk_filled_by_background_writes_loses_nothing_acknowledged() {
    on_a_small_disk("a_disk_filled_by_background_writes_loses_nothing_acknowledged", 256 << 10);
}

fn on_a_small_disk(test: &str, memory_table_bytes: u64) {
    match env::var(PHASE).as_deref() {
        Ok("fill") => return fill(),
        Ok(_) => return check(),
        Err(_) => {}
    }
    let dir = tempfile::tempdir().unwrap();
    let mount =
        Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "tmpfs"]).arg(dir.path()).output();
    // A limit on files stops the journal alone, and only if no table is written that would let it
    // start over.
    let (shell, script, table_bytes) = match mount.is_ok_and(|mount| mount.status.success()) {
        true => (&["unshare", "-m", "sh"][..], SMALL_DISK, memory_table_bytes),
        false => (&["sh"][..], SMALL_FILES, 1 << 30),
    };
    let this = this_test(&format!("full_disk::{test}"));
    let mut command = Command::new(shell[0]);
    command.args(&shell[1..]).args(["-c", script, "sh"]).arg(this.get_program()).args(this.get_args());
    let output = command.env(DIR, dir.path()).env(TABLE_BYTES, table_bytes.to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("test result: ok. 1 passed").count(), 2, "{said}");
}

fn open() -> Result<EmbeddedLog, LogError> {
    let memory_table_bytes = env::var(TABLE_BYTES).unwrap().parse().unwrap();
    let options = EmbeddedOptions { memory_table_bytes, ..Default::default() };
    EmbeddedLog::open(Path::new(&env::var(DIR).unwrap()).join("log"), options)
}

/// Appends until there is no space, then prints how far it got.
fn fill() {
    let log = open().unwrap();
    log.create_topic("t", ONE_PARTITION).unwrap();
    let mut seq = 0;
    let refused = loop {
        match log.append(&at("t", 0), noise_batch(1, seq, 1, RECORD_BYTES)) {
            Ok(_) => seq += 1,
            Err(refused) => break refused,
        }
        assert!(seq < 10_000, "the disk never filled up");
    };
    assert!(matches!(refused, LogError::Full { .. }), "{refused:?}");
    assert!(seq > 10, "it was full from the beginning");
    let next = log.append(&at("t", 0), noise_batch(1, seq, 1, 1));
    assert!(matches!(next, Err(LogError::Full { .. })), "a log that failed to write goes on: {next:?}");
    assert_eq!(read_all(&log, &at("t", 0)).len() as u64, seq, "what was acknowledged stays readable");
    drop(log);
    match open() {
        Ok(log) => assert!(log.extent(&at("t", 0)).unwrap().end >= seq),
        Err(full) => assert!(matches!(full, LogError::Full { .. }), "opening on a full disk: {full:?}"),
    }
    println!("\nacknowledged {seq}");
}

/// With space again, everything is there and the log takes more.
fn check() {
    let acknowledged: u64 = env::var(ACKNOWLEDGED).unwrap().parse().unwrap();
    let log = open().unwrap();
    let found = read_all(&log, &at("t", 0));
    assert!(found.len() as u64 >= acknowledged, "{} of {acknowledged} acknowledged records", found.len());
    log.verify().unwrap();
    let again = log.append(&at("t", 0), noise_batch(1, 0, found.len() as u64 + 1, 10)).unwrap();
    assert_eq!((again.written, again.duplicates), (1, found.len() as u64));
}
