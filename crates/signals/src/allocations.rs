//! Which job holds which nodes and devices of a cluster, as schedulers (attempts) and agents
//! (single devices) report it.

use std::collections::{BTreeMap, BTreeSet};

use crate::budget;
use crate::facts::{HeldDevice, HoldFact, JobFact};
use crate::roles::{RankLocation, RankPosition};
use crate::time::DAY_US;
use serde::{Deserialize, Serialize};
use tidegate_events::MilliGpus;

/// How long an end is remembered, µs.
const END_RETENTION_US: i64 = 7 * DAY_US;

/// Device holds of one job.
const MAX_HOLDS: usize = 1 << 16;

/// What a running job holds.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Allocation {
    /// The scheduler's attempt; `None` also where only device holds were reported.
    pub attempt: Option<i64>,
    /// Start, µs since 1970.
    pub began_us: i64,
    /// Size of the allocation, thousandths of a GPU.
    pub gpus_milli: Option<u64>,
    /// When a rank last reported a saved checkpoint.
    pub checkpoint_us: Option<i64>,
    hosts: Vec<String>,
    devices: BTreeMap<String, HeldDevice>,
    /// A scheduler reported the job, so it will report the end too.
    is_scheduled: bool,
    /// Node use was handed over up to this time.
    counted_us: i64,
}

impl Allocation {
    fn new(at_us: i64) -> Self {
        Self {
            attempt: None,
            began_us: at_us,
            gpus_milli: None,
            checkpoint_us: None,
            hosts: Vec::new(),
            devices: BTreeMap::new(),
            is_scheduled: false,
            counted_us: at_us,
        }
    }

    /// Nodes of the allocation.
    pub fn nodes(&self) -> BTreeSet<&str> {
        let hosts = self.hosts.iter().map(String::as_str);
        hosts.chain(self.devices.values().map(|device| device.node.as_str())).collect()
    }

    /// Devices known to belong to this job alone.
    pub fn exclusive_devices(&self) -> impl Iterator<Item = &HeldDevice> {
        self.devices.values().filter(|device| device.is_exclusive)
    }

    /// Locations of the job's devices: those known to be its own; else all devices of each node
    /// where it holds as many GPUs as the node has. `devices_of` lists a node's devices by UUID and
    /// index. Nodes that the job holds in part are left out, because it is unknown which devices it
    /// holds.
    pub fn locations(&self, devices_of: impl Fn(&str) -> Vec<(String, u32)>) -> Vec<RankLocation> {
        let own: BTreeSet<_> = self.exclusive_devices().map(|d| (&d.node, d.index, &d.uuid)).collect();
        if !own.is_empty() {
            let place = |(node, index, uuid): (&String, Option<u32>, &Option<String>)| RankLocation {
                position: RankPosition::default(),
                node: Some(node.clone()),
                gpu_uuid: uuid.clone(),
                gpu_index: index,
            };
            return own.into_iter().map(place).collect();
        }
        let hosts = self.nodes();
        let gpus = self.gpus_milli.and_then(|milli| MilliGpus(milli).whole_gpus()).unwrap_or(0);
        if hosts.is_empty() || gpus == 0 || !gpus.is_multiple_of(hosts.len() as u64) {
            return Vec::new();
        }
        let each = gpus / hosts.len() as u64;
        let whole = hosts.into_iter().map(|host| (host, devices_of(host)));
        let place = |(host, (uuid, index)): (&str, (String, u32))| RankLocation {
            position: RankPosition::default(),
            node: Some(host.into()),
            gpu_uuid: Some(uuid),
            gpu_index: Some(index),
        };
        let whole = whole.filter(|(_, devices)| devices.len() as u64 == each);
        whole.flat_map(|(host, devices)| devices.into_iter().map(move |d| (host, d))).map(place).collect()
    }
}

/// A span in which a job used a node: node, from, to (µs since 1970).
pub type NodeUse = (String, i64, i64);

/// Allocations of one cluster, one per running job.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Allocations {
    jobs: BTreeMap<String, Allocation>,
    on_node: BTreeMap<String, BTreeSet<String>>,
    /// When and which attempt ended lately. Late or repeated events of an ended attempt do not
    /// revive it.
    ended: BTreeMap<String, (i64, Option<i64>)>,
    used: Vec<NodeUse>,
}

impl Allocations {
    pub fn get(&self, job_id: &str) -> Option<&Allocation> {
        self.jobs.get(job_id)
    }

    /// Jobs that hold something on a node.
    pub fn jobs_on(&self, node: &str) -> impl Iterator<Item = &String> {
        self.on_node.get(node).into_iter().flatten()
    }

    /// Hands over the spans of node use since the last call.
    pub fn take_node_use(&mut self) -> Vec<NodeUse> {
        std::mem::take(&mut self.used)
    }

