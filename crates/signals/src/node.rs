//! One node's health: what its devices showed in the last ten minutes and the faults of the last
//! day.

use std::collections::{BTreeMap, VecDeque};

use tidegate_events::{Event, v1};
use tidegate_insight::health::{DeviceHealth, HealthPrior, NodeHealth, State, node_health};
use tidegate_insight::straggler::Fault;

use super::device::{Showing, WINDOW_US};
use super::lemons::LemonFound;
use super::{Publication, envelope, lines, ppm, source};

/// Version of the rules, part of what is said.
const MODEL: &str = "node-2";
/// Names what is said at midnight, which may be said beside what the minute brings.
const LEMON: &str = "lemon-1";
/// How long what a device showed counts, µs.
const SHOWN_US: i64 = 600_000_000;
/// How long a fault counts, µs.
const FAULT_US: i64 = 86_400_000_000;
/// A change of the probability that is worth saying, in millionths.
const WORTH_PPM: u32 = 100_000;
/// Faults kept; further ones of a day say nothing new.
const MOST_FAULTS: usize = 256;

#[derive(Debug, Clone, Default)]
struct Device {
    index: Option<u32>,
    /// Since when it is gone, µs since 1970.
    lost_us: Option<i64>,
    shown: VecDeque<Showing>,
}

/// A node and what was last said of it.
#[derive(Debug, Clone)]
pub struct WatchedNode {
    cluster: String,
    name: String,
    devices: BTreeMap<String, Device>,
    /// When, which device, which XID.
    faults: Vec<(i64, String, Option<u32>)>,
    said: Option<(State, u32, Option<String>)>,
    /// What the last midnights found, if it is a lemon or was one.
    lemon: Option<LemonFound>,
}

impl WatchedNode {
    pub fn new(cluster: &str, name: &str) -> Self {
        Self {
            cluster: cluster.into(),
            name: name.into(),
            devices: BTreeMap::new(),
            faults: Vec::new(),
            said: None,
            lemon: None,
        }
    }

    /// Takes a window of a device.
    pub fn shown(&mut self, uuid: &str, showing: Showing) {
        let device = self.devices.entry(uuid.into()).or_default();
        device.index = Some(showing.index);
        // It answers again, whatever was said before.
        device.lost_us = device.lost_us.filter(|lost_us| showing.start_us < *lost_us);
        device.shown.push_back(showing);
    }

    /// Takes what a collector says of a device: an XID, its loss, its return. Other kinds change
    /// nothing.
    pub fn told(&mut self, event: &v1::NodeEvent, at_us: i64) {
        let Some(uuid) = event.gpu_uuid.as_deref() else { return };
        let device = self.devices.entry(uuid.into()).or_default();
        device.index = event.gpu_index.or(device.index);
        match event.kind() {
            v1::NodeEventKind::Xid if self.faults.len() < MOST_FAULTS => {
                let fault = (at_us, uuid.to_owned(), event.xid);
                if !self.faults.contains(&fault) {
                    self.faults.push(fault);
                }
            }
            v1::NodeEventKind::DeviceLost => device.lost_us = Some(at_us),
            v1::NodeEventKind::DeviceFound => device.lost_us = None,
            _ => {}
        }
    }

    /// Its devices that showed something lately: UUID and number.
    pub fn devices(&self) -> Vec<(String, u32)> {
        let shown = self.devices.iter().filter(|(_, device)| !device.shown.is_empty());
        shown.filter_map(|(uuid, device)| Some((uuid.clone(), device.index?))).collect()
    }

    /// At a midnight it was found to be a lemon, or to be none any more: says so.
    pub fn found(&mut self, lemon: LemonFound, midnight_us: i64) -> Publication {
        self.lemon = Some(lemon);
        let found = self.look(midnight_us);
        let source = source(&[LEMON, &self.cluster, &self.name, &midnight_us.to_string()]);
        self.say(found, source, midnight_us)
    }

    /// Whether time alone may change what is to be said.
    pub fn is_active(&self) -> bool {
        !self.faults.is_empty() || self.devices.values().any(|device| !device.shown.is_empty())
    }

