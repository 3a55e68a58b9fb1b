//! GPUs as NVIDIA's management library (NVML) shows them: readings at common ticks, XIDs and what
//! else happens to devices.
//!
//! [`start`] begins a thread for each GPU, one that makes ticks and watches over the others, one
//! that keeps the library running, one that waits for NVML's events and one that reads the kernel's
//! log. All calls of the driver may hang; none is made on a thread that others wait for.
//!
//! # What a reading says
//!
//! At each tick, a whole interval of the wall clock, every device that was found and is not gone
//! has exactly one reading, and so has each of its MIG instances. Values are read after the tick,
//! normally within milliseconds. Each metric of [`GPU_METRICS`] is a number or the reason why there
//! is none:
//!
//! - `NOT_SUPPORTED`, `NO_PERMISSION`: the driver says so. It is asked again after 300 s and 60 s.
//! - `STALE`: the device was not read at this tick, because a call of the driver hangs, the thread
//!   was busy with an older tick, or the driver is being started again. The watchdog tells this in
//!   the thread's place, [`NvmlOptions::stale_after`] after the tick; other devices are read
//!   meanwhile. A device is `DEVICE_STALE` from the first such tick until `DEVICE_ANSWERS`.
//! - `DEVICE_LOST`: the device fell off the bus or must be reset. After `DEVICE_LOST` such readings
//!   go on until it is found again or the driver lists it no more.
//! - without a reason: the driver gave no usable answer. Also the averages of the first reading,
//!   which have no begin.
//!
//! GPM's ratios and rates are averages over `interval_us`, the time since the sample before, so
//! that value × interval adds up without gaps, also over a time in which the device was stale (up
//! to 600 s). `gpu_util_ppm`, `memory_util_ppm` and the encoder's and decoder's are averages over
//! the driver's own period of 1/6 to 1 s, and `power_mw` over about 1 s on recent models: what lies
//! between two readings they miss; `energy_mj` does not.
//!
//! Some values are read less often and carried until then, never longer than this: ECC counters,
//! remapped rows, retired pages, PCIe replays, NVLink errors, the recovery action, the power limit
//! and the maximum clocks [`NvmlOptions::slow_every`]; processes [`NvmlOptions::processes_every`].
//!
//! # Counters
//!
//! Counters are what the driver says, never corrected. A counter that is lower than before was
//! reset: the driver was loaded anew, the GPU was reset, or (PCIe bytes) it wrapped; what happened
//! in between is not known, and only growing pairs have a difference. `DRIVER_CHANGED` and
//! `DEVICE_FOUND` say when. PCIe byte counters that the driver keeps in 32 bits wrap several times
//! a second and are missing as not supported; GPM's rates are there instead. Bytes over NVLink are
//! read where there is one link; over several, nvml-wrapper cannot ask for their sum, and GPM's
//! rates are there instead. `xid_code` is not set: XIDs are events.
//!
//! # Cost
//!
//! At each tick, 14 calls of the driver a device on Hopper (GPM takes 4 of them), 10 without GPM;
//! every 10 s 7 more (and 72 where NVLink errors must be asked link by link), every 5 s 3 to 6 for
//! processes.

mod ask;
mod device;
mod events;
mod fields;
mod gpm;
mod mig;
mod processes;
mod session;
mod slot;
mod tell;

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use self::session::{LOADING_STACK, STACK, locked};
use self::slot::Slot;
use self::tell::{Teller, xid_event};
use crate::reading::{Metric, Sink};
use crate::ticker::Clock;
use crate::xid::{
    Join, KernelLog, KernelReport, Occurrence, PciAddress, Told, XidOptions, kernel_log_readable,
};

