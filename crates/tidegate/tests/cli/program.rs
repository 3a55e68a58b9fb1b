//! Runs the program: arguments in; exit status, output and tables out.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::engine::Limits;
use tidegate_lake::pipeline::Plan;
use tidegate_lake::pipeline::shipped;
use tidegate_server::{Encoded, Format, Overrides, QueryLimits, QueryService};
use url::Url;

/// What a shipped mapping for plain job tables needs, and how a good row looks.
pub const HEADER: &str = "job_id,team,gpus,submit_time,start_time,end_time,state\n";
pub const GOOD_ROW: &str =
    "1,vision,1,2024-03-01T00:00:00Z,2024-03-01T01:00:00Z,2024-03-01T02:00:00Z,COMPLETED\n";

/// The program without settings of the environment, without input. `TIDEGATE_BIN` names another
/// build of it, for long proofs.
pub fn tidegate() -> Command {
    let built = env!("CARGO_BIN_EXE_tidegate");
    let mut command = Command::new(std::env::var_os("TIDEGATE_BIN").unwrap_or_else(|| built.into()));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("TIDEGATE_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// [`tidegate`] in a session of its own. Linux first divides processor time among sessions
/// (autogroups). A query that has used up its allowance runs only while the rest of its session is
/// idle, so other tests in that session could starve it for minutes.
pub fn tidegate_alone() -> Command {
    let shared = tidegate();
    let mut command = Command::new("setsid");
    command.arg(shared.get_program()).stdin(Stdio::null());
    for (name, value) in shared.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// Waits until a server prints the line that begins with `door` (`SQL` or `events`). Returns the
/// address in it, and the rest of the output, which must be kept so that the server can go on
/// printing.
pub fn address_of(child: &mut Child, door: &str) -> (String, BufReader<ChildStdout>) {
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with(door) {
        line.clear();
        assert!(stdout.read_line(&mut line).unwrap() > 0, "it ended before it listened");
    }
    let address = line.split("://").nth(1).and_then(|rest| rest.split(['/', ' ']).next()).unwrap();
    (address.trim().to_owned(), stdout)
}

/// An HTTP request that runs a query.
pub fn post(sql: &str, accept: &str) -> String {
    let length = sql.len();
    format!(
        "POST /v1/sql HTTP/1.0\r\nHost: localhost\r\nAccept: {accept}\r\nContent-Length: {length}\r\n\r\n{sql}"
    )
}

/// `tidegate import jobs FILE --map MAP --data DATA`.
pub fn import(file: impl AsRef<Path>, map: impl AsRef<Path>, data: &Path) -> Command {
    let mut command = tidegate();
    command
        .args(["import", "jobs"])
        .arg(file.as_ref())
        .arg("--map")
        .arg(map.as_ref())
        .arg("--data")
        .arg(data);
    command
}

/// A temporary folder with a place for data in it and files beside.
pub struct Place(pub TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn data(&self) -> PathBuf {
        self.0.path().join("data")
    }

    pub fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub fn import(&self, file: impl AsRef<Path>, map: impl AsRef<Path>) -> Ended {
        run(&mut import(file, map, &self.data()))
    }
}

/// `lines` good jobs, one after the other.
pub fn jobs(lines: usize) -> String {
    let row = |job| {
        format!("{job},vision,1,2024-03-01T00:00:00Z,2024-03-01T01:00:00Z,2024-03-01T02:00:00Z,COMPLETED\n")
    };
    HEADER.to_owned() + &(0..lines).map(row).collect::<String>()
}

/// Exit and output of a command.
#[derive(Debug)]
pub struct Ended {
    /// `None` if a signal ended it.
    pub status: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs the command.
pub fn run(command: &mut Command) -> Ended {
    Ended::from(command.output().unwrap())
}

/// Runs a command that has to succeed. Returns its standard output.
pub fn succeed(command: &mut Command) -> String {
    let ended = run(command);
    assert_eq!(ended.status, Some(0), "{command:?}\n{}", last_lines(&ended.stderr));
    ended.stdout
}

/// The end of a long text: what a command says last is why it failed.
fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

impl From<std::process::Output> for Ended {
    fn from(output: std::process::Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { status: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Ended {
    /// The command failed, and its message has all these words.
    pub fn refused(&self, words: &[&str]) {
        self.ended_with(1, words);
    }

    /// The command gave up because the log did not answer, and its message has all these words.
    pub fn gave_up(&self, words: &[&str]) {
        self.ended_with(75, words);
    }

    fn ended_with(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, Some(status), "{self:?}");
        for word in words {
            assert!(self.stderr.contains(word), "{word:?} is missing in\n{}", self.stderr);
        }
    }
}

/// The answer to a query as CSV with a header.
pub fn query(data: &Path, sql: &str) -> String {
    succeed(tidegate().args(["sql", "--format", "csv", "--data"]).arg(data).arg(sql))
}

/// The named tables of a data folder: of each the header line, then its rows in the order of their
/// text; of one without rows nothing. Read as `tidegate sql` does, but the pipelines are planned
/// once for all tables.
#[tokio::main(flavor = "current_thread")]
pub async fn tables(data: &Path, names: &[impl AsRef<str>]) -> BTreeMap<String, Vec<String>> {
    let plan = Plan::compile(shipped()).await.unwrap();
    let lake = Url::from_directory_path(data.join("lake")).unwrap();
    let catalog = committed_catalog(&lake, &plan, Limits::default()).await.unwrap();
    let limits = QueryLimits { rows_max: u64::MAX, ..QueryLimits::default() };
    let service = QueryService::new(CatalogSource::fixed(catalog), limits).unwrap();
    let mut tables = BTreeMap::new();
    for name in names.iter().map(AsRef::as_ref) {
        let rows = service.query(&format!("SELECT * FROM {name}"), Overrides::default()).await.unwrap();
        let mut encoded = Encoded::new(rows, Format::Csv).unwrap();
        let mut csv = Vec::new();
        while let Some(piece) = encoded.next().await.unwrap() {
            csv.extend_from_slice(&piece);
        }
        let csv = String::from_utf8(csv).unwrap();
        let mut lines: Vec<String> = csv.lines().map(str::to_owned).collect();
        if let Some((_, rows)) = lines.split_first_mut() {
            rows.sort_unstable();
        }
        let lines = if lines.len() > 1 { lines } else { Vec::new() };
        tables.insert(name.to_owned(), lines);
    }
    tables
}

/// The views that people ask most, and every stored table of a data folder whose contents follow
/// from its events: how often a window was revised tells in which order they came, and records of
/// what people did are of one run, so those tables are left out.
pub fn table_names(data: &Path) -> Vec<String> {
    let listed = query(data, "describe");
    let stored = listed.lines().skip(1).filter_map(|line| line.split_once(",table,"));
    let names = stored
        .map(|(name, _)| name)
        .filter(|name| !["window_revisions", "table_lag", "audit_events"].contains(name));
    names.chain(["allocations", "jobs"]).map(str::to_owned).collect()
}

/// Fails at the first row in which the tables differ.
pub fn assert_same_tables(
    found: &BTreeMap<String, Vec<String>>,
    expected: &BTreeMap<String, Vec<String>>,
    what: &str,
) {
    assert!(found.keys().eq(expected.keys()), "{what}: tables {:?}", found.keys());
    for (name, rows) in expected {
        let found = &found[name];
        let differ = (0..rows.len().max(found.len())).find(|&i| rows.get(i) != found.get(i));
        if let Some(at) = differ {
            panic!(
                "{what}: {name} has {} lines instead of {}; in order, the first that differs is\n  {:?}\ninstead of\n  {:?}",
                found.len(),
                rows.len(),
                found.get(at),
                rows.get(at)
            );
        }
    }
}

/// Waits for a condition; fails after three minutes.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < Duration::from_secs(180), "waited three minutes for: {what}");
        // A look may be a process of its own: the longer it took so far, the rarer.
        let rest = (begun.elapsed() / 8).clamp(Duration::from_millis(2), Duration::from_secs(2));
        std::thread::sleep(rest);
    }
}
