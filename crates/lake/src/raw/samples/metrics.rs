//! Metrics that have a column of their own, and the table `gpu_samples`.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::DataType;
use hashbrown::HashMap;
use tidegate_events::SchemaId;

use crate::raw::table::RawTable;
use crate::table::{Column, Layout, TableSpec, timestamp_type};

/// Name with unit, and documentation. Metrics that are not listed are stored in `other_metrics`.
/// The unit of a name never changes.
///
/// Ratios are averages over the time since the previous sample, in millionths. Counters only grow
/// until the driver is loaded again, so differences are what happened in between.
pub const METRICS: &[(&str, &str)] = &[
    (
        "interval_us",
        "Time before event_time over which the ratios and rates of this row are averages, µs: the time since the previous reading.",
    ),
    (
        "gpu_util_ppm",
        "Share of time in which any kernel ran, however small: 1000000 does not mean that the GPU was fully used.",
    ),
    (
        "memory_util_ppm",
        "Share of time in which device memory was read or written; not how much of it is used.",
    ),
    ("graphics_active_ppm", "Share of time in which the graphics or compute engine was active."),
    (
        "sm_active_ppm",
        "Share of time in which a multiprocessor held a warp, even a waiting one, averaged over all.",
    ),
    ("sm_occupancy_ppm", "Warps on the multiprocessors, relative to the maximum."),
    ("tensor_active_ppm", "Share of cycles in which a tensor core was active, of whatever precision."),
    ("tensor_hmma_active_ppm", "As tensor_active_ppm, for FP16 and BF16 alone."),
    ("tensor_imma_active_ppm", "As tensor_active_ppm, for integers alone."),
    ("tensor_dfma_active_ppm", "As tensor_active_ppm, for FP64 alone."),
    ("fp64_active_ppm", "Share of cycles in which the FP64 units were active."),
    ("fp32_active_ppm", "Share of cycles in which the FP32 units were active."),
    ("fp16_active_ppm", "Share of cycles in which the FP16 units were active, without tensor cores."),
    ("int_active_ppm", "Share of cycles in which the integer units were active."),
    (
        "dram_active_ppm",
        "Share of cycles in which device memory moved data; 800000 is about the practical maximum.",
    ),
    ("encoder_util_ppm", "Share of time in which the video encoder was used."),
    ("decoder_util_ppm", "Share of time in which the video decoder was used."),
    ("power_mw", "Power drawn, mW; on recent models an average over a second."),
    ("power_limit_mw", "Power limit in force, mW."),
    ("energy_mj", "Energy drawn since the driver was loaded, mJ. Counter."),
    ("gpu_temp_celsius", "Temperature of the GPU, °C."),
    ("memory_temp_celsius", "Temperature of the memory, °C."),
    ("sm_clock_mhz", "Clock of the multiprocessors, MHz."),
    ("sm_clock_max_mhz", "Highest clock of the multiprocessors, MHz."),
    ("memory_clock_mhz", "Clock of the memory, MHz."),
    ("memory_clock_max_mhz", "Highest clock of the memory, MHz."),
    (
        "throttle_reasons_bits",
        "Why the clocks were reduced at that moment: the bits of nvmlClocksEventReasons.",
    ),
    ("power_throttled_us", "Time in which the power limit held the clocks down, µs. Counter."),
    ("thermal_throttled_us", "Time in which heat held the clocks down, µs. Counter."),
    (
        "sw_power_cap_throttled_us",
        "Time in which the driver held the clocks down to keep to the power limit, µs. Counter.",
    ),
    ("sw_thermal_throttled_us", "Time in which the driver held the clocks down for heat, µs. Counter."),
    (
        "hw_thermal_throttled_us",
        "Time in which the hardware held the clocks down for heat, to half or less, µs. Counter.",
    ),
    (
        "hw_power_brake_throttled_us",
        "Time in which the power brake of the node held the clocks down, µs. Counter.",
    ),
    (
        "sync_boost_throttled_us",
        "Time in which the clocks were held down to those of other GPUs of a sync boost group, µs. Counter.",
    ),
    ("board_limit_throttled_us", "Time in which limits of the board held the clocks down, µs. Counter."),
    ("reliability_throttled_us", "Time in which the reliability voltage held the clocks down, µs. Counter."),
    ("framebuffer_used_bytes", "Device memory used, bytes."),
    ("framebuffer_reserved_bytes", "Device memory reserved by the driver, bytes."),
    ("framebuffer_total_bytes", "Total device memory, bytes."),
    ("pcie_tx_bytes", "Bytes sent from device to host over PCIe. Counter."),
    ("pcie_rx_bytes", "Bytes sent from host to device over PCIe. Counter."),
    ("pcie_replay_count", "Retransmissions on PCIe. Counter."),
    ("nvlink_tx_bytes", "Bytes sent over all NVLinks. Counter."),
    ("nvlink_rx_bytes", "Bytes received over all NVLinks. Counter."),
    ("nvlink_error_count", "Errors on all NVLinks: replays, recoveries, CRC. Counter."),
    ("pcie_tx_bytes_per_second", "Bytes sent over PCIe per second, where the device has no counter of them."),
    (
        "pcie_rx_bytes_per_second",
        "Bytes received over PCIe per second, where the device has no counter of them.",
    ),
    (
        "nvlink_tx_bytes_per_second",
        "Bytes sent over all NVLinks per second, where the device has no counter of them.",
    ),
    (
        "nvlink_rx_bytes_per_second",
        "Bytes received over all NVLinks per second, where the device has no counter of them.",
    ),
    ("ecc_corrected_count", "Memory errors that ECC corrected. Counter."),
    ("ecc_uncorrected_count", "Memory errors that ECC could not correct. Counter."),
    ("remapped_rows_count", "Rows of memory replaced by spare ones. Counter."),
    ("remapped_rows_pending_count", "Rows of memory that the next reset replaces."),
    ("remapped_rows_failed_count", "Rows of memory for which no spare row was left."),
    ("retired_pages_count", "Pages of memory taken out of use, on models before row remapping."),
    (
        "recovery_action_code",
        "Recovery action that the driver asks for: 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer traffic, 4 drain and reset.",
    ),
    ("xid_code", "Last XID error code the driver reported; 0 if none since it was loaded."),
    ("mig_slice_count", "Compute slices of the MIG instance, of the 7 that a whole GPU has."),
    ("process_count", "Processes on the device."),
    ("process_memory_bytes", "Device memory that its processes hold, bytes."),
];