/// What every reading of a GPU holds, as a value or as missing.
pub const GPU_METRICS: &[Metric] = {
    use Metric::*;
    &[
        Interval,
        GpuUtil,
        MemoryUtil,
        GraphicsActive,
        SmActive,
        SmOccupancy,
        TensorActive,
        TensorHmmaActive,
        TensorImmaActive,
        TensorDfmaActive,
        Fp64Active,
        Fp32Active,
        Fp16Active,
        IntActive,
        DramActive,
        EncoderUtil,
        DecoderUtil,
        Power,
        PowerLimit,
        Energy,
        GpuTemp,
        MemoryTemp,
        SmClock,
        SmClockMax,
        MemoryClock,
        MemoryClockMax,
        ThrottleReasons,
        PowerThrottled,
        ThermalThrottled,
        PowerCapThrottled,
        SyncBoostThrottled,
        BoardLimitThrottled,
        ReliabilityThrottled,
        SwThermalThrottled,
        HwThermalThrottled,
        PowerBrakeThrottled,
        FramebufferUsed,
        FramebufferReserved,
        FramebufferTotal,
        PcieTx,
        PcieRx,
        PcieReplay,
        NvlinkTx,
        NvlinkRx,
        NvlinkErrors,
        PcieTxRate,
        PcieRxRate,
        NvlinkTxRate,
        NvlinkRxRate,
        EccCorrected,
        EccUncorrected,
        RemappedRows,
        RemappedRowsPending,
        RemappedRowsFailed,
        RetiredPages,
        RecoveryAction,
        Processes,
        ProcessMemory,
    ]
};

/// What every reading of a MIG instance holds. The rest is of the whole GPU.
pub const INSTANCE_METRICS: &[Metric] = {
    use Metric::*;
    &[
        Interval,
        GraphicsActive,
        SmActive,
        SmOccupancy,
        TensorActive,
        TensorHmmaActive,
        TensorImmaActive,
        TensorDfmaActive,
        Fp64Active,
        Fp32Active,
        Fp16Active,
        IntActive,
        DramActive,
        FramebufferUsed,
        FramebufferReserved,
        FramebufferTotal,
        PcieTxRate,
        PcieRxRate,
        NvlinkTxRate,
        NvlinkRxRate,
        Processes,
        ProcessMemory,
        MigSlices,
    ]
};

/// How the source works. The defaults are right for a node in production.
#[derive(Debug, Clone)]
pub struct NvmlOptions {
    /// Path of the library; by default `libnvidia-ml.so.1` where the system's loader finds it.
    pub lib_path: Option<PathBuf>,
    /// Time between two ticks; at least 100 ms, which GPM needs.
    pub interval: Duration,
    /// A tick that a device has not answered for so long is told of as stale.
    pub stale_after: Duration,
    /// How often values that change seldom are read.
    pub slow_every: Duration,
    /// How often processes are listed.
    pub processes_every: Duration,
    /// How often lost devices, new ones, and a driver that does not start are looked for.
    pub look_again: Duration,
    /// A lost device that does not come back by itself makes the library start anew after this,
    /// then after twice as long, up to an hour. All devices miss some ticks then.
    pub reopen_after: Duration,
    /// How long [`start`] waits for the driver.
    pub start_timeout: Duration,
    pub xid: XidOptions,
    /// Where process names and the driver's lists are; `/proc` but in tests.
    pub proc_root: PathBuf,
}

impl Default for NvmlOptions {
    fn default() -> Self {
        Self {
            lib_path: None,
            interval: Duration::from_secs(1),
            stale_after: Duration::from_secs(5),
            slow_every: Duration::from_secs(10),
            processes_every: Duration::from_secs(5),
            look_again: Duration::from_secs(10),
            reopen_after: Duration::from_secs(60),
            start_timeout: Duration::from_secs(60),
            xid: XidOptions::default(),
            proc_root: "/proc".into(),
        }
    }
}

/// Why the source did not start.
#[derive(Debug, thiserror::Error)]
pub enum NvmlSourceError {
    #[error(
        "cannot load {library}: {reason}; install NVIDIA's driver on this node, or name its library with --nvml-lib"
    )]
    NoLibrary { library: String, reason: String },
    #[error(
        "{library} does not start: {reason}; see whether nvidia-smi works and the driver's kernel module is loaded"
    )]
    NoDriver { library: String, reason: String },
    #[error("the driver does not tell {what}: {reason}; see whether nvidia-smi works")]
    Refused { what: &'static str, reason: String },
    #[error(
        "the driver has not started after {seconds} s; a GPU may be wedged: see the kernel's log for NVRM lines"
    )]
    Hangs { seconds: u64 },
    #[error("an interval of {0:?} is too short: GPM needs 100 ms")]
    Interval(Duration),
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// What the source sees at the moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NvmlStatus {
    pub devices: usize,
    pub lost: usize,
    pub stale: usize,
    pub driver_version: Option<String>,
    /// Whether the kernel's log is read, and if not, why.
    pub kernel_log: Option<String>,
    pub kernel_log_read: bool,
    /// Records that the kernel overwrote before they were read.
    pub kernel_records_lost: u64,
}

