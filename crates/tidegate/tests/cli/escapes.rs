//! Names of jobs that a terminal would obey.

use crate::program::{HEADER, Place, run, tidegate};

/// Clears the screen, sets the title, and turns the text after it round.
const JOB: &str = "j\u{1b}[2J\u{1b}]0;root\u{7}";
const TEAM: &str = "red\u{202e}der\u{9b}8m";

fn obeyed(text: &str) -> Option<char> {
    text.chars().find(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}')
}

fn place() -> Place {
    let place = Place::new();
    let row =
        format!("{JOB},{TEAM},1,2024-03-01T00:00:00Z,2024-03-01T01:00:00Z,2024-03-01T02:00:00Z,COMPLETED\n");
    let imported = place.import(place.file("jobs.csv", HEADER.to_owned() + &row), "jobs_csv");
    assert_eq!(imported.status, Some(0), "{}", imported.stderr);
    place
}

#[test]
fn what_people_read_is_escaped_and_what_programs_read_is_not() {
    let place = place();
    let sql = |format: &str| {
        let asked = ["sql", "--format", format, "SELECT job_id, team FROM jobs", "--data"];
        run(tidegate().args(asked).arg(place.data())).stdout
    };
    let drawn = sql("table");
    assert_eq!(obeyed(&drawn), None, "{drawn:?}");
    assert!(drawn.contains(r"j\u{1b}[2J\u{1b}]0;root\u{7}"), "{drawn}");
    assert!(drawn.contains(r"red\u{202e}der\u{9b}8m"), "{drawn}");
    let rows: serde_json::Value = serde_json::from_str(&sql("json")).unwrap();
    assert_eq!(rows, serde_json::json!([{"job_id": JOB, "team": TEAM}]));
    assert_eq!(sql("csv"), format!("job_id,team\n{JOB},{TEAM}\n"));

    for command in
        [&["explain", "job", JOB][..], &["status"], &["log", "topics"], &["sql", "SELECT nothing FROM jobs"]]
    {
        let ended = run(tidegate().args(command).arg("--data").arg(place.data()));
        for text in [&ended.stdout, &ended.stderr] {
            assert_eq!(obeyed(text), None, "{command:?}: {text:?}");
        }
    }
    let explained = run(tidegate().args(["explain", "job", JOB, "--data"]).arg(place.data()));
    assert!(explained.stdout.contains(r"\u{1b}[2J"), "{}{}", explained.stdout, explained.stderr);
}

#[test]
fn a_line_break_in_a_cell_makes_no_row() {
    let place = place();
    let forged = "SELECT 'a |\n| b' AS job";
    let drawn = run(tidegate().args(["sql", forged, "--data"]).arg(place.data())).stdout;
    assert!(drawn.contains(r"| a |\n| b |") && drawn.lines().count() == 5, "{drawn}");
    let plan = run(tidegate().args(["sql", "EXPLAIN SELECT * FROM jobs", "--data"]).arg(place.data())).stdout;
    assert!(!plan.contains(r"\n"), "{plan}");
}
