//! Encodes readings as a `GpuSampleBatch`: delta columns, runs of missing values, runs of
//! processes.

use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo, Missing, Process};
use tidegate_events::v1::{Envelope, GpuSampleBatch};

use crate::counters::{LastCounters, is_same};
use crate::{Device, Metric, MissingReason, Reading, RunningProcess, Value};

/// Readings by device and tick.
struct Grid<'a> {
    devices: Vec<&'a Device>,
    ticks_ms: Vec<i64>,
    /// Device-major; `None` where a device has no reading at a tick of the others.
    cells: Vec<Option<&'a Reading>>,
}

impl<'a> Grid<'a> {
    fn new(readings: &'a [Reading]) -> Self {
        let mut devices: Vec<&Device> = Vec::new();
        for reading in readings {
            if !devices.iter().any(|device| is_same(device, &reading.device)) {
                devices.push(&reading.device);
            }
        }
        devices.sort_by_key(|device| (device.index, &device.mig_uuid, &device.uuid));
        let mut ticks_ms: Vec<i64> = readings.iter().map(|reading| reading.tick_ms).collect();
        ticks_ms.sort_unstable();
        ticks_ms.dedup();
        let mut cells = vec![None; devices.len() * ticks_ms.len()];
        for reading in readings {
            let device = devices.iter().position(|device| is_same(device, &reading.device));
            if let (Some(device), Ok(tick)) = (device, ticks_ms.binary_search(&reading.tick_ms)) {
                cells[device * ticks_ms.len() + tick] = Some(reading);
            }
        }
        Self { devices, ticks_ms, cells }
    }

    /// The cells of each device.
    fn rows(&self) -> impl Iterator<Item = &[Option<&'a Reading>]> {
        self.cells.chunks(self.ticks_ms.len())
    }
}

/// Encodes all readings (at least one) as one batch. The envelope holds the time of the first tick;
/// cluster, source and node are left empty. `last_counters` holds the counters of the batch before,
/// and is updated.
pub fn batch(mut readings: Vec<Reading>, counted: &mut LastCounters) -> GpuSampleBatch {
    readings.sort_by_key(|reading| reading.tick_ms);
    let grid = Grid::new(&readings);
    let first_tick_ms = grid.ticks_ms.first().copied().unwrap_or_default();
    let device = |device: &&Device| DeviceInfo {
        uuid: device.uuid.clone(),
        index: device.index,
        model: device.model.clone(),
        mig_uuid: device.mig_uuid.clone(),
    };
    let batch = GpuSampleBatch {
        envelope: Some(Envelope { event_time_ms: first_tick_ms, ..Default::default() }),
        node: String::new(),
        devices: grid.devices.iter().map(device).collect(),
        first_tick_ms,
        tick_delta_ms: grid.ticks_ms.windows(2).map(|pair| pair[1] - pair[0]).collect(),
        columns: Metric::ALL.iter().filter_map(|metric| column(&grid, *metric, counted)).collect(),
        processes: processes(&grid),
    };
    counted.note(&readings);
    batch
}

/// The column of a metric, if any device was asked for it.
fn column(grid: &Grid<'_>, metric: Metric, counted: &LastCounters) -> Option<Column> {
    let asked = |cell: &Option<&Reading>| cell.is_some_and(|reading| reading.get(metric) != Value::NotAsked);
    if !grid.cells.iter().any(asked) {
        return None;
    }
    let mut value_delta = Vec::with_capacity(grid.cells.len());
    let mut missing: Vec<Missing> = Vec::new();
    for row in grid.rows() {
        let mut before = 0_i64;
        for cell in row {
            let reason = match cell.map_or(Value::Missing(MissingReason::Stale), |cell| cell.get(metric)) {
                Value::Is(value) => {
                    value_delta.push(value.wrapping_sub(before));
                    before = value;
                    continue;
                }
                Value::Missing(reason) => reason,
                // Only another device of the node was asked for it.
                Value::NotAsked => MissingReason::NotSupported,
            };
            add_missing(&mut missing, value_delta.len() as u32, reason);
            value_delta.push(0);
        }
    }
    let growth = |(device, row): (&&Device, &[Option<&Reading>])| counted.growth(device, metric, row[0]);
    let first_growth = match metric.is_counter() {
        true => grid.devices.iter().zip(grid.rows()).map(growth).collect(),
        false => Vec::new(),
    };
    Some(Column { name: metric.name().into(), value_delta, missing, first_growth })
}

fn add_missing(runs: &mut Vec<Missing>, at: u32, reason: MissingReason) {
    match runs.last_mut() {
        Some(run) if run.first + run.count == at && run.reason == i32::from(reason) => run.count += 1,
        _ => runs.push(Missing { first: at, count: 1, reason: reason.into() }),
    }
}

/// Processes as runs of ticks. A run ends where the device has no reading, because nothing is known
/// of that tick.
fn processes(grid: &Grid<'_>) -> Vec<Process> {
    let mut runs: Vec<Process> = Vec::new();
    for (device, row) in (0_u32..).zip(grid.rows()) {
        let of_device = runs.len();
        for (tick, cell) in (0_u32..).zip(row) {
            for seen in cell.iter().flat_map(|reading| &reading.processes) {
                let open =
                    runs[of_device..].iter_mut().find(|run| run.last_tick + 1 == tick && goes_on(run, seen));
                match open {
                    Some(run) => {
                        run.last_tick = tick;
                        run.memory_bytes = run.memory_bytes.max(seen.memory_bytes);
                    }
                    None => runs.push(Process {
                        device,
                        first_tick: tick,
                        last_tick: tick,
                        pid: seen.pid,
                        memory_bytes: seen.memory_bytes,
                        name: seen.name.clone(),
                        job_id: seen.job_id.clone(),
                        kind: seen.kind.into(),
                    }),
                }
            }
        }
    }
    runs
}

fn goes_on(run: &Process, seen: &RunningProcess) -> bool {
    (run.pid, run.kind) == (seen.pid, i32::from(seen.kind))
        && (&run.name, &run.job_id) == (&seen.name, &seen.job_id)
}
