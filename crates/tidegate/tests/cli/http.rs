//! SQL over a real loopback socket.

use std::io::Write;
use std::time::{Duration, Instant};

use arrow::array::{Array, AsArray, RecordBatchReader};
use arrow::datatypes::{DataType, Int64Type};
use arrow::ipc::reader::StreamReader;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use serde_json::json;
use tidegate_server::{MAX_BODY_BYTES, QueryLimits, TABLE_ROWS};

use crate::program::wait_until;
use crate::support::{PATIENCE, Response, Server};

const ALL: &str = "SELECT * FROM jobs ORDER BY gpu_ms_held NULLS FIRST";
/// Takes far longer than any test waits.
const ENDLESS: &str = "SELECT count(*) FROM generate_series(1, 3000000) a, generate_series(1, 3000000) b WHERE a.value <> b.value + 1";

fn server() -> Server {
    Server::start(QueryLimits { threads: 2, ..QueryLimits::default() })
}

#[test]
fn every_format_carries_the_same_rows() {
    let server = server();
    let json = server.sql("application/json", ALL);
    assert_eq!(
        (json.status, json.head.contains("content-type: application/json")),
        (200, true),
        "{}",
        json.head
    );
    let rows = json!([
        {"job_id": "b,\"c\"", "gpu_ms_held": null, "start_time": null},
        {"job_id": "a", "gpu_ms_held": 500, "start_time": "2021-03-04T00:00:00Z"},
        {"job_id": null, "gpu_ms_held": 9_007_199_254_740_993_i64, "start_time": "2021-03-04T00:00:00.500Z"},
    ]);
    assert_eq!(json.json(), rows);

    let lines = server.sql("application/x-ndjson", ALL);
    let parsed: Vec<serde_json::Value> =
        lines.text().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(serde_json::Value::from(parsed), rows);

    let csv = server.sql("text/csv", ALL);
    let expected = "job_id,gpu_ms_held,start_time\n\"b,\"\"c\"\"\",,\na,500,2021-03-04T00:00:00Z\n,9007199254740993,2021-03-04T00:00:00.500Z\n";
    assert_eq!(csv.text(), expected);

    let table = server.sql("text/plain", ALL);
    assert!(
        table.text().contains("| a      | 500              | 2021-03-04T00:00:00Z     |"),
        "{}",
        table.text()
    );
    assert!(table.text().contains("NULL"), "{}", table.text());

    let arrow = server.sql("application/vnd.apache.arrow.stream", ALL);
    let batches: Vec<_> = StreamReader::try_new(&arrow.body[..], None).unwrap().map(Result::unwrap).collect();
    let batch = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
    assert_eq!(batch.schema().field(0).data_type(), &DataType::Utf8);
    assert_eq!(batch.column(0).as_string::<i32>().value(1), "a");
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().value(2), 9_007_199_254_740_993);
    assert!(batch.column(2).is_null(0));

    let parquet = server.sql("application/vnd.apache.parquet", ALL);
    let rows: Vec<_> = parquet_rows(&parquet).map(Result::unwrap).collect();
    assert_eq!(arrow::compute::concat_batches(&rows[0].schema(), &rows).unwrap(), batch);
}

fn parquet_rows(response: &Response) -> ParquetRecordBatchReader {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&response.body).unwrap();
    ParquetRecordBatchReaderBuilder::try_new(file).unwrap().build().unwrap()
}

#[test]
fn results_without_rows_are_whole_too() {
    let server = server();
    let none = "SELECT job_id FROM jobs WHERE gpu_ms_held = 1";
    assert_eq!(server.sql("application/json", none).json(), json!([]));
    assert_eq!(server.sql("text/csv", none).text(), "job_id\n");
    assert_eq!(server.sql("application/jsonl", none).text(), "");
    assert!(server.sql("text/plain", none).text().contains("job_id"));
    let arrow = server.sql("application/vnd.apache.arrow.stream", none);
    assert_eq!(StreamReader::try_new(&arrow.body[..], None).unwrap().count(), 0);
    let parquet = parquet_rows(&server.sql("application/vnd.apache.parquet", none));
    assert_eq!((parquet.schema().fields().len(), parquet.count()), (1, 0));
}

