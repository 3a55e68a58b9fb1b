//! DCGM fields: their names on exporter pages, and units.
//!
//! Names and units come from `dcgmlib/dcgm_fields.h` and from `etc/*.csv` in dcgm-exporter, of
//! three generations: up to DCGM 4.5; renamed in 4.6 (old names stay as aliases); and the fields in
//! base units of 4.7, which dcgm-exporter 4.9 writes by default (release notes of 4.9.0; names from
//! go-dcgm's list of base-unit fields, and `FB_USED_BYTES`, `FB_FREE_BYTES` and `FB_RESERVED_BYTES`
//! after the pattern of its `BAR1_…_BYTES`). A name has one unit, with one exception:
//! [`Unit::RatioOrPercent`]. Of note:
//!
//! - `PROF_…_TX_BYTES` and `…_RX_BYTES` are rates in bytes per second, even where a configuration
//!   types them as counters (dcp-metrics-included.csv: "the rate of data … in bytes per second").
//! - `…_VIOLATION` are nanoseconds. Configurations before 2025-12 say microseconds by mistake
//!   (dcgm-exporter#589, DCGM#266).
//! - `DEV_PCIE_TX_THROUGHPUT` (20 ms of traffic, in KB) and `DEV_NVLINK_BANDWIDTH_TOTAL` (both
//!   directions in one) match no metric of ours, so they are ignored.
//! - On a MIG instance the exporter repeats values of the whole board, power for example
//!   (dcgm-exporter#317); see [`Scope`].

use crate::{Metric, MissingReason, Value};

/// Unit of a number on a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// 0 to 1, to millionths.
    Ratio,
    /// 0 to 100, to millionths.
    Percent,
    /// Fields named `…_UTIL_RATIO` (203 and the like): percent in DCGM 4.6, where only the name was
    /// new, and 0 to 1 since 4.7. A page with any base-unit field is from 4.7.
    RatioOrPercent,
    /// W, to mW.
    Watts,
    /// J, to mJ.
    Joules,
    /// Hz, to MHz.
    Hertz,
    /// MiB, to bytes.
    Mebibytes,
    /// ns, to µs.
    Nanoseconds,
    /// A gauge taken as it is: bytes, MHz, °C, bits, flags.
    Plain,
    /// A counter taken as it is: mJ, bytes, errors.
    Counter,
}

/// What a field describes if a GPU has MIG instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The whole board, even on lines of an instance.
    Board,
    /// The instance, on its own lines.
    Instance,
}

/// A field.
#[derive(Debug, Clone, Copy)]
pub struct Field {
    /// The metric that it is here.
    pub metric: Metric,
    /// Unit of its numbers.
    pub unit: Unit,
    /// What it describes.
    pub scope: Scope,
    /// Whether it is one of the base-unit fields.
    pub base_unit: bool,
}

/// Part of a metric that DCGM writes in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Free device memory.
    FramebufferFree(Unit),
    /// Rows replaced for corrected errors.
    RemappedCorrectable,
    /// Rows replaced for uncorrectable errors.
    RemappedUncorrectable,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy)]
pub enum Named {
    /// A metric.
    Field(Field),
    /// A part of one.
    Part(Part),
}

impl Named {
    /// Finds a name without `DCGM_FI_`.
    pub fn of(name: &str) -> Option<Self> {
        field(name).map(Self::Field).or_else(|| part(name).map(Self::Part))
    }

    /// Unit of its numbers.
    pub fn unit(self) -> Unit {
        match self {
            Self::Field(field) => field.unit,
            Self::Part(Part::FramebufferFree(unit)) => unit,
            Self::Part(Part::RemappedCorrectable | Part::RemappedUncorrectable) => Unit::Counter,
        }
    }

    /// What it describes if a GPU has MIG instances.
    pub fn scope(self) -> Scope {
        match self {
            Self::Field(field) => field.scope,
            Self::Part(Part::FramebufferFree(_)) => Scope::Instance,
            Self::Part(Part::RemappedCorrectable | Part::RemappedUncorrectable) => Scope::Board,
        }
    }
}

/// Finds a part by its name without `DCGM_FI_`.
fn part(name: &str) -> Option<Part> {
    Some(match name {
        "DEV_FB_FREE" => Part::FramebufferFree(Unit::Mebibytes),
        "DEV_FB_FREE_BYTES" => Part::FramebufferFree(Unit::Plain),
        "DEV_CORRECTABLE_REMAPPED_ROWS" | "DEV_ROW_REMAP_CORRECTABLE_TOTAL" => Part::RemappedCorrectable,
        "DEV_UNCORRECTABLE_REMAPPED_ROWS" | "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL" => {
            Part::RemappedUncorrectable
        }
        _ => return None,
    })
}

