//! The thread of one GPU: reads it and its MIG instances at each tick.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nvml_wrapper::Device as Handle;
use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enum_wrappers::nv_link::ErrorCounter;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::NVML_FI_DEV_NVLINK_LINK_COUNT;
use tidegate_events::v1::NodeEventKind;

use super::driver_call::{Answer, Call, DriverError, RefusalCache, ppm, set_memory, value};
use super::fields::{FAST, FieldSet, ONE_LINK, SLOW};
use super::gpm::{self, Gpm};
use super::mig::{Instance, Instances};
use super::options::NvmlOptions;
use super::processes::Processes;
use super::session::Session;
use super::shared::Shared;
use super::slot::Slot;
use crate::reading::{Metric, MissingReason, Reading, Value};
use crate::ticker::Tick;

/// Runs until the session ends.
pub(super) fn run(shared: &Shared, session: &Session, slot: &Arc<Slot>) {
    slot.doing(Call::Find);
    let handle = match session.nvml.device_by_index(slot.gpu.device.index) {
        Ok(handle) => handle,
        Err(error) => {
            lose(shared, slot, &error.to_string());
            return wait_lost(shared, session, slot);
        }
    };
    let mut gpu = Gpu::new(shared, session, slot, &handle);
    slot.doing(Call::Idle);
    let mut last = shared.clock.last();
    let mut last_rescan = Instant::now();
    while let Some(tick) = shared.clock.wait_after(last, &session.over) {
        last = tick.number;
        slot.skip(&tick, &shared.clock).into_iter().for_each(|r| shared.emitter.reading(r));
        let lost = slot.is_lost();
        if lost && last_rescan.elapsed() >= shared.options.rescan_every {
            last_rescan = Instant::now();
            if handle.uuid().and_then(|_| handle.temperature(TemperatureSensor::Gpu)).is_ok() {
                slot.set_lost(false);
                session.events_stale.store(true, Ordering::Release);
                shared.clock.wake();
                gpu.forget();
                shared.emitter.device(
                    &slot.gpu,
                    NodeEventKind::DeviceFound,
                    "the device answers again".into(),
                );
            }
        }
        let read =
            if slot.is_lost() { Ok(slot.missing(&tick, MissingReason::DeviceLost)) } else { gpu.read(&tick) };
        let readings = read.unwrap_or_else(|trouble| match trouble {
            DriverError::DeviceLost(why) => {
                lose(shared, slot, &why);
                last_rescan = Instant::now();
                slot.missing(&tick, MissingReason::DeviceLost)
            }
            DriverError::Driver(why) => {
                session.fails(shared, &why);
                slot.missing(&tick, MissingReason::Stale)
            }
        });
        if slot.finish(&tick, &shared.emitter) {
            readings.into_iter().for_each(|r| shared.emitter.reading(r));
            gpu.committed();
        }
    }
}

fn lose(shared: &Shared, slot: &Slot, why: &str) {
    slot.set_lost(true);
    shared.emitter.device(&slot.gpu, NodeEventKind::DeviceLost, why.into());
}

/// Emits `DEVICE_LOST` readings for a device without a handle, until a new session.
fn wait_lost(shared: &Shared, session: &Session, slot: &Slot) {
    let mut last = shared.clock.last();
    while let Some(tick) = shared.clock.wait_after(last, &session.over) {
        last = tick.number;
        let mut readings = slot.skip(&tick, &shared.clock);
        readings.extend(slot.missing(&tick, MissingReason::DeviceLost));
        if slot.finish(&tick, &shared.emitter) {
            readings.into_iter().for_each(|r| shared.emitter.reading(r));
        }
    }
}

struct Gpu<'a> {
    options: &'a NvmlOptions,
    session: &'a Session,
    shared: &'a Shared,
    slot: &'a Slot,
    handle: &'a Handle<'a>,
    refusals: RefusalCache,
    fast: FieldSet,
    slow: FieldSet,
    one_link: Option<FieldSet>,
    links: u32,
    has_gpm: bool,
    gpm: Gpm<'a>,
    instances: Instances<'a>,
    processes: Processes,
    /// Values of the last slow round, repeated until the next.
    carried: Reading,
    /// Times of the last emitted reading and of the one in progress.
    last_read: Option<Instant>,
    this_read: Option<Instant>,
    /// Tick numbers of the next slow rounds.
    slow_at: u64,
    processes_at: u64,
}

