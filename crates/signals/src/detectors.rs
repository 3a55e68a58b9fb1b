//! State of all detectors, by cluster, node and job: applies inputs in order of event time and
//! collects what the detectors publish.

mod job_monitors;
mod limits;
mod node_monitors;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, JobFamily, Millis, v1};

use crate::budget::MemoryUse;
use crate::curves::Curves;
use crate::demand::Demand;
use crate::device::DeviceWindows;
use crate::facts::JobFact;
use crate::fleet::{Fleet, FleetEvent};
use crate::input::Input;
use crate::job::{GATHER_US, JobMonitor};
use crate::publication::Publication;
use crate::sizing::Sizing;
use crate::time::{HOUR_US, US_PER_S};
use job_monitors::JobMonitors;
use node_monitors::NodeMonitors;

/// How often the health of nodes is evaluated.
const HEALTH_INTERVAL_US: i64 = 60 * US_PER_S;

/// Cluster and job.
pub type JobKey = (String, String);
/// Cluster and node.
pub type NodeKey = (String, String);

/// All detectors.
#[derive(Debug, Serialize, Deserialize)]
pub struct Detectors {
    learn_from_us: i64,
    jobs: JobMonitors,
    windows: BTreeMap<NodeKey, DeviceWindows>,
    nodes: NodeMonitors,
    /// Open windows of all devices.
    open_windows: usize,
    /// The rest by cluster.
    demand: BTreeMap<String, Demand>,
    sizing: BTreeMap<String, Sizing>,
    fleets: BTreeMap<String, Fleet>,
    curves: BTreeMap<String, Curves>,
    /// Clusters that events name.
    clusters: BTreeSet<String>,
    #[serde(skip)]
    memory: MemoryUse,
    #[serde(skip)]
    out: Vec<Publication>,
}

impl Detectors {
    /// Forecasts learn from hours that begin at `learn_from_us` or later.
    pub fn new(learn_from_us: i64) -> Self {
        Self {
            learn_from_us,
            jobs: JobMonitors::default(),
            windows: BTreeMap::new(),
            nodes: NodeMonitors::default(),
            open_windows: 0,
            demand: BTreeMap::new(),
            sizing: BTreeMap::new(),
            fleets: BTreeMap::new(),
            curves: BTreeMap::new(),
            clusters: BTreeSet::new(),
            memory: MemoryUse::default(),
            out: Vec::new(),
        }
    }

    pub fn learn_from(&mut self, from_us: i64) {
        self.learn_from_us = from_us;
    }

    /// Whether the passing of time alone changes nothing.
    pub fn is_idle(&self) -> bool {
        self.jobs.none_active()
            && self.windows.values().all(DeviceWindows::is_empty)
            && !self.nodes.any_active()
    }

    /// Jobs that the passing of time alone may change.
    pub fn active_jobs(&self) -> BTreeSet<JobKey> {
        self.jobs.active()
    }

    pub fn job_mut(&mut self, job: &JobKey) -> Option<&mut JobMonitor> {
        self.jobs.get_mut(job)
    }

    /// Hands over the jobs that changed since the last call: waiting steps may be of their new
    /// shape.
    pub fn take_changed_jobs(&mut self) -> BTreeSet<JobKey> {
        self.jobs.take_changed()
    }

    /// Hands over the output since the last call.
    pub fn take(&mut self) -> Vec<Publication> {
        std::mem::take(&mut self.out)
    }

    /// Everything up to `now_us` was applied: closes device windows, and decides which jobs are
    /// watched by their devices.
    pub fn begin_tick(&mut self, now_us: i64) {
        // Midnights come first, whatever else falls on them.
        self.advance_fleets(now_us);
        let mut sampled: BTreeSet<NodeKey> = BTreeSet::new();
        for (node, windows) in &mut self.windows {
            for (uuid, stats) in windows.close(now_us) {
                self.open_windows -= 1;
                if !sampled.contains(node) {
                    sampled.insert(node.clone());
                }
                self.jobs.for_each_on_node(node, |job| job.observe_device(&node.1, &uuid, &stats));
                self.nodes.update(node, now_us, |monitor| monitor.observe_window(&uuid, stats));
            }
        }
        self.windows.retain(|_, windows| !windows.is_empty());
        self.stay_within_limit();
        self.watch_devices_of_quiet_jobs(&sampled, now_us);
    }

