//! What people do is on the log before it is done, with who did it, and only administrators read
//! it.

use std::process::Command;

use tidegate_events::Event;
use tidegate_events::v1::{CapacityEvent, CapacityEventKind, Envelope};

use crate::access::Site;
use crate::program::{query, run, succeed, tidegate, wait_until};
use crate::support::Response;

/// A site with an administrator, an operator and a viewer of one team.
fn site() -> Site {
    let mut site = Site::new();
    site.token("ada", &["--role", "administrator"]);
    site.token("ben", &["--role", "operator"]);
    site.token("ann", &["--role", "viewer", "--team", "vision"]);
    site
}

/// What an administrator finds, once it has so many rows.
fn found(site: &Site, sql: &str, rows: usize) -> String {
    let mut found = String::new();
    wait_until("the records in the table", || {
        let answer = site.sql("ada", sql);
        assert_eq!(answer.status, 200, "{}", answer.text());
        found = answer.text().to_owned();
        found.lines().count() > rows
    });
    found
}

fn price() -> Event {
    Event::Capacity(CapacityEvent {
        envelope: Some(Envelope {
            cluster: "c".into(),
            source: "price#1".into(),
            event_time_ms: 1_767_225_600_000,
            ..Envelope::default()
        }),
        kind: CapacityEventKind::PriceSet.into(),
        owner: "total".into(),
        pool: Some("h100".into()),
        contract: Some("reserved".into()),
        price_micros_per_gpu_hour: Some(2_100_000),
        currency: Some("EUR".into()),
        ..CapacityEvent::default()
    })
}

#[test]
fn each_kind_of_action_leaves_a_row_with_who() {
    let mut site = site();
    site.start();
    let begins =
        "SELECT action, principal, role, bound_to, door, outcome, result_rows AS n, text FROM audit WHERE ";
    assert_eq!(site.sql("ann", "SELECT 'one' AS n UNION ALL SELECT 'two'").status, 200);
    assert_eq!(site.sql("ann", "SELECT nothing FROM nowhere").status, 400);
    assert_eq!(site.sql("ann", "no query at all").status, 400);
    let page = ["Accept: text/csv", "Sec-Fetch-Site: same-origin"];
    assert_eq!(site.ask("ben", "POST /v1/sql", &page, b"SELECT 3 AS n").text(), "n\n3\n");
    let ended = "action = 'query' AND principal <> 'ada' AND outcome IS NOT NULL";
    let asked = found(&site, &format!("{begins} {ended} ORDER BY time"), 4);
    let expected = "action,principal,role,bound_to,door,outcome,n,text\n\
                    query,ann,viewer,vision,/v1/sql,ok,2,SELECT 'one' AS n UNION ALL SELECT 'two'\n\
                    query,ann,viewer,vision,/v1/sql,unknown_table,,SELECT nothing FROM nowhere\n\
                    query,ann,viewer,vision,/v1/sql,syntax,,no query at all\n\
                    query,ben,operator,,page,ok,1,SELECT 3 AS n\n";
    assert_eq!(asked, expected);
    let more = "SELECT peer, result_bytes > 0 AND duration_ms >= 0 AS measured, text_bytes, length(text_sha256) AS digits \
                FROM audit WHERE text = 'SELECT 3 AS n'";
    let more = found(&site, more, 1);
    assert!(more.contains("\n127.0.0.1:") && more.ends_with(",true,13,64\n"), "{more}");

    // An operator enters a price; a viewer, who may not, leaves no row.
    assert_eq!(site.append("ben", "price#1", 1, price()).status, 200);
    assert_eq!(site.append("ann", "price#1", 2, price()).status, 403);
    let prices = found(&site, &format!("{begins} action = 'prices' AND outcome IS NOT NULL"), 1);
    assert!(prices.contains("\nprices,ben,operator,,/v1/events,ok,1,"), "{prices}");
    assert!(prices.contains("pool h100") && prices.contains("reserved 2.100000 EUR"), "{prices}");
    assert_eq!(prices.lines().filter(|line| line.starts_with("prices,")).count(), 1, "{prices}");

    // The token file changes under the server.
    site.token("dan", &["--role", "viewer"]);
    succeed(tidegate().args(["token", "revoke", "ann", "--tokens"]).arg(site.file()));
    wait_until("the token to be revoked", || site.sql("ann", "SELECT 1").status == 401);
    let tokens =
        "SELECT action, principal, door, object, text FROM audit WHERE door = 'token-file' ORDER BY object";
    let tokens = found(&site, tokens, 2);
    let expected = "action,principal,door,object,text\n\
                    principal_removed,,token-file,ann,viewer of teams vision\n\
                    principal_added,,token-file,dan,viewer\n";
    assert_eq!(tokens, expected);
}

