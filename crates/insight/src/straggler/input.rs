//! Inputs of the detector. All times are event time in µs since 1970; counters are given as growth
//! within a window.

use serde::{Deserialize, Serialize};

/// Layout of a job's ranks. A restart is a new shape with the next `attempt`, because ranks may
/// move to other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobShape {
    /// Number of the run; grows with each restart.
    pub attempt: u32,
    /// Node of each rank, by rank.
    pub node: Vec<u32>,
    /// Role of each rank. Ranks of one role do the same work (one pipeline stage, or one expert
    /// group of it). Roles are numbered stage by stage, the same number in each: `stage * groups +
    /// group`.
    pub role: Vec<u32>,
    /// Pipeline stages; 1 for plain data parallel.
    pub stages: u32,
    /// Micro-batches per step; 1 without a pipeline.
    pub micro_batches: u32,
}

/// One rank's report of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepReport {
    /// Run of the job.
    pub attempt: u32,
    /// Rank of the process.
    pub rank: u32,
    /// Step number. A step repeated after a restart has the same number and a greater `attempt`.
    pub step: u64,
    /// When the step ended, by the node's clock.
    pub end_us: i64,
    /// Whole step.
    pub duration_us: u64,
    /// Computing time, without waiting in collectives.
    pub compute_us: Option<u64>,
    /// Time in collectives, waiting included.
    pub communication_us: Option<u64>,
    /// Waiting for input.
    pub data_us: Option<u64>,
    /// Tokens of this rank in this step.
    pub tokens: Option<u64>,
    /// Sum of the squares of its sequences' lengths.
    pub squared_tokens: Option<u64>,
}

/// Device and node measurements of a rank over some seconds. `None` means not measured, never zero.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct DeviceWindow {
    /// Rank whose device it is.
    pub rank: u32,
    /// Start of the window.
    pub start_us: i64,
    /// End of the window.
    pub end_us: i64,
    /// Mean SM clock, MHz.
    pub sm_clock_mhz: Option<f64>,
    /// Share of the time with clocks lowered by heat, hardware or a power brake: 0 to 1.
    pub slowdown_share: Option<f64>,
    /// Share of the time at the software power cap: 0 to 1. Normal at full load.
    pub power_cap_share: Option<f64>,
    /// Mean power while busy, W. A device that draws less than its peers waits, or has less to do.
    pub power_w: Option<f64>,
    /// Width of the host link over its greatest width: 0 to 1.
    pub link_width_ratio: Option<f64>,
    /// Replays and recoveries of PCIe and NVLink in the window.
    pub link_retries: Option<u64>,
    /// Congestion marks or pauses of the node's network cards in the window.
    pub network_marks: Option<u64>,
}

/// A one-off report of a device or node: an XID, an uncorrectable error, a failed remap, its loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Rank whose device it is.
    pub rank: u32,
    /// When.
    pub time_us: i64,
    /// NVIDIA's code, if it is an XID.
    pub xid: Option<u32>,
}