impl<'a> Gpu<'a> {
    fn new(shared: &'a Shared, session: &'a Session, slot: &'a Slot, handle: &'a Handle<'a>) -> Self {
        slot.doing(Call::GpmSupport);
        let has_gpm = handle.gpm_support().unwrap_or(false);
        let now = Instant::now();
        let mut gpm = Gpm::default();
        if has_gpm {
            slot.doing(Call::Gpm);
            gpm.prime(now, || handle.gpm_sample());
        }
        slot.doing(Call::NvlinkErrors);
        let links = link_count(handle);
        Self {
            options: &shared.options,
            session,
            shared,
            slot,
            handle,
            refusals: RefusalCache::default(),
            fast: FieldSet::new(Call::Fields, FAST),
            slow: FieldSet::new(Call::SlowFields, SLOW),
            one_link: (links == 1).then(|| FieldSet::new(Call::Fields, ONE_LINK)),
            links,
            has_gpm,
            gpm,
            instances: Instances::default(),
            processes: Processes::default(),
            carried: Reading::new(Arc::clone(&slot.gpu.device), 0),
            last_read: None,
            this_read: None,
            slow_at: 0,
            processes_at: 0,
        }
    }

    /// Forgets everything from before the device was lost.
    fn forget(&mut self) {
        self.refusals = RefusalCache::default();
        self.gpm = Gpm::default();
        (self.last_read, self.this_read) = (None, None);
        (self.slow_at, self.processes_at) = (0, 0);
    }

    /// Number of ticks in a time, at least one.
    fn ticks_in(&self, time: Duration) -> u64 {
        let ticks = time.as_millis() / self.options.interval.as_millis().max(1);
        u64::try_from(ticks).unwrap_or(u64::MAX >> 1).max(1)
    }

    /// Marks the reading as emitted: the next averages begin where its own ended.
    fn committed(&mut self) {
        self.last_read = self.this_read.take().or(self.last_read);
        self.gpm.committed();
        self.instances.all.iter_mut().for_each(Instance::committed);
    }