#[test]
fn requests_come_as_text_or_json() {
    let server = server();
    let body = br#"{"sql": "SELECT 1 AS one", "format": "csv", "max_rows": 1, "timeout_ms": 30000}"#;
    let json = ["Content-Type: application/json; charset=utf-8"];
    assert_eq!(server.request("POST /v1/sql", &json, body).text(), "one\n1\n");
    assert_eq!(server.request("POST /v1/sql", &[], b"SELECT 1 AS one").json(), json!([{"one": 1}]));

    let (status, code, text) =
        server.request("POST /v1/sql", &json, br#"{"sql": "SELECT 1", "limit": 1}"#).refusal();
    assert_eq!((status, code.as_str()), (400, "bad_request"));
    assert!(text.contains("limit") && text.contains("max_rows"), "{text}");
    let (status, code, _) = server.sql("image/png", "SELECT 1").refusal();
    assert_eq!((status, code.as_str()), (406, "not_acceptable"));
    let xml = br#"{"sql": "SELECT 1", "format": "xml"}"#;
    let (status, code, _) = server.request("POST /v1/sql", &json, xml).refusal();
    assert_eq!((status, code.as_str()), (400, "bad_request"));
    let (status, code, _) = server.request("POST /v1/sql", &[], &vec![b' '; MAX_BODY_BYTES + 1]).refusal();
    assert_eq!((status, code.as_str()), (413, "body_too_large"));
}

/// A page that somebody visits can send GET requests to any address, without asking.
#[test]
fn get_runs_no_query() {
    let server = server();
    for method in ["GET", "HEAD"] {
        let refused = server.request(&format!("{method} /v1/sql?q=SELECT+1"), &[], b"");
        assert_eq!(refused.status, 405, "{}", refused.head);
        assert!(refused.head.contains("allow: post"), "{}", refused.head);
    }
    let (_, code, text) = server.request("GET /v1/sql?q=SELECT+1", &[], b"").refusal();
    assert!(code == "method" && text.contains("POST") && text.contains("curl --data"), "{code}: {text}");
}

#[test]
fn the_page_runs_its_own_script_and_no_other() {
    let server = server();
    let page = || server.request("GET /", &["Accept: text/html"], b"");
    let nonce = |page: &Response| {
        let (_, rest) = page.head.split_once("script-src 'nonce-").expect("a nonce");
        rest.split('\'').next().unwrap().to_owned()
    };
    let (first, second) = (page(), page());
    assert_ne!(nonce(&first), nonce(&second));
    assert!(!first.head.contains("unsafe-inline"), "{}", first.head);
    let script = format!("<script nonce=\"{}\"", nonce(&first));
    assert_eq!(first.text().matches(&script).count(), first.text().matches("<script").count());
    assert!(first.text().contains(&script) && !first.text().contains("NONCE"));
    assert!(first.head.contains("require-trusted-types-for 'script'"), "{}", first.head);
    assert!(!first.text().contains("style="), "the policy allows no style in an attribute");
    let paths =
        [("GET /healthz", ""), ("GET /v1/tables", ""), ("POST /v1/sql", "SELECT 1"), ("GET /none", "")];
    let others = paths.map(|(line, body)| server.request(line, &[], body.as_bytes()));
    for response in others.iter().chain([&first]) {
        for header in
            ["x-content-type-options: nosniff", "referrer-policy: no-referrer", "frame-ancestors 'none'"]
        {
            assert!(response.head.contains(header), "{header} in {}", response.head);
        }
    }
}

#[test]
fn the_other_paths_answer() {
    let server = server();
    assert_eq!(server.request("GET /healthz", &[], b"").text(), "ok\n");
    assert_eq!(server.request("GET /readyz", &[], b"").json(), json!({"ready": true, "tables": 1}));
    assert!(server.request("GET /", &[], b"").text().contains("POST /v1/sql"));
    let page = server.request("GET /", &["Accept: text/html,application/xhtml+xml;q=0.9"], b"");
    assert!(
        page.text().starts_with("<!doctype html>") && page.head.contains("default-src 'none'"),
        "{}",
        page.head
    );
    let status = server.request("GET /v1/status", &[], b"").json();
    assert_eq!((&status["records"], &status["partitions"]), (&json!(0), &json!([])));
    let open = ["Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5"];
    assert!(server.request("GET /metrics", &open, b"").text().ends_with("# EOF\n"));
    let plain = server.request("GET /metrics", &["Accept: text/plain"], b"");
    assert!(plain.head.contains("text/plain; version=0.0.4"), "{}", plain.head);
    assert!(plain.text().contains("\n# TYPE tidegate_pipeline_records_total counter\n"), "{}", plain.text());
    // Its tables have none of what the figures are asked of.
    let figures = server.request("GET /metrics/cluster", &[], b"");
    assert!(
        figures.text().contains("tidegate_cluster_figure_failed{figure=\"held\"} 1.0"),
        "{}",
        figures.text()
    );
    let tables = server.request("GET /v1/tables", &[], b"").json();
    assert_eq!(
        tables["tables"][0]["columns"][1],
        json!({"name": "gpu_ms_held", "type": "bigint", "doc": "GPU x ms held."})
    );
    assert_eq!(server.request("GET /nothing", &[], b"").refusal().1, "not_found");
    let wrong = server.request("DELETE /v1/sql", &[], b"");
    assert_eq!(wrong.refusal().1, "method");
    assert!(wrong.head.contains("allow: ") && wrong.head.contains("post"), "{}", wrong.head);
}

#[test]
fn mistakes_are_named_with_place_and_remedy() {
    let server = server();
    let cases = [
        ("", "empty", "describe"),
        ("SELECT 1; SELECT 2", "several_statements", "2 statements"),
        ("SELECT *\n FORM jobs x y", "syntax", "line 2, column"),
        ("SELECT 'a", "syntax", "line 1, column 8"),
        ("SELECT * FROM job", "unknown_table", "did you mean jobs?"),
        ("SELECT * FROM zzzzzzzz", "unknown_table", "there are: jobs"),
        ("SELECT * FROM '/etc/hostname'", "unknown_table", "no table named"),
        ("describe job", "unknown_table", "did you mean jobs?"),
        ("SELECT gpu_ms FROM jobs", "unknown_column", "did you mean gpu_ms_held?"),
        ("SELECT summ(gpu_ms_held) FROM jobs", "unknown_function", "did you mean sum?"),
        ("SELECT job_id + start_time FROM jobs", "invalid", "invalid query: "),
        ("SELECT CAST(job_id AS BIGINT) FROM jobs", "failed", "'a'"),
        ("SELECT 1 / (gpu_ms_held - 500) FROM jobs", "failed", "Divide by zero"),
    ];
    for (sql, code, says) in cases {
        let (status, found, text) = server.sql("*/*", sql).refusal();
        assert_eq!((status, found.as_str()), (400, code), "{sql}: {text}");
        assert!(text.contains(says), "{sql}: {text}");
        assert!(!text.contains("DataFusion") && !text.contains("backtrace"), "{sql}: {text}");
    }
    let (status, code, text) = server.sql("text/csv", "SELECT array_agg(job_id) FROM jobs").refusal();
    assert_eq!((status, code.as_str()), (406, "encode"), "{text}");
    assert!(text.contains("json"), "{text}");
}

#[test]
fn queries_only_read() {
    let server = server();
    let target = tempfile::tempdir().unwrap();
    let copy = format!("COPY jobs TO '{}/out.csv' STORED AS CSV", target.path().display());
    let refused = [
        "CREATE TABLE t AS SELECT 1",
        "CREATE VIEW v AS SELECT 1",
        "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '/tmp/'",
        "DROP TABLE jobs",
        "INSERT INTO jobs SELECT * FROM jobs",
        "SET datafusion.execution.batch_size = 1",
        "EXPLAIN ANALYZE INSERT INTO jobs SELECT * FROM jobs",
        &copy,
    ];
    for sql in refused {
        let (status, code, text) = server.sql("*/*", sql).refusal();
        assert_eq!((status, code.as_str()), (400, "read_only"), "{sql}: {text}");
    }
    assert_eq!(target.path().read_dir().unwrap().count(), 0);
    assert_eq!(server.sql("*/*", "SELECT count(*) AS n FROM jobs").json(), json!([{"n": 3}]));
    assert_eq!(server.sql("*/*", "EXPLAIN SELECT * FROM jobs").status, 200);
}

#[test]
fn limits_hold() {
    let limits = QueryLimits { threads: 2, memory_bytes: 16 << 20, rows_max: 1000, ..QueryLimits::default() };
    let server = Server::start(limits);
    let (status, code, text) = server.sql("text/csv", "SELECT * FROM generate_series(1, 1001)").refusal();
    assert_eq!((status, code.as_str()), (422, "rows_limit"), "{text}");
    assert!(text.contains("1000") && text.contains("max_rows"), "{text}");
    assert_eq!(server.sql("text/csv", "SELECT * FROM generate_series(1, 1000)").text().lines().count(), 1001);
    let json = ["Content-Type: application/json"];
    let more = r#"{"sql": "SELECT * FROM generate_series(1, 1001)", "max_rows": 2000, "format": "csv"}"#;
    let more = server.request("POST /v1/sql", &json, more.as_bytes());
    assert_eq!(more.text().lines().count(), 1002);

    let join = "SELECT count(*) FROM generate_series(1, 4000000) a JOIN generate_series(1, 4000000) b ON a.value = b.value";
    let (status, code, text) = server.sql("*/*", join).refusal();
    assert_eq!((status, code.as_str()), (503, "memory_limit"), "{text}");

    let body = json!({"sql": ENDLESS, "timeout_ms": 300}).to_string();
    let began = Instant::now();
    let (status, code, text) = server.request("POST /v1/sql", &json, body.as_bytes()).refusal();
    assert_eq!((status, code.as_str()), (504, "time_limit"), "{text}");
    assert!(
        began.elapsed() >= Duration::from_millis(300) && began.elapsed() < PATIENCE / 4,
        "{:?}",
        began.elapsed()
    );
    let (status, code, text) =
        server.request("POST /v1/sql", &json, br#"{"sql": "SELECT 1", "timeout_ms": 99000000}"#).refusal();
    assert_eq!((status, code.as_str()), (400, "time_not_allowed"), "{text}");
}

#[test]
fn a_query_nobody_waits_for_frees_its_place() {
    let server = Server::start(QueryLimits {
        threads: 2,
        concurrent: 1,
        time_max: PATIENCE / 3,
        ..QueryLimits::default()
    });
    for connection in ["Connection: keep-alive", "Connection: close"] {
        let leaver = server.send("POST /v1/sql HTTP/1.1", &[connection], ENDLESS.as_bytes());
        // On a busy machine what was sent second may be looked at first.
        wait_until("the endless query to hold the only place", || {
            let json = ["Content-Type: application/json"];
            let asked = br#"{"sql": "SELECT 1", "timeout_ms": 300}"#;
            let waiting = server.request("POST /v1/sql", &json, asked);
            waiting.status == 504 && waiting.refusal().1 == "time_limit"
        });
        drop(leaver);
        assert_eq!(server.sql("text/csv", "SELECT 1 AS one").text(), "one\n1\n");
    }

    let silent = [
        ENDLESS,
        "SELECT count(*) FROM generate_series(1, 3000000) a, generate_series(1, 3000000) b WHERE a.value + b.value < 0",
        "SELECT count(*) FROM generate_series(1, 300000) a JOIN generate_series(1, 300000) b ON a.value % 2 = b.value % 2 AND a.value + b.value < 0",
        "SELECT count(*) FROM generate_series(1, 1000000000000) WHERE value < 0",
        "WITH RECURSIVE t AS (SELECT 1 AS x UNION ALL SELECT x FROM t WHERE x < 2) SELECT count(*) FROM t WHERE x > 5",
    ];
    for sql in silent {
        let body = json!({"sql": sql, "timeout_ms": 300}).to_string();
        let late = server.request("POST /v1/sql", &["Content-Type: application/json"], body.as_bytes());
        assert_eq!(late.refusal().1, "time_limit");
        assert_eq!(server.sql("text/csv", "SELECT 1 AS one").text(), "one\n1\n", "after {sql}");
    }
}

#[test]
fn a_failure_in_the_middle_cuts_the_body() {
    let server = server();
    let sql = "SELECT value FROM generate_series(1, 1000000)";
    let request = json!({"sql": sql, "format": "csv", "max_rows": 400_000}).to_string();
    let cut =
        server.request("POST /v1/sql HTTP/1.1", &["Content-Type: application/json"], request.as_bytes());
    assert_eq!((cut.status, cut.head.contains("transfer-encoding: chunked")), (200, true), "{}", cut.head);
    assert!(!cut.body.ends_with(b"0\r\n\r\n"), "a cut body must not look whole");
    let whole = server.request("POST /v1/sql HTTP/1.1", &["Accept: text/csv"], sql.as_bytes());
    assert!(whole.body.ends_with(b"0\r\n\r\n"));
}

#[test]
fn large_results_come_whole_and_drawn_tables_end_somewhere() {
    let server = server();
    let many = server.sql("application/json", "SELECT value AS v FROM generate_series(1, 200000)");
    assert!(many.body.len() > 2_000_000, "large enough to be streamed");
    assert_eq!(many.json().as_array().unwrap().len(), 200_000);
    let drawn = server.sql("text/plain", "SELECT value FROM generate_series(1, 10001)");
    let (rows, notice) = drawn.text().trim_end().rsplit_once('\n').unwrap();
    assert_eq!(rows.lines().filter(|l| l.starts_with("| ") && !l.contains("value")).count(), TABLE_ROWS);
    assert!(notice.contains("there are more"), "{notice}");
    let all = server.sql("text/plain", "SELECT value FROM generate_series(1, 10000)");
    assert!(!all.text().contains("there are more"));
}

#[test]
fn a_running_query_does_not_hold_up_the_end() {
    let server = server();
    let _running = server.send("POST /v1/sql HTTP/1.1", &[], ENDLESS.as_bytes());
    assert_eq!(server.request("GET /healthz", &[], b"").status, 200);
    let began = Instant::now();
    drop(server);
    assert!(began.elapsed() < PATIENCE / 2, "{:?}", began.elapsed());
}

#[test]
fn hostile_text_does_not_end_the_server() {
    let server = server();
    let doubling: String =
        (1..40).map(|n| format!(", t{n} AS (SELECT l.x FROM t{0} l, t{0} r)", n - 1)).collect();
    let refused = [
        format!("SELECT gpu_ms_held{} FROM jobs", " + 1".repeat(16_000)),
        format!("SELECT {}1{}", "(".repeat(30_000), ")".repeat(30_000)),
        format!("SELECT 1 FROM jobs WHERE {}true", "gpu_ms_held = 1 OR ".repeat(3_000)),
        format!("EXPLAIN SELECT 1{}", "::BIGINT".repeat(8_000)),
        format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(3_000)),
        format!("SELECT 1 FROM jobs{}", ",jobs".repeat(10_000)),
        format!("WITH t0 AS (SELECT 1 AS x){doubling} SELECT * FROM t39"),
        " + 1".repeat(20_000),
    ];
    for sql in &refused {
        let (status, code, text) = server.sql("text/csv", sql).refusal();
        assert_eq!(status, 400, "{}: {text}", &sql[..60]);
        assert!(code == "invalid" || code == "syntax", "{}: {text}", &sql[..60]);
    }
    let deep = format!("SELECT gpu_ms_held{} AS n FROM jobs WHERE job_id = 'a'", " + 1".repeat(190));
    assert_eq!(server.sql("text/csv", &deep).text(), "n\n690\n");
    let wide = format!("SELECT 1{}", " UNION ALL SELECT 1".repeat(450));
    assert_eq!(server.sql("text/csv", &wide).text().lines().count(), 452);
    let many =
        format!("SELECT count(*) AS n FROM jobs WHERE gpu_ms_held IN (500{})", ", 123456".repeat(7_000));
    assert_eq!(server.sql("text/csv", &many).text(), "n\n1\n");
}

#[test]
fn names_that_others_point_here_are_not_answered() {
    let server = server();
    for (host, status) in [
        ("evil.example", 421),
        ("localhost.evil.example:80", 421),
        ("127.0.0.1:1", 200),
        ("10.0.0.7:8433", 200),
        ("[::1]:8080", 200),
        ("LOCALHOST", 200),
    ] {
        let answer: Response = server.request("GET /v1/tables", &[&format!("Host: {host}")], b"");
        assert_eq!(answer.status, status, "{host}");
    }
}
