//! A site moves to Kafka, is monitored there, and survives chaos.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;

use crate::broker;
use crate::kafka::{self, TRACE, contents, log, pipeline_run, trace};
use crate::program::{Place, assert_same_tables, import, jobs, post, run, succeed, tidegate, wait_until};

#[test]
fn a_log_that_moved_to_kafka_goes_on_where_it_was() {
    let (Some(log), Some(spread)) = (log(), log()) else { return };
    let place = Place::new();
    let (data, embedded) = (place.data(), place.0.path().join("embedded"));
    let all = jobs(400);
    let (header, rows) = all.split_once('\n').unwrap();
    let rows: Vec<&str> = rows.lines().collect();
    let file = |name: &str, rows: &[&str]| place.file(name, format!("{header}\n{}\n", rows.join("\n")));
    let (first, more) = (file("first.csv", &rows[..200]), file("more.csv", &rows[200..]));
    succeed(&mut import(&first, "jobs_csv", &embedded));
    let imported = succeed(&mut import(&first, "jobs_csv", &data));
    let written = imported.lines().find_map(|line| line.strip_prefix("events written")).unwrap().trim();
    succeed(&mut import(&more, "jobs_csv", &embedded));
    let copy = |to: &str, more: &[&str]| {
        let mut command = tidegate();
        command
            .args(["log", "copy", "--from", "embedded", "--to", "kafka", "--log", to, "--data"])
            .arg(&data);
        succeed(command.args(more))
    };

    let said = copy(&spread, &["--partitions", "3"]);
    assert!(
        said.contains(&format!("{written}  (all compared)")) && said.contains("pipeline backfill"),
        "{said}"
    );
    let said = copy(&log, &[]);
    assert!(said.contains("the tables go on where they are"), "{said}");
    let by_url = ["log", "copy", "--to", &log, "--kafka-property", "client.id=mover", "--data"];
    let again = succeed(tidegate().args(by_url).arg(&data));
    assert!(again.contains("written now                 0"), "{again}");

    let nothing = succeed(&mut pipeline_run(&log, &data));
    assert!(nothing.starts_with("0 records taken in"), "offsets mean what they meant: {nothing}");
    let known = succeed(import(&first, "jobs_csv", &data).args(["--log", &log]));
    assert!(known.contains("events written              0"), "{known}");
    succeed(import(&more, "jobs_csv", &data).args(["--log", &log]));
    assert_same_tables(&contents(&data), &contents(&embedded), "moved, then more");
    run(&mut import(&more, "jobs_csv", &data)).refused(&["of a log on Kafka"]);

    let anew = place.0.path().join("anew");
    succeed(tidegate().args(["pipeline", "backfill", "--log", &spread, "--data"]).arg(&anew));
    succeed(import(&more, "jobs_csv", &anew).args(["--log", &spread]));
    assert_same_tables(&contents(&anew), &contents(&embedded), "laid out anew");
}

