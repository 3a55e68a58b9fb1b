//! Groups the samples of a page by device.

use std::collections::BTreeMap;

use super::fields::{self, Field, Named, Part, Scope};
use super::page::{Sample, samples};
use crate::{Device, Metric, MissingReason, Value};

/// Most GPUs and MIG instances of a node: the largest have 16 GPUs of 7 instances each.
pub const MAX_DEVICES: usize = 1_024;

/// UUID of a GPU, and the number of the GPU instance if it is one.
pub type Key = (String, Option<u32>);

/// Values of one device on a page.
#[derive(Debug)]
pub struct DeviceSamples {
    /// The device.
    pub device: Device,
    /// Its PCI address.
    pub pci_bus_id: Option<String>,
    /// What the page says of it.
    pub values: BTreeMap<Metric, Value>,
    parts: Parts,
}

/// A parsed page.
#[derive(Debug, Default)]
pub struct Page {
    /// Devices by UUID and GPU instance.
    pub devices: BTreeMap<Key, DeviceSamples>,
    /// Hash of all samples used; equal pages have equal hashes.
    pub fingerprint: u64,
    /// Lines that are no samples.
    pub bad_lines: usize,
    /// Lines of DCGM fields without a metric or device here.
    pub unused_lines: usize,
}

/// Parses a page.
///
/// # Errors
/// It is no page of a dcgm-exporter, it was cut off, or it names more devices than a node has.
pub fn read(text: &str) -> Result<Page, String> {
    if !text.is_empty() && !text.ends_with('\n') {
        return Err("the page ends in the middle of a line".into());
    }
    let base_units = samples(text).flatten().filter_map(|sample| field(&sample)).any(|field| field.base_unit);
    let mut page = Page::default();
    let mut used = Vec::new();
    for sample in samples(text) {
        let Ok(sample) = sample else {
            page.bad_lines += 1;
            continue;
        };
        let Some(name) = sample.name.strip_prefix("DCGM_FI_") else { continue };
        if take(&mut page.devices, &sample, name, base_units).is_none() {
            page.unused_lines += 1;
            continue;
        }
        if page.devices.len() > MAX_DEVICES {
            return Err(format!(
                "the page names more than {MAX_DEVICES} GPUs and MIG instances; is it that of one node's exporter?"
            ));
        }
        used.extend_from_slice(sample.name.as_bytes());
        used.extend_from_slice(sample.label("UUID").unwrap_or_default().as_bytes());
        used.extend_from_slice(sample.label("GPU_I_ID").unwrap_or_default().as_bytes());
        used.extend_from_slice(sample.value.as_bytes());
        used.push(b'\n');
    }
    if page.devices.is_empty() {
        return Err(match page.bad_lines {
            0 => "the page names no GPU; is it a dcgm-exporter's, and does it see GPUs?".into(),
            bad => format!("the page is not in Prometheus' text format ({bad} lines are no samples)"),
        });
    }
    page.fingerprint = xxhash_rust::xxh3::xxh3_64(&used);
    page.devices.values_mut().for_each(combine);
    fill(&mut page.devices);
    Ok(page)
}

fn field(sample: &Sample<'_>) -> Option<Field> {
    fields::field(sample.name.strip_prefix("DCGM_FI_")?)
}

/// The device that a line of a field is of, and the number of the GPU instance if it is one. An
/// instance's line of what the board has ([`Scope::Board`]) is of the board.
///
/// # Errors
/// Why the labels name no device.
pub fn device<'l>(
    label: impl Fn(&str) -> Option<&'l str>,
    scope: Scope,
) -> Result<(Device, Option<u32>), &'static str> {
    let uuid = label("UUID").or_else(|| label("uuid")).ok_or("it has no label UUID")?;
    if !uuid.starts_with("GPU-") {
        return Err("its label UUID does not begin with GPU-");
    }
    let index = label("gpu").and_then(|gpu| gpu.parse().ok()).ok_or("its label gpu is no number")?;
    let instance = match label("GPU_I_ID") {
        Some(id) if !id.is_empty() => Some(id.parse().map_err(|_| "its label GPU_I_ID is no number")?),
        _ => None,
    };
    let instance = instance.filter(|_| scope == Scope::Instance);
    let device = Device {
        uuid: uuid.to_owned(),
        index,
        model: label("modelName").unwrap_or_default().to_owned(),
        // The exporter does not write the instance's UUID. This is its name from before MIG had
        // UUIDs, without the compute instance, which the exporter does not write either.
        mig_uuid: instance.map(|id: u32| format!("MIG-{uuid}/{id}")),
    };
    Ok((device, instance))
}

