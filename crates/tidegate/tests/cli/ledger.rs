//! `tidegate bench ledger`, in small.

use std::collections::BTreeSet;

use crate::program::{run, tidegate};

#[test]
fn a_day_is_told_and_the_tables_have_it() {
    let ended = run(tidegate().args(["bench", "ledger", "--hours", "1", "--nodes", "3", "--json"]).args([
        "--late",
        "20000",
        "--duplicate",
        "20000",
        "--missing",
        "5000",
    ]));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(
        checks.len() >= 15 && checks.iter().all(|check| check["expected"] == check["found"]),
        "{checks:?}"
    );
    let number = |name: &str| report[name].as_i64().unwrap();
    assert!(number("samples") > 100_000 && number("step_reports") > 5_000, "{report}");
    for damaged in ["late_batches", "duplicate_batches", "missing_batches"] {
        assert!(number(damaged) > 0, "{damaged}");
    }
    let classes = report["classes"].as_array().unwrap();
    let truth = |class: &serde_json::Value| class["truth_ms"].as_i64().unwrap();
    assert!(classes.len() == 20 && classes.iter().all(|class| truth(class) > 0), "{classes:?}");
    // Each class is rounded to full ms.
    let sum: i64 = classes.iter().map(truth).sum();
    assert!((sum - number("paid_ms")).abs() <= 20, "{sum}");
}

#[test]
fn the_day_goes_to_a_folder() {
    let ended = run(tidegate().args(["bench", "ledger", "--log", "kafka://127.0.0.1:1", "--json"]));
    assert_eq!(ended.status, Some(1));
    assert!(ended.stderr.contains("leave out --log"), "{}", ended.stderr);
}

/// The command fails if a table differs by more than its tolerance.
#[test]
fn tables_answer_every_question_with_the_truth() {
    let ended =
        run(tidegate().args(["bench", "ledger", "--hours", "1", "--late", "20000", "--duplicate", "20000"]));
    assert_eq!(ended.status, Some(0), "{}", ended.stderr);
    let report: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
    let facts = report["facts"].as_array().unwrap();
    let items: BTreeSet<&str> = facts.iter().map(|fact| fact["item"].as_str().unwrap()).collect();
    let asked = ["activity", "cost", "energy", "goodput", "mfu", "pending", "placement", "sharing", "wall"];
    assert_eq!(items, asked.into());
    for fact in facts {
        assert!(fact["expected"].as_i64().unwrap() > 0, "nothing of it in the day: {fact}");
    }
    assert!(facts.len() > 40 && report["closed"] == true, "{report}");
}
