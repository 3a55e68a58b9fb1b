//! One job: which attempt runs, where its ranks are, and what its detector says of them, as events.

mod ahead;
mod quiet;

use std::collections::{BTreeMap, BTreeSet};

use tidegate_events::{Event, v1};
use tidegate_insight::straggler::{
    Blame, Class, Detector, DeviceWindow, Evidence, Fault, JobShape, Settings, Signal, Stage, StepReport,
};

use super::device::{Showing, WINDOW_US};
use super::roles::{Roles, Told};
use super::{Publication, US_PER_MS, US_PER_S, envelope, lines, ppm, source};

/// Version of the detector, part of what is said.
const MODEL: &str = "straggler-2";
/// How long the first reports of an attempt are waited for, so that every rank's node is known.
pub const GATHER_US: i64 = 60 * US_PER_S;
/// A job of which nothing is heard for so long is over.
const SILENT_US: i64 = 6 * 3_600 * US_PER_S;
/// Most ranks of a job, as in [`Settings`]; further ones are left out.
const MOST_RANKS: u32 = 1 << 16;

/// Where a rank runs and what it works at, as far as its reports tell; of a job without reports, a
/// device that it holds.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub told: Told,
    pub node: Option<String>,
    pub gpu_uuid: Option<String>,
    pub gpu_index: Option<u32>,
}

/// Reports of an attempt whose shape is not known yet.
#[derive(Debug, Clone)]
struct Gathering {
    since_us: i64,
    world: Option<u32>,
    reports: Vec<(v1::StepReport, i64)>,
    heard: BTreeSet<u32>,
}

#[derive(Debug, Clone)]
enum Phase {
    /// No report of the current attempt yet, or none any more.
    Idle,
    Gathering(Gathering),
    /// There was none so far, and its devices are watched instead.
    Quiet,
    /// The detector knows the shape; `world` is the number of ranks that the reports name.
    Watching {
        world: Option<u32>,
    },
}

/// What was said of one episode so far.
#[derive(Debug, Clone, Copy)]
struct Said {
    revision: u32,
    detected_us: i64,
}

/// A job under watch.
#[derive(Debug, Clone)]
pub struct WatchedJob {
    cluster: String,
    job_id: String,
    /// Hosts of the allocation, in the scheduler's order.
    hosts: Vec<String>,
    attempt: Option<i64>,
    past: BTreeSet<i64>,
    /// When the scheduler said that it began, or got its devices.
    began_us: Option<i64>,
    /// The scheduler said that it ended, and not that it started again.
    over: bool,
    /// Number of the shape, as the detector counts them.
    run: u32,
    phase: Phase,
    /// The attempt reported a step, so that counters alone say nothing of it any more.
    has_steps: bool,
    /// The shape is that of devices: their numbers are no ranks.
    by_devices: bool,
    detector: Option<Detector>,
    ranks: Vec<Place>,
    nodes: Vec<String>,
    said: BTreeMap<u64, Said>,
    newest_us: i64,
    /// Reports heard ahead of the order.
    reports: u64,
}

impl WatchedJob {
    pub fn new(cluster: &str, job_id: &str) -> Self {
        Self {
            cluster: cluster.into(),
            job_id: job_id.into(),
            hosts: Vec::new(),
            attempt: None,
            past: BTreeSet::new(),
            began_us: None,
            over: false,
            run: 0,
            phase: Phase::Idle,
            has_steps: false,
            by_devices: false,
            detector: None,
            ranks: Vec::new(),
            nodes: Vec::new(),
            said: BTreeMap::new(),
            newest_us: i64::MIN,
            reports: 0,
        }
    }

    /// Whether time alone may change what is to be said.
    pub fn is_active(&self) -> bool {
        !matches!(self.phase, Phase::Idle)
    }

    /// When something was last heard of it, µs since 1970.
    pub fn newest_us(&self) -> i64 {
        self.newest_us
    }

    /// Nodes that its ranks run on, as far as reports tell.
    pub fn nodes(&self) -> &[String] {
        &self.nodes
    }

    /// An attempt began, or the current one holds other devices from now on. What was told before
    /// changes nothing.
    pub fn started(&mut self, attempt: Option<i64>, hosts: Option<&str>, at_us: i64) -> Vec<Publication> {
        let hosts = hosts.unwrap_or("").split(',').map(str::trim).filter(|host| !host.is_empty());
        let hosts: Vec<String> = hosts.map(str::to_owned).collect();
        let is_past = attempt.is_some_and(|id| self.past.contains(&id));
        let is_known = attempt == self.attempt && hosts == self.hosts && self.began_us.is_some();
        if is_past || is_known && (attempt.is_some() || self.began_us >= Some(at_us)) {
            return Vec::new();
        }
        self.newest_us = self.newest_us.max(at_us);
        let said = self.stop(at_us);
        self.become_attempt(attempt);
        (self.over, self.hosts, self.began_us) = (false, hosts, Some(at_us));
        self.has_steps = false;
        said
    }

