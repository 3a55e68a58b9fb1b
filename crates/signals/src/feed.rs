//! Events in any order in, publications in order of event time out.
//!
//! What came is held until the watermark passes it, and used in order of event time; between events
//! a clock of ticks runs, every ten seconds of event time. So how partitions are interleaved, and
//! how often the watermark moves, changes nothing that is said. What comes after the watermark has
//! passed it is used at once, and may change what is said from then on.
//!
//! Reports of steps alone do not wait for the watermark (`ahead`).

mod ahead;

use std::collections::{BTreeMap, BTreeSet};

use tidegate_events::{Event, JobFamily, v1};

use super::curves::Curves;
use super::demand::{Demand, JobFact};
use super::device::{WINDOW_US, Windows};
use super::fleet::{Fleet, Passed};
use super::holds::HoldFact;
use super::job::{GATHER_US, WatchedJob};
use super::node::WatchedNode;
use super::sizing::Sizing;
use super::{Publication, US_PER_MS, US_PER_S};

/// The clock's tick, µs: windows of devices close and detectors move on.
const TICK_US: i64 = WINDOW_US;
/// Health of nodes is looked at so often.
const JUDGED_EVERY_US: i64 = 60 * US_PER_S;
/// A job that is over is kept for what comes late, and for another attempt.
const KEPT_US: i64 = 24 * 3_600 * US_PER_S;
/// An event of a time further ahead of when it was observed is not believed, as by the tables.
const MOST_AHEAD_MS: i64 = 86_400_000;
/// The years 1970 to 9999, ms.
const YEARS_MS: std::ops::Range<i64> = 0..253_402_300_800_000;
/// Longer names of clusters, jobs and nodes are nobody's.
const MOST_NAME_BYTES: usize = 256;

/// What was not simply used. Nothing is left out without being counted here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Events that were used.
    pub used: u64,
    /// Of these, those that came after the watermark had passed them.
    pub late: u64,
    /// Of an impossible time, or with a name that is too long.
    pub refused: u64,
}

#[derive(Debug, Clone)]
enum Told {
    /// With how it ended, and whose family it is of.
    Job(Box<JobFact>, Option<String>, Box<JobFamily>),
    Hold(Box<HoldFact>),
    Node(Box<v1::NodeEvent>),
    Capacity(Box<v1::CapacityEvent>),
    Samples(Box<v1::GpuSampleBatch>),
    /// With the run of its job in which the detector was told it ahead of the order.
    Step(Box<v1::StepReport>, Option<u32>),
}

/// Place in the order of events: time, kind, cluster and identity.
type Place = (i64, u8, u128);
type Name = (String, String);

/// State of the operator between a log that is read and a log that is written; it knows neither.
#[derive(Debug)]
pub struct Feed {
    learn_from_us: i64,
    waiting: BTreeMap<Place, (String, Told)>,
    /// Of what waits: reports of steps, and what else changes a job, by job.
    lines: BTreeMap<Name, BTreeSet<Place>>,
    /// Jobs that were told something since they last ran ahead.
    touched: BTreeSet<Name>,
    /// The last tick: everything up to it was used.
    tick_us: Option<i64>,
    jobs: BTreeMap<Name, WatchedJob>,
    /// Jobs that time alone may change.
    active: BTreeSet<Name>,
    /// Jobs by cluster and node.
    on_node: BTreeMap<Name, BTreeSet<String>>,
    windows: BTreeMap<Name, Windows>,
    nodes: BTreeMap<Name, WatchedNode>,
    demand: BTreeMap<String, Demand>,
    sizing: BTreeMap<String, Sizing>,
    fleets: BTreeMap<String, Fleet>,
    curves: BTreeMap<String, Curves>,
    counts: Counts,
    out: Vec<Publication>,
}