    /// How it stands at `now_us`, if that is another thing than was last said.
    pub fn judge(&mut self, now_us: i64) -> Option<Publication> {
        let found = self.look(now_us);
        let changed = match &self.said {
            None => found.state != State::Healthy,
            Some((state, said_ppm, whose)) => {
                *state != found.state
                    || (found.state != State::Healthy
                        && (*whose != self.device_of(&found).map(|(uuid, _)| uuid)
                            || said_ppm.abs_diff(ppm(found.bad)) >= WORTH_PPM))
            }
        };
        let source = source(&[MODEL, &self.cluster, &self.name, &now_us.to_string()]);
        changed.then(|| self.say(found, source, now_us))
    }

    /// Weighs what counts at `now_us`, and forgets what is older.
    fn look(&mut self, now_us: i64) -> NodeHealth {
        self.faults.retain(|(at_us, ..)| now_us.saturating_sub(*at_us) < FAULT_US);
        for device in self.devices.values_mut() {
            let old = |shown: &Showing| now_us.saturating_sub(shown.start_us) > SHOWN_US + WINDOW_US;
            while device.shown.front().is_some_and(old) {
                device.shown.pop_front();
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

    /// Device of the strongest evidence: UUID and number.
    fn device_of(&self, found: &NodeHealth) -> Option<(String, Option<u32>)> {
        let (uuid, device) = self.devices.iter().nth(found.device?)?;
        Some((uuid.clone(), device.index))
    }

    fn say(&mut self, found: NodeHealth, source: String, now_us: i64) -> Publication {
        let bad_ppm = ppm(found.bad);
        let (device, index) = self.device_of(&found).unzip();
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
            evidence: lines(&found.evidence),
            model: MODEL.into(),
            lemon_ppm: lemon.map(|found| ppm(found.lemon.probability)),
            lemon_least_milli: lemon
                .filter(|found| found.lemon.exclude)
                .map(|found| (found.lemon.least_times * 1e3).round() as u64),
            used_hours: lemon.map(|found| found.hours),
            bad_hours: lemon.map(|found| found.bad_hours),
        };
        self.said = Some((found.state, bad_ppm, device));
        Publication { source, events: vec![Event::NodeHealth(signal)] }
    }
}

fn health_of(device: &Device) -> DeviceHealth {
    let mean = |field: fn(&Showing) -> Option<f64>| {
        let values: Vec<f64> = device.shown.iter().filter_map(field).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let sum = |field: fn(&Showing) -> Option<u64>| {
        device.shown.iter().filter_map(field).reduce(|a, b| a.saturating_add(b))
    };
    DeviceHealth {
        lost: device.lost_us.is_some(),
        sm_clock_mhz: mean(|shown| shown.sm_clock_mhz),
        slowdown_share: mean(|shown| shown.slowdown_share),
        link_width_ratio: None,
        link_retries: sum(|shown| shown.link_retries),
        uncorrectable_errors: sum(|shown| shown.uncorrectable_errors),
        remap_pending: device.shown.iter().rev().find_map(|shown| shown.remap_pending),
        remap_failed: device.shown.iter().rev().find_map(|shown| shown.remap_failed),
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
        let mut node = WatchedNode::new("c", "n1");
        assert_eq!(node.judge(0), None, "nothing is said of a healthy node");
        node.told(&event(v1::NodeEventKind::DeviceLost, None), 1);
        let lost = signal(node.judge(60_000_000));
        assert_eq!((lost.state(), lost.gpu_index), (v1::NodeHealthState::Failed, Some(3)));
        assert!(lost.evidence[0].starts_with("device_lost "), "{:?}", lost.evidence);
        assert_eq!(node.judge(120_000_000), None, "it is said once");
        node.told(&event(v1::NodeEventKind::DeviceFound, None), 130_000_000);
        assert_eq!(signal(node.judge(180_000_000)).state(), v1::NodeHealthState::Healthy);
    }

    #[test]
    fn a_fault_counts_for_a_day_and_once() {
        let mut node = WatchedNode::new("c", "n1");
        for _ in 0..2 {
            node.told(&event(v1::NodeEventKind::Xid, Some(79)), 0);
        }
        assert_eq!(node.faults.len(), 1);
        let told = signal(node.judge(60_000_000));
        assert_ne!(told.state(), v1::NodeHealthState::Healthy);
        assert_eq!(node.judge(FAULT_US - 1), None);
        assert_eq!(signal(node.judge(FAULT_US)).state(), v1::NodeHealthState::Healthy);
        assert!(!node.is_active());
    }
}
