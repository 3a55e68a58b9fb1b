//! One worker: a process of this program that runs one query at a time.

use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio::net::UnixStream;
use tokio::time::timeout_at;

use super::allowance::Allowance;
use super::frame::{self, Frame, Kind};
use crate::error::QueryError;

/// A query that has ended or is ended leaves its worker within this time, or the worker is killed.
const SETTLES_WITHIN: Duration = Duration::from_millis(300);
/// The same for a worker in the background. It gets a processor only when nobody else wants one, so
/// it may take seconds to notice that its query was cancelled; killing and replacing it costs more.
const SETTLES_LATE_WITHIN: Duration = Duration::from_secs(5);
/// How often a worker that computes is charged for it.
const CHARGE_EVERY: Duration = Duration::from_millis(200);
/// Lines of a worker's standard error are cut to so many bytes.
const LINE_BYTES: usize = 400;

/// What the server was told in secret, and a process that runs what users wrote need not hold.
const SECRETS: [&str; 4] = [
    "OTEL_EXPORTER_OTLP_HEADERS",
    "OTEL_EXPORTER_OTLP_TRACES_HEADERS",
    "OTEL_EXPORTER_OTLP_METRICS_HEADERS",
    "TIDEGATE_WEBHOOK_URL",
];

/// How to start a worker of the program whose queries may hold so many bytes, and whether it begins
/// in the background.
pub type Program = Arc<dyn Fn(usize, bool) -> Command + Send + Sync>;

/// A worker, which is killed when dropped.
pub(super) struct Worker {
    child: Option<Child>,
    stream: UnixStream,
    frames: frame::Reader,
    /// A frame to it was cut: it cannot be understood any more.
    cut: bool,
    charged: Charged,
    /// The last line it wrote to standard error.
    last_words: Arc<Mutex<String>>,
    /// What it spilled goes with it, however it ends.
    _spill: TempDir,
}

