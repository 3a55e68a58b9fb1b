//! Readings of devices: averages of the activity of their units since the previous tick.

use crate::bench::ledger::loads::load_of_piece;
use std::sync::Arc;

use tidegate_collect::reading::{MissingReason, RunningProcess};
use tidegate_collect::{Device, Metric, Reading, Value};
use tidegate_events::v1::gpu_sample_batch::process::Kind;

use super::day::{By, Day, Incident, Piece};
use super::fleet::{Part, Span, WHOLE};
use tidegate_demo::draw::Draw;
use tidegate_demo::levels::Doing;
use tidegate_demo::levels::{EMPTY_BYTES, Levels, Load, MEMORY_BYTES};

const PPM_PER_PERCENT: f64 = 10_000.0;
const SM_CLOCK_MHZ: i64 = 1_980;
const IDLE_CLOCK_MHZ: i64 = 345;
const MEMORY_CLOCK_MHZ: i64 = 2_619;
const POWER_LIMIT_MW: i64 = 700_000;

/// Metrics of a reading, for a device and for a slice.
const OF_DEVICE: &[Metric] = &[
    Metric::Interval,
    Metric::GpuUtil,
    Metric::SmActive,
    Metric::SmOccupancy,
    Metric::TensorActive,
    Metric::DramActive,
    Metric::Power,
    Metric::PowerLimit,
    Metric::Energy,
    Metric::SmClock,
    Metric::SmClockMax,
    Metric::MemoryClock,
    Metric::FramebufferUsed,
    Metric::FramebufferTotal,
    Metric::Processes,
    Metric::ProcessMemory,
    Metric::PcieTx,
    Metric::PcieRx,
    Metric::NvlinkTx,
    Metric::NvlinkRx,
];
/// Unknown for a slice.
const OF_GPU: [Metric; 7] = [
    Metric::Power,
    Metric::PowerLimit,
    Metric::Energy,
    Metric::PcieTx,
    Metric::PcieRx,
    Metric::NvlinkTx,
    Metric::NvlinkRx,
];

/// A device with readings: a GPU or a slice.
pub struct Watched<'a> {
    day: &'a Day,
    device: Arc<Device>,
    /// Compute slices; `None` for a whole GPU.
    slices: Option<u32>,
    /// Whether the GPU is sliced; its slices have the processes.
    is_cut: bool,
    parts: Vec<Following<'a>>,
    lost: Vec<Span>,
    /// Time of the last reading; `None` if the interval is unknown.
    last_ms: Option<i64>,
    energy_uj: i64,
    /// Bytes, each direction.
    pcie: i64,
    nvlink: i64,
    draw: Draw,
}

/// A unit, followed through the day.
struct Following<'a> {
    pieces: Box<dyn Iterator<Item = Piece> + 'a>,
    now: Option<Piece>,
    /// Share of the device, and of the GPU's memory.
    share: f64,
    memory_share: f64,
    /// Load of its present holder.
    load: Load,
    by: Option<By>,
    /// Start of the present activity.
    since_ms: i64,
    unit: usize,
}

impl<'a> Watched<'a> {
    /// A GPU and its slices.
    pub fn all_of(day: &'a Day, node: usize, gpu: usize) -> Vec<Self> {
        let it = &day.fleet.nodes[node].gpus[gpu];
        let is_slice = |unit: &usize| matches!(day.fleet.units[*unit].part, Part::Slice { .. });
        let is_cut = it.units.iter().any(is_slice);
        let lost: Vec<Span> =
            day.conditions.iter().filter(|c| c.what == Incident::Lost(node, gpu)).map(|c| c.span).collect();
        let draw = day.draw.of(11).of(node as u64 * 100 + gpu as u64);
        let watched = |device: &Arc<Device>, slices, is_cut, parts| Self {
            day,
            device: device.clone(),
            slices,
            is_cut,
            parts,
            lost: lost.clone(),
            last_ms: None,
            energy_uj: draw.of(1).whole(1, 1 << 50),
            pcie: draw.of(2).whole(1, 1 << 50),
            nvlink: draw.of(3).whole(1, 1 << 50),
            draw,
        };
        let following = |unit: &usize| Following::new(day, *unit);
        let parts = it.units.iter().map(following).collect();
        let mut all = vec![watched(&it.device, None, is_cut, parts)];
        for unit in &it.units {
            if let Part::Slice { device, slices } = &day.fleet.units[*unit].part {
                all.push(watched(
                    device,
                    Some(*slices),
                    false,
                    vec![Following { share: 1.0, ..following(unit) }],
                ));
            }
        }
        all
    }