    fn doing(&self) -> impl Fn(Call) + use<'a> {
        let slot = self.slot;
        move |call| slot.doing(call)
    }

    /// Reads the device and its instances at a tick.
    fn read(&mut self, tick: &Tick) -> Result<Vec<Reading>, DriverError> {
        let now = Instant::now();
        if tick.number >= self.slow_at
            || self.session.layout_changed.load(Ordering::Acquire) > self.layout_version()
        {
            self.refresh_layout(now)?;
        }
        if tick.number >= self.slow_at {
            self.read_slow(now)?;
            self.slow_at = tick.number + self.ticks_in(self.options.slow_every);
        }
        if tick.number >= self.processes_at {
            self.list_processes(now)?;
            self.processes_at = tick.number + self.ticks_in(self.options.processes_every);
        }
        let mut reading = Reading::new(Arc::clone(&self.slot.gpu.device), tick.ms);
        let interval = self.last_read.map(|last| now.saturating_duration_since(last));
        self.this_read = Some(now);
        let interval = value(interval.map(|i| i.as_micros()).ok_or(MissingReason::Unspecified));
        reading.set(Metric::Interval, interval);
        self.read_fast(now, &mut reading)?;
        self.read_gpm(&mut reading)?;
        for metric in CARRIED {
            reading.set(*metric, self.carried.get(*metric));
        }
        if self.instances.all.is_empty() {
            reading.processes.clone_from(&self.processes.list);
        }
        let mut readings = Vec::with_capacity(1 + self.instances.all.len());
        readings.push(reading);
        for instance in &mut self.instances.all {
            self.slot.doing(Call::Memory);
            let mut reading = Reading::new(Arc::clone(&instance.device), tick.ms);
            reading.set(Metric::Interval, interval);
            let now = Instant::now();
            readings.push(instance.read(&self.session.nvml, self.handle, self.has_gpm, reading, now)?);
        }
        Ok(readings)
    }

    fn read_fast(&mut self, now: Instant, reading: &mut Reading) -> Result<(), DriverError> {
        let d = self.handle;
        let rates = self.call(Call::Utilization, now, || d.utilization_rates())?;
        reading.set(Metric::GpuUtil, ppm(rates.as_ref().map(|r| r.gpu).map_err(|e| *e)));
        reading.set(Metric::MemoryUtil, ppm(rates.map(|r| r.memory)));
        let memory = self.call(Call::Memory, now, || d.memory_info())?;
        set_memory(reading, memory);
        reading.set(Metric::Power, value(self.call(Call::Power, now, || d.power_usage())?));
        let temperature = self.call(Call::Temperature, now, || d.temperature(TemperatureSensor::Gpu))?;
        reading.set(Metric::GpuTemp, value(temperature));
        reading.set(Metric::SmClock, value(self.call(Call::SmClock, now, || d.clock_info(Clock::SM))?));
        reading.set(
            Metric::MemoryClock,
            value(self.call(Call::MemoryClock, now, || d.clock_info(Clock::Memory))?),
        );
        // nvml-wrapper drops bits that it does not know.
        let reasons = self.call(Call::Throttle, now, || d.current_throttle_reasons())?;
        reading.set(Metric::ThrottleReasons, value(reasons.map(|r| r.bits())));
        let encoder = self.call(Call::Encoder, now, || d.encoder_utilization())?;
        reading.set(Metric::EncoderUtil, ppm(encoder.map(|u| u.utilization)));
        let decoder = self.call(Call::Decoder, now, || d.decoder_utilization())?;
        reading.set(Metric::DecoderUtil, ppm(decoder.map(|u| u.utilization)));
        self.slot.doing(Call::Fields);
        self.fast.read(d, &mut self.refusals, now, reading)?;
        match &mut self.one_link {
            Some(fields) => drop(fields.read(d, &mut self.refusals, now, reading)?),
            None => [Metric::NvlinkTx, Metric::NvlinkRx]
                .map(|metric| reading.set(metric, Value::Missing(MissingReason::NotSupported)))
                .into_iter()
                .collect(),
        }
        Ok(())
    }

    fn read_gpm(&mut self, reading: &mut Reading) -> Result<(), DriverError> {
        if !self.has_gpm {
            gpm::metrics()
                .for_each(|metric| reading.set(metric, Value::Missing(MissingReason::NotSupported)));
            return Ok(());
        }
        self.slot.doing(Call::Gpm);
        let handle = self.handle;
        self.gpm.read(&self.session.nvml, &mut self.refusals, Instant::now(), reading, || handle.gpm_sample())
    }

    /// Reads slowly changing values.
    fn read_slow(&mut self, now: Instant) -> Result<(), DriverError> {
        let d = self.handle;
        let mut carried = Reading::new(Arc::clone(&self.slot.gpu.device), 0);
        self.slot.doing(Call::SlowFields);
        self.slow.read(d, &mut self.refusals, now, &mut carried)?;
        let by_link = self.links > 0 && matches!(carried.get(Metric::NvlinkErrors), Value::Missing(_));
        if by_link {
            let links = self.links;
            let errors = self.call(Call::NvlinkErrors, now, || link_errors(d, links))?;
            carried.set(Metric::NvlinkErrors, value(errors));
        }
        for (metric, call, kind) in [
            (Metric::EccCorrected, Call::EccCorrected, MemoryError::Corrected),
            (Metric::EccUncorrected, Call::EccUncorrected, MemoryError::Uncorrected),
        ] {
            let count = self.call(call, now, || d.total_ecc_errors(kind, EccCounter::Volatile))?;
            carried.set(metric, value(count));
        }
        carried
            .set(Metric::PowerLimit, value(self.call(Call::PowerLimit, now, || d.enforced_power_limit())?));
        let clock = self.call(Call::SmClockMax, now, || d.max_clock_info(Clock::SM))?;
        carried.set(Metric::SmClockMax, value(clock));
        let clock = self.call(Call::MemoryClockMax, now, || d.max_clock_info(Clock::Memory))?;
        carried.set(Metric::MemoryClockMax, value(clock));
        for metric in [Metric::Processes, Metric::ProcessMemory] {
            carried.set(metric, self.carried.get(metric));
        }
        self.carried = carried;
        Ok(())
    }

    fn list_processes(&mut self, now: Instant) -> Result<(), DriverError> {
        let root = &self.options.proc_root;
        let doing = self.doing();
        for instance in &mut self.instances.all {
            instance.list(now, root, &doing)?;
        }
        let (count, memory) = if self.instances.all.is_empty() {
            self.processes.read(self.handle, &mut self.refusals, now, root, &doing)?;
            (self.processes.count, self.processes.memory)
        } else {
            // Processes belong to the readings of instances; the GPU gets the sums.
            (self.instances.sum(|p| p.count), self.instances.sum(|p| p.memory))
        };
        self.carried.set(Metric::Processes, count);
        self.carried.set(Metric::ProcessMemory, memory);
        Ok(())
    }

    fn layout_version(&self) -> u64 {
        self.instances.version
    }

    fn refresh_layout(&mut self, now: Instant) -> Result<(), DriverError> {
        self.instances.version = self.session.layout_changed.load(Ordering::Acquire);
        let doing = self.doing();
        let root = &self.options.proc_root;
        let changed = self.instances.refresh(
            self.handle,
            &self.slot.gpu.device,
            &mut self.refusals,
            now,
            root,
            doing,
        )?;
        if let Some(description) = changed {
            self.slot.set_instances(self.instances.all.iter().map(|i| Arc::clone(&i.device)).collect());
            self.shared.emitter.device(&self.slot.gpu, NodeEventKind::MigChanged, description);
            self.processes_at = 0;
        }
        Ok(())
    }

    fn call<T>(
        &mut self,
        call: Call,
        now: Instant,
        request: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<Answer<T>, DriverError> {
        self.slot.doing(call);
        self.refusals.call(call, now, request)
    }
}