    /// An attempt ended. One that is not the current one changes nothing.
    pub fn ended(&mut self, attempt: Option<i64>, at_us: i64) -> Vec<Publication> {
        if self.attempt.is_some() && attempt != self.attempt {
            return Vec::new();
        }
        self.newest_us = self.newest_us.max(at_us);
        self.over = true;
        self.stop(at_us)
    }

    /// Takes one rank's report of a step that ended at `end_us`. `late`: what came before it in
    /// time was already decided on.
    pub fn step(&mut self, report: v1::StepReport, end_us: i64, late: bool) -> Vec<Publication> {
        let mut said = Vec::new();
        match report.attempt_id {
            Some(id) if self.past.contains(&id) => return said,
            Some(id) if self.attempt.is_none() => self.attempt = Some(id),
            Some(id) if self.attempt != Some(id) => {
                said = self.stop(end_us);
                self.become_attempt(Some(id));
                self.over = false;
            }
            _ => {}
        }
        if self.over {
            return said;
        }
        let world = report.world_size.filter(|world| *world > 0);
        if let Phase::Watching { world: known } = &self.phase
            && !late
            && world.is_some()
            && *known != world
        {
            // It goes on with other ranks.
            said.extend(self.stop(end_us));
        }
        if let Phase::Quiet = self.phase {
            // From now on steps say more than counters do.
            said.extend(self.stop(end_us));
        }
        self.has_steps = true;
        self.newest_us = self.newest_us.max(end_us);
        match &mut self.phase {
            Phase::Watching { .. } => {
                if let Some(detector) = &mut self.detector {
                    detector.step(&told(&report, self.run, end_us));
                    detector.advance_whole(end_us);
                }
                said.extend(self.collect());
            }
            Phase::Gathering(gathering) => gathering.take(report, end_us),
            Phase::Idle | Phase::Quiet => {
                let mut gathering =
                    Gathering { since_us: end_us, world, reports: Vec::new(), heard: BTreeSet::new() };
                gathering.take(report, end_us);
                self.phase = Phase::Gathering(gathering);
            }
        }
        if let Phase::Gathering(gathering) = &self.phase
            && gathering.is_enough()
        {
            self.begin();
        }
        said
    }

    /// Takes what a device of one of its nodes showed.
    pub fn shown(&mut self, node: &str, uuid: &str, showing: &Showing) {
        let Some(rank) = self.rank_on(node, Some(uuid), Some(showing.index)) else { return };
        if let Phase::Quiet = self.phase {
            self.newest_us = self.newest_us.max(showing.start_us);
        }
        if let Some(detector) = &mut self.detector {
            detector.device(&DeviceWindow {
                rank,
                start_us: showing.start_us,
                end_us: showing.start_us + WINDOW_US,
                sm_clock_mhz: showing.sm_clock_mhz,
                slowdown_share: showing.slowdown_share,
                power_cap_share: showing.power_cap_share,
                power_w: showing.power_w,
                link_width_ratio: None,
                link_retries: showing.link_retries,
                network_marks: None,
            });
        }
    }

    /// Takes a fault of a device of one of its nodes.
    pub fn fault(&mut self, event: &v1::NodeEvent, time_us: i64) {
        let rank = self.rank_on(&event.node, event.gpu_uuid.as_deref(), event.gpu_index);
        if let (Some(rank), Some(detector)) = (rank, &mut self.detector) {
            detector.fault(&Fault { rank, time_us, xid: event.xid });
        }
    }

    /// Everything up to `now_us` was told.
    pub fn tick(&mut self, now_us: i64) -> Vec<Publication> {
        if self.is_active() && now_us.saturating_sub(self.newest_us) >= SILENT_US {
            return self.stop(now_us);
        }
        if let Phase::Gathering(gathering) = &self.phase
            && now_us.saturating_sub(gathering.since_us) >= GATHER_US
        {
            self.begin();
        }
        if let (Phase::Watching { .. } | Phase::Quiet, Some(detector)) = (&self.phase, &mut self.detector) {
            detector.advance(now_us);
        }
        self.collect()
    }

    fn become_attempt(&mut self, attempt: Option<i64>) {
        if self.attempt != attempt {
            self.past.extend(self.attempt);
            self.attempt = attempt;
            attempt.iter().for_each(|id| {
                self.past.remove(id);
            });
        }
    }

