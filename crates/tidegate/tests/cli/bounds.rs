//! Memory of queries is bounded: a real server under queries that would take all memory, with its
//! resident memory monitored.

mod hostile;

use std::collections::BTreeMap;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::program::{Place, address_of, jobs, tidegate};
use crate::query_workers::children;
use hostile::{Ends, queries};

/// Memory of the process beyond the limit of queries, as documented.
const BASE_MIB: u64 = 384;

/// Time limit for a query that has an answer: the most that may be asked for.
const LONGEST: Duration = Duration::from_secs(60);
/// How long ended queries may hold memory on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);

/// A server with monitored memory.
struct Watched {
    child: Child,
    query_memory: String,
    /// Keeps the program's stdout open.
    _stdout: BufReader<ChildStdout>,
    address: String,
    peak_kib: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    watcher: Option<JoinHandle<()>>,
}

impl Watched {
    fn start(place: &Place, query_memory: &str) -> Self {
        let mut child = tidegate()
            .args([
                "up",
                "--listen",
                "127.0.0.1:0",
                "--ingest",
                "--no-insight",
                "--query-memory",
                query_memory,
            ])
            .arg("--data")
            .arg(place.data())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (address, stdout) = address_of(&mut child, "SQL");
        let (peak_kib, ended) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let watcher = watch(child.id(), Arc::clone(&peak_kib), Arc::clone(&ended));
        Self {
            child,
            query_memory: query_memory.to_owned(),
            _stdout: stdout,
            address,
            peak_kib,
            ended,
            watcher: Some(watcher),
        }
    }

    /// Required end of a query under this server's limit.
    fn expects(&self, ends: Ends) -> Ends {
        match ends {
            Ends::LimitedUntil1G(right) if self.query_memory == "1G" => Ends::Either(right),
            Ends::LimitedUntil1G(_) => Ends::OutOfMemory,
            // There is more to fill, which may take longer than a query has.
            Ends::OutOfMemory if self.query_memory == "1G" => Ends::Limited,
            other => other,
        }
    }

    fn peak_mib(&self) -> u64 {
        self.peak_kib.load(Ordering::Relaxed) / 1024
    }