/// Metrics that are counters. For each, a windowed pipeline over samples may sum two more columns,
/// which are computed on arrival and stored in no file: `X_growth`, the growth of X since the
/// previous sample, and `X_growth_us`, the time in which it happened. Both are NULL if not known:
/// at a device's first sample, and after a reset of the counter.
pub const COUNTERS: &[&str] = &[
    "energy_mj",
    "power_throttled_us",
    "thermal_throttled_us",
    "sw_power_cap_throttled_us",
    "sw_thermal_throttled_us",
    "hw_thermal_throttled_us",
    "hw_power_brake_throttled_us",
    "sync_boost_throttled_us",
    "board_limit_throttled_us",
    "reliability_throttled_us",
    "pcie_tx_bytes",
    "pcie_rx_bytes",
    "pcie_replay_count",
    "nvlink_tx_bytes",
    "nvlink_rx_bytes",
    "nvlink_error_count",
    "ecc_corrected_count",
    "ecc_uncorrected_count",
    "remapped_rows_count",
];

/// Why values could not be read, as named in `missing`. For each, a windowed pipeline over samples
/// may sum one more column, `unread_` and the name in lower case: how many values of the row could
/// not be read for that reason.
pub const REASONS: [&str; 4] = ["NOT_SUPPORTED", "NO_PERMISSION", "STALE", "DEVICE_LOST"];

/// Content of a derived column, which is stored in no file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Derived {
    /// Growth of the metric with this index since the previous sample.
    Growth(usize),
    /// The time in which it grew, µs.
    GrowthTime(usize),
    /// Number of values that could not be read for the reason with this index in [`REASONS`].
    Unread(usize),
}

/// Content of a derived column; `None` if there is no such column.
pub fn derived_column(name: &str) -> Option<Derived> {
    static COLUMNS: LazyLock<HashMap<String, Derived>> = LazyLock::new(|| derived_columns().collect());
    COLUMNS.get(name).copied()
}

/// Columns that only windowed pipelines over samples see, and only in sums. All are integers.
pub fn derived_columns() -> impl Iterator<Item = (String, Derived)> {
    let growth = COUNTERS.iter().flat_map(|name| {
        let place = metric_index(name).expect("counters are metrics");
        [
            (format!("{name}_growth"), Derived::Growth(place)),
            (format!("{name}_growth_us"), Derived::GrowthTime(place)),
        ]
    });
    let unread = REASONS.iter().enumerate();
    let unread =
        unread.map(|(place, reason)| (format!("unread_{}", reason.to_lowercase()), Derived::Unread(place)));
    growth.chain(unread)
}

/// Index of a metric in [`METRICS`].
pub fn metric_index(name: &str) -> Option<usize> {
    static PLACES: LazyLock<HashMap<&str, usize>> =
        LazyLock::new(|| METRICS.iter().enumerate().map(|(place, (name, _))| (*name, place)).collect());
    PLACES.get(name).copied()
}