    /// The current shape is over: what is open is closed.
    fn stop(&mut self, at_us: i64) -> Vec<Publication> {
        if let Phase::Gathering(_) = self.phase {
            self.begin();
        }
        if let (Phase::Watching { .. } | Phase::Quiet, Some(detector)) = (&self.phase, &mut self.detector) {
            detector.advance(at_us);
            self.run += 1;
            // Without ranks there is nothing to watch until the next shape.
            let nobody = JobShape {
                attempt: self.run,
                node: Vec::new(),
                role: Vec::new(),
                stages: 1,
                micro_batches: 1,
            };
            detector.restart(nobody);
        }
        self.phase = Phase::Idle;
        self.collect()
    }

    /// Lays the job out by the reports gathered, and hands them to the detector.
    fn begin(&mut self) {
        let Phase::Gathering(gathering) = std::mem::replace(&mut self.phase, Phase::Idle) else { return };
        let most = gathering.heard.last().map_or(0, |rank| rank.saturating_add(1));
        // One report that claims a great world, or a great rank, makes no great job.
        let credible = 8 * gathering.heard.len() as u32 + 1_024;
        let ranks = gathering.world.unwrap_or(most).min(credible).min(MOST_RANKS);
        let mut places = vec![Place::default(); ranks as usize];
        for (report, _) in &gathering.reports {
            let Some(place) = places.get_mut(report.rank as usize) else { continue };
            place.node = place.node.take().or_else(|| report.node.clone());
            place.gpu_uuid = place.gpu_uuid.take().or_else(|| report.gpu_uuid.clone());
            place.gpu_index = place.gpu_index.or(report.gpu_index);
            place.told.stage = place.told.stage.or(report.pipeline_stage);
            place.told.expert_group = place.told.expert_group.or(report.expert_group);
        }
        let standing: Vec<Told> = places.iter().map(|place| place.told).collect();
        let first = |of: fn(&v1::StepReport) -> Option<u32>| {
            gathering.reports.iter().find_map(|(report, _)| of(report).filter(|many| *many > 0))
        };
        let roles = Roles::new(
            &standing,
            first(|report| report.pipeline_stages),
            first(|report| report.micro_batches),
        );
        // Launchers give ranks to hosts in order, as many to each, where they tell nothing else.
        let hosts = self.hosts.len();
        if hosts > 0 && places.len().is_multiple_of(hosts) {
            let each = places.len() / hosts;
            for (rank, place) in places.iter_mut().enumerate().filter(|(_, place)| place.node.is_none()) {
                place.node = Some(self.hosts[rank / each].clone());
            }
        }
        let names: BTreeSet<&String> = places.iter().filter_map(|place| place.node.as_ref()).collect();
        self.nodes = names.into_iter().cloned().collect();
        let number = |(rank, place): (usize, &Place)| {
            let known = place.node.as_ref().and_then(|node| self.nodes.binary_search(node).ok());
            // Nobody knows where it is: it shares its node with no other rank.
            known.map_or(u32::MAX - rank as u32, |at| at as u32)
        };
        self.run += 1;
        let shape = JobShape {
            attempt: self.run,
            node: places.iter().enumerate().map(number).collect(),
            role: roles.role,
            stages: roles.stages,
            micro_batches: roles.micro_batches,
        };
        (self.ranks, self.by_devices) = (places, false);
        match &mut self.detector {
            Some(detector) => detector.restart(shape),
            None => self.detector = Some(Detector::new(shape, Settings::default())),
        }
        self.phase = Phase::Watching { world: gathering.world };
        if let Some(detector) = &mut self.detector {
            for (report, end_us) in &gathering.reports {
                detector.step(&told(report, self.run, *end_us));
            }
        }
    }

    fn rank_on(&self, node: &str, uuid: Option<&str>, index: Option<u32>) -> Option<u32> {
        let is_it = |place: &Place| {
            place.node.as_deref() == Some(node)
                && match (&place.gpu_uuid, uuid) {
                    (Some(own), Some(uuid)) => own == uuid,
                    _ => place.gpu_index.is_some() && place.gpu_index == index,
                }
        };
        self.is_active().then(|| self.ranks.iter().position(is_it)).flatten().map(|rank| rank as u32)
    }

    fn collect(&mut self) -> Vec<Publication> {
        let signals = self.detector.as_mut().map(Detector::take).unwrap_or_default();
        signals.iter().map(|signal| self.publication(signal)).collect()
    }