    /// Moves one active job on to `now_us`.
    pub fn tick_job(&mut self, job: &JobKey, now_us: i64) {
        self.update_job(job, now_us, |monitor| monitor.tick(now_us));
    }

    /// Evaluates node health, and forgets jobs that ended long ago.
    pub fn end_tick(&mut self, now_us: i64) {
        if now_us.rem_euclid(HEALTH_INTERVAL_US) == 0 {
            self.out.extend(self.nodes.evaluate(now_us));
            self.jobs.forget_old(now_us);
        }
    }

    /// Time passes without ticks: forgets jobs that ended long ago, once an hour. A site without
    /// agents and step reports has no ticks at all.
    pub fn skip(&mut self, from_us: i64, to_us: i64) {
        if from_us.div_euclid(HOUR_US) != to_us.div_euclid(HOUR_US) {
            self.jobs.forget_old(to_us);
        }
    }

    /// Moves all fleets on to `now_us`.
    pub fn advance_fleets(&mut self, now_us: i64) {
        for (cluster, fleet) in &mut self.fleets {
            collect_fleet_events(cluster, fleet.advance(now_us), &mut self.nodes, &mut self.out);
        }
    }

    /// Moves demand and sizing of all clusters on to `now_us`.
    pub fn advance_clusters(&mut self, now_us: i64) {
        for demand in self.demand.values_mut() {
            demand.advance(now_us);
            self.out.append(&mut demand.take());
        }
        for sizing in self.sizing.values_mut() {
            sizing.advance(now_us);
            self.out.append(&mut sizing.take());
        }
    }

    /// Applies an input of `at_us`. `closed_us`: device windows that ended by then are closed.
    /// `late`: inputs of later times were applied before.
    pub fn apply(&mut self, cluster: String, input: Input, (at_us, closed_us): (i64, i64), late: bool) {
        if let Input::Step { .. } = &input
            && !self.knows_cluster(&cluster)
        {
            self.memory.unknown_jobs += 1;
            return;
        }
        if !self.admits_cluster(&cluster) {
            self.memory.refused += 1;
            return;
        }
        match input {
            Input::Job { fact, final_state, family } => {
                self.apply_job(cluster, &fact, final_state.as_deref(), &family, at_us);
            }
            Input::Hold(hold) => {
                if self.fleet(&cluster, at_us).observe_hold(&hold, at_us) {
                    let job = (cluster, hold.job_id.clone());
                    if self.jobs.contains(&job) {
                        self.update_job(&job, at_us, |monitor| monitor.devices_released(at_us));
                    }
                }
            }
            Input::Capacity(event) => self.sizing(&cluster).observe_capacity(*event, at_us),
            Input::Node(event) => self.apply_node(cluster, &event, at_us),
            Input::Samples(batch) => self.apply_samples(cluster, &batch, closed_us),
            Input::Step { report, processed_in } => {
                self.apply_step(cluster, *report, processed_in, at_us, late);
            }
        }
    }

    /// Publishes what a job's detector found, and passes it on to the detectors that learn from it.
    pub fn emit(&mut self, job: &JobKey, publications: Vec<Publication>) {
        for event in publications.iter().flat_map(|publication| &publication.events) {
            if let (Some((node, onset_us)), Some(fleet)) = (blamed_node(event), self.fleets.get_mut(&job.0)) {
                fleet.straggler_confirmed(node, onset_us);
            }
            if let Event::Straggler(signal) = event {
                curves_of(&mut self.curves, &job.0).observe_straggler(signal);
            }
        }
        self.out.extend(publications);
    }