/// How long the end of the source is waited for: longer than the session's own wait for its
/// threads.
const STOP: Duration = Duration::from_secs(5);

/// What all threads share.
struct Shared {
    options: NvmlOptions,
    teller: Teller,
    clock: Clock,
    slots: Mutex<Arc<[Arc<Slot>]>>,
    xids: Join,
    told: Mutex<Told>,
    status: Mutex<NvmlStatus>,
}

impl Shared {
    fn slots(&self) -> Arc<[Arc<Slot>]> {
        Arc::clone(&locked(&self.slots))
    }

    fn status(&self) -> std::sync::MutexGuard<'_, NvmlStatus> {
        locked(&self.status)
    }

    /// The devices of a new session. Each tick is told of by the old slot of a device or by the new
    /// one, not by both.
    fn replace(&self, slots: &[Arc<Slot>], version: &str) {
        let mut current = locked(&self.slots);
        let last = self.clock.last();
        current.iter().for_each(|slot| slot.close(last, &self.clock, &self.teller));
        for slot in slots {
            slot.begin_after(last);
            if let Some(before) = current.iter().find(|before| before.gpu.uuid == slot.gpu.uuid) {
                slot.follow(before);
            }
        }
        *current = slots.into();
        drop(current);
        let mut status = self.status();
        status.devices = slots.len();
        status.driver_version = Some(version.into());
    }

    fn slot_at(&self, pci: Option<PciAddress>) -> Option<Arc<Slot>> {
        let pci = pci?.to_string();
        self.slots().iter().find(|slot| slot.pci == pci).cloned()
    }

    /// Tells of XIDs that are known well enough; `all` at the end. It waits for the disk.
    fn tell_xids(&self, all: bool) {
        let mut told = locked(&self.told);
        let due = self.xids.due(Instant::now(), all);
        let event = |(occurrence, evidence): &(Occurrence, &str)| {
            xid_event(self.slot_at(occurrence.pci).as_deref(), occurrence, evidence)
        };
        let record = due.iter().filter_map(|(occurrence, _)| occurrence.record).max();
        told.tell(due.iter().map(event).collect(), record, &*self.teller.sink);
    }

    /// A report of the kernel's log.
    fn kernel_reports(&self, report: KernelReport, at_ms: i64, record: Option<u64>) {
        let occurrence = Occurrence {
            code: report.code,
            pci: Some(report.pci),
            gpu_instance: report.gpu_instance,
            pid: report.pid,
            process: report.process,
            text: Some(report.text),
            at_ms,
            record,
            switch: report.switch,
        };
        self.xids.kernel(occurrence, Instant::now());
        self.clock.wake();
    }
}

