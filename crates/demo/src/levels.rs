//! Metric levels of devices by activity, from quantiles measured on real devices.

use crate::draw::Draw;

/// Shares of the fleet's time below each quantile. Devices were idle in the lower third.
const SHARES: [f64; 8] = [0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99];

// Quantiles of `util_gpu_seren.pkl` and `gpu_power_seren.pkl`: DCGM values of the cluster Seren of
// Shanghai AI Lab, 2,288 A100, 2023, over all GPU time. From InternLM/AcmeTrace at commit 6d6ac9c,
// CC BY 4.0. Percent, and W.
const GPU_UTIL: [f64; 8] = [97.0, 99.0, 99.0, 99.0, 100.0, 100.0, 100.0, 100.0];
const SM_ACTIVE: [f64; 8] = [37.8, 50.2, 60.3, 69.8, 76.5, 80.9, 85.1, 92.7];
const TENSOR_ACTIVE: [f64; 8] = [10.6, 14.0, 16.9, 19.4, 20.7, 23.8, 30.5, 49.5];
const MEMORY: [f64; 8] = [31.8, 39.3, 44.2, 57.2, 68.2, 83.0, 96.0, 98.9];
const POWER: [f64; 8] = [90.7, 96.5, 118.4, 213.3, 337.5, 395.3, 408.0, 438.7];
/// Power of idle devices: 5th to 30th percentile.
const IDLE_POWER_W: (f64, f64) = (61.8, 69.8);

/// Activity of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// No process.
    Nothing,
    /// An idle process.
    Idle,
    /// Running kernels outside training.
    Busy,
    /// Loading programs and models.
    Load,
    /// Computing a step.
    Compute,
    /// Collectives: a spinning kernel, little else.
    Communicate,
    /// Waiting for input.
    WaitForData,
    /// Writing a checkpoint.
    Save,
}

impl Doing {
    /// Whether a process is on the device.
    pub fn has_process(self) -> bool {
        self != Self::Nothing
    }
}

/// Maximum device memory of processes, bytes.
pub const MEMORY_BYTES: i64 = 80 << 30;
/// Memory in use without a process, bytes.
pub const EMPTY_BYTES: i64 = 4 << 20;

/// Metrics of a device, averaged over a time: ppm, and mW.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[allow(missing_docs, reason = "as the columns of samples are named")]
pub struct Levels {
    pub gpu_util: f64,
    pub sm_active: f64,
    pub sm_occupancy: f64,
    pub tensor_active: f64,
    pub dram_active: f64,
    pub power_mw: f64,
    /// Bytes per second, in each direction.
    pub pcie: f64,
    pub nvlink: f64,
}

/// Levels of one job on one device, taken at one quantile of the fleet's time.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// While computing.
    pub full: Levels,
    /// While busy without training.
    pub busy: Levels,
    idle_mw: f64,
    /// Memory of its process, bytes.
    pub memory_bytes: i64,
    /// Growth of memory, bytes per hour.
    pub growth: i64,
}

impl Load {
    /// A load at a quantile that is drawn.
    pub fn new(draw: Draw) -> Self {
        let share = draw.of(1).between(SHARES[0], SHARES[SHARES.len() - 1]);
        let percent = |quantiles: [f64; 8]| at_share(quantiles, share) * 10_000.0;
        let sm_active = percent(SM_ACTIVE);
        let full = Levels {
            gpu_util: percent(GPU_UTIL),
            sm_active,
            sm_occupancy: sm_active * 0.4,
            tensor_active: percent(TENSOR_ACTIVE),
            dram_active: sm_active * 0.6,
            power_mw: at_share(POWER, share.max(0.7)) * 1_000.0,
            pcie: 1e9,
            nvlink: 40e9,
        };
        let idle_mw = draw.of(2).between(IDLE_POWER_W.0, IDLE_POWER_W.1) * 1_000.0;
        let busy = Levels {
            gpu_util: full.gpu_util * 0.6,
            sm_active: full.sm_active * 0.5,
            sm_occupancy: full.sm_occupancy * 0.5,
            tensor_active: full.tensor_active * 0.4,
            dram_active: full.dram_active * 0.7,
            power_mw: idle_mw + (full.power_mw - idle_mw) * 0.6,
            ..full
        };
        let memory_bytes = (at_share(MEMORY, share) / 100.0 * MEMORY_BYTES as f64) as i64;
        Self { full, busy, idle_mw, memory_bytes, growth: 0 }
    }

    /// Levels during an activity.
    pub fn levels(&self, doing: Doing) -> Levels {
        let full = self.full;
        let power = |share: f64| self.idle_mw + (full.power_mw - self.idle_mw) * share;
        match doing {
            Doing::Nothing | Doing::Idle => Levels { power_mw: self.idle_mw, ..Levels::default() },
            Doing::Load | Doing::Save | Doing::WaitForData => {
                Levels { dram_active: 5_000.0, power_mw: power(0.1), ..Levels::default() }
            }
            Doing::Compute => full,
            Doing::Busy => self.busy,
            Doing::Communicate => Levels {
                gpu_util: full.gpu_util,
                sm_active: full.sm_active * 0.2,
                sm_occupancy: full.sm_occupancy * 0.1,
                tensor_active: 0.0,
                dram_active: full.dram_active * 0.3,
                power_mw: power(0.5),
                ..full
            },
        }
    }
}

/// Linear interpolation between two quantiles.
fn at_share(quantiles: [f64; 8], share: f64) -> f64 {
    let above = SHARES.iter().position(|s| *s >= share).unwrap_or(SHARES.len() - 1).max(1);
    let within = (share - SHARES[above - 1]) / (SHARES[above] - SHARES[above - 1]);
    quantiles[above - 1] + within * (quantiles[above] - quantiles[above - 1])
}

impl Levels {
    /// Adds other levels, weighted by a share of time or device.
    pub fn add(&mut self, other: Self, share: f64) {
        self.gpu_util += other.gpu_util * share;
        self.sm_active += other.sm_active * share;
        self.sm_occupancy += other.sm_occupancy * share;
        self.tensor_active += other.tensor_active * share;
        self.dram_active += other.dram_active * share;
        self.power_mw += other.power_mw * share;
        self.pcie += other.pcie * share;
        self.nvlink += other.nvlink * share;
    }
}
