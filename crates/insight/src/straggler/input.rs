//! What the detector is told. All times are event time in µs since 1970; counters come as what they
//! grew by in a window.

/// A job as its ranks are laid out. A restart is a new shape with the next `attempt`: ranks may be
/// on other nodes then.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobShape {
    /// Number of the run of the job; grows.
    pub attempt: u32,
    /// Node of each rank, by rank.
    pub node: Vec<u32>,
    /// Role of each rank, by rank: ranks of one role do the same work (one pipeline stage, or one
    /// expert group of it). Roles are numbered stage by stage, as many in each: `stage * groups +
    /// group`.
    pub role: Vec<u32>,
    /// Pipeline stages; 1 for plain data parallel.
    pub stages: u32,
    /// Micro-batches a step; 1 without a pipeline.
    pub micro_batches: u32,
}

/// What one rank reports of one step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepReport {
    /// Run of the job.
    pub attempt: u32,
    /// Rank of the process.
    pub rank: u32,
    /// Number of the step; done again after a restart, it has the same number and a greater
    /// `attempt`.
    pub step: u64,
    /// When the step ended, by the node's clock.
    pub end_us: i64,
    /// Whole step.
    pub duration_us: u64,
    /// Computing, before collectives wait for others.
    pub compute_us: Option<u64>,
    /// In collectives, waiting included.
    pub communication_us: Option<u64>,
    /// Waiting for input.
    pub data_us: Option<u64>,
    /// Tokens of this rank in this step.
    pub tokens: Option<u64>,
    /// Sum of the squares of its sequences' lengths.
    pub squared_tokens: Option<u64>,
}

/// What a rank's device and node showed over a window of some seconds. `None`: not read; never zero
/// in its place.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DeviceWindow {
    /// Rank whose device it is.
    pub rank: u32,
    /// Start of the window.
    pub start_us: i64,
    /// End of the window.
    pub end_us: i64,
    /// Mean SM clock, MHz.
    pub sm_clock_mhz: Option<f64>,
    /// Share of the time slowed down by heat, hardware or a power brake: 0 to 1.
    pub slowdown_share: Option<f64>,
    /// Share of the time at the software power cap: 0 to 1. Normal at full load.
    pub power_cap_share: Option<f64>,
    /// Mean power while busy, W. A device that draws less than its peers waits or has less to do.
    pub power_w: Option<f64>,
    /// Width of the host link over its greatest width: 0 to 1.
    pub link_width_ratio: Option<f64>,
    /// Replays and recoveries of PCIe and NVLink in the window.
    pub link_retries: Option<u64>,
    /// Congestion marks or pauses of the node's network cards in the window.
    pub network_marks: Option<u64>,
}

/// Something a device or node reported once: an XID, an uncorrectable error, a failed remap, its
/// loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Rank whose device it is.
    pub rank: u32,
    /// When.
    pub time_us: i64,
    /// NVIDIA's code, where it is an XID.
    pub xid: Option<u32>,
}