/// Finds a field by its name without `DCGM_FI_`.
pub fn field(name: &str) -> Option<Field> {
    use Metric as M;
    use Unit as U;
    let board = |metric, unit| Field { metric, unit, scope: Scope::Board, base_unit: false };
    let instance = |metric, unit| Field { metric, unit, scope: Scope::Instance, base_unit: false };
    let base = |field: Field| Field { base_unit: true, ..field };
    Some(match name {
        "PROF_GR_ENGINE_ACTIVE" | "PROF_GR_ENGINE_UTIL_RATIO" => instance(M::GraphicsActive, U::Ratio),
        "PROF_SM_ACTIVE" | "PROF_SM_UTIL_RATIO" => instance(M::SmActive, U::Ratio),
        "PROF_SM_OCCUPANCY" | "PROF_SM_OCCUPANCY_RATIO" => instance(M::SmOccupancy, U::Ratio),
        "PROF_PIPE_TENSOR_ACTIVE" | "PROF_TENSOR_UTIL_RATIO" => instance(M::TensorActive, U::Ratio),
        "PROF_PIPE_TENSOR_HMMA_ACTIVE" | "PROF_HMMA_UTIL_RATIO" => instance(M::TensorHmmaActive, U::Ratio),
        "PROF_PIPE_TENSOR_IMMA_ACTIVE" | "PROF_IMMA_UTIL_RATIO" => instance(M::TensorImmaActive, U::Ratio),
        "PROF_PIPE_TENSOR_DFMA_ACTIVE" | "PROF_DFMA_UTIL_RATIO" => instance(M::TensorDfmaActive, U::Ratio),
        "PROF_DRAM_ACTIVE" | "PROF_DRAM_UTIL_RATIO" => instance(M::DramActive, U::Ratio),
        "PROF_PIPE_FP64_ACTIVE" | "PROF_FP64_UTIL_RATIO" => instance(M::Fp64Active, U::Ratio),
        "PROF_PIPE_FP32_ACTIVE" | "PROF_FP32_UTIL_RATIO" => instance(M::Fp32Active, U::Ratio),
        "PROF_PIPE_FP16_ACTIVE" | "PROF_FP16_UTIL_RATIO" => instance(M::Fp16Active, U::Ratio),
        "PROF_PIPE_INT_ACTIVE" | "PROF_INT_UTIL_RATIO" => instance(M::IntActive, U::Ratio),
        "PROF_PCIE_TX_BYTES" => board(M::PcieTxRate, U::Plain),
        "PROF_PCIE_RX_BYTES" => board(M::PcieRxRate, U::Plain),
        "PROF_NVLINK_TX_BYTES" => board(M::NvlinkTxRate, U::Plain),
        "PROF_NVLINK_RX_BYTES" => board(M::NvlinkRxRate, U::Plain),
        "PROF_PCIE_TX_BYTES_TOTAL" => board(M::PcieTx, U::Counter),
        "PROF_PCIE_RX_BYTES_TOTAL" => board(M::PcieRx, U::Counter),

        "DEV_GPU_UTIL" => board(M::GpuUtil, U::Percent),
        "DEV_GPU_UTIL_RATIO" => board(M::GpuUtil, U::RatioOrPercent),
        "DEV_MEM_COPY_UTIL" => board(M::MemoryUtil, U::Percent),
        "DEV_MEM_COPY_UTIL_RATIO" => board(M::MemoryUtil, U::RatioOrPercent),
        "DEV_ENC_UTIL" => board(M::EncoderUtil, U::Percent),
        "DEV_ENC_UTIL_RATIO" => board(M::EncoderUtil, U::RatioOrPercent),
        "DEV_DEC_UTIL" => board(M::DecoderUtil, U::Percent),
        "DEV_DEC_UTIL_RATIO" => board(M::DecoderUtil, U::RatioOrPercent),

        "DEV_POWER_USAGE" | "DEV_BOARD_POWER_WATTS" => board(M::Power, U::Watts),
        "DEV_ENFORCED_POWER_LIMIT" | "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS" => board(M::PowerLimit, U::Watts),
        "DEV_TOTAL_ENERGY_CONSUMPTION" => board(M::Energy, U::Counter),
        "DEV_GPU_ENERGY_JOULES_TOTAL" => base(board(M::Energy, U::Joules)),
        "DEV_GPU_TEMP" | "DEV_GPU_TEMP_CELSIUS" => board(M::GpuTemp, U::Plain),
        "DEV_MEMORY_TEMP" | "DEV_MEMORY_TEMP_CELSIUS" => board(M::MemoryTemp, U::Plain),
        "DEV_SM_CLOCK" => board(M::SmClock, U::Plain),
        "DEV_SM_CLOCK_HERTZ" => base(board(M::SmClock, U::Hertz)),
        "DEV_MAX_SM_CLOCK" => board(M::SmClockMax, U::Plain),
        "DEV_SM_MAX_CLOCK_HERTZ" => base(board(M::SmClockMax, U::Hertz)),
        "DEV_MEM_CLOCK" => board(M::MemoryClock, U::Plain),
        "DEV_MEMORY_CLOCK_HERTZ" => base(board(M::MemoryClock, U::Hertz)),
        "DEV_MAX_MEM_CLOCK" => board(M::MemoryClockMax, U::Plain),
        "DEV_MEMORY_MAX_CLOCK_HERTZ" => base(board(M::MemoryClockMax, U::Hertz)),

        "DEV_CLOCK_THROTTLE_REASONS" | "DEV_CLOCKS_EVENT_REASONS" => board(M::ThrottleReasons, U::Plain),
        "DEV_POWER_VIOLATION" => board(M::PowerThrottled, U::Nanoseconds),
        "DEV_THERMAL_VIOLATION" => board(M::ThermalThrottled, U::Nanoseconds),
        "DEV_SYNC_BOOST_VIOLATION" => board(M::SyncBoostThrottled, U::Nanoseconds),
        "DEV_BOARD_LIMIT_VIOLATION" => board(M::BoardLimitThrottled, U::Nanoseconds),
        "DEV_RELIABILITY_VIOLATION" => board(M::ReliabilityThrottled, U::Nanoseconds),
        "DEV_CLOCKS_EVENT_REASON_SW_POWER_CAP_NS" => board(M::PowerCapThrottled, U::Nanoseconds),

        "DEV_FB_USED" => instance(M::FramebufferUsed, U::Mebibytes),
        "DEV_FB_USED_BYTES" => base(instance(M::FramebufferUsed, U::Plain)),
        "DEV_FB_RESERVED" => instance(M::FramebufferReserved, U::Mebibytes),
        "DEV_FB_RESERVED_BYTES" => base(instance(M::FramebufferReserved, U::Plain)),
        "DEV_FB_TOTAL" => instance(M::FramebufferTotal, U::Mebibytes),
        "DEV_FB_CAPACITY_BYTES" => base(instance(M::FramebufferTotal, U::Plain)),

        "DEV_PCIE_REPLAY_COUNTER" | "DEV_PCIE_REPLAY_TOTAL" => board(M::PcieReplay, U::Counter),
        "DEV_ECC_SBE_VOL_TOTAL" => board(M::EccCorrected, U::Counter),
        "DEV_ECC_DBE_VOL_TOTAL" => board(M::EccUncorrected, U::Counter),
        "DEV_ROW_REMAP_FAILURE" | "DEV_ROW_REMAP_FAILED" => board(M::RemappedRowsFailed, U::Plain),
        "DEV_ROW_REMAP_PENDING" => board(M::RemappedRowsPending, U::Plain),
        "DEV_XID_ERRORS" | "DEV_XID_ERROR" => board(M::Xid, U::Plain),
        _ => return None,
    })
}