    /// Skips a reading; activity continues.
    pub fn skip_to(&mut self, tick_ms: i64) {
        self.last_ms = None;
        for part in &mut self.parts {
            part.average(self.day, tick_ms - 1, tick_ms);
        }
    }

    /// Takes the reading of a tick.
    pub fn read(&mut self, tick_ms: i64, interval_ms: i64, noise: Draw) -> Reading {
        let mut reading = Reading::new(self.device.clone(), tick_ms);
        let mut levels = Levels::default();
        for part in &mut self.parts {
            levels.add(part.average(self.day, tick_ms - interval_ms, tick_ms), part.share);
        }
        if self.lost.iter().any(|lost| lost.contains(tick_ms)) {
            OF_DEVICE.iter().for_each(|m| reading.set(*m, Value::Missing(MissingReason::DeviceLost)));
            self.last_ms = None;
            return reading;
        }
        let mut noise = noise.of(self.draw.bits());
        let mut noisy = |level: f64| {
            noise = noise.of(1);
            Value::Is((level * noise.between(0.97, 1.03)).clamp(0.0, 1e6) as i64)
        };
        reading.set(Metric::SmActive, noisy(levels.sm_active));
        reading.set(Metric::SmOccupancy, noisy(levels.sm_occupancy));
        reading.set(Metric::TensorActive, noisy(levels.tensor_active));
        reading.set(Metric::DramActive, noisy(levels.dram_active));
        let percent = (levels.gpu_util.min(1e6) / PPM_PER_PERCENT).round();
        let is_busy = percent > 0.0;
        reading.set(Metric::GpuUtil, Value::Is((percent * PPM_PER_PERCENT) as i64));
        let interval = self.last_ms.map(|last_ms| (tick_ms - last_ms) * 1_000);
        self.last_ms = Some(tick_ms);
        reading.set(Metric::Interval, interval.map_or(Value::Missing(MissingReason::Unspecified), Value::Is));
        reading.set(Metric::SmClock, Value::Is(if is_busy { SM_CLOCK_MHZ } else { IDLE_CLOCK_MHZ }));
        reading.set(Metric::SmClockMax, Value::Is(SM_CLOCK_MHZ));
        reading.set(Metric::MemoryClock, Value::Is(MEMORY_CLOCK_MHZ));
        self.set_power(&mut reading, levels.power_mw, interval_ms);
        self.set_links(&mut reading, &levels, interval_ms);
        self.set_processes(&mut reading, tick_ms);
        if let Some(slices) = self.slices {
            reading.set(Metric::MigSlices, Value::Is(i64::from(slices)));
            for metric in OF_GPU {
                reading.set(metric, Value::NotAsked);
            }
        }
        if self.is_cut || self.slices.is_some() {
            reading.set(Metric::GpuUtil, Value::Missing(MissingReason::NotSupported));
        }
        reading
    }

    fn set_power(&mut self, reading: &mut Reading, power_mw: f64, interval_ms: i64) {
        let power_mw = power_mw as i64;
        self.energy_uj += power_mw * interval_ms;
        reading.set(Metric::Power, Value::Is(power_mw));
        reading.set(Metric::PowerLimit, Value::Is(POWER_LIMIT_MW));
        reading.set(Metric::Energy, Value::Is(self.energy_uj / 1_000));
    }

