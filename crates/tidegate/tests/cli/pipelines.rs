//! `tidegate pipeline test`, `backfill` and `graph`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{
    GOOD_ROW, HEADER, assert_same_tables, import, query, run, succeed, table_names, tables, tidegate,
};

fn shipped_cases() -> PathBuf {
    PathBuf::from("../../pipelines/tests")
}

fn test(cases: &Path) -> std::process::Command {
    let mut command = tidegate();
    command.env_remove("TIDEGATE_BLESS").args(["pipeline", "test"]).arg(cases);
    command
}

/// Copies a small shipped case and changes its expected rows or its input.
fn altered(folder: &Path, file: &str, from: &str, to: &str) -> PathBuf {
    let case = folder.join(format!("altered-{file}"));
    fs::create_dir(&case).unwrap();
    for entry in fs::read_dir(shipped_cases().join("capacity")).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), case.join(entry.file_name())).unwrap();
    }
    let text = fs::read_to_string(case.join(file)).unwrap();
    assert!(text.contains(from), "{text}");
    fs::write(case.join(file), text.replacen(from, to, 1)).unwrap();
    case
}

/// Runs each case in two ways to save time; in all five with TIDEGATE_LONG=1.
#[test]
fn shipped_cases_hold_in_every_way() {
    let is_long = std::env::var("TIDEGATE_LONG").is_ok_and(|long| long == "1");
    let mut command = test(&shipped_cases());
    if !is_long {
        command.arg("--quick");
    }
    let ended = run(&mut command);
    let output = &ended.stdout;
    assert_eq!(ended.status, Some(0), "{output}{}", ended.stderr);
    let cases: Vec<_> = fs::read_dir(shipped_cases()).unwrap().map(|e| e.unwrap().file_name()).collect();
    let held = |case: &str| {
        let lines = output.lines().filter(|line| line.split_whitespace().next() == Some(case));
        lines.filter(|line| line.ends_with("ok")).count()
    };
    for case in &cases {
        assert_eq!(held(case.to_str().unwrap()), if is_long { 5 } else { 2 }, "{case:?}\n{output}");
    }
    let times = |way: &str| output.lines().filter(|line| line.contains(way)).count();
    assert_eq!(times("all at once"), cases.len());
    for way in ["window by window", "in random pieces", "killed and resumed", "shuffled, with duplicates"] {
        assert!(times(way) >= cases.len() / 4, "{way}\n{output}");
    }
}

#[test]
fn a_wrong_expectation_fails_with_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let case = altered(
        folder.path(),
        "expected.csv",
        "Earth,vcA,QUOTA_SET,,,,96000,,,,,,64000",
        "Earth,vcA,QUOTA_SET,,,,96000,,,,,,64001",
    );
    let ended = run(&mut test(&case));
    assert_eq!(ended.status, Some(1), "{ended:?}");
    assert_eq!(ended.stdout.matches("DIFFERS").count(), 5, "{}", ended.stdout);
    assert!(
        ended.stdout.contains("line 3 expected  Earth,vcA,QUOTA_SET,,,,96000,,,,,,64001,"),
        "{}",
        ended.stdout
    );
    assert!(
        ended.stdout.contains("line 3 is        Earth,vcA,QUOTA_SET,,,,96000,,,,,,64000,"),
        "{}",
        ended.stdout
    );

    succeed(test(&case).arg("--bless"));
    let expected = |case: &Path| fs::read_to_string(case.join("expected.csv")).unwrap();
    assert_eq!(expected(&case), expected(&shipped_cases().join("capacity")));
}

#[test]
fn cases_that_cannot_be_run_say_why() {
    let folder = tempfile::tempdir().unwrap();
    run(&mut test(folder.path())).refused(&["holds no case", "case.toml"]);
    let wrong = [
        ("input.csv", "2020-04-03,96", "2020-04-03,-96", "1 × BAD_NUMBER"),
        ("case.toml", "\"capacity\"", "\"capacities\"", "no pipeline \"capacities\""),
        ("case.toml", "map", "mapping", "unknown field `mapping`"),
    ];
    for (file, from, to, says) in wrong {
        let case = altered(folder.path(), file, from, to);
        run(&mut test(&case)).refused(&["altered", says]);
        fs::remove_dir_all(case).unwrap();
    }
}

