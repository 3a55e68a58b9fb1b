//! A viewer of one team sees nothing of another one, in any table, view, message or plan.

use std::collections::BTreeSet;

use tidegate_server::rehearsal::{OwnerChange, Rehearsal, WholeChange};

use crate::access::Site;
use crate::program::{HEADER, import, run};

/// In everything that the other team's jobs are called.
const OTHER: &str = "zebra";

fn jobs() -> String {
    let row = |job: &str, team: &str, hour: u32| {
        format!(
            "{job},{team},8,2024-03-01T00:00:00Z,2024-03-01T0{hour}:00:00Z,2024-03-01T0{}:00:00Z,COMPLETED\n",
            hour + 1
        )
    };
    let own = (1..=3).map(|job| row(&job.to_string(), "vision", job));
    let other = (1..=6).map(|job| row(&format!("{OTHER}-{job}"), OTHER, job));
    HEADER.to_owned() + &own.chain(other).collect::<String>()
}

#[test]
fn rows_of_other_teams_are_not_there() {
    let mut site = Site::new();
    let file = site.file().with_file_name("jobs.csv");
    std::fs::write(&file, jobs()).unwrap();
    let imported = run(&mut import(&file, "jobs_csv", &site.data()));
    assert_eq!(imported.status, Some(0), "{}", imported.stderr);
    site.token("whole", &["--role", "viewer"]);
    site.token("vision", &["--role", "viewer", "--team", "vision"]);
    site.token("both", &["--role", "viewer", "--team", "vision", "--team", OTHER]);
    site.start();

    let names = |id: &str| -> BTreeSet<String> {
        let tables = site.get(id, "/v1/tables").json();
        let name = |table: &serde_json::Value| table["name"].as_str().unwrap().to_owned();
        tables["tables"].as_array().unwrap().iter().map(name).collect()
    };
    let (whole, own) = (names("whole"), names("vision"));
    assert!(own.contains("jobs") && own.contains("pending") && own.len() >= 25, "{own:?}");
    assert!(own.is_subset(&whole) && !own.contains("occupancy_facts") && !own.contains("nodes"), "{own:?}");
    let mut telling = 0;
    for table in &whole {
        let sql = format!("SELECT * FROM {table}");
        let (all, cut, both) = (site.sql("whole", &sql), site.sql("vision", &sql), site.sql("both", &sql));
        telling += usize::from(all.text().contains(OTHER));
        assert!(!cut.text().contains(OTHER), "{table}: {}", cut.text());
        let expected = if own.contains(table) { 200 } else { 400 };
        assert_eq!(cut.status, expected, "{table}: {}", cut.text());
        assert_eq!(all.status, 200, "{table}: {}", all.text());
        if own.contains(table) {
            assert_eq!(both.status, 200, "{table}: {}", both.text());
            assert_eq!(both.text().contains(OTHER), all.text().contains(OTHER), "{table}");
        }
    }
    assert!(telling >= 10, "only {telling} tables tell of the other team at all");

    let ask = |sql: &str| site.sql("vision", sql);
    assert_eq!(ask("SELECT count(*) AS n, sum(gpu_ms_held) / 3600000 AS h FROM jobs").text(), "n,h\n3,24\n");
    assert_eq!(ask("SELECT team, count(*) AS n FROM jobs GROUP BY team").text(), "team,n\nvision,3\n");
    // A cast that fails on a row tells its value: conditions must not reach rows of others.
    for sql in [
        "SELECT count(*) AS n FROM jobs WHERE CAST(job_id AS BIGINT) > 0",
        "SELECT count(CAST(job_id AS BIGINT)) AS n FROM jobs WHERE gpu_ms_held > 0",
        "SELECT count(*) AS n FROM jobs a JOIN jobs b ON CAST(a.job_id AS BIGINT) = CAST(b.job_id AS BIGINT)",
        "SELECT count(*) AS n FROM (SELECT * FROM jobs LIMIT 100) WHERE job_id = '2' OR CAST(job_id AS INT) <> 2",
    ] {
        assert_eq!(ask(sql).text(), "n\n3\n", "{sql}");
    }
    let (_, _, said) =
        site.sql("whole", "SELECT count(*) FROM jobs WHERE CAST(job_id AS BIGINT) > 0").refusal();
    assert!(said.contains(OTHER), "the message of a cast names the value: {said}");
    for sql in [
        "EXPLAIN SELECT * FROM jobs",
        "EXPLAIN ANALYZE SELECT * FROM jobs",
        "EXPLAIN VERBOSE SELECT * FROM jobs",
    ] {
        let explained = ask(sql).text().to_owned();
        assert!(explained.contains("TeamBarrier"), "{explained}");
        for word in [OTHER, "parquet", "output_rows=9"] {
            assert!(!explained.contains(word), "{sql} tells {word}: {explained}");
        }
    }
    let (status, _, said) = ask("SELECT * FROM node_states").refusal();
    assert!(status == 400 && !said.contains("node_holds"), "{said}");
    assert_eq!(
        ask("SELECT count(*) AS n FROM information_schema.tables WHERE table_name = 'nodes'").text(),
        "n\n0\n"
    );
    let owner = |name: &str| OwnerChange { owner: name.to_owned(), jobs: 3.0, ..OwnerChange::default() };
    let rehearsal = Rehearsal {
        policy: "auto".to_owned(),
        owners: vec![owner("vision"), owner(OTHER)],
        whole: Some(WholeChange { unmet_minutes: 7.5 }),
        ..Rehearsal::default()
    };
    let last = |id: &str| site.get(id, "/v1/autopilot/rehearsal");
    assert_eq!(last("vision").json()["rehearsal"], serde_json::Value::Null);
    rehearsal.save(&Rehearsal::file(&site.data())).unwrap();
    let (all, cut) = (last("whole"), last("vision"));
    assert!(all.text().contains(OTHER) && all.text().contains("7.5"), "{}", all.text());
    assert!(cut.text().contains("vision") && cut.text().contains("auto"), "{}", cut.text());
    assert!(!cut.text().contains(OTHER) && !cut.text().contains("7.5"), "{}", cut.text());
    for path in ["/metrics", "/metrics/cluster", "/metrics/gpus", "/v1/status"] {
        assert_eq!(site.get("vision", path).status, 403, "{path}");
    }
}