impl Feed {
    /// Forecasts learn from hours that begin at `learn_from_us` or later.
    pub fn new(learn_from_us: i64) -> Self {
        Self {
            learn_from_us,
            waiting: BTreeMap::new(),
            lines: BTreeMap::new(),
            touched: BTreeSet::new(),
            tick_us: None,
            jobs: BTreeMap::new(),
            active: BTreeSet::new(),
            on_node: BTreeMap::new(),
            windows: BTreeMap::new(),
            nodes: BTreeMap::new(),
            demand: BTreeMap::new(),
            sizing: BTreeMap::new(),
            fleets: BTreeMap::new(),
            curves: BTreeMap::new(),
            counts: Counts::default(),
            out: Vec::new(),
        }
    }

    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Forecasts that are issued from now on learn from hours that begin at `from_us` or later; for
    /// clusters not heard of yet.
    pub fn learn_from(&mut self, from_us: i64) {
        self.learn_from_us = from_us;
    }

    /// Takes an event in, and tells its time in the order of events, µs since 1970; `None` if it
    /// does not tell how far time has come: it changes nothing here, or, like a price, may be of a
    /// time to come. `now_ms`: the clock of who takes it in.
    pub fn push(&mut self, event: Event, now_ms: i64) -> Option<i64> {
        let envelope = event.envelope()?;
        let id = envelope.event_id.first_chunk().map_or(0, |id| u128::from_be_bytes(*id));
        let (cluster, observed_ms) = (envelope.cluster.clone(), envelope.observed_time_ms);
        let event_ms = event.event_time_ms();
        let name_bytes = cluster.len().max(event.key().len() - cluster.len());
        let (order, at_us, told) = match event {
            // A price holds for what happens at its time.
            Event::Capacity(event) => (0, us(event_ms), told_of_capacity(event)?),
            Event::Job(job) => (1, us(event_ms), told_of_job(job)?),
            Event::Node(node) => (2, us(event_ms), Told::Node(Box::new(node))),
            Event::GpuSamples(batch) => (3, us(batch.first_tick_ms), Told::Samples(Box::new(batch))),
            // A step is known when it has ended.
            Event::Step(step) => {
                let end_us = us(event_ms).saturating_add(i64::try_from(step.duration_us).unwrap_or(i64::MAX));
                (4, end_us, Told::Step(Box::new(step), None))
            }
            _ => return None,
        };
        let at_ms = at_us.div_euclid(US_PER_MS);
        let observed_ms = if observed_ms > 0 { observed_ms.min(now_ms) } else { now_ms };
        let believed = YEARS_MS.contains(&at_ms) && YEARS_MS.contains(&event_ms);
        let is_ahead = at_ms.saturating_sub(observed_ms) > MOST_AHEAD_MS;
        let tells_time = !matches!(told, Told::Capacity(_));
        if !believed || is_ahead && tells_time || name_bytes > MOST_NAME_BYTES {
            self.counts.refused += 1;
            return None;
        }
        self.line_up((at_us, order, id), cluster, told);
        tells_time.then_some(at_us)
    }

    /// Everything up to `watermark_us` was pushed: uses it. A watermark below the last one changes
    /// nothing.
    pub fn advance(&mut self, watermark_us: i64) {
        while let Some(place) = self.waiting.keys().next().copied() {
            let at_us = place.0;
            if at_us > watermark_us {
                break;
            }
            // While it waits yet: jobs run ahead at ticks, over this event too.
            self.pass_ticks(at_us);
            let Some((cluster, told)) = self.waiting.remove(&place) else { break };
            self.leave_line(&cluster, &told, place);
            let late = self.tick_us.is_some_and(|tick_us| at_us <= tick_us);
            self.counts.used += 1;
            self.counts.late += u64::from(late);
            self.use_event(cluster, told, at_us, late);
        }
        if self.tick_us.is_some() {
            self.pass_ticks(watermark_us.saturating_add(1));
        }
        self.pass_time(None, watermark_us);
        for name in std::mem::take(&mut self.touched) {
            self.run_ahead(&name, watermark_us);
        }
        for demand in self.demand.values_mut() {
            demand.advance(watermark_us);
            self.out.append(&mut demand.take());
        }
        for sizing in self.sizing.values_mut() {
            sizing.advance(watermark_us);
            self.out.append(&mut sizing.take());
        }
    }

    /// Hands over what is to be published, in the order it was said.
    pub fn take(&mut self) -> Vec<Publication> {
        std::mem::take(&mut self.out)
    }