    /// Waits until a query that needs most of the memory succeeds. After a limit, the server sends
    /// the error first and frees the query's memory later. Without this wait, the next query could
    /// hit the memory limit through no fault of its own.
    fn wait_for_free_memory(&self) {
        let sql = "SELECT max(r) FROM (SELECT row_number() OVER (ORDER BY value) r FROM generate_series(1, 500000)) x";
        let ends = Ends::Right("500000");
        let began = Instant::now();
        while let Err(other) = self.ask(sql, ends, LONGEST).judge(ends) {
            assert!(began.elapsed() < PATIENCE, "ended queries still hold memory: {other:.900}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a query with a time limit.
    fn ask(&self, sql: &str, ends: Ends, time: Duration) -> Answer {
        let format = if matches!(ends, Ends::Right(_) | Ends::Either(_)) { "csv" } else { "json" };
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(300))).unwrap();
        let request = serde_json::json!({
            "sql": sql, "format": format, "timeout_ms": time.as_millis() as u64, "max_rows": 1_000_000_000_u64,
        });
        let body = request.to_string();
        let head = format!(
            "POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\n\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(body.as_bytes())).unwrap();
        Answer::read(socket)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.watcher.take().map(JoinHandle::join);
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGKILL).ok();
        self.child.wait().ok();
    }
}

/// Polls the memory of the process and of its workers, and kills it before it harms the machine.
/// Pages of files are left out: the processes share them.
fn watch(process: u32, peak_kib: Arc<AtomicU64>, ended: Arc<AtomicBool>) -> JoinHandle<()> {
    const TOO_MUCH_KIB: u64 = 8 << 20;
    std::thread::spawn(move || {
        while !ended.load(Ordering::Relaxed) {
            let workers = children(process as i32).into_iter().map(|worker| worker as u32);
            let held = workers.chain([process]).map(anonymous_kib).sum::<u64>();
            if peak_kib.fetch_max(held, Ordering::Relaxed) > TOO_MUCH_KIB {
                kill(Pid::from_raw(process as i32), Signal::SIGKILL).ok();
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
    })
}

fn anonymous_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let held = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    held.and_then(|kib| kib.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// The beginning of an answer, and whether it was complete.
#[derive(Debug)]
struct Answer {
    status: u16,
    begin: String,
    whole: bool,
}

impl Answer {
    /// Reads an answer to its end and keeps its beginning.
    fn read(mut socket: TcpStream) -> Self {
        const KEPT: usize = 4096;
        let (mut begin, mut end, mut block) = (Vec::new(), Vec::new(), vec![0; 256 << 10]);
        while let Ok(read @ 1..) = socket.read(&mut block) {
            let room = KEPT.saturating_sub(begin.len());
            begin.extend_from_slice(&block[..read.min(room)]);
            end.extend_from_slice(&block[read.saturating_sub(8)..read]);
            end.drain(..end.len().saturating_sub(8));
        }
        let text = String::from_utf8_lossy(&begin).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let chunked = head.to_ascii_lowercase().contains("transfer-encoding: chunked");
        Self {
            status,
            begin: body.to_owned(),
            whole: status != 0 && (!chunked || end.ends_with(b"0\r\n\r\n")),
        }
    }

    /// The code of an error that names a limit and how it is raised.
    fn limit(&self) -> Option<String> {
        let error: serde_json::Value = serde_json::from_str(&self.begin).ok()?;
        let (code, hint) = (error["code"].as_str()?, error["hint"].as_str().unwrap_or_default());
        let named = match code {
            "memory_limit" => "--query-memory",
            "time_limit" => "--timeout",
            "rows_limit" => "--max-rows",
            "row_limit" => "substr",
            _ => return None,
        };
        hint.contains(named).then(|| code.to_owned())
    }

    /// Name of how it ended, if allowed.
    fn judge(&self, ends: Ends) -> Result<String, String> {
        let rows = self.begin.split_once('\n').map_or("", |(_, rows)| rows.trim_end());
        let answered = self.status == 200 && self.whole;
        match (ends, self.limit()) {
            (Ends::Right(right) | Ends::Either(right), _) if answered && rows == right => {
                Ok("answered".into())
            }
            // On a busy machine time may end first; how many must meet the memory limit is counted.
            (Ends::OutOfMemory, Some(code)) if ["memory_limit", "time_limit"].contains(&&*code) => Ok(code),
            (Ends::Limited | Ends::Either(_) | Ends::Streams, Some(code)) => Ok(code),
            (Ends::Streams, None) if answered => Ok("answered".into()),
            // A limit met after the answer began truncates it.
            (Ends::Streams, None) if self.status == 200 => Ok("cut".into()),
            _ => Err(format!("{self:?} instead of {ends:?}")),
        }
    }
}

/// Asks queries from several clients at once until time is up, every client so many at least.
/// Returns how often they ended how. One client alone asks them in turn, and what has an answer
/// then has to get it.
fn ask_all(
    server: &Watched,
    clients: usize,
    each: Duration,
    at_least: usize,
    until: Instant,
) -> BTreeMap<String, u64> {
    let (ended, wrong): (Mutex<BTreeMap<String, u64>>, Mutex<Vec<String>>) = Default::default();
    let (queries, in_turn) = (queries(), clients == 1);
    std::thread::scope(|scope| {
        for client in 0..clients {
            let (ended, wrong, queries) = (&ended, &wrong, &queries);
            scope.spawn(move || {
                // Each client begins elsewhere and takes other steps, so that all kinds of queries
                // meet.
                let step = if in_turn { 1 } else { [1, 7, 11, 13, 17][client % 5] };
                for turn in 0.. {
                    if turn >= at_least && Instant::now() >= until {
                        break;
                    }
                    let (sql, ends) = &queries[(client * 9 + turn * step) % queries.len()];
                    let ends = server.expects(*ends);
                    let ends = if in_turn { ends } else { beside_others(ends) };
                    let time =
                        if matches!(ends, Ends::Right(_) | Ends::OutOfMemory) { LONGEST } else { each };
                    let judged = server.ask(sql, ends, time).judge(ends);
                    if in_turn && !matches!(judged.as_deref(), Ok("answered")) {
                        server.wait_for_free_memory();
                    }
                    match judged {
                        Ok(how) => *ended.lock().unwrap().entry(how).or_default() += 1,
                        Err(other) => wrong.lock().unwrap().push(format!("{sql:.300}\n{other:.900}")),
                    }
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    let peak_mib = server.peak_mib();
    assert!(wrong.is_empty(), "{} ended otherwise; peak {peak_mib} MiB:\n{}", wrong.len(), wrong.join("\n"));
    ended.into_inner().unwrap()
}

/// While other queries hold memory, a query with an answer may hit a limit instead.
fn beside_others(ends: Ends) -> Ends {
    match ends {
        Ends::Right(right) => Ends::Either(right),
        other => other,
    }
}

fn with_jobs() -> Place {
    let place = Place::new();
    let file = place.file("jobs.csv", jobs(500));
    assert_eq!(place.import(file, "jobs_csv").status, Some(0));
    place
}

#[test]
fn hostile_queries_meet_a_limit_or_have_the_right_answer() {
    // One query may have half of it.
    const LIMIT_MIB: u64 = 256;
    let place = with_jobs();
    let server = Watched::start(&place, "256M");
    let ended = ask_all(&server, 1, Duration::from_secs(2), queries().len(), Instant::now());
    let alone = server.peak_mib();
    // Others may be answered within their time, which depends on the machine.
    let right = queries().iter().filter(|(_, ends)| matches!(ends, Ends::Right(_))).count();
    assert!(ended["answered"] >= right as u64 && ended["memory_limit"] >= 12, "{ended:?}");
    assert!(alone <= LIMIT_MIB + BASE_MIB, "one after the other they took {alone} MiB");
    let ended = ask_all(&server, 4, Duration::from_secs(1), queries().len() / 4, Instant::now());
    let together = server.peak_mib();
    assert!(ended["memory_limit"] >= 12, "{ended:?}");
    assert!(together <= LIMIT_MIB + BASE_MIB, "four at a time they took {together} MiB");
    server.wait_for_free_memory();
    let all = Ends::Right("500");
    let after = server.ask("SELECT count(*) FROM jobs", all, LONGEST);
    assert_eq!(after.judge(all), Ok("answered".into()));
    eprintln!("peak {alone} MiB one after the other, {together} MiB four at a time");
    drop(server);
    if std::env::var_os("TIDEGATE_LONG").is_some() {
        an_hour_of_them();
    }
}

/// The long form: the default limit and four clients, for an hour or `TIDEGATE_LONG_MINUTES`.
fn an_hour_of_them() {
    const LIMIT_MIB: u64 = 1024;
    let minutes = std::env::var("TIDEGATE_LONG_MINUTES").map_or(60, |minutes| minutes.parse().unwrap());
    let place = with_jobs();
    let server = Watched::start(&place, "1G");
    let until = Instant::now() + Duration::from_secs(60 * minutes);
    let ended = ask_all(&server, 4, Duration::from_secs(15), queries().len(), until);
    eprintln!("{minutes} minutes: peak {} MiB; {ended:?}", server.peak_mib());
    assert!(server.peak_mib() <= LIMIT_MIB + BASE_MIB, "they took {} MiB", server.peak_mib());
}
