//! Values of GPU samples, held by UTC hour and node until the hour is complete.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate_readings::dcgm::devices::MAX_DEVICES;
use tidegate_readings::dcgm::fields::{self, Named, Part};
use tidegate_readings::{Device, Metric, Value};

/// Events are of one hour each, so that imports which overlap in whole hours give the same events.
pub(crate) const HOUR_MS: i64 = 3_600_000;

/// What a value is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quantity {
    Metric(Metric),
    /// Part of a metric that DCGM writes in parts.
    Part(Part),
}

impl From<Named> for Quantity {
    fn from(named: Named) -> Self {
        match named {
            Named::Field(field) => Self::Metric(field.metric),
            Named::Part(part) => Self::Part(part),
        }
    }
}

/// A value of one device at one time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Place in [`NodeHour::devices`].
    pub device: u32,
    pub tick_ms: i64,
    pub what: Quantity,
    pub value: Value,
}

/// Values of a node in one hour.
#[derive(Debug, Default)]
pub(crate) struct NodeHour {
    pub(super) devices: Vec<Arc<Device>>,
    places: HashMap<(String, Option<String>), u32>,
    pub(super) entries: Vec<Entry>,
    /// The node's exporter wrote fields in base units in this hour, see
    /// [`fields::Unit::RatioOrPercent`].
    base_units: bool,
}

/// The node has more devices than a node can have.
#[derive(Debug)]
pub(crate) struct TooManyDevices;

impl NodeHour {
    fn place(&mut self, device: &Arc<Device>) -> Result<u32, TooManyDevices> {
        let key = (device.uuid.clone(), device.mig_uuid.clone());
        if let Some(place) = self.places.get(&key) {
            return Ok(*place);
        }
        if self.devices.len() >= MAX_DEVICES {
            return Err(TooManyDevices);
        }
        let place = self.devices.len() as u32;
        self.places.insert(key, place);
        self.devices.push(Arc::clone(device));
        Ok(place)
    }
}

/// Cluster and node.
pub(crate) type NodeName = (String, String);

/// Values by hour and node.
#[derive(Debug, Default)]
pub(crate) struct HeldSamples {
    hours: BTreeMap<i64, BTreeMap<NodeName, NodeHour>>,
    held: usize,
}

impl HeldSamples {
    /// Number of values; each takes 40 bytes.
    pub(crate) fn len(&self) -> usize {
        self.held
    }

    /// First ms of each hour with values, oldest first.
    pub(crate) fn hours(&self) -> impl DoubleEndedIterator<Item = i64> {
        self.hours.keys().copied()
    }

    fn node(&mut self, tick_ms: i64, node: &NodeName) -> &mut NodeHour {
        let nodes = self.hours.entry(tick_ms - tick_ms.rem_euclid(HOUR_MS)).or_default();
        if !nodes.contains_key(node) {
            nodes.insert(node.clone(), NodeHour::default());
        }
        nodes.entry(node.clone()).or_default()
    }

    /// Adds one value.
    pub(crate) fn add(
        &mut self,
        node: &NodeName,
        device: &Arc<Device>,
        (tick_ms, what, value): (i64, Quantity, Value),
    ) -> Result<(), TooManyDevices> {
        let hour = self.node(tick_ms, node);
        let device = hour.place(device)?;
        hour.entries.push(Entry { device, tick_ms, what, value });
        self.held += 1;
        Ok(())
    }

    /// Adds numbers of a DCGM field, in order of time. Fields in base units must come before all
    /// others: they decide how [`fields::Unit::RatioOrPercent`] is read.
    pub(crate) fn add_series(
        &mut self,
        node: &NodeName,
        device: &Arc<Device>,
        named: Named,
        mut values: &[(i64, &str)],
    ) -> Result<(), TooManyDevices> {
        self.held += values.len();
        while let Some((first_ms, _)) = values.first() {
            let end_ms = first_ms - first_ms.rem_euclid(HOUR_MS) + HOUR_MS;
            let (inside, after) = values.split_at(values.partition_point(|(at_ms, _)| *at_ms < end_ms));
            let hour = self.node(*first_ms, node);
            let device = hour.place(device)?;
            hour.base_units |= matches!(named, Named::Field(field) if field.base_unit);
            let base_units = hour.base_units;
            hour.entries.extend(inside.iter().map(|(tick_ms, text)| Entry {
                device,
                tick_ms: *tick_ms,
                what: named.into(),
                value: fields::value(text, named.unit(), base_units),
            }));
            values = after;
        }
        Ok(())
    }

    /// The nodes of an hour.
    pub(crate) fn hour(&mut self, hour_ms: i64) -> Option<&mut BTreeMap<NodeName, NodeHour>> {
        self.hours.get_mut(&hour_ms)
    }

    /// Takes an hour out.
    pub(crate) fn take(&mut self, hour_ms: i64) -> BTreeMap<NodeName, NodeHour> {
        let taken = self.hours.remove(&hour_ms).unwrap_or_default();
        self.held -= taken.values().map(|node| node.entries.len()).sum::<usize>();
        taken
    }
}
