//! Monitor of one node's health: device windows of the last ten minutes, faults of the last day,
//! and whether the node is a lemon.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, v1};
use tidegate_insight::health::{DeviceHealth, HealthPrior, NodeHealth, State, node_health};
use tidegate_insight::straggler::Fault;

use crate::budget;
use crate::device::{WINDOW_US, WindowStats};
use crate::lemons::LemonVerdict;
use crate::publication::{Publication, envelope, evidence_lines, ppm, producer_name};

/// Version of the rules, part of the producer name.
const MODEL: &str = "node-2";
/// Producer name of what is published at midnight, apart from that of the minute.
const LEMON_MODEL: &str = "lemon-1";
/// How long a device window counts, µs.
const WINDOW_RETENTION_US: i64 = 600_000_000;
/// How long a fault counts, µs.
const FAULT_RETENTION_US: i64 = 86_400_000_000;
/// Smallest change of the probability that is published, millionths.
const MIN_CHANGE_PPM: u32 = 100_000;
/// Faults kept; further ones of a day add nothing.
const MAX_FAULTS: usize = 256;
/// Devices of a node; of further ones nothing is kept.
const MAX_DEVICES: usize = 256;

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Device {
    index: Option<u32>,
    /// When the device was lost, µs since 1970.
    lost_us: Option<i64>,
    windows: VecDeque<WindowStats>,
}

/// A node and its last published state.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct NodeMonitor {
    cluster: String,
    name: String,
    devices: BTreeMap<String, Device>,
    /// Time, device, XID.
    faults: Vec<(i64, String, Option<u32>)>,
    published: Option<(State, u32, Option<String>)>,
    /// Verdict of the last midnights, if the node is or was a lemon.
    lemon: Option<LemonVerdict>,
    /// When the node was first heard of, µs since 1970.
    since_us: i64,
    /// Memory that the budget counts for the node, bytes.
    counted_bytes: usize,
}

impl NodeMonitor {
    /// A node first heard of at `since_us`.
    pub fn new(cluster: &str, name: &str, since_us: i64) -> Self {
        Self {
            cluster: cluster.into(),
            name: name.into(),
            devices: BTreeMap::new(),
            faults: Vec::new(),
            published: None,
            lemon: None,
            since_us,
            counted_bytes: 0,
        }
    }

    /// How useful it is to keep the node: first one that says nothing, of others the one known for
    /// the shortest time.
    pub fn usefulness(&self) -> (bool, i64) {
        let says = self.is_active() || self.published.is_some() || self.lemon.is_some();
        (says, -self.since_us)
    }

    /// Counts the node's memory anew. Returns what was counted before and what is now, bytes.
    pub fn recount(&mut self) -> (usize, usize) {
        let windows: usize = self.devices.values().map(|device| device.windows.len()).sum();
        let device = size_of::<Device>() + budget::NAME_BYTES + budget::ENTRY_BYTES;
        let fault = size_of::<(i64, String, Option<u32>)>() + budget::NAME_BYTES;
        let bytes = size_of::<Self>()
            + 2 * budget::NAME_BYTES
            + self.devices.len() * device
            + windows * size_of::<WindowStats>()
            + self.faults.len() * fault;
        (std::mem::replace(&mut self.counted_bytes, bytes), bytes)
    }

    /// The device, unless the node has too many.
    fn device(&mut self, uuid: &str) -> Option<&mut Device> {
        let is_full = self.devices.len() >= MAX_DEVICES && !self.devices.contains_key(uuid);
        (!is_full).then(|| self.devices.entry(uuid.into()).or_default())
    }

    /// Takes a window of a device.
    pub fn observe_window(&mut self, uuid: &str, stats: WindowStats) {
        let Some(device) = self.device(uuid) else { return };
        device.index = Some(stats.index);
        // The device answers again, whatever was reported before.
        device.lost_us = device.lost_us.filter(|lost_us| stats.start_us < *lost_us);
        device.windows.push_back(stats);
    }

