//! NVML field values: many values by number in one driver call.

use std::time::Instant;

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::*;

use super::driver_call::{Answer, Call, DriverError, RefusalCache, refusal, retry_after, value};
use crate::reading::{Metric, MissingReason, Reading, Value};

/// Conversion of a field to a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Conversion {
    Itself,
    /// Nanoseconds, to µs.
    Micros,
    /// A counter of bytes. A 32-bit one wraps several times a second at full speed and is useless.
    WideBytes,
    /// KiB, to bytes.
    Kib,
}

pub(super) type Field = (u32, Conversion, &'static [Metric]);

/// Read at each tick. The numbers are those before driver 580.82; nvml-wrapper translates them for
/// newer drivers.
pub(super) const FAST: &[Field] = &[
    // The newer name of this counter is CLOCKS_EVENT_REASON_SW_POWER_CAP.
    (NVML_FI_DEV_PERF_POLICY_POWER, Conversion::Micros, &[Metric::PowerThrottled, Metric::PowerCapThrottled]),
    (NVML_FI_DEV_PERF_POLICY_THERMAL, Conversion::Micros, &[Metric::ThermalThrottled]),
    (NVML_FI_DEV_PERF_POLICY_SYNC_BOOST, Conversion::Micros, &[Metric::SyncBoostThrottled]),
    (NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT, Conversion::Micros, &[Metric::BoardLimitThrottled]),
    (NVML_FI_DEV_PERF_POLICY_RELIABILITY, Conversion::Micros, &[Metric::ReliabilityThrottled]),
    (NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN, Conversion::Micros, &[Metric::SwThermalThrottled]),
    (NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, Conversion::Micros, &[Metric::HwThermalThrottled]),
    (
        NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN,
        Conversion::Micros,
        &[Metric::PowerBrakeThrottled],
    ),
    (NVML_FI_DEV_MEMORY_TEMP, Conversion::Itself, &[Metric::MemoryTemp]),
    (NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, Conversion::Itself, &[Metric::Energy]),
    (NVML_FI_DEV_PCIE_COUNT_TX_BYTES, Conversion::WideBytes, &[Metric::PcieTx]),
    (NVML_FI_DEV_PCIE_COUNT_RX_BYTES, Conversion::WideBytes, &[Metric::PcieRx]),
];

/// Read every [`NvmlOptions::slow_every`](super::NvmlOptions::slow_every). Fields with a common
/// metric are added up.
pub(super) const SLOW: &[Field] = &[
    (NVML_FI_DEV_PCIE_REPLAY_COUNTER, Conversion::Itself, &[Metric::PcieReplay]),
    (NVML_FI_DEV_REMAPPED_COR, Conversion::Itself, &[Metric::RemappedRows]),
    (NVML_FI_DEV_REMAPPED_UNC, Conversion::Itself, &[Metric::RemappedRows]),
    (NVML_FI_DEV_REMAPPED_PENDING, Conversion::Itself, &[Metric::RemappedRowsPending]),
    (NVML_FI_DEV_REMAPPED_FAILURE, Conversion::Itself, &[Metric::RemappedRowsFailed]),
    (NVML_FI_DEV_RETIRED_SBE, Conversion::Itself, &[Metric::RetiredPages]),
    (NVML_FI_DEV_RETIRED_DBE, Conversion::Itself, &[Metric::RetiredPages]),
    (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, Conversion::Itself, &[Metric::RecoveryAction]),
    // Sums over all lanes of all links.
    (NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL, Conversion::Itself, &[Metric::NvlinkErrors]),
    (NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL, Conversion::Itself, &[Metric::NvlinkErrors]),
    (NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL, Conversion::Itself, &[Metric::NvlinkErrors]),
    (NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL, Conversion::Itself, &[Metric::NvlinkErrors]),
];

/// Bytes over the only NVLink, read at each tick. nvml-wrapper cannot choose a link and always
/// reads link 0, which is wrong with several. GPM gives the rate over all of them.
pub(super) const ONE_LINK: &[Field] = &[
    (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, Conversion::Kib, &[Metric::NvlinkTx]),
    (NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, Conversion::Kib, &[Metric::NvlinkRx]),
];

/// Fields read together. A permanently refused one is left out for a while.
#[derive(Debug)]
pub(super) struct FieldSet {
    call: Call,
    fields: Vec<Field>,
    refused: Vec<Option<(MissingReason, Instant)>>,
    /// Fields being read, and their places in `fields`.
    ids: Vec<FieldId>,
    places: Vec<usize>,
    rebuild_at: Option<Instant>,
}

impl FieldSet {
    pub(super) fn new(call: Call, fields: &[Field]) -> Self {
        let mut made = Self {
            call,
            fields: fields.to_vec(),
            refused: vec![None; fields.len()],
            ids: Vec::new(),
            places: Vec::new(),
            rebuild_at: None,
        };
        made.rebuild(None);
        made
    }

    /// Selects the fields to read: all whose refusal is not valid any more at `now`.
    fn rebuild(&mut self, now: Option<Instant>) {
        for refused in &mut self.refused {
            *refused = refused.filter(|(_, until)| now.is_none_or(|now| now < *until));
        }
        self.places = (0..self.fields.len()).filter(|place| self.refused[*place].is_none()).collect();
        self.ids = self.places.iter().map(|place| FieldId(self.fields[*place].0)).collect();
        self.rebuild_at = self.refused.iter().flatten().map(|(_, until)| *until).min();
    }

    /// Reads the fields and sets their metrics. Returns the number of answers.
    pub(super) fn read(
        &mut self,
        device: &Device<'_>,
        refusals: &mut RefusalCache,
        now: Instant,
        reading: &mut Reading,
    ) -> Result<usize, DriverError> {
        if self.rebuild_at.is_some_and(|at| now >= at) {
            self.rebuild(Some(now));
        }
        for (place, refused) in self.refused.iter().enumerate() {
            if let Some((reason, _)) = refused {
                self.set(place, Err(*reason), reading);
            }
        }
        if self.ids.is_empty() {
            return Ok(0);
        }
        let answers = match refusals.call(self.call, now, || device.field_values_for(&self.ids))? {
            Ok(answers) => answers,
            Err(reason) => {
                self.places.iter().for_each(|place| self.set(*place, Err(reason), reading));
                return Ok(0);
            }
        };
        let (mut answered, mut found_refused) = (0, false);
        for (place, answer) in self.places.iter().zip(answers) {
            let answer = match answer.and_then(|sample| sample.value) {
                Ok(sample) => number(sample, self.fields[*place].1),
                Err(error) => Err(refusal(&error)?),
            };
            answered += usize::from(answer.is_ok());
            if let Err(reason) = answer
                && let Some(time) = retry_after(reason)
            {
                self.refused[*place] = Some((reason, now + time));
                found_refused = true;
            }
            self.set(*place, answer, reading);
        }
        if found_refused {
            self.rebuild(Some(now));
        }
        Ok(answered)
    }

    /// Sets a field's metrics. Fields with a common metric add up, and a sum with a missing part is
    /// missing.
    fn set(&self, place: usize, answer: Answer<i64>, reading: &mut Reading) {
        for metric in self.fields[place].2 {
            let sum = match (reading.get(*metric), value(answer)) {
                (Value::Is(a), Value::Is(b)) => Value::Is(a.saturating_add(b)),
                (Value::Missing(reason), _) => Value::Missing(reason),
                (_, other) => other,
            };
            reading.set(*metric, sum);
        }
    }
}

fn number(sample: SampleValue, how: Conversion) -> Answer<i64> {
    let wide = matches!(sample, SampleValue::U64(_) | SampleValue::I64(_));
    let number = match sample {
        SampleValue::U32(v) => Ok(i64::from(v)),
        SampleValue::U64(v) => i64::try_from(v).map_err(|_| MissingReason::Unspecified),
        SampleValue::I64(v) => Ok(v),
        SampleValue::F64(_) => Err(MissingReason::Unspecified),
    }?;
    match how {
        Conversion::Itself => Ok(number),
        Conversion::Micros => Ok(number / 1_000),
        Conversion::WideBytes if wide => Ok(number),
        Conversion::WideBytes => Err(MissingReason::NotSupported),
        Conversion::Kib => number.checked_mul(1024).ok_or(MissingReason::Unspecified),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_values_in_their_units() {
        assert_eq!(number(SampleValue::U64(1_999), Conversion::Micros), Ok(1));
        assert_eq!(number(SampleValue::U64(5), Conversion::WideBytes), Ok(5));
        assert_eq!(number(SampleValue::U32(5), Conversion::WideBytes), Err(MissingReason::NotSupported));
        assert_eq!(number(SampleValue::U64(3), Conversion::Kib), Ok(3_072));
        assert_eq!(number(SampleValue::F64(0.5), Conversion::Itself), Err(MissingReason::Unspecified));
        assert_eq!(number(SampleValue::U64(u64::MAX), Conversion::Itself), Err(MissingReason::Unspecified));
    }
}
