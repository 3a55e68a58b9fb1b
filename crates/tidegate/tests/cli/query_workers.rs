//! Queries run in processes of their own: whatever one does, the server goes on.

use std::collections::BTreeMap;
use std::io::{BufReader, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::program::{Place, address_of, jobs, tidegate, wait_until};
use crate::support::{PATIENCE, Response};

const QUERY_MEMORY_MIB: u64 = 128;
/// A single call that computes for minutes, and pauses nowhere.
const SPINS: &str =
    "SELECT sum(levenshtein(repeat('x', 200000), repeat('y', 200000) || value)) FROM generate_series(1, 8)";
/// 9 million million times.
const WINDOWS: &str = "SELECT array_length(window_starts(timestamp '1970-01-01', timestamp '2262-01-01', 1, \
                       timestamp '1970-01-01', timestamp '2262-01-01'))";

/// `tidegate up` over 500 jobs.
struct Up {
    _place: Place,
    child: Child,
    /// Keeps the program's stdout open.
    _stdout: BufReader<ChildStdout>,
    address: String,
}

impl Up {
    fn start() -> Self {
        let place = Place::new();
        assert_eq!(place.import(place.file("jobs.csv", jobs(500)), "jobs_csv").status, Some(0));
        let mut command = tidegate();
        command.args(["up", "--listen", "127.0.0.1:0", "--ingest", "--no-insight", "--query-memory"]);
        command.arg(format!("{QUERY_MEMORY_MIB}M")).arg("--data").arg(place.data());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (address, stdout) = address_of(&mut child, "SQL");
        Self { _place: place, child, _stdout: stdout, address }
    }

    fn send(&self, sql: &str, time: Duration) -> TcpStream {
        let body = json!({"sql": sql, "format": "csv", "timeout_ms": time.as_millis() as u64}).to_string();
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let request = format!(
            "POST /v1/sql HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        );
        socket.write_all(request.as_bytes()).unwrap();
        socket
    }

    fn ask(&self, sql: &str, time: Duration) -> Response {
        Response::read(self.send(sql, time))
    }

    /// The server counts its jobs.
    fn goes_on(&mut self, after: &str) {
        assert!(self.child.try_wait().unwrap().is_none(), "it ended after {after:.80}");
        let counted = self.ask("SELECT count(*) FROM jobs", PATIENCE);
        assert_eq!((counted.status, counted.text()), (200, "count(*)\n500\n"), "after {after:.80}");
    }

    fn ask_readiness(&self) -> TcpStream {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.write_all(b"GET /readyz HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        socket
    }

    fn ask_liveness(&self) -> TcpStream {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.write_all(b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n").unwrap();
        socket
    }

    fn ready(&self) -> (u16, String) {
        let ready = Response::read(self.ask_readiness());
        (ready.status, ready.text().to_owned())
    }

    fn workers(&self) -> Vec<i32> {
        children(self.child.id() as i32)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Processes that a process started and that have not ended.
pub fn children(of: i32) -> Vec<i32> {
    let threads = std::fs::read_dir(format!("/proc/{of}/task")).into_iter().flatten().flatten();
    let lists = threads.map(|thread| std::fs::read_to_string(thread.path().join("children")));
    let lists: Vec<String> = lists.flatten().collect();
    lists.iter().flat_map(|list| list.split_whitespace()).map(|pid| pid.parse().unwrap()).collect()
}

/// 26 WITH queries of which each names the one before it twice, hidden from a count that folds
/// their case.
fn doubling() -> String {
    let with = (1..26).map(|n| {
        format!(", \"T{n}\" AS (SELECT l.x FROM \"T{0}\" l, \"T{0}\" r), t{n} AS (SELECT 1 AS x)", n - 1)
    });
    format!("WITH \"T0\" AS (SELECT 1 AS x){} SELECT * FROM \"T25\"", with.collect::<String>())
}

#[test]
fn whatever_a_query_does_the_server_goes_on() {
    let mut up = Up::start();
    let values = format!("VALUES {}", vec!["(1)"; 10_001].join(","));
    let doubling = doubling();
    let refused = [
        (WINDOWS, "memory_limit", "window_starts would make a value"),
        ("SELECT lpad('x', 2147483647)", "memory_limit", "lpad would make a value"),
        ("SELECT repeat('x', 4000000000)", "memory_limit", "repeat would make a value"),
        (&doubling, "invalid", "more than 500 tables"),
        (&values, "invalid", "more than 10000 values"),
    ];
    for (sql, code, says) in refused {
        let (status, found, text) = up.ask(sql, PATIENCE).refusal();
        assert!((400..=503).contains(&status) && found == code, "{sql:.80}: {status} {found}: {text}");
        assert!(text.contains(says), "{sql:.80}: {text}");
        up.goes_on(sql);
    }

    // As many that spin as there may be processes, and more: each is ended at its time.
    let time = Duration::from_millis(500);
    let began = Instant::now();
    let spinning: Vec<TcpStream> = (0..6).map(|_| up.send(SPINS, time)).collect();
    for spins in spinning {
        assert_eq!(Response::read(spins).refusal().1, "time_limit");
    }
    assert!(began.elapsed() < PATIENCE / 4, "{:?}", began.elapsed());
    up.goes_on(SPINS);
    assert_eq!(up.ready().0, 200);

    // 400 at once: each is answered or told that there are too many.
    let many: Vec<TcpStream> = (0..400).map(|_| up.send("SELECT count(*) FROM jobs", PATIENCE)).collect();
    let (mut answered, mut busy) = (0, 0);
    for one in many {
        match Response::read(one) {
            response if response.status == 200 => answered += 1,
            response => {
                let (status, code, text) = response.refusal();
                assert_eq!((status, code.as_str()), (503, "busy"), "{text}");
                busy += 1;
            }
        }
    }
    assert!(answered >= 200 && answered + busy == 400, "{answered} answered, {busy} refused");
    up.goes_on("four hundred at once");
}

#[test]
fn a_worker_has_hard_limits_and_is_replaced() {
    let mut up = Up::start();
    up.goes_on("the start");
    for worker in up.workers() {
        let hard = |name: &str| {
            let limits = std::fs::read_to_string(format!("/proc/{worker}/limits")).unwrap();
            let line = limits.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().to_owned()
        };
        // A worker limits itself once it has started, before it takes a query.
        wait_until("a worker to be limited", || hard("Max data size") != "unlimited");
        let most_mib = hard("Max data size").parse::<u64>().unwrap() >> 20;
        assert!(most_mib < 2_048, "{most_mib} MiB");
        assert_eq!(hard("Max core file size"), "0");
        for thread in std::fs::read_dir(format!("/proc/{worker}/task")).unwrap().flatten() {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap();
            let niceness = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(16);
            assert_eq!(niceness, Some("5"), "{stat}");
        }
    }
    let before = up.workers();
    let running = up.send(SPINS, PATIENCE);
    std::thread::sleep(Duration::from_millis(500));
    for worker in &before {
        kill(Pid::from_raw(*worker), Signal::SIGKILL).unwrap();
    }
    let (status, code, text) = Response::read(running).refusal();
    assert_eq!((status, code.as_str()), (500, "query_died"), "{text}");
    assert!(text.contains("signal: 9") && text.contains("only this query is lost"), "{text}");
    // What waited in a dead worker's place gets another one.
    wait_until("the workers are replaced", || up.ask("SELECT 1 AS one", PATIENCE).status == 200);
    up.goes_on("its workers were killed");
}

/// Scheduling policies of a process's threads, by the kernel's numbers: 0 normal, 5 idle.
fn policies(process: i32) -> Vec<String> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    let stats = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok());
    stats
        .map(|stat| stat.rsplit_once(')').unwrap().1.split_whitespace().nth(38).unwrap().to_owned())
        .collect()
}

/// Workers whose threads run in the background.
fn in_background(up: &Up) -> usize {
    let idle = |worker: &i32| policies(*worker).iter().filter(|policy| *policy == "5").count();
    up.workers().iter().filter(|worker| idle(worker) > 10).count()
}

#[test]
fn queries_that_keep_the_server_waiting_go_to_the_background_until_it_no_longer_waits() {
    let mut up = Up::start();
    up.goes_on("the start");
    assert_eq!(in_background(&up), 0);
    // More requests than the processors can serve beside queries that compute.
    let ends = AtomicBool::new(false);
    std::thread::scope(|clients| {
        for _ in 0..8 {
            clients.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    Response::read(up.ask_liveness());
                }
            });
        }
        let spinning: Vec<TcpStream> = (0..3).map(|_| up.send(SPINS, PATIENCE)).collect();
        wait_until("workers to yield", || in_background(&up) > 0);
        ends.store(true, Ordering::Relaxed);
        drop(spinning);
    });
    // Whoever asks next is answered, in the end by workers of the old rank.
    wait_until("workers to be replaced", || {
        up.goes_on("the allowance grows");
        in_background(&up) == 0
    });
}

/// A process's threads, its private memory and the hard limit on that memory (bytes), as the kernel
/// reports them. `None` if it has ended: workers are replaced while this looks.
fn threads_and_memory(process: i32) -> Option<(usize, u64, u64)> {
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).ok()?.count();
    let field = |file: &str, name: &str| {
        let text = std::fs::read_to_string(format!("/proc/{process}/{file}")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next().map(str::to_owned)
    };
    let held: u64 = field("status", "VmData:")?.parse().ok()?;
    // The hard limit is a number, or "unlimited".
    let most = field("limits", "Max data size")?;
    Some((threads, held << 10, most.parse().unwrap_or(u64::MAX)))
}

/// The same for each worker that is still running, by process.
fn living(up: &Up) -> BTreeMap<i32, (usize, u64, u64)> {
    up.workers().into_iter().filter_map(|worker| Some((worker, threads_and_memory(worker)?))).collect()
}

#[test]
fn a_worker_starts_no_thread_once_limited_and_is_replaced_when_worn() {
    let mut up = Up::start();
    up.goes_on("the start");
    let each = |up: &Up, holds: &dyn Fn(u64, u64) -> bool| {
        let workers = living(up);
        !workers.is_empty() && workers.values().all(|(_, held, most)| holds(*held, *most))
    };
    wait_until("all workers to be limited", || each(&up, &|_, most| most < u64::MAX));
    let before = living(&up);
    assert!(!before.is_empty());
    let fills = "SELECT array_length(array_agg(value)) FROM generate_series(1, 100000000)";
    let opens = format!("SELECT count(*) FROM ({})", vec!["SELECT * FROM jobs"; 60].join(" UNION ALL "));
    for _ in 0..4 {
        assert_eq!(up.ask(fills, PATIENCE).refusal().1, "memory_limit");
        let counted = up.ask(&opens, PATIENCE);
        assert_eq!((counted.status, counted.text()), (200, "count(*)\n30000\n"));
        for (worker, (threads, ..)) in living(&up) {
            if let Some((had, ..)) = before.get(&worker) {
                assert_eq!(threads, *had, "threads of worker {worker}");
            }
        }
        // What queries left in a worker leaves room for the next one.
        let has_room = |held, most| held + (QUERY_MEMORY_MIB << 20) / 8 + (64 << 20) <= most;
        wait_until("no worker is worn", || each(&up, &has_room));
    }
}

#[test]
fn workers_end_with_their_server_and_readiness_asks_them() {
    let mut up = Up::start();
    up.goes_on("the start");
    assert_eq!(up.ready().0, 200);
    let workers = up.workers();
    assert!(workers.len() >= 2, "{workers:?}");
    // With all of them busy no query is answered in time, and that is what it says.
    let spinning: Vec<TcpStream> = (0..16).map(|_| up.send(SPINS, PATIENCE)).collect();
    let mut ready = (200, String::new());
    wait_until("it is not ready", || {
        ready = up.ready();
        ready.0 == 503
    });
    assert!(ready.1.contains("not_ready") && ready.1.contains("ran longer than 2 s"), "{}", ready.1);
    up.child.kill().unwrap();
    up.child.wait().unwrap();
    drop(spinning);
    let alive = |worker: &i32| {
        // A process that ended and is not waited for has no command line.
        std::fs::read(format!("/proc/{worker}/cmdline")).is_ok_and(|line| !line.is_empty())
    };
    wait_until("the workers to end, also those that spin", || !workers.iter().any(alive));
}

/// Anybody may ask `/readyz`, and it runs a query. When each request ran its own, 400 of them
/// filled the queue, which holds 256 queries, and users were turned away.
#[test]
fn a_flood_of_readiness_takes_no_place_of_a_query() {
    let up = Up::start();
    let flood: Vec<TcpStream> = (0..400).map(|_| up.ask_readiness()).collect();
    let counted = up.ask("SELECT count(*) FROM jobs", PATIENCE);
    assert_eq!((counted.status, counted.text()), (200, "count(*)\n500\n"));
    // A machine that is busy may answer late, but not that the places are taken.
    let refused = |socket| Response::read(socket).text().contains("no more may");
    assert!(!flood.into_iter().any(refused));
}
