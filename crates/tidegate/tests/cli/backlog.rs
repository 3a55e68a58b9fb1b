//! The bench that works through a log full of samples, in small.

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