/// DCGM's blank values (`dcgm_structs.h`). The first means "no value", the next three "not found",
/// "not supported" and "not permitted".
const INT64_BLANK: i64 = 0x7fff_ffff_ffff_fff0;
const INT32_BLANK: i64 = 0x7fff_fff0;
const INT32_BLANK_LAST: i64 = INT32_BLANK + 3;
const FP64_BLANK: f64 = 140_737_488_355_328.0;

/// The reason of a blank value, by its distance from the first one.
fn blank(offset: i64) -> Value {
    Value::Missing(match offset {
        // Watched but not read yet.
        0 => MissingReason::Stale,
        3 => MissingReason::NoPermission,
        _ => MissingReason::NotSupported,
    })
}

/// Converts a number on a page. `base_units`: the page is from DCGM 4.7 or later.
///
/// Impossible values, such as a ratio of 7, are missing: many exporter versions pass on blank
/// values after arithmetic.
pub fn value(text: &str, unit: Unit, base_units: bool) -> Value {
    let counter = matches!(unit, Unit::Counter | Unit::Nanoseconds | Unit::Joules);
    let unit = match unit {
        Unit::RatioOrPercent if base_units => Unit::Ratio,
        Unit::RatioOrPercent => Unit::Percent,
        unit => unit,
    };
    if let Ok(whole) = text.parse::<i64>() {
        match whole {
            INT64_BLANK.. => return blank(whole - INT64_BLANK),
            // A counter may legitimately have these values.
            INT32_BLANK..=INT32_BLANK_LAST if !counter => return blank(whole - INT32_BLANK),
            0.. if unit == Unit::Counter => return Value::Is(whole),
            _ => {}
        }
    }
    let Ok(number) = text.parse::<f64>() else { return Value::Missing(MissingReason::NotSupported) };
    let above = number - FP64_BLANK;
    if (0.0..=3.0).contains(&above) {
        return blank(above as i64);
    }
    let (factor, most) = match unit {
        // Profiling counters are sampled one after the other, so a ratio may slightly exceed 1.
        Unit::Ratio | Unit::RatioOrPercent => (1e6, 1.05),
        Unit::Percent => (1e4, 100.0),
        Unit::Watts => (1e3, 1e5),
        Unit::Joules => (1e3, 1e15),
        Unit::Hertz => (1e-6, 1e11),
        Unit::Mebibytes => (1_048_576.0, 1e9),
        Unit::Nanoseconds => (1e-3, 9e18),
        Unit::Plain => (1.0, 1e14),
        Unit::Counter => (1.0, 9e18),
    };
    // Only temperatures may be below zero.
    let least = if unit == Unit::Plain { -100.0 } else { 0.0 };
    match (least..=most).contains(&number) {
        true => Value::Is((number * factor).round() as i64),
        false => Value::Missing(MissingReason::NotSupported),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STALE: Value = Value::Missing(MissingReason::Stale);
    const UNSUPPORTED: Value = Value::Missing(MissingReason::NotSupported);
    const FORBIDDEN: Value = Value::Missing(MissingReason::NoPermission);

    #[test]
    fn units_become_those_of_the_contract() {
        let cases = [
            ("0.123456", Unit::Ratio, Value::Is(123_456)),
            ("1.004", Unit::Ratio, Value::Is(1_004_000)),
            ("37", Unit::Percent, Value::Is(370_000)),
            ("52.636000", Unit::Watts, Value::Is(52_636)),
            ("2.5e3", Unit::Joules, Value::Is(2_500_000)),
            ("1.98e+09", Unit::Hertz, Value::Is(1_980)),
            ("81559", Unit::Mebibytes, Value::Is(85_520_809_984)),
            ("1500000", Unit::Nanoseconds, Value::Is(1_500)),
            ("9007199254740993", Unit::Counter, Value::Is(9_007_199_254_740_993)),
            ("-5", Unit::Plain, Value::Is(-5)),
            ("2147483632", Unit::Counter, Value::Is(2_147_483_632)),
        ];
        for (text, unit, expected) in cases {
            assert_eq!(value(text, unit, false), expected, "{text} {unit:?}");
        }
    }

    #[test]
    fn blank_values_are_missing_with_their_reason() {
        let cases = [
            ("9223372036854775792", STALE),
            ("9223372036854775793", UNSUPPORTED),
            ("9223372036854775794", UNSUPPORTED),
            ("9223372036854775795", FORBIDDEN),
            ("140737488355328.000000", STALE),
            ("1.40737488355330e+14", UNSUPPORTED),
            ("140737488355331", FORBIDDEN),
            // As a blank looks after it was taken for a ratio and made percent.
            ("1.40737488355328e16", UNSUPPORTED),
            ("NaN", UNSUPPORTED),
            ("+Inf", UNSUPPORTED),
            ("-1", UNSUPPORTED),
            ("-9223372036854775808", UNSUPPORTED),
        ];
        for (text, expected) in cases {
            for unit in [Unit::Ratio, Unit::Percent, Unit::Watts, Unit::Mebibytes] {
                assert_eq!(value(text, unit, false), expected, "{text} {unit:?}");
            }
        }
        assert_eq!(value("9223372036854775794", Unit::Counter, false), UNSUPPORTED);
        assert_eq!(value("2147483634", Unit::Plain, false), UNSUPPORTED);
        assert_eq!(value("1.3", Unit::Ratio, false), UNSUPPORTED);
    }

    #[test]
    fn a_ratio_by_name_is_percent_before_base_units_came() {
        assert_eq!(value("1", Unit::RatioOrPercent, false), Value::Is(10_000));
        assert_eq!(value("1", Unit::RatioOrPercent, true), Value::Is(1_000_000));
        assert_eq!(value("97", Unit::RatioOrPercent, false), Value::Is(970_000));
        assert_eq!(value("97", Unit::RatioOrPercent, true), UNSUPPORTED);
    }
}
