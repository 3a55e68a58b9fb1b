//! Turns the values of a node and hour into readings, and these into events.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_events::{Event, v1};
use tidegate_readings::columns;
use tidegate_readings::counters::LastCounters;
use tidegate_readings::dcgm::devices::{Parts, agree};
use tidegate_readings::{Metric, MissingReason, Reading, Value};

use super::held::{NodeHour, NodeName, Quantity};

/// Samples of one event: as many as an agent's largest.
const BATCH_SAMPLES: usize = tidegate_events::MAX_SAMPLES / 4;

impl NodeHour {
    /// The readings, by device and time. `interval_us`: the time that each one stands for.
    pub(crate) fn readings(&mut self, interval_us: i64) -> Vec<Reading> {
        self.entries.sort_by_key(|entry| (entry.device, entry.tick_ms));
        let mut readings = Vec::new();
        for of_device in self.entries.chunk_by(|one, next| one.device == next.device) {
            let asked: BTreeSet<Metric> = of_device
                .iter()
                .filter_map(|entry| match entry.what {
                    // There is no line while there is no XID.
                    Quantity::Metric(Metric::Xid) | Quantity::Part(_) => None,
                    Quantity::Metric(metric) => Some(metric),
                })
                .collect();
            for at_tick in of_device.chunk_by(|one, next| one.tick_ms == next.tick_ms) {
                let device = &self.devices[at_tick[0].device as usize];
                let mut reading = Reading::new(device.clone(), at_tick[0].tick_ms);
                for metric in &asked {
                    reading.set(*metric, Value::Missing(MissingReason::Stale));
                }
                let mut values: BTreeMap<Metric, Value> = BTreeMap::new();
                let mut parts = Parts::default();
                for entry in at_tick {
                    match entry.what {
                        Quantity::Metric(metric) => {
                            let merged = |before: &mut Value| *before = agree(metric, *before, entry.value);
                            values.entry(metric).and_modify(merged).or_insert(entry.value);
                        }
                        Quantity::Part(part) => parts.set(part, entry.value),
                    }
                }
                let combined: Vec<_> = parts.combined(|metric| values.get(&metric).copied()).collect();
                for (metric, value) in values.into_iter().chain(combined) {
                    reading.set(metric, value);
                }
                if reading.get(Metric::Interval) == Value::NotAsked {
                    reading.set(Metric::Interval, Value::Is(interval_us));
                }
                readings.push(reading);
            }
        }
        readings
    }
}

/// Turns a node's readings into events: batches of samples, and an XID event whenever a device's
/// code changes. `before` holds the readings just before the first ones, which counters and codes
/// are compared with.
///
/// A batch has devices × ticks without a gap: how much a counter grew in a gap is known, but not
/// how it was spread, and a batch could not say so.
pub(crate) fn events(
    node: &NodeName,
    before: &[Reading],
    readings: Vec<Reading>,
    interval_ms: i64,
) -> Vec<Event> {
    let mut events = xids(before, &readings);
    let gap_ms = interval_ms.saturating_add(interval_ms / 2);
    let goes_on = |one: &Reading, next: &Reading| {
        one.device == next.device && next.tick_ms.saturating_sub(one.tick_ms) <= gap_ms
    };
    // Devices that were read at the same ticks share a batch.
    let mut runs: BTreeMap<Vec<i64>, Vec<Reading>> = BTreeMap::new();
    for run in readings.chunk_by(goes_on) {
        let ticks = run.iter().map(|reading| reading.tick_ms).collect();
        runs.entry(ticks).or_default().extend_from_slice(run);
    }
    for (ticks, mut readings) in runs {
        let mut counted = LastCounters::default();
        if before.iter().any(|reading| ticks[0].saturating_sub(reading.tick_ms) <= gap_ms) {
            counted.note(before);
        }
        readings.sort_by_key(|reading| reading.tick_ms);
        let devices = (readings.len() / ticks.len()).max(1);
        let most = (BATCH_SAMPLES / devices).max(1) * devices;
        while !readings.is_empty() {
            let after = readings.split_off(most.min(readings.len()));
            events.push(Event::GpuSamples(columns::batch(readings, &mut counted)));
            readings = after;
        }
    }
    for event in &mut events {
        match event {
            Event::GpuSamples(batch) => batch.node.clone_from(&node.1),
            Event::Node(event) => event.node.clone_from(&node.1),
            _ => {}
        }
        event.envelope_mut().cluster.clone_from(&node.0);
    }
    events
}

/// Changes of each device's XID. One that a device had from the first reading on may be days old.
fn xids(before: &[Reading], readings: &[Reading]) -> Vec<Event> {
    let code = |reading: &Reading| match reading.get(Metric::Xid) {
        Value::Is(code) => code,
        _ => 0,
    };
    let mut last: BTreeMap<_, i64> = BTreeMap::new();
    let mut events = Vec::new();
    for (reading, is_inside) in before.iter().map(|r| (r, false)).chain(readings.iter().map(|r| (r, true))) {
        let now = code(reading);
        let earlier = last.insert((&reading.device.uuid, &reading.device.mig_uuid), now);
        let (true, true, Some(earlier), Ok(xid)) = (is_inside, now != 0, earlier, u32::try_from(now)) else {
            continue;
        };
        if earlier != now {
            events.push(Event::Node(v1::NodeEvent {
                envelope: Some(v1::Envelope { event_time_ms: reading.tick_ms, ..v1::Envelope::default() }),
                kind: v1::NodeEventKind::Xid.into(),
                gpu_uuid: Some(reading.device.uuid.clone()),
                mig_uuid: reading.device.mig_uuid.clone(),
                gpu_index: Some(reading.device.index),
                xid: Some(xid),
                evidence: Some("dcgm".into()),
                ..v1::NodeEvent::default()
            }));
        }
    }
    events
}