    fn publication(&mut self, signal: &Signal) -> Publication {
        let said = self.said.entry(signal.event);
        let said = said
            .and_modify(|said| said.revision += 1)
            .or_insert(Said { revision: 0, detected_us: signal.said_us });
        let Said { revision, detected_us } = *said;
        let place = match signal.blame {
            Blame::Rank(rank) => self.ranks.get(rank as usize).cloned().unwrap_or_default(),
            Blame::Node(node) => Place { node: self.nodes.get(node as usize).cloned(), ..Place::default() },
            Blame::Role(_) | Blame::Fabric | Blame::Nobody => Place::default(),
        };
        let attempt = self.attempt.map_or_else(|| "-".to_owned(), |attempt| attempt.to_string());
        let (cluster, job_id, episode) = (&self.cluster, &self.job_id, signal.event);
        let source = source(&[MODEL, cluster, job_id, &attempt, &episode.to_string(), &revision.to_string()]);
        let event = v1::StragglerSignal {
            envelope: envelope(cluster, &source, signal.said_us, 0),
            state: match signal.stage {
                Stage::Suspect => v1::SignalState::Suspect,
                Stage::Confirmed => v1::SignalState::Confirmed,
                Stage::Closed => v1::SignalState::Cleared,
                Stage::Corrected => v1::SignalState::Corrected,
            }
            .into(),
            job_id: job_id.clone(),
            attempt_id: self.attempt,
            episode,
            revision,
            blame: blame(&signal.blame).into(),
            node: place.node,
            gpu_uuid: place.gpu_uuid,
            gpu_index: place.gpu_index,
            rank: if let Blame::Rank(rank) = signal.blame { Some(rank) } else { None }
                .filter(|_| !self.by_devices),
            role: if let Blame::Role(role) = signal.blame { Some(role) } else { None },
            class: class(signal.class).into(),
            posterior_ppm: ppm(signal.posterior),
            onset_ms: signal.since_us.div_euclid(US_PER_MS),
            detected_ms: detected_us.div_euclid(US_PER_MS),
            said_ms: signal.said_us.div_euclid(US_PER_MS),
            slowdown_ppm: (signal.excess * 1e6).round() as i64,
            lost_gpu_ms: signal.lost_gpu_ms,
            evidence: lines(&signal.evidence),
            model: MODEL.into(),
            pipeline_stage: signal.pipeline_stage,
            cause: (signal.class == Class::Structural).then(|| cause(&signal.evidence)).flatten(),
        };
        Publication { source, events: vec![Event::Straggler(event)] }
    }
}

impl Gathering {
    fn take(&mut self, report: v1::StepReport, end_us: i64) {
        self.world = self.world.or(report.world_size.filter(|world| *world > 0));
        self.heard.insert(report.rank);
        self.reports.push((report, end_us));
    }

    /// Every rank has spoken, or so many have again and again that the others need not be waited
    /// for.
    fn is_enough(&self) -> bool {
        let world = self.world.map_or(MOST_RANKS, |world| world.min(MOST_RANKS)) as usize;
        self.heard.len() >= world || self.reports.len() > 4 * world + 4_096
    }
}

fn told(report: &v1::StepReport, run: u32, end_us: i64) -> StepReport {
    StepReport {
        attempt: run,
        rank: report.rank,
        step: report.step,
        end_us,
        duration_us: report.duration_us,
        compute_us: report.compute_us,
        communication_us: report.communication_us,
        data_us: report.data_wait_us,
        tokens: report.tokens,
        squared_tokens: report.squared_tokens,
    }
}

fn blame(blame: &Blame) -> &'static str {
    match blame {
        Blame::Rank(_) => "RANK",
        Blame::Node(_) => "NODE",
        Blame::Role(_) => "ROLE",
        Blame::Fabric => "FABRIC",
        Blame::Nobody => "NOBODY",
    }
}

/// What weighs most of the structural causes in evidence; of equal weights, the larger.
fn cause(evidence: &[Evidence]) -> Option<String> {
    let named = |rule| match rule {
        "long_stage" => Some("LONG_STAGE"),
        "sequence_imbalance" => Some("SEQUENCE_IMBALANCE"),
        "expert_imbalance" => Some("EXPERT_IMBALANCE"),
        "ranks_slower_from_the_start" => Some("SLOWER_FROM_THE_START"),
        _ => None,
    };
    let causes = evidence.iter().filter_map(|evidence| Some((evidence, named(evidence.rule)?)));
    let most =
        causes.max_by(|(a, _), (b, _)| a.weight.total_cmp(&b.weight).then(a.value.total_cmp(&b.value)));
    most.map(|(_, name)| name.to_owned())
}

fn class(class: Class) -> &'static str {
    match class {
        Class::ComputeThermal => "COMPUTE_THERMAL",
        Class::ComputeSilent => "COMPUTE_SILENT",
        Class::Link => "LINK",
        Class::Host => "HOST",
        Class::Data => "DATA",
        Class::Communication => "COMMUNICATION",
        Class::Structural => "STRUCTURAL",
    }
}
