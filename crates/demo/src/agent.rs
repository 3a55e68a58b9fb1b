//! The agent of a node: readings of its devices at common ticks, in the agent's own batches.

use std::sync::Arc;

use tidegate_collect::agent::SampleBatcher;
use tidegate_collect::reading::{MissingReason, RunningProcess};
use tidegate_collect::{Device, Metric, Reading, Value};
use tidegate_events::v1::GpuSampleBatch;
use tidegate_events::v1::gpu_sample_batch::process::Kind;

use crate::draw::Draw;
use crate::levels::{EMPTY_BYTES, Levels, MEMORY_BYTES};
use crate::plan::{GPUS_PER_NODE, node_name, pool_of};

const MODEL: &str = "NVIDIA H100 80GB HBM3";
const SM_CLOCK_MHZ: i64 = 1_980;
const SLOW_CLOCK_MHZ: i64 = 1_515;
const IDLE_CLOCK_MHZ: i64 = 345;
const MEMORY_CLOCK_MHZ: i64 = 2_619;
const POWER_LIMIT_MW: i64 = 700_000;
/// `nvmlClocksEventReasonHwThermalSlowdown`.
const THERMAL_BITS: i64 = 0x40;
/// GPUs of the node for notebooks that are divided, into slices of so many sevenths.
const CUT: [(u32, &[u32]); 2] = [(6, &[4, 3]), (7, &[3, 2, 2])];
/// A batch of readings a minute apart; while they come faster, an agent's default.
const BATCH_MS: i64 = 10_000;

/// A GPU or a slice.
#[derive(Debug)]
pub(crate) struct Unit {
    pub device: Arc<Device>,
    /// Sevenths of the GPU, for a slice.
    pub slices: Option<u32>,
    /// Number of the slice on its GPU.
    pub place: Option<usize>,
    is_cut: bool,
    energy_uj: i64,
    pcie: i64,
    nvlink: i64,
    throttled_us: i64,
    last_ms: Option<i64>,
}

/// What a device does at a tick.
#[derive(Debug, Default)]
pub(crate) struct DeviceActivity {
    pub levels: Levels,
    pub processes: Vec<RunningProcess>,
    pub is_slow: bool,
    pub is_lost: bool,
}

impl DeviceActivity {
    /// Adds a job's process with its memory.
    pub fn process(&mut self, job: u64, bytes: i64, name: &str) {
        self.processes.push(RunningProcess {
            pid: 10_000 + (job * 37 % 50_000) as u32,
            kind: Kind::Compute,
            memory_bytes: Some(bytes.unsigned_abs()),
            name: Some(name.into()),
            job_id: Some(job.to_string()),
        });
    }
}

/// The agent of one node.
pub(crate) struct Agent {
    pub node: usize,
    pub name: String,
    pub units: Vec<Unit>,
    batcher: SampleBatcher,
}

impl Agent {
    pub fn new(draw: Draw, node: usize, span_ms: i64) -> Self {
        let draw = draw.of(node as u64);
        let units = (0..GPUS_PER_NODE).flat_map(|gpu| units(draw.of(u64::from(gpu)), node, gpu)).collect();
        Self { node, name: node_name(node), units, batcher: SampleBatcher::new(span_ms.max(BATCH_MS)) }
    }

    /// UUID of a whole GPU.
    pub fn uuid(&self, gpu: u32) -> &str {
        let whole = self.units.iter().find(|unit| unit.device.index == gpu && unit.slices.is_none());
        whole.map_or("", |unit| &unit.device.uuid)
    }

    /// Reads all devices at a tick; `see` tells what each does. Returns batches that are complete.
    pub fn read(
        &mut self,
        tick_ms: i64,
        mut see: impl FnMut(&Unit) -> DeviceActivity,
    ) -> Vec<GpuSampleBatch> {
        let mut complete = Vec::new();
        for unit in &mut self.units {
            let seen = see(unit);
            complete.extend(self.batcher.add(unit.read(tick_ms, seen)));
        }
        complete.iter_mut().for_each(|batch| batch.node.clone_from(&self.name));
        complete
    }

    /// Sends what was read, and batches over `span_ms` from now on.
    pub fn flush(&mut self, span_ms: i64) -> Vec<GpuSampleBatch> {
        let mut complete: Vec<GpuSampleBatch> = self.batcher.close().into_iter().collect();
        self.batcher = SampleBatcher::new(span_ms.max(BATCH_MS));
        complete.iter_mut().for_each(|batch| batch.node.clone_from(&self.name));
        complete
    }
}

fn units(draw: Draw, node: usize, gpu: u32) -> Vec<Unit> {
    let device =
        Device { uuid: format!("GPU-{}", draw.uuid()), index: gpu, model: MODEL.into(), mig_uuid: None };
    let cut = CUT.iter().find(|(cut, _)| pool_of(node) == 2 && *cut == gpu).map_or(&[][..], |(_, of)| of);
    let unit = |device: Device, place: Option<usize>, slices: Option<u32>| Unit {
        device: Arc::new(device),
        slices,
        place,
        is_cut: slices.is_none() && !cut.is_empty(),
        energy_uj: draw.of(21).whole(1, 1 << 50),
        pcie: draw.of(22).whole(1, 1 << 50),
        nvlink: draw.of(23).whole(1, 1 << 50),
        throttled_us: 0,
        last_ms: None,
    };
    let slice = |(place, slices): (usize, &u32)| {
        let mig_uuid = Some(format!("MIG-{}", draw.of(place as u64 + 1).uuid()));
        unit(Device { mig_uuid, ..device.clone() }, Some(place), Some(*slices))
    };
    std::iter::once(unit(device.clone(), None, None)).chain(cut.iter().enumerate().map(slice)).collect()
}

