//! Readings and metrics: all values of one device at one tick.

use std::sync::Arc;

pub use tidegate_events::v1::gpu_sample_batch::MissingReason;
use tidegate_events::v1::gpu_sample_batch::process::Kind;

/// A GPU, or one MIG instance of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Device {
    /// `GPU-…`; for a MIG instance, that of its GPU.
    pub uuid: String,
    /// The driver's number within the node; may change with a restart.
    pub index: u32,
    /// The driver's name of the model.
    pub model: String,
    /// `MIG-…` for an instance.
    pub mig_uuid: Option<String>,
}

/// Declares [`Metric`] and [`Metric::ALL`].
macro_rules! metrics {
    ($($variant:ident $name:literal),* $(,)?) => {
        /// A metric, numbered by its place in a [`Reading`]. Its name includes the unit and is a
        /// column of the table `gpu_samples`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Metric { $(#[doc = concat!("Column `", $name, "`.")] $variant),* }

        impl Metric {
            /// All metrics, in order of their places.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Column name, with the unit at its end.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }
        }
    };
}

metrics! {
    // Averaging window of this reading's ratios: the time since the reading before.
    Interval "interval_us",
    GpuUtil "gpu_util_ppm",
    MemoryUtil "memory_util_ppm",
    GraphicsActive "graphics_active_ppm",
    SmActive "sm_active_ppm",
    SmOccupancy "sm_occupancy_ppm",
    TensorActive "tensor_active_ppm",
    TensorHmmaActive "tensor_hmma_active_ppm",
    TensorImmaActive "tensor_imma_active_ppm",
    TensorDfmaActive "tensor_dfma_active_ppm",
    Fp64Active "fp64_active_ppm",
    Fp32Active "fp32_active_ppm",
    Fp16Active "fp16_active_ppm",
    IntActive "int_active_ppm",
    DramActive "dram_active_ppm",
    EncoderUtil "encoder_util_ppm",
    DecoderUtil "decoder_util_ppm",
    Power "power_mw",
    PowerLimit "power_limit_mw",
    Energy "energy_mj",
    GpuTemp "gpu_temp_celsius",
    MemoryTemp "memory_temp_celsius",
    SmClock "sm_clock_mhz",
    SmClockMax "sm_clock_max_mhz",
    MemoryClock "memory_clock_mhz",
    MemoryClockMax "memory_clock_max_mhz",
    // Bits as in nvmlClocksEventReasons.
    ThrottleReasons "throttle_reasons_bits",
    PowerThrottled "power_throttled_us",
    ThermalThrottled "thermal_throttled_us",
    // The driver's nanosecond counters in µs, one per reason, where it has them.
    PowerCapThrottled "sw_power_cap_throttled_us",
    SwThermalThrottled "sw_thermal_throttled_us",
    HwThermalThrottled "hw_thermal_throttled_us",
    PowerBrakeThrottled "hw_power_brake_throttled_us",
    SyncBoostThrottled "sync_boost_throttled_us",
    BoardLimitThrottled "board_limit_throttled_us",
    ReliabilityThrottled "reliability_throttled_us",
    FramebufferUsed "framebuffer_used_bytes",
    FramebufferReserved "framebuffer_reserved_bytes",
    FramebufferTotal "framebuffer_total_bytes",
    // Counters since the driver was loaded.
    PcieTx "pcie_tx_bytes",
    PcieRx "pcie_rx_bytes",
    PcieReplay "pcie_replay_count",
    NvlinkTx "nvlink_tx_bytes",
    NvlinkRx "nvlink_rx_bytes",
    NvlinkErrors "nvlink_error_count",
    // Averages over the interval from the GPM pair, where there is no counter.
    PcieTxRate "pcie_tx_bytes_per_second",
    PcieRxRate "pcie_rx_bytes_per_second",
    NvlinkTxRate "nvlink_tx_bytes_per_second",
    NvlinkRxRate "nvlink_rx_bytes_per_second",
    EccCorrected "ecc_corrected_count",
    EccUncorrected "ecc_uncorrected_count",
    RemappedRows "remapped_rows_count",
    RemappedRowsPending "remapped_rows_pending_count",
    RemappedRowsFailed "remapped_rows_failed_count",
    // Pages instead of rows, before Ampere.
    RetiredPages "retired_pages_count",
    // 0 none, 1 reset, 2 reboot, 3 drain peer-to-peer, 4 drain and reset.
    RecoveryAction "recovery_action_code",
    Xid "xid_code",
    Processes "process_count",
    ProcessMemory "process_memory_bytes",
    // Compute slices of a MIG instance.
    MigSlices "mig_slice_count",
}

impl Metric {
    /// Whether it only grows until the driver is reloaded.
    pub const fn is_counter(self) -> bool {
        use Metric::*;
        matches!(
            self,
            Energy
                | PowerThrottled
                | ThermalThrottled
                | PowerCapThrottled
                | SyncBoostThrottled
                | BoardLimitThrottled
                | ReliabilityThrottled
                | SwThermalThrottled
                | HwThermalThrottled
                | PowerBrakeThrottled
                | PcieTx
                | PcieRx
                | PcieReplay
                | NvlinkTx
                | NvlinkRx
                | NvlinkErrors
                | EccCorrected
                | EccUncorrected
                | RemappedRows
        )
    }
}

/// The value of one metric in a reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Value {
    /// The source does not read this metric.
    #[default]
    NotAsked,
    /// The value, in the unit of the metric.
    Is(i64),
    /// The source could not read it, for this reason.
    Missing(MissingReason),
}

/// A process on the device at the tick.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningProcess {
    /// Process id on the node.
    pub pid: u32,
    /// Compute, graphics or MPS client.
    pub kind: Kind,
    /// Framebuffer in use, bytes.
    pub memory_bytes: Option<u64>,
    /// Name of the program.
    pub name: Option<String>,
    /// Job that it belongs to, as its scheduler names it.
    pub job_id: Option<String>,
}

/// All values of one device at one tick.
#[derive(Debug, Clone)]
pub struct Reading {
    /// The device that was read.
    pub device: Arc<Device>,
    /// The tick, ms since the epoch; common to all devices of the node.
    pub tick_ms: i64,
    values: Vec<Value>,
    /// Processes on the device at the tick.
    pub processes: Vec<RunningProcess>,
}

impl Reading {
    /// A reading without values.
    pub fn new(device: Arc<Device>, tick_ms: i64) -> Self {
        Self { device, tick_ms, values: vec![Value::NotAsked; Metric::ALL.len()], processes: Vec::new() }
    }

    /// The value of a metric.
    pub fn get(&self, metric: Metric) -> Value {
        self.values[metric as usize]
    }

    /// Sets the value of a metric.
    pub fn set(&mut self, metric: Metric, value: Value) {
        self.values[metric as usize] = value;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_are_at_their_places() {
        for (place, metric) in Metric::ALL.iter().enumerate() {
            assert_eq!(*metric as usize, place);
            assert_eq!(Metric::ALL.iter().filter(|m| m.name() == metric.name()).count(), 1, "{metric:?}");
        }
    }
}
