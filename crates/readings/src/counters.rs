//! Last known counter values, for each batch's `first_growth`.

use std::sync::Arc;

use crate::{Device, Metric, Reading, Value};

/// Last known value of each counter of each device in the previous batch.
#[derive(Debug, Default)]
pub struct LastCounters(Vec<(Arc<Device>, Vec<Option<i64>>)>);

impl LastCounters {
    /// Growth of a counter from its last known value to this reading. -1 if either value is
    /// unknown, if the counter was reset, or if the device was not in the previous batch.
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

    /// Records the readings of a batch, ordered by tick. Devices that are not in it are forgotten.
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

/// Whether both are the same hardware, whatever its number.
pub fn is_same(one: &Device, other: &Device) -> bool {
    (&one.uuid, &one.mig_uuid) == (&other.uuid, &other.mig_uuid)
}