    /// Takes a device's XID, loss or return. Other kinds of events change nothing.
    pub fn observe_event(&mut self, event: &v1::NodeEvent, at_us: i64) {
        let Some(uuid) = event.gpu_uuid.as_deref() else { return };
        let Some(device) = self.device(uuid) else { return };
        device.index = event.gpu_index.or(device.index);
        match event.kind() {
            v1::NodeEventKind::Xid => {
                let fault = (at_us, uuid.to_owned(), event.xid);
                if self.faults.len() < MAX_FAULTS && !self.faults.contains(&fault) {
                    self.faults.push(fault);
                }
            }
            v1::NodeEventKind::DeviceLost => device.lost_us = Some(at_us),
            v1::NodeEventKind::DeviceFound => device.lost_us = None,
            _ => {}
        }
    }

    /// Devices that were sampled lately: UUID and index.
    pub fn devices(&self) -> Vec<(String, u32)> {
        let shown = self.devices.iter().filter(|(_, device)| !device.windows.is_empty());
        shown.filter_map(|(uuid, device)| Some((uuid.clone(), device.index?))).collect()
    }

    /// Publishes the verdict of a midnight: the node is a lemon, or no longer is.
    pub fn publish_lemon(&mut self, lemon: LemonVerdict, midnight_us: i64) -> Publication {
        self.lemon = Some(lemon);
        let found = self.assess(midnight_us);
        let source = producer_name(&[LEMON_MODEL, &self.cluster, &self.name, &midnight_us.to_string()]);
        self.publication(found, source, midnight_us)
    }

    /// Whether time alone may change the output.
    pub fn is_active(&self) -> bool {
        !self.faults.is_empty() || self.devices.values().any(|device| !device.windows.is_empty())
    }

    /// Publishes the state at `now_us`, if it differs from the last.
    pub fn evaluate(&mut self, now_us: i64) -> Option<Publication> {
        let found = self.assess(now_us);
        let changed = match &self.published {
            None => found.state != State::Healthy,
            Some((state, said_ppm, whose)) => {
                *state != found.state
                    || (found.state != State::Healthy
                        && (*whose != self.strongest_device(&found).map(|(uuid, _)| uuid)
                            || said_ppm.abs_diff(ppm(found.bad)) >= MIN_CHANGE_PPM))
            }
        };
        let source = producer_name(&[MODEL, &self.cluster, &self.name, &now_us.to_string()]);
        changed.then(|| self.publication(found, source, now_us))
    }

    /// Weighs what counts at `now_us`, and forgets what is older.
    fn assess(&mut self, now_us: i64) -> NodeHealth {
        self.faults.retain(|(at_us, ..)| now_us.saturating_sub(*at_us) < FAULT_RETENTION_US);
        for device in self.devices.values_mut() {
            let old =
                |shown: &WindowStats| now_us.saturating_sub(shown.start_us) > WINDOW_RETENTION_US + WINDOW_US;
            while device.windows.front().is_some_and(old) {
                device.windows.pop_front();
            }
        }
        let uuids: Vec<&String> = self.devices.keys().collect();
        let health: Vec<DeviceHealth> = self.devices.values().map(health_of).collect();
        let fault = |(time_us, uuid, xid): &(i64, String, Option<u32>)| {
            let rank = uuids.binary_search(&uuid).ok()? as u32;
            Some(Fault { rank, time_us: *time_us, xid: *xid })
        };
        let faults: Vec<Fault> = self.faults.iter().filter_map(fault).collect();
        let lemon = self.lemon.filter(|found| found.lemon.exclude);
        let prior =
            HealthPrior { lemon_times: lemon.map(|found| found.lemon.times), ..HealthPrior::default() };
        node_health(&health, &faults, &prior)
    }

    /// UUID and index of the device with the strongest evidence.
    fn strongest_device(&self, found: &NodeHealth) -> Option<(String, Option<u32>)> {
        let (uuid, device) = self.devices.iter().nth(found.device?)?;
        Some((uuid.clone(), device.index))
    }

