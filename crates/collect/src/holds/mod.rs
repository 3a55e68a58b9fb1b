//! Which Slurm job holds which device of this node, from when to when.
//!
//! A prolog tells when a job is given its devices and an epilog when it gives them back
//! (`deploy/slurm`): such a hold is `EXACT`, or `SHARED_ESTIMATED` with the share that it names.
//! Both may be missed. So the node is looked at, too: a hold whose job has no cgroup any more ends,
//! and a process of a job on a device that nobody told of is a hold of quality `UNKNOWN` while the
//! process is there.
//!
//! A prolog knows the number of a task of an array and not its place, by which accounting names it.
//! The agent reads it from the environment of a task of the job, and tells of the hold when it
//! knows it: dated from when the prolog told. Without the right to do so (`CAP_SYS_PTRACE`) it
//! tells of the hold by number, half a minute later.
//!
//! Open holds are in a file, so that an agent that starts again goes on with them.

mod book;
mod scan;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use std::{fmt, fs, io};

use tidegate_events::Event;

use book::{Book, Seen};
pub use scan::{Evidence, JobOfProcess, Jobs, Roots};

use crate::checkpoint::Checkpoint;
use crate::inlet::{HoldEvent, HoldEvents};
use crate::reading::{Device, Reading, Sink};

/// A process that was on a device is believed to be there for so long after its last reading.
const SEEN_MS: i64 = 5_000;
/// Whose a process is is asked again after this time: numbers of processes are used again.
const ASK_AGAIN_MS: i64 = 60_000;

/// Where the account is kept, and how the node is looked at.
#[derive(Debug, Clone)]
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
}

impl HoldOptions {
    /// On this machine, in its present life.
    pub fn new(node: impl Into<String>, file: PathBuf) -> Self {
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
        }
    }
}

/// Keeps account of the holds of a node. It takes what prologs tell, and as a sink stands between a
/// source and the agent, where it learns the devices and the processes on them, and writes into
/// readings whose these are.
pub struct NodeHolds {
    options: HoldOptions,
    sink: Arc<dyn Sink>,
    /// Taken before `node`, and never for a reading: it waits for the disk.
    account: Mutex<Account>,
    node: Mutex<Node>,
}

struct Account {
    book: Book,
    checkpoint: Checkpoint,
}

/// What readings tell of the node.
#[derive(Default)]
struct Node {
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
    /// The file cannot be read.
    pub fn new(options: HoldOptions, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let (book, mut checkpoint) = Checkpoint::open::<Book>(Some(options.file.clone()))?;
        let (book, events) = match book {
            Some(book) => book.resume(&options.node, &options.boot_id, options.booted_ms),
            None => (Book::begin(&options.boot_id, now_ms()), Vec::new()),
        };
        checkpoint.add(events);
        let account = Mutex::new(Account { book, checkpoint });
        let holds = Self { options, sink, account, node: Mutex::default() };
        holds.keep(&mut holds.account(), Vec::new()).map_err(io::Error::other)?;
        Ok(holds)
    }

    /// Looks at the node once.
    pub fn look(&self, now_ms: i64) {
        let roots = &self.options.roots;
        let jobs = roots.jobs();
        let seen = self.node().seen(now_ms);
        let mut account = self.account();
        let mut names: BTreeMap<String, String> =
            seen.iter().filter_map(|seen| Some((seen.job.clone(), seen.spelled.clone()?))).collect();
        let mut unnamed = account.book.unnamed();
        unnamed.retain(|number| {
            let pid = jobs.as_ref().and_then(|jobs| *jobs.numbers.get(number)?);
            let spelled = pid.and_then(|pid| roots.job_of(pid)).and_then(|job| job.spelled);
            names.extend(spelled.map(|spelled| (number.clone(), spelled)));
            !names.contains_key(number)
        });
        names.extend(roots.names(&unnamed));
        let events = account.book.looked(&self.options.node, now_ms, jobs.as_ref(), &names, &seen);
        if let Err(error) = self.keep(&mut account, events) {
            tracing::warn!("the account of holds is not safe: {error}");
        }
    }

    fn keep(&self, account: &mut Account, events: Vec<Event>) -> Result<(), String> {
        account.checkpoint.add(events);
        account.checkpoint.hand_on(&account.book, &*self.sink)
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Processes of jobs that were on devices just now.
    fn seen(&mut self, now_ms: i64) -> Vec<Seen> {
        self.seen.retain(|_, (_, tick_ms)| now_ms - *tick_ms <= SEEN_MS);
        self.known.retain(|_, (_, asked_ms)| now_ms - *asked_ms <= ASK_AGAIN_MS);
        let seen = |((_, device), (job, _)): (&(u32, Device), &(JobOfProcess, i64))| Seen {
            job: job.number.clone(),
            spelled: job.spelled.clone(),
            device: device.clone(),
            evidence: job.evidence,
        };
        self.seen.iter().map(seen).collect()
    }
}

impl HoldEvents for NodeHolds {
    fn hold_event(&self, told: HoldEvent) -> Result<(), String> {
        if told.node.as_ref().is_some_and(|node| *node != self.options.node) {
            let (theirs, ours) = (told.node.unwrap_or_default(), &self.options.node);
            return Err(format!(
                "it is of node {theirs}, and this is {ours}; give the agent the scheduler's name with --node"
            ));
        }
        let mut account = self.account();
        let devices = self.node().devices.clone();
        let events = account.book.told(&self.options.node, &told, now_ms(), &devices);
        self.keep(&mut account, events)
    }
}

impl Sink for NodeHolds {
    fn reading(&self, mut reading: Reading) {
        let mut node = self.node();
        if !node.devices.contains(&reading.device) {
            // A slice or a driver's number may have changed.
            let is = |device: &Device| {
                (&device.uuid, &device.mig_uuid) == (&reading.device.uuid, &reading.device.mig_uuid)
            };
            node.devices.retain(|device| !is(device));
            node.devices.push((*reading.device).clone());
        }
        for process in &mut reading.processes {
            let asked = node.known.entry(process.pid);
            let (job, _) = asked.or_insert_with(|| (self.options.roots.job_of(process.pid), reading.tick_ms));
            if let Some(job) = job.clone() {
                process.job_id =
                    process.job_id.take().or(Some(job.spelled.as_ref().unwrap_or(&job.number).clone()));
                node.seen.insert((process.pid, (*reading.device).clone()), (job, reading.tick_ms));
            }
        }
        drop(node);
        self.sink.reading(reading);
    }

    fn event(&self, event: Event) {
        self.sink.event(event);
    }

    fn store(&self) -> Result<(), String> {
        self.sink.store()
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