    /// An attempt started, or the current one now holds other devices.
    pub fn job_started(&mut self, fact: &JobFact, at_us: i64) {
        let is_over = self.has_ended(&fact.job_id, fact.attempt, at_us);
        let newer = self.jobs.get(&fact.job_id).filter(|held| held.is_scheduled);
        if is_over || newer.is_some_and(|held| held.attempt != fact.attempt && at_us < held.began_us) {
            return;
        }
        let hosts = fact.hosts.as_deref().unwrap_or("").split(',').map(str::trim);
        let hosts: Vec<String> = hosts.filter(|host| !host.is_empty()).map(str::to_owned).collect();
        self.update(&fact.job_id, at_us, |held| {
            if !held.is_scheduled || held.attempt != fact.attempt {
                (held.began_us, held.checkpoint_us) = (at_us, None);
            }
            (held.attempt, held.is_scheduled) = (fact.attempt, true);
            held.gpus_milli = fact.gpus_milli.or(held.gpus_milli);
            if !hosts.is_empty() {
                held.hosts = hosts;
            }
        });
    }

    /// Removes the allocation of an attempt that ended. `None` if another attempt runs, or none.
    pub fn job_ended(&mut self, job_id: &str, attempt: Option<i64>, at_us: i64) -> Option<Allocation> {
        let held = self.jobs.get(job_id)?;
        if held.attempt.is_some() && attempt.is_some() && held.attempt != attempt {
            return None;
        }
        self.remove(job_id, at_us)
    }

    /// Records an end. Returns whether it was recorded before.
    pub fn record_end(&mut self, job_id: &str, attempt: Option<i64>, at_us: i64) -> bool {
        if self.ended.len() >= budget::MAX_JOBS && !self.ended.contains_key(job_id) {
            return false;
        }
        self.ended.insert(job_id.into(), (at_us, attempt)) == Some((at_us, attempt))
    }

    /// Applies the begin or end of a device hold. Returns whether that ended the job: a job that no
    /// scheduler reported ends with its last hold.
    pub fn apply_hold(&mut self, fact: &HoldFact, at_us: i64) -> bool {
        if fact.begins {
            if !self.has_ended(&fact.job_id, None, at_us) {
                self.update(&fact.job_id, at_us, |held| {
                    if held.devices.len() < MAX_HOLDS || held.devices.contains_key(&fact.hold_id) {
                        held.devices.insert(fact.hold_id.clone(), fact.device.clone());
                    }
                });
            }
            return false;
        }
        if !self.jobs.get(&fact.job_id).is_some_and(|held| held.devices.contains_key(&fact.hold_id)) {
            return false;
        }
        self.update(&fact.job_id, at_us, |held| {
            held.devices.remove(&fact.hold_id);
        });
        let is_over =
            self.jobs.get(&fact.job_id).is_some_and(|held| !held.is_scheduled && held.devices.is_empty());
        if is_over {
            self.remove(&fact.job_id, at_us);
        }
        is_over
    }

    /// A step that ended at `end_us` saved a checkpoint.
    pub fn checkpoint_saved(&mut self, job_id: &str, attempt: Option<i64>, end_us: i64) {
        if let Some(held) = self.jobs.get_mut(job_id)
            && (attempt.is_none() || held.attempt.is_none() || attempt == held.attempt)
        {
            held.checkpoint_us = held.checkpoint_us.max(Some(end_us));
        }
    }

    /// Accrues node use up to `now_us`, and forgets old ends.
    pub fn accrue_use(&mut self, now_us: i64) {
        for held in self.jobs.values_mut() {
            accrue(held, now_us, &mut self.used);
        }
        self.ended.retain(|_, (left_us, _)| now_us.saturating_sub(*left_us) < END_RETENTION_US);
    }

    /// Whether an event of `at_us` belongs to an attempt that had ended by then. Ends and starts of
    /// one moment come in any order: a start at that moment is of the next attempt.
    fn has_ended(&self, job_id: &str, attempt: Option<i64>, at_us: i64) -> bool {
        self.ended.get(job_id).is_some_and(|(left_us, left)| {
            at_us < *left_us || at_us == *left_us && attempt.is_some() && attempt == *left
        })
    }

    fn update(&mut self, job_id: &str, at_us: i64, change: impl FnOnce(&mut Allocation)) {
        if self.jobs.len() >= budget::MAX_JOBS && !self.jobs.contains_key(job_id) {
            return;
        }
        let held = self.jobs.entry(job_id.into()).or_insert_with(|| Allocation::new(at_us));
        accrue(held, at_us, &mut self.used);
        for node in held.nodes() {
            remove_job_from_node(&mut self.on_node, node, job_id);
        }
        change(held);
        for node in held.nodes() {
            self.on_node.entry(node.into()).or_default().insert(job_id.into());
        }
    }

    fn remove(&mut self, job_id: &str, at_us: i64) -> Option<Allocation> {
        let mut held = self.jobs.remove(job_id)?;
        accrue(&mut held, at_us, &mut self.used);
        for node in held.nodes() {
            remove_job_from_node(&mut self.on_node, node, job_id);
        }
        Some(held)
    }
}

