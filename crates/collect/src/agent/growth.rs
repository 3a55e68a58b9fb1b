//! What counters said last, so that a batch can say by how much they grew up to its first readings.

use std::sync::Arc;

use crate::reading::{Device, Metric, Reading, Value};

/// The last known value of each counter of each device of the batch before.
#[derive(Default)]
pub(super) struct Counted(Vec<(Arc<Device>, Vec<Option<i64>>)>);

impl Counted {
    /// Growth of a counter from its last known value to this reading; -1 where one of them is not
    /// known, where it began anew, and for a device that was in no batch before.
    pub fn growth(&self, device: &Device, metric: Metric, reading: Option<&Reading>) -> i64 {
        let before = self
            .0
            .iter()
            .find(|(known, _)| is_same(known, device))
            .and_then(|(_, last)| last[metric as usize]);
        let now = reading.map(|reading| reading.get(metric));
        match (before, now) {
            (Some(before), Some(Value::Is(now))) => {
                now.checked_sub(before).filter(|grown| *grown >= 0).unwrap_or(-1)
            }
            _ => -1,
        }
    }

    /// Takes note of the readings of a batch, in order of their ticks. What is not in it is
    /// forgotten.
    pub fn note(&mut self, readings: &[Reading]) {
        self.0.retain(|(known, _)| readings.iter().any(|reading| is_same(known, &reading.device)));
        for reading in readings {
            let place =
                self.0.iter().position(|(known, _)| is_same(known, &reading.device)).unwrap_or_else(|| {
                    self.0.push((reading.device.clone(), vec![None; Metric::ALL.len()]));
                    self.0.len() - 1
                });
            for metric in Metric::ALL.iter().filter(|metric| metric.is_counter()) {
                if let Value::Is(value) = reading.get(*metric) {
                    self.0[place].1[*metric as usize] = Some(value);
                }
            }
        }
    }
}

/// The same piece of hardware, whatever number it has now.
pub(super) fn is_same(one: &Device, other: &Device) -> bool {
    (&one.uuid, &one.mig_uuid) == (&other.uuid, &other.mig_uuid)
}
