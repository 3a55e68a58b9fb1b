//! GPM: averages of GPU activity between two samples. Hopper and newer.

use std::time::{Duration, Instant};

use nvml_wrapper::GpmSample;
use nvml_wrapper::Nvml;
use nvml_wrapper::enums::gpm::GpmMetricId;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::gpm::gpm_metrics_get;
use nvml_wrapper::struct_wrappers::gpm::GpmMetricResult;

use super::driver_call::{Answer, Call, DriverError, RefusalCache, refusal, value};
use crate::reading::{Metric, MissingReason, Reading, Value};

/// NVML requires at least 100 ms between two samples.
const CLOSEST: Duration = Duration::from_millis(100);
/// Counters inside a sample may wrap after this time.
const FARTHEST: Duration = Duration::from_secs(600);

/// Metrics read from each pair of samples.
const METRICS: [(GpmMetricId, Metric); 16] = [
    (GpmMetricId::GraphicsUtil, Metric::GraphicsActive),
    (GpmMetricId::SmUtil, Metric::SmActive),
    (GpmMetricId::SmOccupancy, Metric::SmOccupancy),
    (GpmMetricId::IntegerUtil, Metric::IntActive),
    (GpmMetricId::AnyTensorUtil, Metric::TensorActive),
    (GpmMetricId::DfmaTensorUtil, Metric::TensorDfmaActive),
    (GpmMetricId::HmmaTensorUtil, Metric::TensorHmmaActive),
    (GpmMetricId::ImmaTensorUtil, Metric::TensorImmaActive),
    (GpmMetricId::DramBwUtil, Metric::DramActive),
    (GpmMetricId::Fp64Util, Metric::Fp64Active),
    (GpmMetricId::Fp32Util, Metric::Fp32Active),
    (GpmMetricId::Fp16Util, Metric::Fp16Active),
    (GpmMetricId::PcieTxPerSec, Metric::PcieTxRate),
    (GpmMetricId::PcieRxPerSec, Metric::PcieRxRate),
    (GpmMetricId::NvlinkTotalRxPerSec, Metric::NvlinkRxRate),
    (GpmMetricId::NvlinkTotalTxPerSec, Metric::NvlinkTxRate),
];

/// The metrics that GPM provides.
pub(super) fn metrics() -> impl Iterator<Item = Metric> {
    METRICS.iter().map(|(_, metric)| *metric)
}

/// The last sample. Keeping it makes values averages over the whole time between two readings,
/// without gaps.
#[derive(Debug, Default)]
pub(super) struct Gpm<'nvml> {
    /// Sample of the last emitted reading.
    last: Option<(GpmSample<'nvml>, Instant)>,
    /// Sample of the reading in progress.
    next: Option<(GpmSample<'nvml>, Instant)>,
}

impl<'nvml> Gpm<'nvml> {
    /// Takes the first sample, so that the first reading can be compared with it.
    pub(super) fn prime(
        &mut self,
        now: Instant,
        sample: impl FnOnce() -> Result<GpmSample<'nvml>, NvmlError>,
    ) {
        self.last = sample().ok().map(|sample| (sample, now));
    }

    /// Marks the reading as emitted: the next one begins where it ended. A reading that is not
    /// emitted leaves its time to the next.
    pub(super) fn committed(&mut self) {
        if let Some(next) = self.next.take() {
            self.last = Some(next);
        }
    }

    /// Takes a sample and sets all GPM values and the time that they are averages of. The first
    /// reading has none.
    pub(super) fn read(
        &mut self,
        nvml: &'nvml Nvml,
        refusals: &mut RefusalCache,
        now: Instant,
        reading: &mut Reading,
        sample: impl FnOnce() -> Result<GpmSample<'nvml>, NvmlError>,
    ) -> Result<(), DriverError> {
        let too_close = |(_, at): &(GpmSample<'_>, Instant)| now.saturating_duration_since(*at) < CLOSEST;
        if self.last.as_ref().is_some_and(too_close) {
            set_all(reading, MissingReason::Unspecified);
            return Ok(());
        }
        let sample = match refusals.call(Call::Gpm, now, sample)? {
            Ok(sample) => sample,
            Err(reason) => {
                // A later sample must be compared with one taken at the reading before it.
                self.last = None;
                set_all(reading, reason);
                return Ok(());
            }
        };
        let interval = self.last.as_ref().map(|(_, at)| now.saturating_duration_since(*at));
        let answers = match (&self.last, interval) {
            (Some((before, _)), Some(interval)) if interval <= FARTHEST => {
                gpm_metrics_get(nvml, before, &sample, &METRICS.map(|(id, _)| id))
                    .map(|answers| (answers, interval))
            }
            _ => Err(NvmlError::NoData),
        };
        self.next = Some((sample, now));
        let (answers, interval) = match answers {
            Ok(answers) => answers,
            Err(error) => {
                set_all(reading, refusal(&error)?);
                return Ok(());
            }
        };
        reading.set(Metric::Interval, value(Ok(interval.as_micros())));
        for ((_, metric), answer) in METRICS.iter().zip(answers) {
            let answer = match answer {
                Ok(result) => in_our_unit(&result),
                Err(error) => Err(refusal(&error)?),
            };
            reading.set(*metric, value(answer));
        }
        Ok(())
    }
}

fn set_all(reading: &mut Reading, reason: MissingReason) {
    metrics().for_each(|metric| reading.set(metric, Value::Missing(reason)));
}

/// Converts to parts per million or bytes per second, by the unit that the metric itself states:
/// nvml.h says MiB/s and nvml-wrapper bytes/s. With an unknown unit the value is missing.
fn in_our_unit(result: &GpmMetricResult) -> Answer<i64> {
    let scale = scale(&result.metric_info.unit).ok_or(MissingReason::Unspecified)?;
    let number = (result.value * scale).round();
    // Also rejects NaN, which GPM returns if it counted nothing.
    if (0.0..9.0e18).contains(&number) { Ok(number as i64) } else { Err(MissingReason::Unspecified) }
}

/// Factor from a unit to ours.
fn scale(unit: &str) -> Option<f64> {
    Some(match unit.trim() {
        "%" => 10_000.0,
        "B/s" | "Bytes/s" | "bytes/s" | "Bps" => 1.0,
        "KiB/s" | "KiBps" => 1024.0,
        "MiB/s" | "MiBps" | "MiB/sec" => 1_048_576.0,
        "GiB/s" | "GiBps" => 1_073_741_824.0,
        "kB/s" | "KB/s" => 1e3,
        "MB/s" | "MBps" => 1e6,
        "GB/s" | "GBps" => 1e9,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use nvml_wrapper::struct_wrappers::gpm::GpmMetricInfo;

    use super::*;

    fn of(value: f64, unit: &str) -> Answer<i64> {
        let info = GpmMetricInfo { short_name: String::new(), long_name: String::new(), unit: unit.into() };
        in_our_unit(&GpmMetricResult { metric_id: GpmMetricId::SmUtil, value, metric_info: info })
    }

    #[test]
    fn the_unit_is_what_the_metric_says() {
        assert_eq!(of(73.5, "%"), Ok(735_000));
        assert_eq!(of(2.0, "MiB/s"), Ok(2 << 20));
        assert_eq!(of(2.0, "bytes/s"), Ok(2));
        for unknown in
            [of(2.0, ""), of(2.0, "furlongs"), of(f64::NAN, "%"), of(-1.0, "%"), of(f64::INFINITY, "%")]
        {
            assert_eq!(unknown, Err(MissingReason::Unspecified));
        }
    }
}