    /// Passes the ticks before `before_us`. While nothing is under watch the clock jumps.
    fn pass_ticks(&mut self, before_us: i64) {
        let last_us = (before_us - 1).div_euclid(TICK_US) * TICK_US;
        let mut tick_us = self.tick_us.unwrap_or(last_us);
        while tick_us < last_us {
            if self.is_idle() {
                tick_us = last_us;
                break;
            }
            tick_us += TICK_US;
            self.tick(tick_us);
        }
        self.tick_us = Some(tick_us);
    }

    fn is_idle(&self) -> bool {
        self.active.is_empty()
            && self.windows.values().all(Windows::is_empty)
            && !self.nodes.values().any(WatchedNode::is_active)
    }

    /// What fleets find as time passes up to `now_us`: one cluster's, or all.
    fn pass_time(&mut self, cluster: Option<&str>, now_us: i64) {
        let fleets = self.fleets.iter_mut().filter(|(name, _)| cluster.is_none_or(|of| of == name.as_str()));
        for (cluster, fleet) in fleets {
            for passed in fleet.advance(now_us) {
                self.out.push(match passed {
                    Passed::End(publication) => publication,
                    Passed::Lemon(midnight_us, node, lemon) => {
                        let watched = self.nodes.entry((cluster.clone(), node.clone()));
                        watched.or_insert_with(|| WatchedNode::new(cluster, &node)).found(lemon, midnight_us)
                    }
                });
            }
        }
    }

    /// The cluster's fleet, as it stands at `at_us`.
    fn fleet(&mut self, cluster: &str, at_us: i64) -> &mut Fleet {
        self.pass_time(Some(cluster), at_us);
        self.fleets.entry(cluster.into()).or_insert_with(|| Fleet::new(cluster, at_us))
    }

    /// Jobs that report no steps are watched by what their devices show, which of `nodes` was just
    /// now.
    fn watch_quiet_jobs(&mut self, nodes: &BTreeSet<Name>, now_us: i64) {
        let mut jobs: BTreeSet<Name> = BTreeSet::new();
        for (cluster, node) in nodes {
            let on_node = self.fleets.get(cluster).into_iter().flat_map(|fleet| fleet.jobs_on(node));
            jobs.extend(on_node.map(|job| (cluster.clone(), job.clone())));
        }
        for name in jobs {
            let held = self.fleets.get(&name.0).and_then(|fleet| fleet.held(&name.1));
            // Its first reports are waited for.
            let held = held.filter(|held| now_us.saturating_sub(held.began_us) >= GATHER_US);
            let is_quiet = self.jobs.get(&name).is_none_or(WatchedJob::is_quiet);
            let Some(held) = held.filter(|_| is_quiet) else { continue };
            let places = held.places(|node| {
                let node = self.nodes.get(&(name.0.clone(), node.to_owned()));
                node.map(WatchedNode::devices).unwrap_or_default()
            });
            self.change_job(&name, |job| job.watch_devices(places, now_us));
        }
    }

    fn tick(&mut self, now_us: i64) {
        // Midnights first, whatever else falls on them.
        self.pass_time(None, now_us);
        let mut shown: BTreeSet<Name> = BTreeSet::new();
        for (name, windows) in &mut self.windows {
            for (uuid, showing) in windows.close(now_us) {
                if !shown.contains(name) {
                    shown.insert(name.clone());
                }
                for job in self.on_node.get(name).into_iter().flatten() {
                    if let Some(job) = self.jobs.get_mut(&(name.0.clone(), job.clone())) {
                        job.shown(&name.1, &uuid, &showing);
                    }
                }
                let node = self.nodes.entry(name.clone());
                node.or_insert_with(|| WatchedNode::new(&name.0, &name.1)).shown(&uuid, showing);
            }
        }
        self.watch_quiet_jobs(&shown, now_us);
        for name in self.active.clone() {
            self.run_ahead(&name, now_us);
            self.change_job(&name, |job| job.tick(now_us));
        }
        if now_us.rem_euclid(JUDGED_EVERY_US) == 0 {
            self.out.extend(self.nodes.values_mut().filter_map(|node| node.judge(now_us)));
            self.jobs.retain(|name, job| {
                self.active.contains(name) || now_us.saturating_sub(job.newest_us()) < KEPT_US
            });
        }
    }

