//! Monitor of one job: which attempt runs, where its ranks are, and the signals of its straggler
//! detector.

mod device_watch;
mod early_reports;
mod gathering;
mod publication;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_events::v1;
use tidegate_insight::straggler::{Detector, DeviceWindow, Fault, JobShape, Settings};

use crate::budget;
use crate::device::{WINDOW_US, WindowStats};
use crate::publication::Publication;
use crate::roles::RankLocation;
use crate::time::US_PER_S;
use gathering::Gathering;
use publication::step_report;

/// Version of the detector, part of the producer name.
const MODEL: &str = "straggler-2";
/// How long the first reports of an attempt are gathered, so that every rank's node is known.
pub const GATHER_US: i64 = 60 * US_PER_S;
/// A job without news for this long is over.
const SILENCE_TIMEOUT_US: i64 = 6 * 3_600 * US_PER_S;
/// Most ranks of a job, as in [`Settings`]; further ones are ignored.
const MAX_RANKS: u32 = 1 << 16;
/// Past attempts remembered; a report of an older one begins it anew.
const MAX_PAST_ATTEMPTS: usize = 1_024;

#[derive(Debug, Clone, Serialize, Deserialize)]
enum Phase {
    /// No report of the current attempt, or none any more.
    Idle,
    Gathering(Gathering),
    /// The attempt has reported no step; its devices are watched instead.
    DevicesOnly,
    /// The detector has the shape; `world` is the number of ranks that reports name.
    Watching {
        world: Option<u32>,
    },
}

/// What was published of one episode so far.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct PublishedEpisode {
    revision: u32,
    detected_us: i64,
}

/// Monitor of one job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobMonitor {
    cluster: String,
    job_id: String,
    /// Hosts of the allocation, in the scheduler's order.
    hosts: Vec<String>,
    attempt: Option<i64>,
    past_attempts: BTreeSet<i64>,
    /// When the job started or got its devices, by the scheduler.
    began_us: Option<i64>,
    /// The scheduler reported an end, and no new start.
    is_over: bool,
    /// Number of the shape, as the detector counts them.
    run: u32,
    phase: Phase,
    /// The attempt reported a step, so counters alone no longer decide.
    has_steps: bool,
    /// The shape is one of devices; their numbers are not ranks.
    by_devices: bool,
    detector: Option<Detector>,
    locations: Vec<RankLocation>,
    nodes: Vec<String>,
    published: BTreeMap<u64, PublishedEpisode>,
    newest_us: i64,
    /// Reports taken ahead of the order.
    early_reports: u64,
    /// When the job was first heard of, µs since 1970.
    since_us: i64,
    /// Memory that the budget counts for the job, bytes.
    counted_bytes: usize,
}

impl JobMonitor {
    /// A job first heard of at `since_us`.
    pub fn new(cluster: &str, job_id: &str, since_us: i64) -> Self {
        Self {
            cluster: cluster.into(),
            job_id: job_id.into(),
            hosts: Vec::new(),
            attempt: None,
            past_attempts: BTreeSet::new(),
            began_us: None,
            is_over: false,
            run: 0,
            phase: Phase::Idle,
            has_steps: false,
            by_devices: false,
            detector: None,
            locations: Vec::new(),
            nodes: Vec::new(),
            published: BTreeMap::new(),
            newest_us: i64::MIN,
            early_reports: 0,
            since_us,
            counted_bytes: 0,
        }
    }

    /// Time at which the job was first heard of, µs since 1970.
    pub fn since_us(&self) -> i64 {
        self.since_us
    }

    /// Counts the job's memory anew. Returns what was counted before and what is now, bytes.
    pub fn recount(&mut self) -> (usize, usize) {
        let gathered = if let Phase::Gathering(gathering) = &self.phase { gathering.bytes() } else { 0 };
        let names = self.hosts.len() + self.nodes.len() + 2 * self.locations.len();
        let bytes = size_of::<Self>()
            + self.detector.as_ref().map_or(0, Detector::bytes)
            + gathered
            + names * budget::NAME_BYTES
            + self.locations.len() * size_of::<RankLocation>()
            + (self.past_attempts.len() + self.published.len()) * budget::ENTRY_BYTES;
        (std::mem::replace(&mut self.counted_bytes, bytes), bytes)
    }

