//! Backtests on the site's own log: the bundled Philly history, imported.

use serde_json::Value;
use tidegate_server::rehearsal::Rehearsal;

use crate::kafka::{TRACE, trace};
use crate::program::{Place, query, run, succeed, tidegate};

const FROM: &str = "2017-10-09";
const TO: &str = "2017-10-16";
const SERVES: &str = "ee9e8c";

fn backtest(place: &Place, more: &[&str]) -> std::process::Command {
    let mut command = tidegate();
    command.args(["backtest", "--data"]).arg(place.data()).args(more);
    command
}

fn number(place: &Place, sql: &str) -> f64 {
    let said = query(&place.data(), sql);
    said.lines().nth(1).unwrap().parse().unwrap()
}

/// A rehearsal of two days: each owner of the period has a row, and the jobs are those of the log.
fn rehearsed(place: &Place) {
    let rehearse = |more: &[&str]| {
        let mut command = tidegate();
        command.args(["autopilot", "rehearse", "--to", TO, "--from", "2017-10-14", "--seeds", "0..2"]);
        command.arg("--data").arg(place.data()).args(more);
        command
    };
    let said = run(&mut rehearse(&["--policy", "auto", "--json", "--longer-at-most", "100000"]));
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    let report: Value = serde_json::from_str(&said.stdout).unwrap();
    let (today, rehearsed) = (&report["today"], &report["rehearsed"]);
    let jobs = |row: &Value| -> f64 {
        row["teams"].as_array().unwrap().iter().map(|team| team["jobs"].as_f64().unwrap()).sum()
    };
    assert_eq!(jobs(today), report["about"]["job_rows"]["used"].as_f64().unwrap());
    assert_eq!(jobs(rehearsed), jobs(today));
    assert!(today["teams"].as_array().unwrap().iter().all(|team| team["longer_hours"]["value"] == 0.0));
    let table = run(&mut rehearse(&["--policy", "auto", "--reports", "none"]));
    for part in ["simulated as today: ", "acts: ", "owner", "waited longer"] {
        assert!(table.stdout.contains(part), "{part} is not in:\n{}", table.stdout);
    }
    let kept = Rehearsal::read(&Rehearsal::file(&place.data())).unwrap().unwrap();
    assert_eq!((kept.policy.as_str(), kept.reports.as_str(), kept.seeds), ("auto", "none", 2));
    assert_eq!((kept.from.as_str(), kept.owners.is_empty()), ("2017-10-14T00:00:00Z", false));
    run(&mut rehearse(&["--policy", "nope"])).refused(&["there is no policy nope", "default, auto"]);
    run(&mut rehearse(&["--policy", "default"])).refused(&["lets nothing act", "--act lend"]);
    let unknown = run(&mut rehearse(&["--policy", "auto", "--act", "dance"]));
    assert!(unknown.stderr.contains("say one of resize_job"), "{}", unknown.stderr);
}

#[test]
fn a_backtest_on_the_log_has_the_jobs_of_its_tables() {
    let place = Place::new();
    assert_eq!(place.import(trace(), TRACE).status, Some(0));
    let json = |more: &[&str]| {
        let mut command = backtest(&place, &["--from", FROM, "--to", TO, "--seeds", "0..2", "--json"]);
        let report: Value = serde_json::from_str(&succeed(command.args(more))).unwrap();
        report
    };
    let report = json(&["--policy", "static", "--policy", "backfill", "--train", "36"]);
    let about = &report["about"];
    let rows = about["job_rows"].as_object().unwrap();
    let counted: i64 = rows.values().map(|rows| rows.as_i64().unwrap()).sum();
    let within = format!("submit_time < '{TO}' AND coalesce(end_time, as_of) > '{FROM}'");
    let jobs = number(&place, &format!("SELECT count(*) AS n FROM jobs WHERE {within}"));
    assert_eq!(counted as f64, jobs, "{about}");
    let held = format!("window_start >= '{FROM}' AND window_start < '{TO}'");
    let held = number(&place, &format!("SELECT sum(gpu_ms_held) AS n FROM usage_1h WHERE {held}")) / 3.6e6;
    let recorded = about["recorded"]["held_gpu_hours"].as_f64().unwrap();
    assert!((recorded - held).abs() < 0.01, "{recorded} {held}");
    let ran = format!("{within} AND start_time < '{FROM}'");
    let ran = number(&place, &format!("SELECT count(*) AS n FROM jobs WHERE {ran}"));
    assert!(ran > 0.0 && about["ran_before"].as_f64() <= Some(ran) && about["open"] == 0, "{about}");
    let policies = report["rows"].as_array().unwrap();
    for row in policies {
        assert_eq!(row["runs"][0]["at_end"]["jobs"], rows["used"], "{row}");
    }
    // Backfill reduces waits.
    let queued = |row: &Value| row["values"][0]["value"].as_f64().unwrap();
    assert!(queued(&policies[1]) < queued(&policies[0]), "{} {}", queued(&policies[0]), queued(&policies[1]));

    // One pool serves: its held GPUs are demand, and others may borrow the rest.
    let report = json(&[
        "--policy", "static", "--policy", "lender", "--serves", SERVES, "--price", "2", "--train", "18",
    ]);
    let service = &report["about"]["services"][0];
    assert_eq!((service["pool"].as_str(), service["demand_from"].as_str()), (Some(SERVES), Some("jobs")));
    // The log has no nodes: as many as the peak needed.
    let peak = service["peak_gpus"].as_u64().unwrap();
    assert!(peak > 0 && service["nodes_from"] == "peak" && service["nodes"] == peak.div_ceil(8), "{service}");
    let its = number(&place, &format!("SELECT count(*) AS n FROM jobs WHERE {within} AND pool = '{SERVES}'"));
    let counted = |report: &Value| -> i64 {
        let rows = report["about"]["job_rows"].as_object().unwrap();
        rows.values().map(|rows| rows.as_i64().unwrap()).sum()
    };
    assert_eq!(counted(&report) as f64, jobs - its);
    let policies = report["rows"].as_array().unwrap();
    assert!(policies[0]["values"] != policies[1]["values"] && policies[1]["values"][13] != Value::Null);
    let table = succeed(&mut backtest(
        &place,
        &["--from", FROM, "--to", TO, "--seeds", "0..1", "--policy", "static"],
    ));
    assert!(table.contains("the log knows no nodes") && table.contains("recorded: "), "{table}");

    rehearsed(&place);

    let refused = |more: &[&str], words: &[&str]| run(&mut backtest(&place, more)).refused(words);
    refused(&["--serves", SERVES], &["add --from TIME"]);
    refused(
        &["--from", "2030-01-01"],
        &["no job was submitted", "the log knows jobs of philly from 2017-09-04T10:30:41Z"],
    );
    refused(&["--from", FROM, "--to", "2020-01-01"], &["behind the end of the log"]);
    refused(&["--from", FROM, "--cluster", "mars"], &["no job of cluster mars", "philly"]);
    refused(&["--from", FROM, "--serves", "nonesuch"], &["nonesuch", "neither jobs nor samples"]);
    refused(&["--from", "yesterday"], &["--from", "yesterday"]);
    let both = run(&mut backtest(&place, &["--from", FROM, "--trace", "ms_itp_jobs"]));
    assert!(both.status != Some(0) && both.stderr.contains("cannot be used with"), "{}", both.stderr);
    run(&mut backtest(&Place::new(), &["--from", FROM])).refused(&["data"]);
}