#[test]
fn nobody_but_an_administrator_sees_that_it_is_there() {
    let mut site = site();
    site.token("vera", &["--role", "viewer"]);
    site.token("sam", &["--role", "service"]);
    site.start();
    let mut open = Site::new();
    open.start();
    let asked = |at: &Site, id: &str| {
        for table in ["audit", "audit_events"] {
            let of = |sql: String| at.sql(id, &sql);
            for sql in [
                format!("SELECT * FROM {table}"),
                format!("EXPLAIN SELECT * FROM {table}"),
                format!("describe {table}"),
            ] {
                let refused = of(sql);
                assert_eq!(refused.status, 400, "{id} {table}: {}", refused.text());
                assert_eq!(refused.json()["code"], "unknown_table", "{id}: {}", refused.text());
            }
        }
        let says = |answer: Response| answer.text().to_lowercase().contains("audit");
        let texts = [
            "SELECT table_name FROM information_schema.tables",
            "SELECT table_name, column_name FROM information_schema.columns",
            "SELECT * FROM audi",
            "SELECT * FROM table_lag",
            "SELECT DISTINCT pipeline FROM window_revisions",
            "describe",
            "SELECT * FROM collectors",
        ];
        for sql in texts {
            assert!(!says(at.sql(id, sql)), "{id}: {sql}: {}", at.sql(id, sql).text());
        }
        for path in ["/v1/tables", "/v1/status", "/metrics"] {
            assert!(!says(at.get(id, path)), "{id}: {path}: {}", at.get(id, path).text());
        }
    };
    for id in ["ben", "ann", "vera", "sam"] {
        asked(&site, id);
    }
    asked(&open, "");
    let names =
        site.sql("ada", "SELECT table_name FROM information_schema.tables WHERE table_name LIKE 'audit%'");
    assert_eq!(names.text().lines().count(), 3, "{}", names.text());
    // The folder's own user reads it without a server, and where nobody shows a token, nobody is
    // named.
    let data = open.data();
    open.stop();
    succeed(tidegate().args(["pipeline", "run", "--data"]).arg(&data));
    let anonymous = query(&data, "SELECT DISTINCT principal, role FROM audit WHERE action = 'query'");
    assert_eq!(anonymous, "principal,role\nanonymous,local\n");
}

#[test]
fn what_was_answered_is_there_after_a_kill() {
    let mut site = site();
    site.start();
    assert_eq!(site.sql("ann", "SELECT 41 + 1 AS n").text(), "n\n42\n");
    // SIGKILL, directly after the answer.
    site.stop();
    site.start();
    let kept = found(&site, "SELECT principal, text FROM audit WHERE principal = 'ann'", 1);
    assert_eq!(kept, "principal,text\nann,SELECT 41 + 1 AS n\n");
}

#[test]
fn a_flood_of_queries_is_all_there() {
    let mut site = site();
    site.start();
    std::thread::scope(|threads| {
        for thread in 0..8 {
            let site = &site;
            threads.spawn(move || {
                for number in 0..25 {
                    assert_eq!(site.sql("ben", &format!("SELECT {thread} AS t, {number} AS n")).status, 200);
                }
            });
        }
    });
    let count = "SELECT text FROM audit WHERE principal = 'ben' AND outcome = 'ok' GROUP BY text";
    assert_eq!(found(&site, count, 200).lines().count(), 201);
    // Its source numbers them without gaps.
    let gaps =
        "SELECT count(*) = max(seq) + 1 AND min(seq) = 0 AS whole FROM audit_events GROUP BY source, epoch";
    assert_eq!(site.sql("ada", gaps).text(), "whole\ntrue\n");
}

/// The log stops when a write fails. What cannot be recorded is refused then: the file size limit
/// of the running server stands in for a disk that fails.
#[test]
fn a_query_whose_record_cannot_be_written_does_not_run() {
    let mut site = site();
    let plain = site.command();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\" --commits-per-hour 60"]);
    site.start_by({
        command.arg(plain.get_program()).args(plain.get_args());
        command
    });
    assert_eq!(site.sql("ben", "SELECT 1 AS n").text(), "n\n1\n");
    let pid = site.running().pid().to_string();
    let limited = run(Command::new("prlimit").args(["--fsize=1:1", "--pid", &pid]));
    assert_eq!(limited.status, Some(0), "{}", limited.stderr);
    let (status, code, said) = site.sql("ben", "SELECT 2 AS n").refusal();
    assert_eq!((status, code.as_str()), (503, "not_recorded"), "{said}");
    assert!(said.contains("audit table"), "{said}");
    assert!(site.running().is_running());
}

#[test]
fn prices_that_a_command_enters_name_its_user() {
    let mut site = site();
    let data = site.data();
    let set = |more: &[&str]| {
        let mut command = tidegate();
        command.args([
            "price",
            "set",
            "--cluster",
            "c",
            "--contract",
            "spot",
            "--price",
            "1",
            "--currency",
            "EUR",
        ]);
        command.args(more).env_remove("SUDO_USER").env("USER", "carla");
        command
    };
    succeed(set(&["--data"]).arg(&data));
    let rows = "SELECT action, principal, door, cluster, outcome, result_rows AS n FROM audit";
    let by_carla = "action,principal,door,cluster,outcome,n\nprices,carla,command,c,ok,1\n";
    assert_eq!(query(&data, rows), by_carla);
    // Over HTTP the server knows whose token it is, and names nobody else.
    site.start();
    let token = site.file().with_file_name("ben.token");
    std::fs::write(&token, site.token_of("ben")).unwrap();
    succeed(set(&["--from", "2026-02-01", "--log", &site.url(), "--log-token-file"]).arg(&token));
    let all = found(&site, &format!("{rows} WHERE action = 'prices' ORDER BY time"), 2);
    assert_eq!(all, format!("{by_carla}prices,ben,/v1/events,c,ok,1\n"));
}