/// Adds one sample; `None` if it is not used.
fn take(
    devices: &mut BTreeMap<Key, DeviceSamples>,
    sample: &Sample<'_>,
    name: &str,
    base_units: bool,
) -> Option<()> {
    // A line of a single link.
    if sample.label("nvlink").is_some() {
        return None;
    }
    let named = Named::of(name)?;
    let (device, instance) = device(|label| sample.label(label), named.scope()).ok()?;
    let on = devices.entry((device.uuid.clone(), instance)).or_insert_with(|| DeviceSamples {
        device,
        pci_bus_id: sample.label("pci_bus_id").map(str::to_owned),
        values: BTreeMap::new(),
        parts: Parts::default(),
    });
    let value = fields::value(sample.value, named.unit(), base_units);
    match named {
        Named::Field(field) => {
            on.values
                .entry(field.metric)
                .and_modify(|before| *before = agree(field.metric, *before, value))
                .or_insert(value);
        }
        Named::Part(part) => on.parts.set(part, value),
    }
    Some(())
}

/// Merges two lines of one device and metric: of pods that share the device, of the instances of
/// its board, or under an old and a new name. Instances are read one after the other, so of a
/// counter the larger value is newer. But if two pods differ in utilization or memory, each line is
/// that pod's own since dcgm-exporter#594, and none is the device's.
pub fn agree(metric: Metric, before: Value, now: Value) -> Value {
    let of_pods = matches!(metric, Metric::GpuUtil | Metric::FramebufferUsed);
    match (before, now) {
        (Value::Is(before), Value::Is(now)) if before != now && of_pods => {
            Value::Missing(MissingReason::NotSupported)
        }
        (Value::Is(before), Value::Is(now)) => Value::Is(before.max(now)),
        // Two lines that differed already.
        (Value::Missing(_), Value::Is(_)) if of_pods => before,
        (Value::Is(_), _) => before,
        _ => now,
    }
}

/// Values of one device at one moment that are parts of metrics.
#[derive(Debug, Clone, Copy, Default)]
pub struct Parts {
    free: Option<Value>,
    remapped: [Option<Value>; 2],
}

impl Parts {
    /// Sets a part.
    pub fn set(&mut self, part: Part, value: Value) {
        match part {
            Part::FramebufferFree(_) => self.free = Some(value),
            Part::RemappedCorrectable => self.remapped[0] = Some(value),
            Part::RemappedUncorrectable => self.remapped[1] = Some(value),
        }
    }

    /// The metrics whose parts are all there; `of` gives the device's other values.
    pub fn combined(&self, of: impl Fn(Metric) -> Option<Value>) -> impl Iterator<Item = (Metric, Value)> {
        let remapped = match self.remapped {
            [Some(corrected), Some(uncorrected)] => {
                Some((Metric::RemappedRows, sum(&[corrected, uncorrected])))
            }
            _ => None,
        };
        // Used, reserved and free add up to the whole memory, since DCGM reports reserved memory.
        let total = match (
            of(Metric::FramebufferTotal),
            self.free,
            of(Metric::FramebufferUsed),
            of(Metric::FramebufferReserved),
        ) {
            (None, Some(free), Some(used), Some(reserved)) => {
                Some((Metric::FramebufferTotal, sum(&[free, used, reserved])))
            }
            _ => None,
        };
        [remapped, total].into_iter().flatten()
    }
}

/// Combines metrics that DCGM writes in parts, if all parts are there.
fn combine(device: &mut DeviceSamples) {
    let combined: Vec<_> = device.parts.combined(|metric| device.values.get(&metric).copied()).collect();
    device.values.extend(combined);
}

fn sum(parts: &[Value]) -> Value {
    let mut total = 0;
    for part in parts {
        match part {
            Value::Is(value) => total += value,
            missing => return *missing,
        }
    }
    Value::Is(total)
}

/// Marks missing metrics. The exporter leaves out what a device does not have; that another device
/// of the kind has it shows that it was asked for.
fn fill(devices: &mut BTreeMap<Key, DeviceSamples>) {
    for instances in [false, true] {
        let of_kind = |key: &Key| key.1.is_some() == instances;
        let asked: Vec<Metric> = {
            let mut asked: Vec<_> = devices
                .iter()
                .filter(|(key, _)| of_kind(key))
                .flat_map(|(_, on)| on.values.keys().copied())
                .collect();
            asked.sort_unstable();
            asked.dedup();
            asked
        };
        for (_, device) in devices.iter_mut().filter(|(key, _)| of_kind(key)) {
            for metric in &asked {
                // There is no line while there is no XID.
                if *metric != Metric::Xid {
                    device.values.entry(*metric).or_insert(Value::Missing(MissingReason::NotSupported));
                }
            }
        }
    }
}