/// What a worker has been charged for.
struct Charged {
    allowance: Arc<Allowance>,
    /// CPU time of the process that was charged, or is none of a query's.
    cpu: Duration,
    at: Instant,
    /// It runs in the background.
    yields: bool,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("pid", &self.child.as_ref().map(Child::id)).finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts a worker whose queries may hold so many bytes. It plans the pipelines while nobody
    /// waits; in the background while the allowance is used up.
    ///
    /// # Errors
    /// The system grants no process, socket or temporary folder.
    pub(super) fn start(
        program: &Program,
        memory_bytes: usize,
        allowance: Arc<Allowance>,
    ) -> io::Result<Self> {
        let (here, there) = StdStream::pair()?;
        here.set_nonblocking(true)?;
        let spill = tempfile::Builder::new().prefix("tidegate-query-").tempdir()?;
        let yields = !allowance.has_recovered();
        let mut command = program(memory_bytes, yields);
        SECRETS.iter().for_each(|name| {
            command.env_remove(name);
        });
        let mut child = command
            .env("TMPDIR", spill.path())
            .stdin(Stdio::from(OwnedFd::from(there)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()?;
        let last_words = Arc::<Mutex<String>>::default();
        if let Some(stderr) = child.stderr.take() {
            let last = Arc::clone(&last_words);
            std::thread::Builder::new().name("worker stderr".into()).spawn(move || {
                listen(BufReader::new(stderr), &last);
            })?;
        }
        let stream = UnixStream::from_std(here)?;
        let frames = frame::Reader::default();
        let charged = Charged { allowance, cpu: Duration::ZERO, at: Instant::now(), yields };
        Ok(Self { child: Some(child), stream, frames, cut: false, charged, last_words, _spill: spill })
    }

    /// The worker, if its process has not ended.
    pub(super) fn alive(mut self) -> Option<Self> {
        let ended = self.child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)));
        (!ended).then_some(self)
    }

    /// The next frame from it; `None` if it has ended. What it computes meanwhile is charged.
    pub(super) async fn read(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if self.charged.at.elapsed() >= CHARGE_EVERY {
                self.charge().await?;
            }
            let frame = self.frames.next(&mut self.stream, frame::MAX_FROM_WORKER);
            let read = timeout_at((self.charged.at + CHARGE_EVERY).into(), frame).await;
            if let Ok(frame) = read {
                return frame;
            }
        }
    }

    /// Whether it runs in the background.
    pub(super) fn yields(&self) -> bool {
        self.charged.yields
    }

    /// Asks it a query, which pays for what it computes from now on.
    pub(super) async fn ask(&mut self, ask: &[u8]) -> io::Result<()> {
        // Its start is ours.
        self.charged.cpu = self.cpu();
        self.charge().await?;
        self.write(Kind::Ask, ask).await
    }

    /// Charges what it has computed to the allowance, and moves it to the background if nothing is
    /// left.
    async fn charge(&mut self) -> io::Result<()> {
        let cpu = self.cpu();
        let used = cpu.saturating_sub(self.charged.cpu);
        (self.charged.cpu, self.charged.at) = (cpu, Instant::now());
        // Where it yields, others lose nothing to it.
        if !self.charged.yields && !self.charged.allowance.charge(used) {
            self.charged.yields = true;
            self.write(Kind::Yield, &[]).await?;
        }
        Ok(())
    }

    /// CPU time that the process has used.
    fn cpu(&self) -> Duration {
        let stat = self.child.as_ref().map(|child| format!("/proc/{}/stat", child.id()));
        let stat = stat.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
        cpu_of(&stat).unwrap_or(self.charged.cpu)
    }

    pub(super) async fn write(&mut self, kind: Kind, bytes: &[u8]) -> io::Result<()> {
        self.cut = true;
        frame::write(&mut self.stream, kind, bytes).await?;
        self.cut = false;
        Ok(())
    }

    /// Ends its query. Returns it once nothing of the query runs any more, if that is soon and the
    /// worker is fit for another one.
    pub(super) async fn settled(mut self) -> Option<Self> {
        if self.cut {
            return None;
        }
        let patience = if self.yields() { SETTLES_LATE_WITHIN } else { SETTLES_WITHIN };
        let settled = async {
            self.write(Kind::Cancel, &[]).await.ok()?;
            while let Ok(Some(frame)) = self.read().await {
                match frame.kind {
                    Kind::Idle => return Some(()),
                    Kind::Worn => return None,
                    _ => {}
                }
            }
            None
        };
        tokio::time::timeout(patience, settled).await.ok().flatten()?;
        self.charge().await.ok()?;
        Some(self)
    }

    /// Why the process has ended, in the terms of the query it ran. Ends it if it has not.
    pub(super) fn cause_of_death(mut self, memory_bytes: usize, time_max: Duration) -> QueryError {
        const SIGXCPU: i32 = 24;
        let Some(mut child) = self.child.take() else { return died(String::new()) };
        // The socket closes a moment before the process can be waited for.
        let status = ended(&mut child);
        let words = self.last_words.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match status {
            _ if words.contains("memory allocation of") => QueryError::OutOfMemory(format!(
                "it met the hard limit of its process, which is for queries of {} MiB",
                memory_bytes >> 20
            )),
            _ if words.contains("overflowed its stack") => QueryError::Invalid(
                "it is nested too deeply to be planned; split it into simpler queries".into(),
            ),
            Some(status) if status.signal() == Some(SIGXCPU) => QueryError::TooSlow { limit: time_max },
            Some(status) => died(format!("{status}; {words}")),
            None => died(words),
        }
    }
}

/// CPU time by `/proc/PID/stat`, whose unit is a hundredth of a second on Linux.
fn cpu_of(stat: &str) -> Option<Duration> {
    // The name of the program, in parentheses, may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

fn died(how: String) -> QueryError {
    QueryError::Died(how.trim_end_matches("; ").to_owned())
}

/// Waits a moment for the end of a process, then kills it.
fn ended(child: &mut Child) -> Option<ExitStatus> {
    for _ in 0..50 {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(Duration::from_millis(2)),
            ended => return ended.ok().flatten(),
        }
    }
    child.kill().ok();
    child.wait().ok()
}

impl Drop for Worker {
    fn drop(&mut self) {
        let Some(mut child) = self.child.take() else { return };
        child.kill().ok();
        // Large memory takes the kernel a while to free, which nobody has to wait for.
        std::thread::spawn(move || child.wait());
    }
}

/// Passes a worker's log lines on, and keeps the last of them.
fn listen(mut from: impl BufRead, last: &Mutex<String>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match io::Read::take(&mut from, 64 << 10).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text: String = text.trim().chars().take(LINE_BYTES).collect();
        if text.is_empty() {
            continue;
        }
        tracing::debug!(worker = text, "a query's process");
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        // What the runtime says of an overflow or a lack of memory has several lines; the first
        // one names it.
        if !(last.contains("overflowed its stack") || last.contains("memory allocation of")) {
            *last = text;
        }
    }
}
