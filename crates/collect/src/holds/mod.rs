//! Which Slurm job holds which device of this node, from when to when.
//!
//! A prolog tells when a job is given its devices and an epilog when it gives them back (`deploy/slurm`): such a hold is
//! `EXACT`, or `SHARED_ESTIMATED` with the share that it names. Both may be missed. So the node is looked at, too: a hold whose
//! job has no cgroup any more ends, and a process of a job on a device that nobody told of is a hold of quality `UNKNOWN` while
//! the process is there.
//!
//! A prolog knows the number of a task of an array and not its place, by which accounting names it. The agent reads it from the
//! environment of a process of the job, and tells of the hold when it knows it: dated from when the prolog told. Without the
//! right to do so (`CAP_SYS_PTRACE`) it tells of the hold by number, half a minute later.
//!
//! Open holds are in a file, so that an agent that starts again goes on with them.

mod book;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, fs, io};

use tidegate_events::Event;

use book::{Book, Seen};
pub use scan::{Evidence, JobOfProcess, Jobs, Roots};

use crate::inlet::{HoldEvent, HoldEvents};
use crate::reading::{Device, Reading, Sink};

/// A process that was on a device is believed to be there for so long after its last reading.
const SEEN_MS: i64 = 5_000;
/// Whose a process is is asked again after this time: numbers of processes are used again.
const ASK_AGAIN_MS: i64 = 60_000;

/// Where the account is kept, and how the node is looked at.
#[derive(Clone)]
pub struct HoldOptions {
    /// As the scheduler names it.
    pub node: String,
    /// The kernel's random id of this boot.
    pub boot_id: String,
    /// When it booted, ms since the epoch.
    pub booted_ms: i64,
    /// File of open holds.
    pub file: PathBuf,
    /// How often the node is looked at.
    pub every: Duration,
    pub roots: Roots,
    /// Returns when what the sink was told is safe.
    pub store: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
}

impl HoldOptions {
    /// On this machine, in its present life.
    pub fn new(
        node: impl Into<String>,
        file: PathBuf,
        store: Arc<dyn Fn() -> Result<(), String> + Send + Sync>,
    ) -> Self {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let booted = stat.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse::<i64>().ok());
        Self {
            node: node.into(),
            boot_id: boot_id.trim().to_owned(),
            booted_ms: booted.map_or_else(now_ms, |seconds| seconds * 1000),
            file,
            every: Duration::from_secs(10),
            roots: Roots::default(),
            store,
        }
    }
}

impl fmt::Debug for HoldOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldOptions")
            .field("node", &self.node)
            .field("file", &self.file)
            .finish_non_exhaustive()
    }
}

/// Keeps account of the holds of a node. It takes what prologs tell, and as a sink stands between a source and the agent, where
/// it learns the devices and the processes on them, and writes into readings whose these are.
pub struct NodeHolds {
    options: HoldOptions,
    sink: Arc<dyn Sink>,
    inner: Mutex<Inner>,
    /// As the file has it.
    written: Mutex<Vec<u8>>,
}

#[derive(Default)]
struct Inner {
    book: Book,
    devices: Vec<Device>,
    /// Processes of jobs on devices, with the tick of their last reading.
    seen: HashMap<(u32, Device), (JobOfProcess, i64)>,
    /// Whose a process is, and when that was asked.
    known: HashMap<u32, (Option<JobOfProcess>, i64)>,
}

impl fmt::Debug for NodeHolds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHolds").field("options", &self.options).finish_non_exhaustive()
    }
}

