//! `tidegate bench backlog` and `bench window`, in small.

use crate::program::{run, tidegate};

#[test]
fn a_backlog_is_worked_through_and_counted() {
    let ended = run(tidegate().args(["bench", "backlog", "--samples", "20000", "--nodes", "30", "--json"]));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let measured = &report["measurements"][0];
    assert_eq!((&measured["samples"], &measured["rows"]), (&20_000.into(), &20_000.into()));
    assert!(measured["power_mw"].as_i64().unwrap() > 0 && measured["peak_rss_mib"].as_f64().unwrap() > 10.0);
}

#[test]
fn a_log_of_one_process_is_not_shared() {
    let ended = run(tidegate().args(["bench", "backlog", "--processes", "1,2"]));
    assert_eq!(ended.status, Some(1));
    assert!(ended.stderr.contains("--log kafka://"), "{}", ended.stderr);
}

#[test]
fn a_fleet_with_jobs_becomes_a_ledger_that_is_what_the_fleet_was() {
    let ended = run(tidegate().args(["bench", "window", "--nodes", "5", "--minutes", "3", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    // The bench fails by itself if samples, power or sums of the ledger differ.
    assert_eq!(report["samples"], 5 * 8 * 180);
    assert_eq!(report["ledger_gpu_ms"], 5 * 8 * 180_000);
    assert!(report["ledger_held_ms"].as_i64().unwrap() > 0);
}

#[test]
fn questions_to_a_fleet_have_the_same_answers_from_tables_and_from_samples() {
    let ended =
        run(tidegate().args(["bench", "query", "--nodes", "2", "--hours", "1", "--repeat", "1", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let rows: Vec<i64> =
        report["questions"].as_array().unwrap().iter().map(|q| q["rows"].as_i64().unwrap()).collect();
    assert_eq!(rows.len(), 6);
    assert!(rows.iter().all(|rows| *rows > 0), "{rows:?}");
    assert_eq!((rows[0], rows[3]), (12, 1_800));
    let missing = run(tidegate().args([
        "bench",
        "query",
        "--nodes",
        "1",
        "--hours",
        "1",
        "--beside",
        "/nowhere/python",
    ]));
    assert!(missing.stderr.contains("tests/peers/install.sh"), "{}", missing.stderr);
}
