//! The data folder: one writer, any readers, no newer format.

use std::fs;

use tidegate_log::{DataDir, EmbeddedLog, EmbeddedOptions, LogError};

#[test]
fn a_folder_has_one_writer_and_many_readers() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/data");
    assert!(matches!(DataDir::open_shared(&path), Err(LogError::NotADataDir { .. })));
    let first = DataDir::open(&path).unwrap();
    assert!(first.log().is_dir() && first.lake().is_dir());
    let second = DataDir::open(&path).map(|_| ());
    let holder = std::process::id();
    assert!(
        matches!(second, Err(LogError::AlreadyOpen { pid: Some(pid), .. }) if pid == holder),
        "{second:?}"
    );
    let message = second.unwrap_err().to_string();
    assert!(message.contains(&format!("process {holder}")) && message.contains("new/data"), "{message}");
    DataDir::open_shared(&path).expect("readers need no lock");
    drop(first);
    DataDir::open(&path).expect("the lock ends with its holder");
}

/// After kill -9, a child that was just forked keeps the lock until it calls exec.
#[test]
#[cfg(target_os = "linux")]
fn a_lock_that_outlives_its_holder_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    drop(DataDir::open(dir.path()).unwrap());
    let mut dead = std::process::Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    fs::write(dir.path().join("LOCK"), format!("{}\n", dead.id())).unwrap();
    let inherited = fs::File::open(dir.path().join("LOCK")).unwrap();
    inherited.lock().unwrap();
    let path = dir.path().to_owned();
    let opener = std::thread::spawn(move || DataDir::open(path));
    let lock_file = dir.path().join("LOCK").canonicalize().unwrap();
    let has_it_open = || {
        let files = fs::read_dir("/proc/self/fd").unwrap();
        files
            .filter(|file| fs::read_link(file.as_ref().unwrap().path()).is_ok_and(|to| to == lock_file))
            .count()
            == 2
    };
    while !has_it_open() && !opener.is_finished() {
        std::thread::yield_now();
    }
    drop(inherited);
    opener.join().unwrap().expect("its holder is dead");
}

#[test]
fn a_newer_folder_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(DataDir::open(dir.path()).unwrap());
    fs::write(dir.path().join("FORMAT"), "99\n").unwrap();
    for opened in [DataDir::open(dir.path()), DataDir::open_shared(dir.path())] {
        assert!(matches!(opened, Err(LogError::NewerFormat { found: 99, supported: 1, .. })), "{opened:?}");
    }
    fs::write(dir.path().join("FORMAT"), "one").unwrap();
    assert!(matches!(DataDir::open(dir.path()), Err(LogError::CorruptStore { .. })));
}

#[test]
fn a_log_is_opened_once() {
    let dir = tempfile::tempdir().unwrap();
    let log = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).unwrap();
    let second = EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).map(|_| ());
    assert!(matches!(second, Err(LogError::AlreadyOpen { .. })), "{second:?}");
    drop(log);
    EmbeddedLog::open(dir.path(), EmbeddedOptions::default()).expect("closing it makes room");
}

#[test]
fn a_folder_that_cannot_be_made_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(matches!(DataDir::open(dir.path().join("file/data")), Err(LogError::Io { .. })));
}
