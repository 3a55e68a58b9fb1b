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
