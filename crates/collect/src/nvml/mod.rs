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

mod device;
mod driver_call;
mod emit;
mod events;
mod fields;
mod gpm;
mod gpu;
mod metrics;
mod mig;
mod options;
mod processes;
mod session;
mod shared;
mod slot;
mod supervisor;

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

pub use self::metrics::{GPU_METRICS, INSTANCE_METRICS};
pub use self::options::{NvmlOptions, NvmlSourceError, NvmlStatus};

use self::emit::Emitter;
use self::session::{LOADING_STACK, STACK};
use self::shared::{Shared, locked};
use crate::reading::Sink;
use crate::ticker::Clock;
use crate::xid::{Join, KernelLog, LogPosition, kernel_log_readable};

/// How long the end of the source is waited for: longer than the session's own wait for its
/// threads.
const STOP: Duration = Duration::from_secs(5);

/// A running source. Dropping it stops it.
pub struct NvmlSource {
    shared: Arc<Shared>,
    ticks: Option<JoinHandle<()>>,
    /// Closed when the thread that keeps the library running has ended.
    supervisor: Option<Mutex<Receiver<()>>>,
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
        committed: Mutex::new(LogPosition::open(options.xid.position.clone())),
        emitter: Emitter { sink },
        clock: Clock::default(),
        slots: Mutex::new(Arc::from([])),
        status: Mutex::default(),
        options,
    });
    // Before the first event of NVML, which must wait for its line.
    shared.xids.kernel_reads(
        shared.options.xid.kernel_log.as_deref().is_some_and(|log| kernel_log_readable(log).is_ok()),
    );
    let mut source = NvmlSource {
        shared: Arc::clone(&shared),
        ticks: None,
        supervisor: None,
        kernel_log: None,
        xids: None,
    };
    let (ready, started) = sync_channel(1);
    let supervised = Arc::clone(&shared);
    let (alive, ended) = sync_channel::<()>(0);
    thread::Builder::new().name("gpu-keeper".into()).stack_size(LOADING_STACK).spawn(move || {
        supervisor::run_sessions(&supervised, &ready);
        drop(alive);
    })?;
    match started.recv_timeout(timeout) {
        Ok(started) => started?,
        // The thread hangs in the driver: it is left behind.
        Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
            return Err(NvmlSourceError::Hangs { seconds: timeout.as_secs() });
        }
    }
    source.supervisor = Some(Mutex::new(ended));
    source.kernel_log = read_kernel_log(&shared);
    let watch = Arc::clone(&shared);
    let ticks = thread::Builder::new().name("gpu-ticks".into()).stack_size(STACK).spawn(move || {
        let (interval, stale_after) = (watch.options.interval, watch.options.stale_after);
        watch.clock.run(interval, stale_after + interval * 4, |now| {
            for slot in watch.slots().iter() {
                slot.watch(now, stale_after, &watch.clock, &watch.emitter);
            }
            if watch.xids.is_due(Instant::now()) {
                watch.clock.wake();
            }
        });
    })?;
    source.ticks = Some(ticks);
    let committed = Arc::clone(&shared);
    let xids = thread::Builder::new().name("xids".into()).stack_size(STACK).spawn(move || {
        loop {
            committed.emit_xids(false);
            // What the disk did not take is tried again with the next one, or after this time.
            if !committed.clock.wait_for(Duration::from_secs(600), || committed.xids.is_due(Instant::now())) {
                return committed.emit_xids(true);
            }
        }
    })?;
    source.xids = Some(xids);
    Ok(source)
}

fn read_kernel_log(shared: &Arc<Shared>) -> Option<KernelLog> {
    let path = shared.options.xid.kernel_log.clone()?;
    let committed = Arc::clone(shared);
    let after = locked(&shared.committed).after();
    match KernelLog::start(&path, after, move |report, at_ms, record| {
        committed.kernel_reports(report, at_ms, record);
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

    /// Stops it and tells what is still to be committed, within a second. Threads that hang in the
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
        if let Some(ended) = self.supervisor.take()
            && locked(&ended).recv_timeout(STOP) == Err(RecvTimeoutError::Timeout)
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