    fn apply_job(
        &mut self,
        cluster: String,
        fact: &JobFact,
        final_state: Option<&str>,
        family: &JobFamily,
        at_us: i64,
    ) {
        self.update_family(&cluster, fact, family, at_us);
        let demand = self.demand.entry(cluster.clone());
        let demand = demand.or_insert_with(|| Demand::new(&cluster, self.learn_from_us));
        demand.apply(fact, at_us);
        self.out.append(&mut demand.take());
        let changes = demand.take_changes();
        let sizing = self.sizing(&cluster);
        changes.into_iter().for_each(|change| sizing.observe_demand(change));
        let advice = sizing.take();
        self.out.extend(advice);
        let job = (cluster, fact.job_id.clone());
        let fleet = self.fleet(&job.0, at_us);
        match fact.kind {
            v1::JobEventKind::Started | v1::JobEventKind::Resized => {
                fleet.job_started(fact, at_us);
                let hosts = fact.hosts.as_deref();
                self.update_job(&job, at_us, |monitor| monitor.started(fact.attempt, hosts, at_us));
            }
            v1::JobEventKind::Ended => {
                let nodes = self.jobs.get(&job).map(|monitor| monitor.nodes().to_vec()).unwrap_or_default();
                if self.jobs.contains(&job) {
                    self.update_job(&job, at_us, |monitor| monitor.ended(fact.attempt, at_us));
                }
                self.fleet(&job.0, at_us).job_ended(fact, final_state, &nodes, at_us);
            }
            _ => {}
        }
    }

    fn apply_samples(&mut self, cluster: String, batch: &v1::GpuSampleBatch, closed_us: i64) {
        if !self.has_room_for_windows() {
            self.memory.refused += 1;
            return;
        }
        let windows = self.windows.entry((cluster, batch.node.clone())).or_default();
        let before = windows.len();
        windows.add(batch, closed_us);
        self.open_windows += windows.len() - before;
    }

    fn apply_node(&mut self, cluster: String, event: &v1::NodeEvent, at_us: i64) {
        self.sizing(&cluster).observe_node(event);
        self.fleet(&cluster, at_us).observe_node(event, at_us);
        let node = (cluster, event.node.clone());
        let is_fault = matches!(event.kind(), v1::NodeEventKind::Xid | v1::NodeEventKind::DeviceLost);
        if is_fault {
            self.jobs.for_each_on_node(&node, |job| job.observe_fault(event, at_us));
        }
        if is_fault || event.kind() == v1::NodeEventKind::DeviceFound {
            self.nodes.update(&node, at_us, |monitor| monitor.observe_event(event, at_us));
            self.stay_within_limit();
        }
    }

    fn apply_step(
        &mut self,
        cluster: String,
        report: v1::StepReport,
        processed_in: Option<u32>,
        at_us: i64,
        late: bool,
    ) {
        let job = (cluster, report.job_id.clone());
        let is_held = self.fleet(&job.0, at_us).allocation(&job.1).is_some();
        if !is_held && !self.jobs.contains(&job) {
            // Anybody can report steps of a job that there is not.
            self.memory.unknown_jobs += 1;
            return;
        }
        self.fleet(&job.0, at_us).observe_step(&report, at_us);
        if !late {
            let curves = curves_of(&mut self.curves, &job.0);
            curves.observe_step(&report, at_us);
            self.out.append(&mut curves.take());
        }
        let processed = processed_in
            .and_then(|run| self.jobs.get_mut(&job).filter(|monitor| monitor.current_run() == Some(run)));
        match processed {
            Some(monitor) => monitor.mark_observed(at_us),
            None => self.update_job(&job, at_us, |monitor| monitor.observe_step(report, at_us, late)),
        }
    }