impl NodeHolds {
    /// Goes on with the holds in the file.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn new(options: HoldOptions, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let book = match fs::read(&options.file) {
            Ok(json) => serde_json::from_slice(&json).map_err(|error| {
                let file = options.file.display();
                io::Error::other(format!("{file} is damaged: {error}; remove it, and open holds begin anew"))
            })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Book::default(),
            Err(error) => return Err(error),
        };
        let (book, events) = book.resume(&options.node, &options.boot_id, options.booted_ms);
        let inner = Mutex::new(Inner { book, ..Inner::default() });
        let holds = Self { options, sink, inner, written: Mutex::default() };
        holds.keep(holds.lock(), events).map_err(io::Error::other)?;
        Ok(holds)
    }

    /// Looks at the node once.
    pub fn look(&self, now_ms: i64) {
        let roots = &self.options.roots;
        let jobs = roots.jobs();
        let mut inner = self.lock();
        inner.seen.retain(|_, (_, tick_ms)| now_ms - *tick_ms <= SEEN_MS);
        inner.known.retain(|_, (_, asked_ms)| now_ms - *asked_ms <= ASK_AGAIN_MS);
        let seen: Vec<Seen> = inner
            .seen
            .iter()
            .map(|((_, device), (job, _))| Seen {
                job: job.number.clone(),
                spelled: job.spelled.clone(),
                device: device.clone(),
                evidence: job.evidence,
            })
            .collect();
        let mut names: BTreeMap<String, String> =
            seen.iter().filter_map(|seen| Some((seen.job.clone(), seen.spelled.clone()?))).collect();
        let mut unnamed = inner.book.unnamed();
        unnamed.retain(|number| {
            let pid = jobs.as_ref().and_then(|jobs| *jobs.numbers.get(number)?);
            let spelled = pid.and_then(|pid| roots.job_of(pid)).and_then(|job| job.spelled);
            names.extend(spelled.map(|spelled| (number.clone(), spelled)));
            !names.contains_key(number)
        });
        names.extend(roots.names(&unnamed));
        let events = inner.book.looked(&self.options.node, now_ms, jobs.as_ref(), &names, &seen);
        if let Err(error) = self.keep(inner, events) {
            tracing::warn!("{} is not up to date: {error}", self.options.file.display());
        }
    }

    /// Tells events, and writes the file once they are safe: told twice they would be one. Readings go on meanwhile.
    fn keep(&self, inner: MutexGuard<'_, Inner>, events: Vec<Event>) -> Result<(), String> {
        events.into_iter().for_each(|event| self.sink.event(event));
        drop(inner);
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let json = serde_json::to_vec(&self.lock().book).map_err(|error| error.to_string())?;
        if *written == json {
            return Ok(());
        }
        (self.options.store)()?;
        replace(&self.options.file, &json).map_err(|error| error.to_string())?;
        *written = json;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Replaces a file at once: after a kill the old one is there or the new one.
fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let new = file.with_extension("new");
    fs::write(&new, bytes)?;
    fs::rename(&new, file)
}

impl HoldEvents for NodeHolds {
    fn hold_event(&self, told: HoldEvent) -> Result<(), String> {
        if told.node.as_ref().is_some_and(|node| *node != self.options.node) {
            let (theirs, ours) = (told.node.unwrap_or_default(), &self.options.node);
            return Err(format!(
                "it is of node {theirs}, and this is {ours}; give the agent the scheduler's name with --node"
            ));
        }
        let mut inner = self.lock();
        let Inner { book, devices, .. } = &mut *inner;
        let events = book.told(&self.options.node, &told, now_ms(), devices);
        self.keep(inner, events)
    }
}

impl Sink for NodeHolds {
    fn reading(&self, mut reading: Reading) {
        let mut inner = self.lock();
        if !inner.devices.contains(&reading.device) {
            // A slice or a driver's number may have changed.
            let is = |device: &Device| {
                (&device.uuid, &device.mig_uuid) == (&reading.device.uuid, &reading.device.mig_uuid)
            };
            inner.devices.retain(|device| !is(device));
            inner.devices.push((*reading.device).clone());
        }
        for process in &mut reading.processes {
            let asked = inner.known.entry(process.pid);
            let (job, _) = asked.or_insert_with(|| (self.options.roots.job_of(process.pid), reading.tick_ms));
            if let Some(job) = job.clone() {
                process.job_id =
                    process.job_id.take().or(Some(job.spelled.as_ref().unwrap_or(&job.number).clone()));
                inner.seen.insert((process.pid, (*reading.device).clone()), (job, reading.tick_ms));
            }
        }
        drop(inner);
        self.sink.reading(reading);
    }

    fn event(&self, event: Event) {
        self.sink.event(event);
    }
}

/// Looks at the node in turns, until it is dropped.
#[derive(Debug)]
pub struct HoldWatch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HoldWatch {
    /// # Errors
    /// There is no thread to be had.
    pub fn start(holds: Arc<NodeHolds>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let every = holds.options.every;
        let look = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                holds.look(now_ms());
            }
        };
        let thread = thread::Builder::new().name("holds".into()).spawn(look)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for HoldWatch {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // It panicked, which was printed.
            thread.join().ok();
        }
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