#[test]
fn status_and_metrics_tell_who_keeps_what_and_what_is_missing() {
    let Some(log) = log() else { return };
    let place = Place::new();
    let data = place.data();
    let status = || kafka::status(&log, &data);
    succeed(import(trace(), TRACE, &data).args(["--no-run", "--log", &log, "--partitions", "2"]));
    let before = status();
    assert!(before["lag"].as_u64().unwrap() >= 9235, "{before}");
    assert_eq!(before["members"].as_array().unwrap().len(), 0);

    let mut worker = Worker::start(&log, &data);
    wait_until("nothing is missing", || status()["lag"] == 0);
    let now = status();
    assert_eq!(now["members"].as_array().unwrap().len(), 1, "{now}");
    let job_partitions: Vec<&Value> =
        now["partitions"].as_array().unwrap().iter().filter(|row| row["topic"] == "jobs").collect();
    assert_eq!(job_partitions.len(), 2);
    for row in job_partitions {
        assert_eq!(row["watermark_ms"], 1_513_926_042_000_i64, "{row}");
        assert!(row["rebalances"].as_u64().unwrap() >= 1, "{row}");
        assert!(row["kept_by"].as_str().unwrap().ends_with(&format!("-{}", worker.child.id())), "{row}");
    }
    let metrics = worker.get("/metrics");
    let value = |name: &str| -> f64 {
        let line = metrics.lines().find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("{name} is missing in\n{metrics}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .parse()
            .unwrap()
    };
    assert_eq!(value("tidegate_pipeline_records_total"), 9236.0);
    assert_eq!(value("tidegate_pipeline_lag_records{topic=\"jobs\",partition=\"0\"}"), 0.0);
    assert_eq!(value("tidegate_pipeline_watermark_seconds{topic=\"jobs\",partition=\"1\"}"), 1_513_926_042.0);
    assert!(
        value("tidegate_pipeline_rebalances_total") >= 1.0 && value("tidegate_pipeline_commits_total") >= 1.0
    );

    // Asked to stop, it hands its partitions over at once and reports.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker.child.id() as i32), nix::sys::signal::SIGTERM)
        .unwrap();
    assert!(worker.child.wait().unwrap().success());
    wait_until("the group is empty", || status()["members"].as_array().unwrap().is_empty());
}

#[test]
fn status_of_the_log_in_a_folder() {
    let place = Place::new();
    place.import(trace(), TRACE);
    let said = succeed(tidegate().args(["status", "--data"]).arg(place.data()));
    assert!(said.contains("lag      0 records") && said.contains("2017-12-22 07:00:42"), "{said}");
    run(tidegate().args(["status", "--data", "/nowhere"])).refused(&["/nowhere", "holds no data"]);
}

/// A pipeline process that answers queries; killed when dropped.
struct Worker {
    child: Child,
    address: String,
    said: Arc<Mutex<String>>,
}

impl Worker {
    fn start(log: &str, data: &Path) -> Self {
        let mut command = pipeline_run(log, data);
        command.args(["--follow", "--flush-every", "1", "--listen", "127.0.0.1:0"]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::new(Mutex::new(String::new()));
        let (heard, stderr) = (Arc::clone(&said), child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                heard.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        let address =
            first.trim().trim_start_matches("SQL     http://").trim_end_matches("/v1/sql").to_owned();
        Self { child, address, said }
    }

    fn get(&self, path: &str) -> String {
        self.answer(&format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"))
    }

    fn csv(&self, sql: &str) -> String {
        self.answer(&post(sql, "text/csv"))
    }

    fn answer(&self, request: &str) -> String {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        if std::thread::panicking() {
            eprintln!("the worker's stderr: {}", self.said.lock().unwrap_or_else(|e| e.into_inner()));
        }
    }
}

/// Long form: TIDEGATE_CHAOS_RUNS=20.
fn runs() -> String {
    std::env::var("TIDEGATE_CHAOS_RUNS").unwrap_or_else(|_| "1".into())
}

fn chaos(log: &str, more: &[&str]) {
    let mut command = tidegate();
    command.args(["chaos", "log", "--json", "--partitions", "4", "--runs", &runs(), "--log", log]).args(more);
    let said = succeed(&mut command);
    let report: Value = serde_json::from_str(&said).unwrap();
    println!("{report}");
    let number = |name: &str| report[name].as_u64().unwrap();
    assert!(number("acknowledged") > 1000 && number("table_rows") > 1000, "{report}");
    assert_eq!((number("lost"), number("duplicated"), &report["tables_equal"]), (0, 0, &Value::Bool(true)));
    assert!(number("pipeline_kills") > 0 && number("producer_kills") > 0 && number("pauses") > 0, "{report}");
}

#[test]
fn killed_and_stopped_processes_cost_nothing() {
    let Some(log) = log() else { return };
    chaos(&log, &["--blows", "5"]);
}

/// An outage longer than a request timeout: the worker waits, answers queries meanwhile, and
/// continues.
#[test]
fn a_broker_that_is_away_for_long_is_waited_for() {
    if !broker::installed() {
        return;
    }
    let mut cluster = broker::Cluster::start(1, "");
    let log = format!("kafka://{}/away", cluster.servers());
    let place = Place::new();
    let data = place.data();
    succeed(import(trace(), TRACE, &data).args(["--log", &log, "--partitions", "2"]));
    let mut worker = Worker::start(&log, &data);
    wait_until("the worker keeps everything", || {
        let now = kafka::status(&log, &data);
        now["lag"] == 0 && now["members"][0]["partitions"].as_u64() > Some(0)
    });
    cluster.kill_node(0);
    wait_until("the worker gave up a request", || {
        worker.said.lock().unwrap().contains("waiting for the log")
    });
    assert!(worker.csv("SELECT count(*) FROM jobs").contains("2077"));
    assert!(worker.child.try_wait().unwrap().is_none(), "the worker gave up");
    cluster.start_node(0);
    cluster.wait_until_ready();
    let more = place.file("more.csv", jobs(50));
    succeed(import(&more, "jobs_csv", &data).args(["--no-run", "--log", &log]));
    wait_until("what came after is in the tables", || kafka::status(&log, &data)["lag"] == 0);
    let answer = worker.csv("SELECT count(*) FROM jobs");
    assert!(answer.contains("2127"), "{answer}");
}

/// One broker of three after the other is killed and comes back, while processes are killed and
/// stopped too.
#[test]
fn killed_brokers_beside_killed_processes_cost_nothing() {
    if !broker::installed() {
        return;
    }
    let mut cluster = broker::Cluster::start(3, "");
    let log = format!("kafka://{}/brokers", cluster.servers());
    let done = AtomicBool::new(false);
    let killed = std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            let mut killed = 0;
            while !done.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_secs(10));
                cluster.kill_node(killed % 3);
                std::thread::sleep(Duration::from_secs(3));
                cluster.start_node(killed % 3);
                cluster.wait_until_in_sync();
                killed += 1;
            }
            killed
        });
        let judged = std::panic::catch_unwind(|| chaos(&log, &["--blows", "5", "--seed", "7"]));
        done.store(true, Ordering::SeqCst);
        let killed = killing.join().unwrap();
        judged.map(|()| killed).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    println!("{killed} brokers killed");
    assert!(killed >= 1);
}