/// Whether a metric is a ratio in millionths.
pub fn is_ratio(place: usize) -> bool {
    METRICS[place].0.ends_with("_ppm")
}

/// Public columns before the metrics.
pub const LABELS: &[(&str, ColumnKind, &str)] = &[
    ("cluster", ColumnKind::Text, "Cluster the node is in."),
    ("node", ColumnKind::Text, "Node the GPU is in."),
    ("gpu_uuid", ColumnKind::Text, "GPU, by its UUID; of a MIG slice the GPU it is cut from."),
    (
        "gpu_index",
        ColumnKind::Int,
        "Number of the GPU in its node, as the driver gives it; may change with a restart.",
    ),
    ("gpu_model", ColumnKind::Text, "Model of the GPU as the driver names it."),
    ("mig_uuid", ColumnKind::Text, "MIG slice of the values; NULL for a whole GPU."),
    ("event_time", ColumnKind::Time, "When the values were read."),
];

/// Public columns after the metrics.
pub const NOTES: &[(&str, ColumnKind, &str)] = &[
    (
        "other_metrics",
        ColumnKind::Text,
        "Metrics without a column of their own, as JSON by name: {\"fan_speed_ppm\":420000}; NULL if there are none.",
    ),
    (
        "processes",
        ColumnKind::Text,
        "Processes that were seen on the device, as JSON: [{\"pid\":7,\"kind\":\"COMPUTE\",\"memory_bytes\":…,\"name\":…,\"job\":…,\
         \"ticks\":10}]. On the row of the first tick of a batch at which it was seen, `ticks` is for how many rows from there; \
         NULL on all other rows.",
    ),
    (
        "missing",
        ColumnKind::Text,
        "Values that could not be read, with the reason, sorted by name: sm_active_ppm:NOT_SUPPORTED,power_mw:STALE; NULL if all were read. Reasons: NOT_SUPPORTED, NO_PERMISSION, STALE, DEVICE_LOST, UNSPECIFIED.",
    ),
    ("source", ColumnKind::Text, "Source that observed it."),
    ("epoch", ColumnKind::Int, "Epoch of the source: rises with each restart of its numbering."),
    ("seq", ColumnKind::Int, "Sequence number of the message within the epoch; a gap is a loss."),
];

/// Type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColumnKind {
    /// Text, `Utf8View`.
    Text,
    /// Integer, `Int64`.
    Int,
    /// UTC time.
    Time,
}

/// The raw table of samples.
pub fn table() -> RawTable {
    let column = |name: &str, kind: ColumnKind, doc: &str| Column {
        name: name.to_owned(),
        data_type: match kind {
            ColumnKind::Text => DataType::Utf8View,
            ColumnKind::Int => DataType::Int64,
            ColumnKind::Time => timestamp_type(),
        },
        doc: doc.to_owned(),
    };
    let listed = |columns: &[(&str, ColumnKind, &str)]| {
        columns.iter().map(|(name, kind, doc)| column(name, *kind, doc)).collect::<Vec<_>>()
    };
    let mut columns = listed(LABELS);
    columns.extend(METRICS.iter().map(|(name, doc)| {
        let doc = format!("{doc} NULL if it was not collected or could not be read.");
        column(name, ColumnKind::Int, &doc)
    }));
    columns.extend(listed(NOTES));
    RawTable {
        schema: SchemaId::GpuSampleBatch,
        has_dedup_window: true,
        ratio_step_ppm: 1,
        spec: Arc::new(TableSpec {
            name: "gpu_samples".into(),
            version: SchemaId::GpuSampleBatch.version().into(),
            doc: "Samples of GPUs, one row per GPU or MIG slice and time. A value that could not be read is NULL, and `missing` has the reason."
                .into(),
            layout: Layout::Samples,
            columns,
            key: ["cluster", "gpu_uuid", "mig_uuid", "event_time"].map(str::to_owned).to_vec(),
            partials: Vec::new(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_place_and_a_unit() {
        let units =
            ["ppm", "mw", "mj", "celsius", "mhz", "us", "bytes", "bytes_per_second", "count", "code", "bits"];
        for (place, (name, _)) in METRICS.iter().enumerate() {
            assert_eq!(metric_index(name), Some(place), "{name} stands twice");
            assert!(units.iter().any(|unit| name.ends_with(&format!("_{unit}"))), "{name} has no unit");
        }
        assert_eq!(metric_index("fan_speed_ppm"), None);
    }

    #[test]
    fn metrics_documented_as_counters_are_counters() {
        for (name, doc) in METRICS {
            assert_eq!(COUNTERS.contains(name), doc.ends_with("Counter."), "{name}");
        }
    }
}