    /// The cluster's fleet, moved on to `at_us`.
    fn fleet(&mut self, cluster: &str, at_us: i64) -> &mut Fleet {
        if let Some(fleet) = self.fleets.get_mut(cluster) {
            collect_fleet_events(cluster, fleet.advance(at_us), &mut self.nodes, &mut self.out);
        }
        self.fleets.entry(cluster.into()).or_insert_with(|| Fleet::new(cluster, at_us))
    }

    fn sizing(&mut self, cluster: &str) -> &mut Sizing {
        let new = || Sizing::new(cluster, self.learn_from_us);
        self.sizing.entry(cluster.to_owned()).or_insert_with(new)
    }

    /// Notes which family the job is a run of, for its scaling curve.
    fn update_family(&mut self, cluster: &str, fact: &JobFact, family: &JobFamily, at_us: i64) {
        let curves = curves_of(&mut self.curves, cluster);
        if fact.kind == v1::JobEventKind::Ended && !fact.continues {
            curves.job_ended(&fact.job_id, at_us);
            self.out.append(&mut curves.take());
            return;
        }
        let hosts = u32::try_from(fact.host_names().count()).unwrap_or(u32::MAX);
        curves.observe_job(&fact.job_id, family, hosts, at_us);
    }

    /// Watches jobs on `nodes` that report no steps by their devices, which were sampled just now.
    fn watch_devices_of_quiet_jobs(&mut self, nodes: &BTreeSet<NodeKey>, now_us: i64) {
        let mut jobs: BTreeSet<JobKey> = BTreeSet::new();
        for (cluster, node) in nodes {
            let on_node = self.fleets.get(cluster).into_iter().flat_map(|fleet| fleet.jobs_on(node));
            jobs.extend(on_node.map(|job| (cluster.clone(), job.clone())));
        }
        for job in jobs {
            let held = self.fleets.get(&job.0).and_then(|fleet| fleet.allocation(&job.1));
            // Its first step reports may be on their way.
            let held = held.filter(|held| now_us.saturating_sub(held.began_us) >= GATHER_US);
            let is_quiet = self.jobs.get(&job).is_none_or(JobMonitor::reports_no_steps);
            let Some(held) = held.filter(|_| is_quiet) else { continue };
            let locations = held.locations(|node| {
                let node = self.nodes.get(&(job.0.clone(), node.to_owned()));
                node.map(|node| node.devices()).unwrap_or_default()
            });
            self.update_job(&job, now_us, |monitor| monitor.watch_devices(locations, now_us));
        }
    }

    fn update_job(
        &mut self,
        job: &JobKey,
        at_us: i64,
        change: impl FnOnce(&mut JobMonitor) -> Vec<Publication>,
    ) {
        let publications = self.jobs.update(job, at_us, change);
        self.emit(job, publications);
        self.stay_within_limit();
    }
}

/// Publishes ends, and passes lemon verdicts to node monitors.
fn collect_fleet_events(
    cluster: &str,
    events: Vec<FleetEvent>,
    nodes: &mut NodeMonitors,
    out: &mut Vec<Publication>,
) {
    for event in events {
        out.push(match event {
            FleetEvent::EndCause(publication) => publication,
            FleetEvent::Lemon(midnight_us, node, verdict) => {
                let node = (cluster.to_owned(), node);
                nodes.update(&node, midnight_us, |monitor| monitor.publish_lemon(verdict, midnight_us))
            }
        });
    }
}

fn curves_of<'a>(curves: &'a mut BTreeMap<String, Curves>, cluster: &str) -> &'a mut Curves {
    curves.entry(cluster.to_owned()).or_insert_with(|| Curves::new(cluster))
}

/// The node that a confirmed straggler signal blames, and the onset (µs since 1970), which is the
/// same in all signals of an episode.
fn blamed_node(event: &Event) -> Option<(&str, i64)> {
    match event {
        Event::Straggler(signal) if signal.state() == v1::SignalState::Confirmed => {
            Some((signal.node.as_deref()?, Millis(signal.onset_ms).to_micros().0))
        }
        _ => None,
    }
}