/// A running source. Dropping it stops it.
pub struct NvmlSource {
    shared: Arc<Shared>,
    ticks: Option<JoinHandle<()>>,
    /// Closed when the thread that keeps the library running has ended.
    keeper: Option<Mutex<Receiver<()>>>,
    kernel_log: Option<KernelLog>,
    /// Tells of XIDs: it waits for the disk, and nobody is to wait for it.
    xids: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for NvmlSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmlSource").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// Starts to read all GPUs of this node and to tell the sink.
///
/// # Errors
/// [`NvmlSourceError`] if there is no driver, it does not start in time, or a thread cannot be
/// started. That the kernel's log cannot be read is no error: it is logged once and
/// [`NvmlSource::status`] says it.
pub fn start(options: NvmlOptions, sink: Arc<dyn Sink>) -> Result<NvmlSource, NvmlSourceError> {
    if options.interval < Duration::from_millis(100) {
        return Err(NvmlSourceError::Interval(options.interval));
    }
    let timeout = options.start_timeout;
    let shared = Arc::new(Shared {
        xids: Join::new(options.xid.window),
        told: Mutex::new(Told::open(options.xid.position.clone())),
        teller: Teller { sink },
        clock: Clock::default(),
        slots: Mutex::new(Arc::from([])),
        status: Mutex::default(),
        options,
    });
    // Before the first event of NVML, which must wait for its line.
    shared.xids.kernel_reads(
        shared.options.xid.kernel_log.as_deref().is_some_and(|log| kernel_log_readable(log).is_ok()),
    );
    let mut source =
        NvmlSource { shared: Arc::clone(&shared), ticks: None, keeper: None, kernel_log: None, xids: None };
    let (ready, started) = sync_channel(1);
    let keeper = Arc::clone(&shared);
    let (alive, ended) = sync_channel::<()>(0);
    thread::Builder::new().name("gpu-keeper".into()).stack_size(LOADING_STACK).spawn(move || {
        session::keep(&keeper, &ready);
        drop(alive);
    })?;
    match started.recv_timeout(timeout) {
        Ok(started) => started?,
        // The thread hangs in the driver: it is left behind.
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            return Err(NvmlSourceError::Hangs { seconds: timeout.as_secs() });
        }
    }
    source.keeper = Some(Mutex::new(ended));
    source.kernel_log = read_kernel_log(&shared);
    let watch = Arc::clone(&shared);
    let ticks = thread::Builder::new().name("gpu-ticks".into()).stack_size(STACK).spawn(move || {
        let (interval, stale_after) = (watch.options.interval, watch.options.stale_after);
        watch.clock.run(interval, stale_after + interval * 4, |now| {
            for slot in watch.slots().iter() {
                slot.watch(now, stale_after, &watch.clock, &watch.teller);
            }
            if watch.xids.is_due(Instant::now()) {
                watch.clock.wake();
            }
        });
    })?;
    source.ticks = Some(ticks);
    let told = Arc::clone(&shared);
    let xids = thread::Builder::new().name("xids".into()).stack_size(STACK).spawn(move || {
        loop {
            told.tell_xids(false);
            // What the disk did not take is tried again with the next one, or after this time.
            if !told.clock.wait_for(Duration::from_secs(600), || told.xids.is_due(Instant::now())) {
                return told.tell_xids(true);
            }
        }
    })?;
    source.xids = Some(xids);
    Ok(source)
}

fn read_kernel_log(shared: &Arc<Shared>) -> Option<KernelLog> {
    let path = shared.options.xid.kernel_log.clone()?;
    let told = Arc::clone(shared);
    let after = locked(&shared.told).after();
    match KernelLog::start(&path, after, move |report, at_ms, record| {
        told.kernel_reports(report, at_ms, record);
    }) {
        Ok(log) => {
            shared.status().kernel_log_read = true;
            Some(log)
        }
        Err(error) => {
            let why = format!("cannot read {}: {error}; XIDs come from NVML alone", path.display());
            tracing::warn!("{why}");
            shared.xids.kernel_reads(false);
            shared.status().kernel_log = Some(why);
            None
        }
    }
}

impl NvmlSource {
    /// What the source sees at the moment.
    pub fn status(&self) -> NvmlStatus {
        let slots = self.shared.slots();
        NvmlStatus {
            lost: slots.iter().filter(|slot| slot.is_lost()).count(),
            stale: slots.iter().filter(|slot| slot.is_stale()).count(),
            kernel_records_lost: self.kernel_log.as_ref().map_or(0, KernelLog::lost),
            ..self.shared.status().clone()
        }
    }

    /// Stops it and tells what is still to be told, within a second. Threads that hang in the
    /// driver are left behind after 5 s.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for NvmlSource {
    fn drop(&mut self) {
        self.shared.clock.stop();
        drop(self.kernel_log.take());
        // It may hang in the driver, and is left behind then.
        if let Some(keeper) = self.keeper.take()
            && locked(&keeper).recv_timeout(STOP) == Err(RecvTimeoutError::Timeout)
        {
            tracing::warn!("the driver does not return; its library is left as it is");
        }
        for thread in [self.ticks.take(), self.xids.take()].into_iter().flatten() {
            let name = thread.thread().name().unwrap_or_default().to_owned();
            if thread.join().is_err() {
                tracing::error!("thread {name} failed");
            }
        }
    }
}