    fn set_links(&mut self, reading: &mut Reading, levels: &Levels, interval_ms: i64) {
        self.pcie += (levels.pcie * interval_ms as f64 / 1e3) as i64;
        self.nvlink += (levels.nvlink * interval_ms as f64 / 1e3) as i64;
        for (metric, bytes) in [
            (Metric::PcieTx, self.pcie),
            (Metric::PcieRx, self.pcie),
            (Metric::NvlinkTx, self.nvlink),
            (Metric::NvlinkRx, self.nvlink),
        ] {
            reading.set(metric, Value::Is(bytes));
        }
    }

    fn set_processes(&self, reading: &mut Reading, tick_ms: i64) {
        let seen: Vec<(RunningProcess, i64)> =
            self.parts.iter().filter_map(|part| part.process(self.day, tick_ms)).collect();
        let bytes: i64 = seen.iter().map(|(_, bytes)| bytes).sum();
        let total = MEMORY_BYTES * self.slices.map_or(7, i64::from) / 7;
        reading.set(Metric::FramebufferUsed, Value::Is(EMPTY_BYTES + bytes));
        reading.set(Metric::FramebufferTotal, Value::Is(total));
        reading.set(Metric::Processes, Value::Is(seen.len() as i64));
        reading.set(Metric::ProcessMemory, Value::Is(bytes));
        if !self.is_cut {
            reading.processes = seen.into_iter().map(|(process, _)| process).collect();
        }
    }
}

impl<'a> Following<'a> {
    fn new(day: &'a Day, unit: usize) -> Self {
        let pieces = Box::new(day.pieces(unit));
        let share = day.fleet.units[unit].weight() as f64 / WHOLE as f64;
        let load = Load::new(day.draw.of(12).of(unit as u64));
        Self { pieces, now: None, share, memory_share: share, load, by: None, since_ms: 0, unit }
    }

    /// Average levels between two times; advances to the end.
    fn average(&mut self, day: &Day, from_ms: i64, to_ms: i64) -> Levels {
        let mut levels = Levels::default();
        let mut known_ms = 0;
        loop {
            if let Some(now) = &self.now {
                let ms = now.span.to_ms.min(to_ms) - now.span.from_ms.max(from_ms);
                if ms > 0 {
                    levels.add(self.load.levels(now.doing), ms as f64);
                    known_ms += ms;
                }
                if now.span.to_ms >= to_ms {
                    break;
                }
            }
            let Some(next) = self.pieces.next() else { break };
            self.take(day, next);
        }
        let mut average = Levels::default();
        if known_ms > 0 {
            average.add(levels, 1.0 / known_ms as f64);
        }
        average
    }

    fn take(&mut self, day: &Day, piece: Piece) {
        if piece.by != self.by {
            (self.by, self.since_ms) = (piece.by, piece.span.from_ms);
            self.load = load_of_piece(day, self.unit, &piece);
        }
        self.now = Some(piece);
    }

    /// Its process now, with its memory.
    fn process(&self, day: &Day, tick_ms: i64) -> Option<(RunningProcess, i64)> {
        let now = self.now.filter(|now| now.doing.has_process())?;
        let job = now.by.map(|by| day.jobs[by.job].id.clone());
        let pid = match now.by {
            Some(by) => 10_000 + (by.job * 64 + by.attempt * 16) as u32 + by.rank % 16,
            None => 99_999,
        };
        let loaded = if now.doing == Doing::Load { 0.4 } else { 1.0 };
        let grown = self.load.growth * (tick_ms - self.since_ms) / 3_600_000;
        let bytes = (self.load.memory_bytes as f64 * self.memory_share * loaded) as i64 + grown;
        let process = RunningProcess {
            pid,
            kind: Kind::Compute,
            memory_bytes: Some(bytes.unsigned_abs()),
            name: Some("python".into()),
            job_id: job,
        };
        Some((process, bytes))
    }
}
