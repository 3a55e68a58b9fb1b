//! `tidegate bench year` and `bench live`, in small.

use std::path::Path;

use serde_json::Value;

use crate::program::{Ended, run, tidegate};

const SMALL: [&str; 14] = [
    "--gpus",
    "100",
    "--jobs-per-day",
    "20",
    "--watched-hours",
    "1",
    "--uptime-minutes",
    "0",
    "--live-minutes",
    "1",
    "--repeat",
    "1",
    "--no-signals",
    "--json",
];

fn year(more: &[&str], data: &Path) -> Ended {
    run(tidegate().args(["bench", "year"]).args(SMALL).args(more).arg("--data").arg(data))
}

/// Values of a figure, one a day.
fn figure(report: &Value, name: &str) -> Vec<f64> {
    let figures = report["figures"].as_array().unwrap();
    let found = figures.iter().find(|figure| figure["name"] == name);
    let found = found.unwrap_or_else(|| panic!("no figure {name} in {figures:?}"));
    found["values"].as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn a_minute_on_day_30_commits_and_writes_what_one_on_day_1_does() {
    let data = tempfile::tempdir().unwrap();
    let ended = year(&["--days", "1,30"], data.path());
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    // Nodes have eight GPUs, so 100 are 104; each sends a sample a second.
    for (day, length) in report["days"].as_array().unwrap().iter().zip([1, 30]) {
        assert_eq!(day["day"], length);
        assert_eq!(day["live"]["samples"], 104 * 60);
        assert!(day["made"]["events"].as_u64().unwrap() > length * 1_440, "{day}");
        assert_eq!(day["asked"]["questions"].as_array().unwrap().len(), 11);
    }
    for name in ["commits a minute", "written a minute", "disk: Delta logs"] {
        let values = figure(&report, name);
        assert!(values[0] > 0.0 && values[1] <= 1.2 * values[0], "{name}: {values:?}");
    }

    // The sites are still there, and go on.
    let again = year(&["--days", "1"], data.path());
    assert_eq!(again.status, Some(0), "{}", again.stderr);
    let again: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(
        (&again["days"][0]["made"], &again["days"][0]["live"]["samples"]),
        (&Value::Null, &(104 * 60).into())
    );
    let other = year(&["--days", "1", "--seed", "2"], data.path());
    assert!(other.status == Some(1) && other.stderr.contains("choose another --data"), "{}", other.stderr);
}

#[test]
fn a_site_that_was_not_finished_is_neither_used_nor_removed() {
    let data = tempfile::tempdir().unwrap();
    let left = data.path().join("day-1/data");
    std::fs::create_dir_all(&left).unwrap();
    let ended = year(&["--days", "1"], data.path());
    assert!(ended.status == Some(1) && ended.stderr.contains("was not finished"), "{}", ended.stderr);
    assert!(left.exists());
}

#[test]
fn the_largest_fleet_that_fits_on_a_core_is_found_and_its_cost_is_told() {
    let ended =
        run(tidegate().args(["bench", "live", "--from", "16", "--most", "16", "--minutes", "1", "--json"]));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let report: Value = serde_json::from_str(&ended.stdout).unwrap();
    let [trial] = &report["trials"].as_array().unwrap()[..] else { panic!("{report}") };
    assert_eq!(trial["gpus"], 16);
    assert!(trial["load"].as_f64().unwrap() > 0.0 && trial["bytes_per_sample"].as_f64().unwrap() > 1.0);
    let wrong = run(tidegate().args(["bench", "live", "--from", "1000", "--most", "100"]));
    assert!(wrong.stderr.contains("--from 1000 is more than --most 100"), "{}", wrong.stderr);
}
