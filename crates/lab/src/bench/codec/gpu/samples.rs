//! Seeded samples that resemble real GPUs: noisy ratios, counters with noisy steps, many zeros.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::METRICS;

const NODES_PER_GROUP: u64 = 100;
pub const DEVICES: usize = 8;
pub const TICKS: usize = 10;
pub const FIRST_TICK_MS: i64 = 1_763_712_000_000;

/// All samples of one node over ten seconds.
pub struct NodeBatch {
    pub event_id: [u8; 16],
    pub cluster: &'static str,
    pub node: String,
    pub model: &'static str,
    pub epoch: u64,
    pub seq: u64,
    pub observed_ms: i64,
    pub uuids: Vec<String>,
    pub ticks_ms: Vec<i64>,
    /// By metric, then device-major: `columns[metric][device * ticks + tick]`.
    pub columns: Vec<Vec<i64>>,
}

/// Activity of a device during the ten seconds.
#[derive(Clone, Copy)]
pub struct Device {
    /// Number of processes.
    processes: i64,
    /// Share of time with running kernels; 0 if the device is free or idle.
    active_ppm: i64,
    power_capped: bool,
    /// Start value of the counters; devices differ in uptime and load.
    pub counter: i64,
}

/// 100 nodes, 8,000 rows. 28.6 % of the devices are idle and 12 % are power-limited.
pub fn generate(seed: u64, group: u64) -> Vec<NodeBatch> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(group);
    (0..NODES_PER_GROUP).map(|node| node_batch(&mut rng, group, node)).collect()
}

fn node_batch(rng: &mut ChaCha8Rng, group: u64, node: u64) -> NodeBatch {
    let mut columns = vec![Vec::with_capacity(DEVICES * TICKS); METRICS.len()];
    let mut uuids = Vec::with_capacity(DEVICES);
    for _ in 0..DEVICES {
        uuids.push(format!(
            "GPU-{:08x}-{:04x}-4000-8000-{:012x}",
            rng.random::<u32>(),
            node,
            rng.random::<u32>()
        ));
        let device = Device::new(rng);
        for ((metric, _), column) in METRICS.iter().zip(&mut columns) {
            let mut counter = device.counter;
            column.extend((0..TICKS).map(|_| device.sample(rng, metric, &mut counter)));
        }
    }
    let phase_ms = FIRST_TICK_MS + group as i64 * 10_000 + rng.random_range(0..1_000);
    let jitter_ms = |rng: &mut ChaCha8Rng| if rng.random_bool(0.15) { rng.random_range(-4..20) } else { 0 };
    NodeBatch {
        event_id: rng.random(),
        cluster: "prod-h100",
        node: format!("h100-{node:03}"),
        model: "NVIDIA H100 80GB HBM3",
        epoch: 1_763_000_000_123,
        seq: group,
        observed_ms: phase_ms + 10_000,
        uuids,
        ticks_ms: (0..TICKS as i64).map(|tick| phase_ms + tick * 1_000 + jitter_ms(rng)).collect(),
        columns,
    }
}

impl Device {
    pub fn new(rng: &mut ChaCha8Rng) -> Self {
        if rng.random_bool(0.286) { Self::idle(rng, 0) } else { Self::busy(rng) }
    }

    pub fn busy(rng: &mut ChaCha8Rng) -> Self {
        Self {
            active_ppm: rng.random_range(400_000..980_000),
            power_capped: rng.random_bool(0.12),
            ..Self::idle(rng, 1)
        }
    }

    /// Idle, with this many processes.
    pub fn idle(rng: &mut ChaCha8Rng, processes: i64) -> Self {
        Self { processes, active_ppm: 0, power_capped: false, counter: rng.random_range(0..1 << 50) }
    }

    /// This device with the activity of another.
    pub fn doing(self, other: Self) -> Self {
        Self { counter: self.counter, ..other }
    }

    /// The next value of a metric; `counter` is its running value if it is a counter.
    pub fn sample(&self, rng: &mut ChaCha8Rng, metric: &str, counter: &mut i64) -> i64 {
        let active_ppm = self.active_ppm;
        let busy = active_ppm > 0;
        let mut around = |middle: i64, noise: i64| middle + rng.random_range(-noise..=noise);
        let step = match metric {
            "gpu_util_ppm" => return if busy { 1_000_000 } else { 0 },
            "fp64_active_ppm" | "ecc_corrected_count" => return 0,
            "interval_us" => return 1_000_000,
            "process_count" => return self.processes,
            "power_mw" if !busy => return around(72_000, 900),
            "power_mw" if self.power_capped => return around(699_000, 1_000),
            "power_mw" => return around(150_000 + active_ppm / 2, 15_000),
            "gpu_temp_celsius" => return around(if busy { 62 } else { 31 }, 1),
            "memory_temp_celsius" => return around(if busy { 75 } else { 40 }, 1),
            "sm_clock_mhz" if busy && self.power_capped => return around(1_500, 60) / 15 * 15,
            "sm_clock_mhz" => return if busy { 1_980 } else { 345 },
            "memory_clock_mhz" => return 2_619,
            "framebuffer_used_bytes" => return if busy { self.counter % 64 * (1 << 30) } else { 0 },
            "energy_mj" => around(if busy { 550_000 } else { 72_000 }, 20_000),
            "power_throttled_us" if busy && self.power_capped => around(400_000, 100_000),
            "pcie_tx_bytes" | "pcie_rx_bytes" if busy => around(2_000_000_000, 900_000_000),
            "pcie_tx_bytes" | "pcie_rx_bytes" => around(20_000, 9_000),
            "nvlink_tx_bytes" | "nvlink_rx_bytes" if busy => around(80_000_000_000, 40_000_000_000),
            "power_throttled_us" | "nvlink_tx_bytes" | "nvlink_rx_bytes" => 0,
            _ => return if busy { around(active_ppm * 9 / 10, 20_000) } else { 0 },
        };
        *counter += step;
        *counter
    }
}
