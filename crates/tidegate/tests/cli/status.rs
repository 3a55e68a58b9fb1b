//! What `tidegate status` says of the disk, against the folder itself.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::program::{Place, jobs, run, succeed, tidegate};

/// Bytes of the files at or below a path.
fn size(path: &Path) -> u64 {
    match fs::read_dir(path) {
        Ok(entries) => entries.map(|entry| size(&entry.unwrap().path())).sum(),
        Err(_) => fs::metadata(path).unwrap().len(),
    }
}

#[test]
fn status_tells_what_log_and_tables_take_and_what_bounds_them() {
    let place = Place::new();
    assert_eq!(place.import(place.file("jobs.csv", jobs(40)), "jobs_csv").status, Some(0));
    let kept = ["--keep", "usage_1h=400", "--keep-replaced", "3", "--keep-delta-log", "2"];
    succeed(tidegate().args(["pipeline", "run", "--data"]).arg(place.data()).args(kept));
    fs::write(place.data().join("notes.txt"), "a file of somebody else").unwrap();

    let status = succeed(tidegate().args(["status", "--json", "--data"]).arg(place.data()));
    let disk = &serde_json::from_str::<Value>(&status).unwrap()["disk"];
    assert_eq!(disk["bytes"].as_u64(), Some(size(&place.data())));
    assert_eq!(disk["log"]["bytes"].as_u64(), Some(size(&place.data().join("log"))));
    let topics = disk["log"]["topics"].as_array().unwrap();
    let of_jobs = topics.iter().find(|topic| topic["topic"] == "jobs").unwrap();
    assert!(of_jobs["records"].as_u64() >= Some(120), "{of_jobs}");
    let tables = disk["tables"].as_array().unwrap();
    for table in tables {
        let folder = place.data().join("lake").join(table["table"].as_str().unwrap());
        let parts = ["live_bytes", "dead_bytes", "delta_log_bytes"].map(|part| table[part].as_u64().unwrap());
        assert_eq!(parts.iter().sum::<u64>(), size(&folder), "{table}");
    }
    let usage = tables.iter().find(|table| table["table"] == "usage_1h").unwrap();
    assert_eq!(usage["keep_rows"], "400 days");
    assert_eq!((&usage["keep_replaced"], &usage["keep_delta_log"]), (&"3 hours".into(), &"2 hours".into()));
    let others = disk["others"].as_array().unwrap();
    assert!(others.iter().any(|other| other["name"] == "notes.txt" && other["bytes"] == 23), "{others:?}");

    let text = succeed(tidegate().args(["status", "--data"]).arg(place.data()));
    let line = text.lines().find(|line| line.starts_with("usage_1h")).unwrap();
    assert!(line.ends_with("400 days, 3 hours, 2 hours"), "{line}");
    assert!(text.contains("--keep-replaced HOURS"), "{text}");
}

#[test]
fn limits_out_of_range_are_refused() {
    for (flag, value) in [("--keep-replaced", "0"), ("--keep-delta-log", "9000"), ("--commits-per-hour", "1")]
    {
        let ended = run(tidegate().args(["up", "--data", "/nowhere", flag, value]));
        assert_eq!(ended.status, Some(2), "{ended:?}");
        assert!(ended.stderr.contains(flag), "{ended:?}");
    }
}

#[test]
fn status_tells_what_memory_the_signals_take_and_where_the_autopilot_stopped() {
    let place = Place::new();
    assert_eq!(place.import(place.file("jobs.csv", jobs(40)), "jobs_csv").status, Some(0));
    let run = ["insight", "run", "--once", "--signals-memory", "64M", "--data"];
    succeed(tidegate().args(run).arg(place.data()));
    let deaths = place.data().join("deaths");
    fs::create_dir_all(&deaths).unwrap();
    let from = r#"{"records":{"topic":"autopilot","partition":0,"from":7,"to":18446744073709551615}}"#;
    let died = format!(r#"{{"recent":2,"places":[[{from},2]],"set_aside":[]}}"#);
    fs::write(deaths.join("autopilot.json"), died).unwrap();

    let status = succeed(tidegate().args(["status", "--json", "--data"]).arg(place.data()));
    let status = serde_json::from_str::<Value>(&status).unwrap();
    let signals = &status["signals"];
    assert_eq!((&signals["limit_bytes"], &signals["early"]), (&(64 << 20).into(), &0.into()), "{signals}");
    assert!(signals["held_bytes"].as_u64() > Some(0), "{signals}");
    assert_eq!(
        (&status["stopped"][0]["reader"], &status["stopped"][0]["offset"]),
        (&"autopilot".into(), &7.into())
    );

    let text = succeed(tidegate().args(["status", "--data"]).arg(place.data()));
    assert!(text.contains("of 64.00 MiB of memory"), "{text}");
    assert!(text.contains("stopped  autopilot does not act") && text.contains("offset 7"), "{text}");
}
