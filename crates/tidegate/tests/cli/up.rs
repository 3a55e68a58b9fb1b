//! `tidegate up` and the replay of a trace, stopped in every way.

use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program::{
    address_of, assert_same_tables, query, run, succeed, table_names, tables, tidegate, wait_until,
};
use crate::support::Response;

/// Records of the demo: 2,077 submissions, start and end of 3,078 attempts, one heartbeat.
const EVENTS: u64 = 8_234;

fn up(data: &Path, speed: &str) -> Command {
    let mut command = tidegate();
    command.args(["up", "--listen", "127.0.0.1:0", "--speed", speed, "--data"]).arg(data);
    command
}

/// A demo in the background.
struct Running {
    child: Child,
    /// Keeps the program's stdout open.
    _stdout: BufReader<ChildStdout>,
    address: String,
}

impl Running {
    fn start(data: &Path) -> Self {
        let mut child = up(data, "4d/s").stdout(Stdio::piped()).spawn().unwrap();
        let (address, stdout) = address_of(&mut child, "SQL");
        Self { child, _stdout: stdout, address }
    }

    /// Events that queries see.
    fn events(&self) -> u64 {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        let sql = "SELECT count(*) FROM job_events";
        socket.write_all(crate::program::post(sql, "text/csv").as_bytes()).unwrap();
        Response::read(socket).text().lines().nth(1).unwrap().parse().unwrap()
    }

    fn end(mut self, signal: Signal) -> Option<i32> {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

#[test]
fn the_trace_is_replayed_to_its_exact_ledger() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let shown = succeed(up(&data, "max").arg("--exit-when-done"));
    assert!(shown.contains("18.5 %") && shown.contains("2,077 finished"), "{shown}");
    // Taken from the Parquet file with another engine.
    let held_and_lost = query(&data, "SELECT sum(gpu_ms_held) AS held, sum(gpu_ms_lost) AS lost FROM jobs");
    assert_eq!(held_and_lost, "held,lost\n1947739576000,360264392000\n");
    let reported = query(&data, "SELECT source, count(*), max(seq) FROM job_events GROUP BY source");
    let last = EVENTS - 1;
    assert_eq!(reported.lines().nth(1).unwrap(), format!("demo/philly_multigpu_attempts,{EVENTS},{last}"));

    let before = tables(&data, &table_names(&data));
    succeed(up(&data, "max").arg("--exit-when-done"));
    assert_same_tables(&tables(&data, &table_names(&data)), &before, "a second replay");
}

#[test]
fn a_demo_that_was_ended_or_killed_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (disturbed, undisturbed) = (folder.path().join("disturbed"), folder.path().join("undisturbed"));
    let mut seen = 0;
    for (signal, status) in [(Signal::SIGKILL, None), (Signal::SIGTERM, Some(0)), (Signal::SIGINT, Some(0))] {
        let running = Running::start(&disturbed);
        wait_until("more of the trace to be in the tables", || running.events() > seen + 20);
        seen = running.events();
        assert_eq!(running.end(signal), status, "{signal}");
        if status == Some(0) {
            let committed = query(&disturbed, "SELECT count(*) FROM job_events");
            assert!(committed.lines().nth(1).unwrap().parse::<u64>().unwrap() >= seen, "{committed}");
        }
    }
    assert!(seen < EVENTS, "it was to be ended in the middle");
    succeed(up(&disturbed, "max").arg("--exit-when-done"));
    succeed(up(&undisturbed, "max").arg("--exit-when-done"));
    let names = table_names(&undisturbed);
    assert_same_tables(&tables(&disturbed, &names), &tables(&undisturbed, &names), "ended three times");
}

#[test]
fn an_address_in_use_is_refused_before_anything_is_written() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let address = taken.local_addr().unwrap().to_string();
    run(tidegate().args(["up", "--listen", &address, "--data"]).arg(&data)).refused(&[&address, "--listen"]);
    assert!(!data.exists());
}
