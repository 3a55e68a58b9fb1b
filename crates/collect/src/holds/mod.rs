//! Slurm holds: which job holds which device of this node, from when to when.
//!
//! A prolog reports that a job gets devices, and an epilog that it gives them back
//! (`deploy/slurm`). Such a hold is `EXACT`, or `SHARED_ESTIMATED` with the share that the prolog
//! names. Both scripts can be missed, so the node is scanned as well: a hold ends once its job has
//! no cgroup any more, and a job's process on a device without a hold opens one of quality
//! `UNKNOWN` for as long as it runs.
//!
//! A prolog knows the number of an array task but not its index, by which accounting names it. The
//! agent reads the index from the environment of one of the job's tasks and emits the hold then,
//! dated back to the prolog. Reading needs `CAP_SYS_PTRACE`; without it, the hold is emitted under
//! the job's number after half a minute.
//!
//! Open holds are saved in a file, so that a restarted agent continues with them.

mod open_holds;
mod owners;
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

use open_holds::{JobProcess, OpenHolds};
use owners::KnownJobs;
pub use scan::{Evidence, JobCgroups, JobOfProcess, ScanRoots};

use crate::checkpoint::Checkpoint;
use crate::reading::{Device, Reading, Sink};
use crate::receiver::{HoldEvent, HoldEvents};

/// How long after its last reading a process counts as being on a device, ms.
const SEEN_MS: i64 = 5_000;
/// How long the job of a process is cached, ms: process ids are reused.
const ASK_AGAIN_MS: i64 = 60_000;

/// Identity of the node, and how to scan it.
#[derive(Debug, Clone)]
pub struct HoldOptions {
    /// The scheduler's name of the node.
    pub node: String,
    /// The kernel's random id of this boot.
    pub boot_id: String,
    /// Boot time, ms since the epoch.
    pub booted_ms: i64,
    /// File that keeps open holds.
    pub file: PathBuf,
    /// Time between two scans.
    pub every: Duration,
    /// Where cgroups and processes are.
    pub roots: ScanRoots,
}

impl HoldOptions {
    /// Options for this machine and boot.
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
            roots: ScanRoots::default(),
        }
    }
}

/// Tracks the holds of a node. It takes reports of prologs, and sits as a sink between a source and
/// the agent: there it learns the devices and their processes, and adds job ids to the processes of
/// each reading.
pub struct NodeHolds {
    options: HoldOptions,
    sink: Arc<dyn Sink>,
    /// Locked before `node`, and never for a reading: it waits for the disk.
    tracked: Mutex<Tracked>,
    node: Mutex<Node>,
    /// Never locked while the disk is waited for: each step report asks it.
    known: Mutex<KnownJobs>,
}

struct Tracked {
    open_holds: OpenHolds,
    checkpoint: Checkpoint,
}

/// The node as readings show it.
#[derive(Default)]
struct Node {
    devices: Vec<Device>,
    /// Jobs' processes on devices, with the tick of their last reading.
    seen: HashMap<(u32, Device), (JobOfProcess, i64)>,
    /// Job of each process, and when it was looked up.
    jobs: HashMap<u32, (Option<JobOfProcess>, i64)>,
}

impl fmt::Debug for NodeHolds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeHolds").field("options", &self.options).finish_non_exhaustive()
    }
}