    fn use_event(&mut self, cluster: String, told: Told, at_us: i64, late: bool) {
        match told {
            Told::Job(fact, final_state, family) => {
                self.note_family(&cluster, &fact, &family, at_us);
                let demand = self.demand.entry(cluster.clone());
                let demand = demand.or_insert_with(|| Demand::new(&cluster, self.learn_from_us));
                demand.apply(&fact, at_us);
                self.out.append(&mut demand.take());
                let changes = demand.take_changes();
                let sizing = self.sizing_of(&cluster);
                changes.into_iter().for_each(|change| sizing.change(change));
                let said = sizing.take();
                self.out.extend(said);
                let name = (cluster, fact.job_id.clone());
                let fleet = self.fleet(&name.0, at_us);
                match fact.kind {
                    v1::JobEventKind::Started | v1::JobEventKind::Resized => {
                        fleet.started(&fact, at_us);
                        self.change_job(&name, |job| job.started(fact.attempt, fact.hosts.as_deref(), at_us));
                    }
                    v1::JobEventKind::Ended => {
                        let told = self.jobs.get(&name).map(|job| job.nodes().to_vec()).unwrap_or_default();
                        if self.jobs.contains_key(&name) {
                            self.change_job(&name, |job| job.ended(fact.attempt, at_us));
                        }
                        let fleet = self.fleet(&name.0, at_us);
                        fleet.ended(&fact, final_state.as_deref(), &told, at_us);
                    }
                    _ => {}
                }
            }
            Told::Hold(hold) => {
                if self.fleet(&cluster, at_us).hold(&hold, at_us) {
                    let name = (cluster, hold.job_id.clone());
                    if self.jobs.contains_key(&name) {
                        self.change_job(&name, |job| job.released(at_us));
                    }
                }
            }
            Told::Capacity(event) => self.sizing_of(&cluster).capacity(*event, at_us),
            Told::Node(event) => {
                self.sizing_of(&cluster).node(&event);
                self.fleet(&cluster, at_us).told(&event, at_us);
                let name = (cluster, event.node.clone());
                let is_fault = matches!(event.kind(), v1::NodeEventKind::Xid | v1::NodeEventKind::DeviceLost);
                for job in self.on_node.get(&name).into_iter().flatten().filter(|_| is_fault) {
                    if let Some(job) = self.jobs.get_mut(&(name.0.clone(), job.clone())) {
                        job.fault(&event, at_us);
                    }
                }
                if is_fault || event.kind() == v1::NodeEventKind::DeviceFound {
                    let node = self.nodes.entry(name.clone());
                    node.or_insert_with(|| WatchedNode::new(&name.0, &name.1)).told(&event, at_us);
                }
            }
            Told::Samples(batch) => {
                let closed_us = self.tick_us.unwrap_or(i64::MIN);
                self.windows.entry((cluster, batch.node.clone())).or_default().add(&batch, closed_us);
            }
            Told::Step(step, ran_in) => {
                self.fleet(&cluster, at_us).step(&step, at_us);
                if !late {
                    let curves = curves_of(&mut self.curves, &cluster);
                    curves.step(&step, at_us);
                    self.out.append(&mut curves.take());
                }
                let name = (cluster, step.job_id.clone());
                let job =
                    ran_in.and_then(|run| self.jobs.get_mut(&name).filter(|job| job.runs() == Some(run)));
                match job {
                    Some(job) => job.heard(at_us),
                    None => self.change_job(&name, |job| job.step(*step, at_us, late)),
                }
            }
        }
    }

    fn sizing_of(&mut self, cluster: &str) -> &mut Sizing {
        let new = || Sizing::new(cluster, self.learn_from_us);
        self.sizing.entry(cluster.to_owned()).or_insert_with(new)
    }

    /// What the job is a run of, for the curve of its family.
    fn note_family(&mut self, cluster: &str, fact: &JobFact, family: &JobFamily, at_us: i64) {
        let curves = curves_of(&mut self.curves, cluster);
        if fact.kind == v1::JobEventKind::Ended && !fact.goes_on {
            curves.ended(&fact.job_id, at_us);
            self.out.append(&mut curves.take());
            return;
        }
        let hosts = fact.hosts.as_deref().unwrap_or("").split(',').filter(|host| !host.trim().is_empty());
        curves.job(&fact.job_id, family, u32::try_from(hosts.count()).unwrap_or(u32::MAX), at_us);
    }

