//! A record that a reader dies of twice and then alone is set aside, and the rest goes on.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tidegate_events::Event;
use tidegate_events::v1::{Envelope, JobEvent, JobEventKind};

use crate::case_data::tables_of;
use crate::program::{query, run, succeed, tidegate, wait_until};

const DAY: i64 = 1_709_251_200_000;

/// Jobs `a`, `poison` and `z`, in this order.
fn jobs() -> Vec<Event> {
    let job = |(number, id): (i64, &str)| {
        Event::Job(JobEvent {
            envelope: Some(Envelope {
                cluster: "c".into(),
                event_time_ms: DAY + number * 60_000,
                observed_time_ms: DAY + number * 60_000,
                ..Envelope::default()
            }),
            kind: JobEventKind::Started.into(),
            job_id: id.into(),
            attempt_id: Some(0),
            gpus_milli: Some(1000),
            ..JobEvent::default()
        })
    };
    (0..).zip(["a", "poison", "z"]).map(job).collect()
}

/// `tidegate up` that dies of the job `poison`, until it has committed or is dead.
fn up(data: &Path, dies: &str) -> Child {
    let mut child = tidegate()
        .args(["up", "--listen", "127.0.0.1:0", "--ingest", "--data"])
        .arg(data)
        .env("TIDEGATE_TEST_POISON", dies)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    std::thread::spawn(move || {
        let mut line = String::new();
        while stdout.read_line(&mut line).is_ok_and(|read| read > 0) {}
    });
    child
}

/// What the readers skip, by `tidegate status`.
fn skipped(data: &Path) -> serde_json::Value {
    let status = succeed(tidegate().args(["status", "--json", "--data"]).arg(data));
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    status["skipped"].clone()
}

#[test]
fn tables_go_on_without_a_record_that_aborts_them() {
    let folder = tempfile::tempdir().unwrap();
    // An empty log with tables; then the jobs, by a program that does not die of them.
    let data = tables_of(folder.path(), Vec::new());
    append(&data);
    let run_tables = || {
        let mut command = tidegate();
        command.args(["pipeline", "run", "--data"]).arg(&data);
        run(command.env("TIDEGATE_TEST_POISON", "tables:abort:c/poison"))
    };
    // Once without a note of records, twice with one, and once with nothing but the record.
    for _ in 0..4 {
        assert_ne!(run_tables().status, Some(0), "it aborts");
    }
    assert_eq!(run_tables().status, Some(0));
    assert_eq!(query(&data, "SELECT job_id FROM jobs ORDER BY 1"), "job_id\na\nz\n");
    let letter = "SELECT origin, partition, \"offset\", code FROM dead_letters";
    assert_eq!(query(&data, letter), "origin,partition,offset,code\njobs,0,1,POISON\n");
    let skipped = skipped(&data);
    assert_eq!((&skipped[0]["reader"], &skipped[0]["offset"]), (&"tables".into(), &1.into()), "{skipped}");
    assert_eq!(run_tables().status, Some(0), "for good");
}

#[test]
fn a_record_at_which_the_process_was_killed_twice_is_tried_alone_and_kept() {
    let folder = tempfile::tempdir().unwrap();
    let data = tables_of(folder.path(), Vec::new());
    append(&data);
    // The first death, wherever it is, makes the next lives note each record; then twice at one.
    for noted in ["work", "\"from\":1", "\"from\":1"] {
        let mut command = tidegate();
        command.args(["pipeline", "run", "--data"]).arg(&data);
        let mut child = command
            .env("TIDEGATE_TEST_POISON", "tables:hang:c/poison")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        wait_until("it hangs", || is_at(&data, child.id(), noted));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    succeed(tidegate().args(["pipeline", "run", "--data"]).arg(&data));
    assert_eq!(query(&data, "SELECT job_id FROM jobs ORDER BY 1"), "job_id\na\npoison\nz\n");
    assert_eq!(query(&data, "SELECT count(*) AS letters FROM dead_letters"), "letters\n0\n");
    assert_eq!(skipped(&data), serde_json::json!([]));
}

/// Whether the tables' note is of this process and this place.
fn is_at(data: &Path, process: u32, place: &str) -> bool {
    let note = std::fs::read_to_string(data.join("deaths/tables.at")).unwrap_or_default();
    note.contains(&format!("\"process\":{process},")) && note.contains(place)
}

fn append(data: &Path) {
    use tidegate_log::{
        Batch, EmbeddedLog, EmbeddedOptions, EventLog, Producer, TopicConfig, TopicPartition,
    };
    let log = EmbeddedLog::open(data.join("log"), EmbeddedOptions::default()).unwrap();
    log.create_topic("jobs", TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None }).ok();
    let records = jobs().into_iter().map(|mut job| job.record().unwrap().into()).collect();
    let at = TopicPartition { topic: "jobs".into(), partition: 0 };
    let producer = Producer { source: "test".into(), epoch: 1 };
    log.append(&at, Batch { producer, first_seq: 0, records }).unwrap();
}

#[test]
fn signals_go_on_without_a_record_that_aborts_the_process_or_panics() {
    for how in ["abort", "panic"] {
        let folder = tempfile::tempdir().unwrap();
        let data = tables_of(folder.path(), jobs());
        let dies = format!("signals:{how}:c/poison");
        let mut lives = 0;
        let mut child = loop {
            lives += 1;
            assert!(lives < 7, "{how}: it dies each time");
            let mut child = up(&data, &dies);
            let mut ended = false;
            wait_until("it dies, or skips the record", || {
                ended = child.try_wait().unwrap().is_some();
                ended || skips(&data)
            });
            if !ended {
                break child;
            }
        };
        // A panic ends no process: the thread begins again at its snapshot.
        assert_eq!(lives, if how == "abort" { 5 } else { 1 }, "{how}");
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).unwrap();
        assert!(child.wait().unwrap().success());
        let skipped = skipped(&data);
        assert_eq!(skipped[0]["reader"], "signals", "{skipped}");
        assert_eq!((&skipped[0]["topic"], &skipped[0]["offset"]), (&"jobs".into(), &1.into()), "{skipped}");
        let letters = "SELECT origin, \"offset\" FROM dead_letters WHERE code = 'POISON'";
        succeed(tidegate().args(["pipeline", "run", "--data"]).arg(&data));
        assert_eq!(query(&data, letters), "origin,offset\njobs,1\n");
        // The tables have the job: they did not die of it.
        assert_eq!(query(&data, "SELECT count(*) AS jobs FROM jobs"), "jobs\n3\n");
    }
}

/// Whether the signals have skipped a record since the last death.
fn skips(data: &Path) -> bool {
    let text = std::fs::read_to_string(data.join("deaths/signals.json")).unwrap_or_default();
    let deaths: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    deaths["set_aside"][0]["skipped"].is_array()
}