/// Metrics of the slow rounds, at most `slow_every` old at their tick.
const CARRIED: &[Metric] = &[
    Metric::PcieReplay,
    Metric::RemappedRows,
    Metric::RemappedRowsPending,
    Metric::RemappedRowsFailed,
    Metric::RetiredPages,
    Metric::RecoveryAction,
    Metric::NvlinkErrors,
    Metric::EccCorrected,
    Metric::EccUncorrected,
    Metric::PowerLimit,
    Metric::SmClockMax,
    Metric::MemoryClockMax,
    Metric::Processes,
    Metric::ProcessMemory,
];

/// Number of NVLinks; 0 if the driver does not say.
fn link_count(device: &Handle<'_>) -> u32 {
    let answers = device.field_values_for(&[FieldId(NVML_FI_DEV_NVLINK_LINK_COUNT)]);
    match answers.ok().and_then(|mut a| a.pop()?.ok()?.value.ok()) {
        Some(SampleValue::U32(count)) => count,
        Some(SampleValue::U64(count)) => u32::try_from(count).unwrap_or(0),
        _ => 0,
    }
}

/// Sum of the errors of all links, read link by link.
fn link_errors(device: &Handle<'_>, links: u32) -> Result<u64, NvmlError> {
    let counters =
        [ErrorCounter::DlReplay, ErrorCounter::DlRecovery, ErrorCounter::DlCrcFlit, ErrorCounter::DlCrcData];
    let mut sum = 0u64;
    for link in 0..links {
        for counter in counters.iter().copied() {
            sum = sum.saturating_add(device.link_wrapper_for(link).error_counter(counter)?);
        }
    }
    Ok(sum)
}