    /// Whether time alone may change the output.
    pub fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
    }

    /// Time of the last news, µs since 1970.
    pub fn newest_us(&self) -> i64 {
        self.newest_us
    }

    /// Nodes of the ranks, as far as reports name them.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// An attempt started, or the current one holds other devices from now on. A repeated event
    /// changes nothing.
    pub fn started(&mut self, attempt: Option<i64>, hosts: Option<&str>, at_us: i64) -> Vec<Publication> {
        let hosts = hosts.unwrap_or("").split(',').map(str::trim).filter(|host| !host.is_empty());
        let hosts: Vec<String> = hosts.map(str::to_owned).collect();
        let is_past = attempt.is_some_and(|id| self.past_attempts.contains(&id));
        let is_known = attempt == self.attempt && hosts == self.hosts && self.began_us.is_some();
        if is_past || is_known && (attempt.is_some() || self.began_us >= Some(at_us)) {
            return Vec::new();
        }
        self.newest_us = self.newest_us.max(at_us);
        let output = self.close_run(at_us);
        self.set_attempt(attempt);
        (self.is_over, self.hosts, self.began_us) = (false, hosts, Some(at_us));
        self.has_steps = false;
        output
    }

    /// An attempt ended. An end of another than the current attempt changes nothing.
    pub fn ended(&mut self, attempt: Option<i64>, at_us: i64) -> Vec<Publication> {
        if self.attempt.is_some() && attempt != self.attempt {
            return Vec::new();
        }
        self.newest_us = self.newest_us.max(at_us);
        self.is_over = true;
        self.close_run(at_us)
    }

    /// Closes what is open, at the time of the last news.
    pub fn close(&mut self) -> Vec<Publication> {
        self.close_run(self.newest_us)
    }

    /// Takes one rank's report of a step that ended at `end_us`. `late`: steps after it were
    /// decided already.
    pub fn observe_step(&mut self, report: v1::StepReport, end_us: i64, late: bool) -> Vec<Publication> {
        let mut output = Vec::new();
        match report.attempt_id {
            Some(id) if self.past_attempts.contains(&id) => return output,
            Some(id) if self.attempt.is_none() => self.attempt = Some(id),
            Some(id) if self.attempt != Some(id) => {
                output = self.close_run(end_us);
                self.set_attempt(Some(id));
                self.is_over = false;
            }
            _ => {}
        }
        if self.is_over {
            return output;
        }
        let world = report.world_size.filter(|world| *world > 0);
        if let Phase::Watching { world: known } = &self.phase
            && !late
            && world.is_some()
            && *known != world
        {
            // The job continues with another number of ranks.
            output.extend(self.close_run(end_us));
        }
        if let Phase::DevicesOnly = self.phase {
            // From now on steps say more than counters.
            output.extend(self.close_run(end_us));
        }
        self.has_steps = true;
        self.newest_us = self.newest_us.max(end_us);
        match &mut self.phase {
            Phase::Watching { .. } => {
                if let Some(detector) = &mut self.detector {
                    detector.step(&step_report(&report, self.run, end_us));
                    detector.advance_whole(end_us);
                }
                output.extend(self.collect());
            }
            Phase::Gathering(gathering) => gathering.add(report, end_us),
            Phase::Idle | Phase::DevicesOnly => {
                let mut gathering =
                    Gathering { since_us: end_us, world, reports: Vec::new(), heard: BTreeSet::new() };
                gathering.add(report, end_us);
                self.phase = Phase::Gathering(gathering);
            }
        }
        if let Phase::Gathering(gathering) = &self.phase
            && gathering.is_complete()
        {
            self.begin_run();
        }
        output
    }

    /// Takes a window of a device on one of the job's nodes.
    pub fn observe_device(&mut self, node: &str, uuid: &str, stats: &WindowStats) {
        let Some(rank) = self.rank_on(node, Some(uuid), Some(stats.index)) else { return };
        if let Phase::DevicesOnly = self.phase {
            self.newest_us = self.newest_us.max(stats.start_us);
        }
        if let Some(detector) = &mut self.detector {
            detector.device(&DeviceWindow {
                rank,
                start_us: stats.start_us,
                end_us: stats.start_us + WINDOW_US,
                sm_clock_mhz: stats.sm_clock_mhz,
                slowdown_share: stats.slowdown_share,
                power_cap_share: stats.power_cap_share,
                power_w: stats.power_w,
                link_width_ratio: None,
                link_retries: stats.link_retries,
                network_marks: None,
            });
        }
    }

    /// Takes a fault of a device on one of the job's nodes.
    pub fn observe_fault(&mut self, event: &v1::NodeEvent, time_us: i64) {
        let rank = self.rank_on(&event.node, event.gpu_uuid.as_deref(), event.gpu_index);
        if let (Some(rank), Some(detector)) = (rank, &mut self.detector) {
            detector.fault(&Fault { rank, time_us, xid: event.xid });
        }
    }

    /// Moves on to `now_us`; everything up to then was applied.
    pub fn tick(&mut self, now_us: i64) -> Vec<Publication> {
        if self.is_active() && now_us.saturating_sub(self.newest_us) >= SILENCE_TIMEOUT_US {
            return self.close_run(now_us);
        }
        if let Phase::Gathering(gathering) = &self.phase
            && now_us.saturating_sub(gathering.since_us) >= GATHER_US
        {
            self.begin_run();
        }
        if let (Phase::Watching { .. } | Phase::DevicesOnly, Some(detector)) =
            (&self.phase, &mut self.detector)
        {
            detector.advance(now_us);
        }
        self.collect()
    }

    fn set_attempt(&mut self, attempt: Option<i64>) {
        if self.attempt != attempt {
            self.past_attempts.extend(self.attempt);
            while self.past_attempts.len() > MAX_PAST_ATTEMPTS {
                self.past_attempts.pop_first();
            }
            self.attempt = attempt;
            attempt.iter().for_each(|id| {
                self.past_attempts.remove(id);
            });
        }
    }

    /// Ends the current shape and closes its open episodes.
    fn close_run(&mut self, at_us: i64) -> Vec<Publication> {
        if let Phase::Gathering(_) = self.phase {
            self.begin_run();
        }
        if let (Phase::Watching { .. } | Phase::DevicesOnly, Some(detector)) =
            (&self.phase, &mut self.detector)
        {
            detector.advance(at_us);
            self.run += 1;
            // Without ranks the detector is idle until the next shape.
            let no_ranks = JobShape {
                attempt: self.run,
                node: Vec::new(),
                role: Vec::new(),
                stages: 1,
                micro_batches: 1,
            };
            detector.restart(no_ranks);
        }
        self.phase = Phase::Idle;
        self.collect()
    }

    /// Lays out the ranks by the reports gathered, and starts the detector on them.
    fn begin_run(&mut self) {
        let Phase::Gathering(gathering) = std::mem::replace(&mut self.phase, Phase::Idle) else { return };
        let (locations, roles) = gathering.layout(&self.hosts);
        let names: BTreeSet<&String> =
            locations.iter().filter_map(|location| location.node.as_ref()).collect();
        self.nodes = names.into_iter().cloned().collect();
        let number = |(rank, location): (usize, &RankLocation)| {
            let known = location.node.as_ref().and_then(|node| self.nodes.binary_search(node).ok());
            // A rank whose node is unknown shares its node with no other.
            known.map_or(u32::MAX - rank as u32, |at| at as u32)
        };
        self.run += 1;
        let shape = JobShape {
            attempt: self.run,
            node: locations.iter().enumerate().map(number).collect(),
            role: roles.role,
            stages: roles.stages,
            micro_batches: roles.micro_batches,
        };
        (self.locations, self.by_devices) = (locations, false);
        match &mut self.detector {
            Some(detector) => detector.restart(shape),
            None => self.detector = Some(Detector::new(shape, Settings::default())),
        }
        self.phase = Phase::Watching { world: gathering.world };
        if let Some(detector) = &mut self.detector {
            for (report, end_us) in &gathering.reports {
                detector.step(&step_report(report, self.run, *end_us));
            }
        }
    }

    fn rank_on(&self, node: &str, uuid: Option<&str>, index: Option<u32>) -> Option<u32> {
        let is_it = |location: &RankLocation| {
            location.node.as_deref() == Some(node)
                && match (&location.gpu_uuid, uuid) {
                    (Some(own), Some(uuid)) => own == uuid,
                    _ => location.gpu_index.is_some() && location.gpu_index == index,
                }
        };
        self.is_active().then(|| self.locations.iter().position(is_it)).flatten().map(|rank| rank as u32)
    }

    fn collect(&mut self) -> Vec<Publication> {
        let signals = self.detector.as_mut().map(Detector::take).unwrap_or_default();
        signals.iter().map(|signal| self.publication(signal)).collect()
    }
}