    /// Puts what was said of a job out.
    fn say(&mut self, name: &Name, said: Vec<Publication>) {
        for event in said.iter().flat_map(|publication| &publication.events) {
            if let (Some((node, at_us)), Some(fleet)) = (blamed(event), self.fleets.get_mut(&name.0)) {
                fleet.confirmed(node, at_us);
            }
            if let Event::Straggler(signal) = event {
                curves_of(&mut self.curves, &name.0).slowed(signal);
            }
        }
        self.out.extend(said);
    }

    /// Changes a job, and follows where its ranks are and whether it is active.
    fn change_job(&mut self, name: &Name, change: impl FnOnce(&mut WatchedJob) -> Vec<Publication>) {
        let job = self.jobs.entry(name.clone()).or_insert_with(|| WatchedJob::new(&name.0, &name.1));
        let was_active = self.active.contains(name);
        let before = job.nodes().to_vec();
        let said = change(job);
        let (is_active, after) = (job.is_active(), job.nodes().to_vec());
        self.say(name, said);
        // What waits may be of the shape that it has now.
        self.touched.insert(name.clone());
        if was_active == is_active && before == after {
            return;
        }
        let key = |node: &String| (name.0.clone(), node.clone());
        for node in &before {
            if let Some(jobs) = self.on_node.get_mut(&key(node)) {
                jobs.remove(&name.1);
            }
        }
        if is_active {
            for node in &after {
                self.on_node.entry(key(node)).or_default().insert(name.1.clone());
            }
            self.active.insert(name.clone());
        } else {
            self.active.remove(name);
        }
        self.on_node.retain(|_, jobs| !jobs.is_empty());
    }
}

/// The node that a confirmed signal blames, and since when: the same of all that is said of an
/// episode.
fn blamed(event: &Event) -> Option<(&str, i64)> {
    match event {
        Event::Straggler(signal) if signal.state() == v1::SignalState::Confirmed => {
            Some((signal.node.as_deref()?, us(signal.onset_ms)))
        }
        _ => None,
    }
}

fn told_of_job(job: v1::JobEvent) -> Option<Told> {
    if let Some(hold) = HoldFact::of(&job) {
        return Some(Told::Hold(Box::new(hold)));
    }
    let final_state = job.final_state.clone();
    let mut family = JobFamily::default();
    family.learn(&job);
    Some(Told::Job(Box::new(fact(job)?), final_state, Box::new(family)))
}

/// Prices, and what partitions have.
fn told_of_capacity(event: v1::CapacityEvent) -> Option<Told> {
    use v1::CapacityEventKind::{PartitionRemoved, PartitionSet, PriceSet};
    let counts = matches!(event.kind(), PriceSet | PartitionSet | PartitionRemoved);
    counts.then(|| Told::Capacity(Box::new(event)))
}

fn curves_of<'a>(curves: &'a mut BTreeMap<String, Curves>, cluster: &str) -> &'a mut Curves {
    curves.entry(cluster.to_owned()).or_insert_with(|| Curves::new(cluster))
}

/// What a job's event says to those here; `None` for steps of jobs, heartbeats and devices held.
fn fact(job: v1::JobEvent) -> Option<JobFact> {
    let kind = job.kind();
    let counts = matches!(
        kind,
        v1::JobEventKind::Submitted
            | v1::JobEventKind::Started
            | v1::JobEventKind::Resized
            | v1::JobEventKind::Ended
    );
    (counts && job.step_id.is_none()).then_some(JobFact {
        kind,
        job_id: job.job_id,
        attempt: job.attempt_id,
        team: job.team,
        pool: job.pool,
        gpus_milli: job.gpus_milli,
        hosts: job.nodes,
        goes_on: matches!(job.final_state.as_deref(), Some("REQUEUED" | "RESIZED")),
    })
}

fn us(ms: i64) -> i64 {
    ms.saturating_mul(US_PER_MS)
}

#[cfg(test)]
mod pipeline_tests;
#[cfg(test)]
mod scaling_tests;
#[cfg(test)]
mod sizing_tests;
#[cfg(test)]
mod tests;