impl NodeHolds {
    /// Continues with the holds in the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn new(options: HoldOptions, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let (open_holds, mut checkpoint) = Checkpoint::open::<OpenHolds>(Some(options.file.clone()))?;
        let (open_holds, events) = match open_holds {
            Some(open_holds) => open_holds.resume(&options.node, &options.boot_id, options.booted_ms),
            None => (OpenHolds::begin(&options.boot_id, now_ms()), Vec::new()),
        };
        checkpoint.add(events);
        let tracked = Mutex::new(Tracked { open_holds, checkpoint });
        let holds = Self { options, sink, tracked, node: Mutex::default(), known: Mutex::default() };
        holds.keep(&mut holds.tracked(), Vec::new()).map_err(io::Error::other)?;
        Ok(holds)
    }

    /// Scans the node once.
    pub fn scan(&self, now_ms: i64) {
        let roots = &self.options.roots;
        let jobs = roots.jobs();
        let seen = self.node().seen(now_ms);
        self.known().by_cgroup = jobs.as_ref().map(|jobs| jobs.owners.clone()).unwrap_or_default();
        let mut tracked = self.tracked();
        let mut names: BTreeMap<String, String> =
            seen.iter().filter_map(|seen| Some((seen.job.clone(), seen.full_id.clone()?))).collect();
        let mut unnamed = tracked.open_holds.unnamed();
        unnamed.retain(|number| {
            let pid = jobs.as_ref().and_then(|jobs| *jobs.numbers.get(number)?);
            let full_id = pid.and_then(|pid| roots.job_of(pid)).and_then(|job| job.full_id);
            names.extend(full_id.map(|full_id| (number.clone(), full_id)));
            !names.contains_key(number)
        });
        names.extend(roots.names(&unnamed));
        let events = tracked.open_holds.observe(&self.options.node, now_ms, jobs.as_ref(), &names, &seen);
        if let Err(error) = self.keep(&mut tracked, events) {
            tracing::warn!("open holds cannot be saved: {error}");
        }
    }

    fn keep(&self, tracked: &mut Tracked, events: Vec<Event>) -> Result<(), String> {
        self.known().by_hold = tracked.open_holds.jobs();
        tracked.checkpoint.add(events);
        tracked.checkpoint.save_and_emit(&tracked.open_holds, &*self.sink)
    }

    fn tracked(&self) -> MutexGuard<'_, Tracked> {
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, KnownJobs> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn node(&self) -> MutexGuard<'_, Node> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Node {
    /// Jobs' processes that were on devices just now.
    fn seen(&mut self, now_ms: i64) -> Vec<JobProcess> {
        self.seen.retain(|_, (_, tick_ms)| now_ms - *tick_ms <= SEEN_MS);
        self.jobs.retain(|_, (_, asked_ms)| now_ms - *asked_ms <= ASK_AGAIN_MS);
        let seen = |((_, device), (job, _)): (&(u32, Device), &(JobOfProcess, i64))| JobProcess {
            job: job.number.clone(),
            full_id: job.full_id.clone(),
            device: device.clone(),
            evidence: job.evidence,
        };
        self.seen.iter().map(seen).collect()
    }
}

impl HoldEvents for NodeHolds {
    fn hold_event(&self, event: HoldEvent) -> Result<(), String> {
        if event.node.as_ref().is_some_and(|node| *node != self.options.node) {
            let (theirs, ours) = (event.node.unwrap_or_default(), &self.options.node);
            return Err(format!(
                "it is of node {theirs}, and this is {ours}; give the agent the scheduler's name with --node"
            ));
        }
        let mut tracked = self.tracked();
        let devices = self.node().devices.clone();
        let events = tracked.open_holds.record(&self.options.node, &event, now_ms(), &devices);
        self.keep(&mut tracked, events)
    }
}

impl Sink for NodeHolds {
    fn reading(&self, mut reading: Reading) {
        let mut node = self.node();
        if !node.devices.contains(&reading.device) {
            // A MIG layout or the driver's numbering may have changed.
            let is = |device: &Device| {
                (&device.uuid, &device.mig_uuid) == (&reading.device.uuid, &reading.device.mig_uuid)
            };
            node.devices.retain(|device| !is(device));
            node.devices.push((*reading.device).clone());
        }
        for process in &mut reading.processes {
            let asked = node.jobs.entry(process.pid);
            let (job, _) = asked.or_insert_with(|| (self.options.roots.job_of(process.pid), reading.tick_ms));
            if let Some(job) = job.clone() {
                process.job_id =
                    process.job_id.take().or(Some(job.full_id.as_ref().unwrap_or(&job.number).clone()));
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

/// Scans the node at intervals until it is dropped.
#[derive(Debug)]
pub struct HoldWatch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HoldWatch {
    /// Starts the scanning thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(holds: Arc<NodeHolds>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let every = holds.options.every;
        let scan = move || {
            while stopped.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                holds.scan(now_ms());
            }
        };
        let thread = thread::Builder::new().name("holds".into()).spawn(scan)?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for HoldWatch {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic was already printed.
            thread.join().ok();
        }
    }
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}