#[test]
fn backfill_builds_the_same_tables_and_new_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (file, data) = (folder.path().join("jobs.csv"), folder.path().join("data"));
    fs::write(&file, format!("{HEADER}{GOOD_ROW}")).unwrap();
    succeed(&mut import(&file, "jobs_csv", &data));
    let names = table_names(&data);
    let before = tables(&data, &names);

    // Leftovers of an interrupted run are removed and never taken for tables.
    fs::create_dir(data.join("lake.rebuilt")).unwrap();
    fs::write(data.join("lake.rebuilt/half"), "").unwrap();
    // A table that no longer matches the log is repaired.
    fs::remove_dir_all(data.join("lake/usage_1h")).unwrap();
    let backfill = || {
        let mut command = tidegate();
        command.args(["pipeline", "backfill", "--data"]).arg(&data);
        command
    };
    let shown = succeed(&mut backfill());
    assert!(shown.lines().any(|l| l.split_whitespace().eq(["attempts", "1", "rows"])), "{shown}");
    assert_same_tables(&tables(&data, &names), &before, "after a backfill");
    assert!(!data.join("lake.rebuilt").exists());

    let own = folder.path().join("own");
    fs::create_dir(&own).unwrap();
    let pipeline = "\
--! name = \"held\"
--! doc = \"GPU time by team.\"
--! sources = [\"jobs\"]
--! [columns]
--! team = \"Team.\"
--! gpu_ms = \"GPU x ms.\"
SELECT team, sum(gpu_ms_held) AS gpu_ms FROM jobs GROUP BY team
";
    fs::write(own.join("held.sql"), pipeline).unwrap();
    succeed(backfill().arg("--pipelines").arg(&own));
    let mut asked = tidegate();
    asked.args(["sql", "--format", "csv", "SELECT count(*) AS n FROM held", "--data"]).arg(&data);
    assert_eq!(succeed(asked.arg("--pipelines").arg(&own)), "n\n1\n");

    fs::write(own.join("held.sql"), pipeline.replace("sum(gpu_ms_held)", "now()")).unwrap();
    run(backfill().arg("--pipelines").arg(&own)).refused(&["held.sql"]);
    assert_eq!(query(&data, "SELECT count(*) AS n FROM jobs"), "n\n1\n");
}

#[test]
fn the_graph_is_drawn_in_three_formats() {
    let graph = |arguments: &[&str]| {
        let mut command = tidegate();
        command.args(["pipeline", "graph"]).args(arguments);
        command
    };
    let mermaid = succeed(&mut graph(&["--of", "usage_1h"]));
    assert!(mermaid.starts_with("flowchart LR\n"), "{mermaid}");
    for edge in
        ["t_job_events --> t_job_facts", "t_job_intervals --> t_usage_1h", "t_usage_1h --> t_usage_1d"]
    {
        assert!(mermaid.contains(edge), "{edge}\n{mermaid}");
    }
    assert!(!mermaid.contains("node_events"), "usage_1h does not come from nodes\n{mermaid}");

    let dot = succeed(&mut graph(&["--subject", "cost", "--format", "dot"]));
    assert!(dot.starts_with("digraph pipelines {") && dot.contains("\"prices\" -> \"price_of\";"), "{dot}");
    let svg = succeed(&mut graph(&["--format", "svg"]));
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert_eq!(svg.matches(">attempts</text>").count(), 1);

    run(&mut graph(&["--of", "nothing"])).refused(&["no pipeline \"nothing\"", "tidegate pipeline list"]);
    run(&mut graph(&["--subject", "nothing"])).refused(&["no subject \"nothing\"", "jobs, ledger"]);
}

#[test]
fn a_folder_of_pipelines_may_have_folders() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own");
    let pipeline = |name: &str, sources: &str| {
        format!(
            "--! name = \"{name}\"\n--! doc = \"Jobs.\"\n--! sources = [{sources}]\n--! [columns]\n--! n = \"Number.\"\n\
             SELECT count(*) AS n FROM jobs\n"
        )
    };
    fs::create_dir_all(own.join("site/team")).unwrap();
    fs::write(own.join("site/team/counted.sql"), pipeline("counted", "\"jobs\"")).unwrap();
    let mut drawn = tidegate();
    drawn.args(["pipeline", "graph", "--subject", "team", "--pipelines"]).arg(&own);
    assert!(succeed(&mut drawn).contains("t_jobs --> t_counted"));
    fs::write(own.join("again.sql"), pipeline("counted", "\"jobs\"")).unwrap();
    let mut checked = tidegate();
    checked.args(["pipeline", "check", "--pipelines"]).arg(&own);
    run(&mut checked).refused(&["own/again.sql", "own/site/team/counted.sql", "is taken"]);
}