impl Unit {
    fn read(&mut self, tick_ms: i64, seen: DeviceActivity) -> Reading {
        let mut reading = Reading::new(Arc::clone(&self.device), tick_ms);
        let interval_ms = self.last_ms.replace(tick_ms).map(|last_ms| tick_ms - last_ms);
        if seen.is_lost {
            for metric in [Metric::Interval, Metric::SmActive, Metric::Power, Metric::FramebufferUsed] {
                reading.set(metric, Value::Missing(MissingReason::DeviceLost));
            }
            self.last_ms = None;
            return reading;
        }
        let Levels { gpu_util, sm_active, sm_occupancy, tensor_active, dram_active, .. } = seen.levels;
        let noise = Draw::new(tick_ms.unsigned_abs()).of(self.energy_uj.unsigned_abs());
        let noisy = |part: u64, level: f64| {
            Value::Is((level * noise.of(part).between(0.97, 1.03)).clamp(0.0, 1e6) as i64)
        };
        reading.set(Metric::SmActive, noisy(1, sm_active));
        reading.set(Metric::SmOccupancy, noisy(2, sm_occupancy));
        reading.set(Metric::TensorActive, noisy(3, tensor_active));
        reading.set(Metric::DramActive, noisy(4, dram_active));
        let whole_percent = (gpu_util.min(1e6) / 10_000.0).round() as i64 * 10_000;
        reading.set(Metric::GpuUtil, Value::Is(whole_percent));
        let missing = Value::Missing(MissingReason::Unspecified);
        reading.set(Metric::Interval, interval_ms.map_or(missing, |ms| Value::Is(ms * 1_000)));
        self.set_clocks(&mut reading, whole_percent > 0, seen.is_slow, interval_ms.unwrap_or(0));
        self.count(&mut reading, &seen.levels, interval_ms.unwrap_or(0));
        self.set_processes(&mut reading, seen.processes);
        if let Some(slices) = self.slices {
            reading.set(Metric::MigSlices, Value::Is(i64::from(slices)));
        }
        if self.is_cut || self.slices.is_some() {
            reading.set(Metric::GpuUtil, Value::Missing(MissingReason::NotSupported));
        }
        reading
    }

    fn set_clocks(&mut self, reading: &mut Reading, is_busy: bool, is_slow: bool, interval_ms: i64) {
        let clock = match (is_busy, is_slow) {
            (false, _) => IDLE_CLOCK_MHZ,
            (true, true) => SLOW_CLOCK_MHZ,
            (true, false) => SM_CLOCK_MHZ,
        };
        let is_throttled = is_busy && is_slow;
        self.throttled_us += if is_throttled { interval_ms * 800 } else { 0 };
        for (metric, value) in [
            (Metric::SmClock, clock),
            (Metric::SmClockMax, SM_CLOCK_MHZ),
            (Metric::MemoryClock, MEMORY_CLOCK_MHZ),
            (
                Metric::GpuTemp,
                if is_throttled {
                    89
                } else if is_busy {
                    64
                } else {
                    34
                },
            ),
            (Metric::ThermalThrottled, self.throttled_us),
            (Metric::HwThermalThrottled, self.throttled_us),
            (Metric::ThrottleReasons, if is_throttled { THERMAL_BITS } else { i64::from(!is_busy) }),
        ] {
            reading.set(metric, Value::Is(value));
        }
    }

    /// Adds to the counters, which slices do not have.
    fn count(&mut self, reading: &mut Reading, levels: &Levels, interval_ms: i64) {
        if self.slices.is_some() {
            return;
        }
        let seconds = interval_ms as f64 / 1e3;
        self.energy_uj += levels.power_mw as i64 * interval_ms;
        self.pcie += (levels.pcie * seconds) as i64;
        self.nvlink += (levels.nvlink * seconds) as i64;
        for (metric, value) in [
            (Metric::Power, levels.power_mw as i64),
            (Metric::PowerLimit, POWER_LIMIT_MW),
            (Metric::Energy, self.energy_uj / 1_000),
            (Metric::PcieTx, self.pcie),
            (Metric::PcieRx, self.pcie),
            (Metric::NvlinkTx, self.nvlink),
            (Metric::NvlinkRx, self.nvlink),
        ] {
            reading.set(metric, Value::Is(value));
        }
    }

    fn set_processes(&self, reading: &mut Reading, processes: Vec<RunningProcess>) {
        let bytes: i64 = processes.iter().filter_map(|p| p.memory_bytes).sum::<u64>().cast_signed();
        let total = MEMORY_BYTES * self.slices.map_or(7, i64::from) / 7;
        for (metric, value) in [
            (Metric::FramebufferUsed, EMPTY_BYTES + bytes),
            (Metric::FramebufferTotal, total),
            (Metric::Processes, processes.len() as i64),
            (Metric::ProcessMemory, bytes),
        ] {
            reading.set(metric, Value::Is(value));
        }
        // Of a GPU that is cut, the slices have the processes.
        if !self.is_cut {
            reading.processes = processes;
        }
    }
}