    fn publication(&mut self, found: NodeHealth, source: String, now_us: i64) -> Publication {
        let bad_ppm = ppm(found.bad);
        let (device, index) = self.strongest_device(&found).unzip();
        let lemon = self.lemon;
        let signal = v1::NodeSignal {
            envelope: envelope(&self.cluster, &source, now_us, 0),
            state: match found.state {
                State::Healthy => v1::NodeHealthState::Healthy,
                State::Watch => v1::NodeHealthState::Watch,
                State::Bad => v1::NodeHealthState::Bad,
                State::Failed => v1::NodeHealthState::Failed,
            }
            .into(),
            node: self.name.clone(),
            bad_ppm,
            gpu_uuid: device.clone(),
            gpu_index: index.flatten(),
            evidence: evidence_lines(&found.evidence),
            model: MODEL.into(),
            lemon_ppm: lemon.map(|found| ppm(found.lemon.probability)),
            lemon_least_milli: lemon
                .filter(|found| found.lemon.exclude)
                .map(|found| (found.lemon.least_times * 1e3).round() as u64),
            used_hours: lemon.map(|found| found.hours),
            bad_hours: lemon.map(|found| found.bad_hours),
        };
        self.published = Some((found.state, bad_ppm, device));
        Publication { source, events: vec![Event::NodeHealth(signal)] }
    }
}

fn health_of(device: &Device) -> DeviceHealth {
    let mean = |field: fn(&WindowStats) -> Option<f64>| {
        let values: Vec<f64> = device.windows.iter().filter_map(field).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let sum = |field: fn(&WindowStats) -> Option<u64>| {
        device.windows.iter().filter_map(field).reduce(|a, b| a.saturating_add(b))
    };
    DeviceHealth {
        lost: device.lost_us.is_some(),
        sm_clock_mhz: mean(|shown| shown.sm_clock_mhz),
        slowdown_share: mean(|shown| shown.slowdown_share),
        link_width_ratio: None,
        link_retries: sum(|shown| shown.link_retries),
        uncorrectable_errors: sum(|shown| shown.uncorrectable_errors),
        remap_pending: device.windows.iter().rev().find_map(|shown| shown.remap_pending),
        remap_failed: device.windows.iter().rev().find_map(|shown| shown.remap_failed),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: v1::NodeEventKind, xid: Option<u32>) -> v1::NodeEvent {
        v1::NodeEvent {
            kind: kind.into(),
            node: "n1".into(),
            gpu_uuid: Some("GPU-a".into()),
            gpu_index: Some(3),
            xid,
            ..v1::NodeEvent::default()
        }
    }

    fn signal(publication: Option<Publication>) -> v1::NodeSignal {
        match publication.expect("something to say").events.remove(0) {
            Event::NodeHealth(signal) => signal,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_lost_device_fails_the_node_until_it_is_back() {
        let mut node = NodeMonitor::new("c", "n1", 0);
        assert_eq!(node.evaluate(0), None, "nothing is published of a healthy node");
        node.observe_event(&event(v1::NodeEventKind::DeviceLost, None), 1);
        let lost = signal(node.evaluate(60_000_000));
        assert_eq!((lost.state(), lost.gpu_index), (v1::NodeHealthState::Failed, Some(3)));
        assert!(lost.evidence[0].starts_with("device_lost "), "{:?}", lost.evidence);
        assert_eq!(node.evaluate(120_000_000), None, "published once");
        node.observe_event(&event(v1::NodeEventKind::DeviceFound, None), 130_000_000);
        assert_eq!(signal(node.evaluate(180_000_000)).state(), v1::NodeHealthState::Healthy);
    }

    #[test]
    fn a_fault_counts_for_a_day_and_once() {
        let mut node = NodeMonitor::new("c", "n1", 0);
        for _ in 0..2 {
            node.observe_event(&event(v1::NodeEventKind::Xid, Some(79)), 0);
        }
        assert_eq!(node.faults.len(), 1);
        let input = signal(node.evaluate(60_000_000));
        assert_ne!(input.state(), v1::NodeHealthState::Healthy);
        assert_eq!(node.evaluate(FAULT_RETENTION_US - 1), None);
        assert_eq!(signal(node.evaluate(FAULT_RETENTION_US)).state(), v1::NodeHealthState::Healthy);
        assert!(!node.is_active());
    }
}
