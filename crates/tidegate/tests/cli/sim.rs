//! The autopilot on simulated clusters, and its policies.

use std::fs;

use crate::program::{run, succeed, tidegate};

#[test]
fn a_short_soak_violates_nothing() {
    let said = succeed(tidegate().args(["sim", "soak", "--seeds", "0..6", "--json"]));
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
    let rows: Vec<serde_json::Value> = serde_json::from_str(&said).unwrap();
    let queued = |row: &serde_json::Value| row["values"][0]["value"].as_f64().unwrap();
    assert!(
        rows.len() == 3 && queued(&rows[2]) < queued(&rows[1]) && queued(&rows[1]) < queued(&rows[0]),
        "{said}"
    );
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
