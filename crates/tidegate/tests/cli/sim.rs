//! Backtests and soaks of the autopilot, and its policies.

use std::fs;

use crate::program::{run, succeed, tidegate};

#[test]
fn a_short_soak_violates_nothing() {
    let said = succeed(tidegate().args(["sim", "soak", "--seeds", "0..4", "--json"]));
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(report["violations"], serde_json::json!({}), "{report}");
    assert!(report["days"].as_i64().unwrap() > 10 && report["effects"].as_i64().unwrap() > 0, "{report}");
    assert!(report["faults"].as_object().unwrap().len() > 5, "{report}");
}

#[test]
fn a_backtest_is_the_same_twice_and_knows_who_waits_less() {
    let backtest = || {
        let mut command = tidegate();
        command.args(["backtest", "--seeds", "0..2", "--days", "2", "--json"]);
        for policy in ["static", "backfill", "clairvoyant"] {
            command.args(["--policy", policy]);
        }
        succeed(&mut command)
    };
    let said = backtest();
    assert_eq!(said, backtest());
    let report: serde_json::Value = serde_json::from_str(&said).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let queued = |row: &serde_json::Value| row["values"][0]["value"].as_f64().unwrap();
    assert!(
        rows.len() == 3 && queued(&rows[2]) < queued(&rows[1]) && queued(&rows[1]) < queued(&rows[0]),
        "{said}"
    );
}

#[test]
fn a_backtest_runs_on_the_traces_that_come_along_and_tells_money() {
    let trace = |name: &str| {
        let mut command = tidegate();
        command.args(["backtest", "--trace", name, "--policy", "static", "--policy", "lyra"]);
        command.args(["--seeds", "0..2", "--price", "2.5", "--json"]);
        let report: serde_json::Value = serde_json::from_str(&succeed(&mut command)).unwrap();
        report
    };
    let (philly, itp) = (trace("philly_multigpu_attempts"), trace("ms_itp_jobs"));
    // 3,078 attempts; those of one job count once.
    assert_eq!(philly["about"]["jobs"], "philly_multigpu_attempts");
    let rows: u64 =
        philly["about"]["job_rows"].as_object().unwrap().values().map(|n| n.as_u64().unwrap()).sum();
    assert_eq!(rows, 3_078, "{}", philly["about"]);
    // Of 7,373 jobs 283 are of the ninth week, which is cut short.
    let used = &itp["about"]["job_rows"]["used"];
    assert_eq!(used.as_u64(), Some(7_090), "{}", itp["about"]);
    for report in [&philly, &itp] {
        let row = &report["rows"][0];
        let run = &row["runs"][0]["at_span"];
        let gpu_us = |name: &str| run[name].as_f64().unwrap();
        let answered = gpu_us("used_gpu_us") - gpu_us("allocated_gpu_us");
        let wasted = (gpu_us("paid_gpu_us") - gpu_us("useful_gpu_us") - answered) / 3.6e9 * 2.5;
        let other = &row["runs"][1]["at_span"];
        assert_ne!(run, other, "each seed looks at another window");
        // The mean over two seeds lies between them.
        let interval = row["values"][12].clone();
        let (low, high) = (interval["low"].as_f64().unwrap(), interval["high"].as_f64().unwrap());
        assert!((low - 1.0..=high + 1.0).contains(&wasted), "{wasted} {interval}");
    }
    for (args, says) in [
        (["--trace", "/nowhere"], "no trace and no folder"),
        (["--trace", "."], "servegen_load_10min.parquet"),
        (["--price", "dear"], "a price of an hour"),
        (["--lend-quotas", "--trace=."], "ms_itp_jobs.parquet"),
    ] {
        let refused = run(tidegate().arg("backtest").args(args));
        assert!(refused.status != Some(0) && refused.stderr.contains(says), "{args:?}: {}", refused.stderr);
    }
}

#[test]
fn policies_are_checked_key_by_key() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("site.toml");
    for (text, said) in [
        ("naem = 'x'", "naem is not a key"),
        ("[modes]\nlend = 'act'", "modes.reclaim"),
        ("[modes]\nlend = 'perhaps'", "perhaps"),
    ] {
        fs::write(&file, text).unwrap();
        let refused = run(tidegate().args(["policy", "check"]).arg(&file));
        assert!(refused.status == Some(1) && refused.stderr.contains(said), "{text}: {}", refused.stderr);
    }
    let shipped = succeed(tidegate().args(["policy", "show"]));
    fs::write(&file, shipped).unwrap();
    assert!(succeed(tidegate().args(["policy", "check"]).arg(&file)).contains("can be used"));
    let refused = run(tidegate().args(["backtest", "--policy", "nonesuch"]));
    assert!(refused.stderr.contains("no policy and no file"), "{}", refused.stderr);
}