fn accrue(held: &mut Allocation, to_us: i64, used: &mut Vec<NodeUse>) {
    let from_us = held.counted_us;
    if to_us > from_us {
        used.extend(held.nodes().into_iter().map(|node| (node.to_owned(), from_us, to_us)));
        held.counted_us = to_us;
    }
}

fn remove_job_from_node(on_node: &mut BTreeMap<String, BTreeSet<String>>, node: &str, job_id: &str) {
    if let Some(jobs) = on_node.get_mut(node) {
        jobs.remove(job_id);
        if jobs.is_empty() {
            on_node.remove(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_events::v1;

    use super::*;

    fn fact(attempt: i64, hosts: &str, gpus: u64) -> JobFact {
        JobFact {
            kind: v1::JobEventKind::Started,
            job_id: "j".into(),
            attempt: Some(attempt),
            team: None,
            pool: None,
            gpus_milli: Some(gpus * 1_000),
            hosts: Some(hosts.into()),
            continues: false,
        }
    }

    fn hold(begins: bool, index: u32, quality: &str) -> HoldFact {
        let kind = if begins { v1::JobEventKind::DeviceHeld } else { v1::JobEventKind::DeviceReleased };
        let event = v1::JobEvent {
            kind: kind.into(),
            job_id: "j".into(),
            hold_id: Some(format!("h{index}")),
            node: Some("n0".into()),
            gpu_index: Some(index),
            hold_quality: Some(quality.into()),
            ..v1::JobEvent::default()
        };
        HoldFact::from_event(&event).unwrap()
    }

    #[test]
    fn node_use_is_counted_once_despite_repeated_events() {
        let mut holds = Allocations::default();
        holds.job_started(&fact(1, "n0, n1", 16), 100);
        holds.job_started(&fact(1, "n0,n1", 16), 100);
        holds.accrue_use(250);
        // The job shrinks to one node and ends; then its start and end are reported again.
        holds.job_started(&fact(1, "n1", 8), 300);
        assert!(holds.job_ended("j", Some(2), 350).is_none(), "another attempt");
        assert!(holds.job_ended("j", Some(1), 400).is_some() && !holds.record_end("j", Some(1), 400));
        holds.job_started(&fact(1, "n0,n1", 16), 100);
        assert!(holds.job_ended("j", Some(1), 400).is_none() && holds.record_end("j", Some(1), 400));
        let of = |node: &str, from, to| (node.to_owned(), from, to);
        let expected = [
            of("n0", 100, 250),
            of("n1", 100, 250),
            of("n0", 250, 300),
            of("n1", 250, 300),
            of("n1", 300, 400),
        ];
        assert_eq!(holds.take_node_use(), expected);
        assert!(holds.on_node.is_empty() && holds.jobs.is_empty());
        // The next attempt starts at the moment the last one ended.
        holds.job_started(&fact(2, "n0", 8), 400);
        assert_eq!(holds.jobs_on("n0").count(), 1);
    }

    #[test]
    fn locations_are_known_devices_or_whole_nodes() {
        let devices = |node: &str| match node {
            "n0" => (0..8).map(|index| (format!("GPU-{index}"), index)).collect(),
            _ => Vec::new(),
        };
        let mut holds = Allocations::default();
        holds.job_started(&fact(1, "n0,n1", 16), 0);
        assert_eq!(holds.get("j").unwrap().locations(devices).len(), 8, "n1 is not sampled");
        holds.job_started(&fact(2, "n0", 4), 1);
        assert_eq!(holds.get("j").unwrap().locations(devices).len(), 0, "it is unknown which four");
        for (index, quality) in [(2, "EXACT"), (3, "EXACT"), (4, "SHARED_ESTIMATED")] {
            holds.apply_hold(&hold(true, index, quality), 2);
        }
        let places = holds.get("j").unwrap().locations(devices);
        assert_eq!(places.iter().map(|place| place.gpu_index).collect::<Vec<_>>(), [Some(2), Some(3)]);
        assert!(!holds.apply_hold(&hold(false, 2, "EXACT"), 3), "the scheduler reports the end");
    }

    #[test]
    fn a_job_of_holds_alone_is_over_with_the_last() {
        let mut holds = Allocations::default();
        holds.apply_hold(&hold(true, 0, "EXACT"), 10);
        holds.apply_hold(&hold(true, 1, "EXACT"), 20);
        assert!(!holds.apply_hold(&hold(false, 0, "EXACT"), 30));
        assert!(!holds.apply_hold(&hold(false, 0, "EXACT"), 31), "a repeated release");
        assert!(holds.apply_hold(&hold(false, 1, "EXACT"), 40));
        let total: i64 = holds.take_node_use().iter().map(|(_, from, to)| to - from).sum();
        assert_eq!((total, holds.get("j").is_none()), (30, true));
    }
}
