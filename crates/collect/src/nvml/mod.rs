//! GPUs through NVIDIA's management library (NVML): readings at common ticks, XIDs, and events of
//! devices.
//!
//! [`start`] begins one thread per GPU, one that publishes ticks and watches over the others, a
//! supervisor that keeps the library running, one that waits for NVML events, and one that reads
//! the kernel log. Every driver call may hang, so none is made on a thread that others wait for.
//!
//! # Readings
//!
//! At each tick, a multiple of the interval on the wall clock, every known device has exactly one
//! reading, and so has each of its MIG instances. Values are read after the tick, normally within
//! milliseconds. Each metric of [`GPU_METRICS`] is a number or the reason why there is none:
//!
//! - `NOT_SUPPORTED`, `NO_PERMISSION`: the driver's answer. It is asked again after 300 s and 60 s.
//! - `STALE`: the device was not read at this tick, because a driver call hangs, the thread was
//!   busy with an older tick, or the driver is restarting. The watchdog emits this reading in the
//!   thread's place, [`NvmlOptions::stale_after`] after the tick; other devices are read meanwhile.
//!   A device is `DEVICE_STALE` from the first such tick until `DEVICE_ANSWERS`.
//! - `DEVICE_LOST`: the device fell off the bus or must be reset. After the event `DEVICE_LOST`
//!   such readings continue until the device is found again or no longer listed by the driver.
//! - without a reason: the driver gave no usable answer. Averages of the first reading are among
//!   these, because their window has no start.
//!
//! GPM's ratios and rates are averages over `interval_us`, the time since the sample before. So
//! value × interval adds up without gaps, even across up to 600 s in which the device was stale.
//! `gpu_util_ppm`, `memory_util_ppm` and the encoder's and decoder's utilization are averages over
//! the driver's own period of 1/6 to 1 s, and `power_mw` over about 1 s on recent models. These
//! miss what lies between two readings; `energy_mj` does not.
//!
//! Some values are read less often and repeated in between. ECC counters, remapped rows, retired
//! pages, PCIe replays, NVLink errors, the recovery action, the power limit and the maximum clocks
//! are read every [`NvmlOptions::slow_every`], and processes every
//! [`NvmlOptions::processes_every`].
//!
//! # Counters
//!
//! Counters are the driver's, never corrected. A counter that decreased was reset: the driver was
//! reloaded, the GPU was reset, or (PCIe bytes) it wrapped. The growth in between is unknown, so
//! only increasing pairs have a difference; `DRIVER_CHANGED` and `DEVICE_FOUND` show when. PCIe
//! byte counters that the driver keeps in 32 bits wrap several times a second, so they are reported
//! as not supported and GPM's rates replace them. NVLink bytes are read only if there is one link:
//! nvml-wrapper cannot ask for the sum over several, so GPM's rates replace them too. `xid_code` is
//! never set: XIDs are events.
//!
//! # Cost
//!
//! At each tick, 14 driver calls per device on Hopper (GPM takes 4 of them), 10 without GPM. Every
//! 10 s 7 more (and 72 where NVLink errors must be read link by link), every 5 s 3 to 6 for
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

/// How long stopping waits for the supervisor: longer than a session waits for its threads.
const STOP: Duration = Duration::from_secs(5);

/// A running source. Dropping it stops it.
pub struct NvmlSource {
    shared: Arc<Shared>,
    ticks: Option<JoinHandle<()>>,
    /// Closed when the supervisor has ended.
    supervisor: Option<Mutex<Receiver<()>>>,
    kernel_log: Option<KernelLog>,
    /// Emits XIDs. Separate, because it waits for the disk.
    xids: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for NvmlSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NvmlSource").field("status", &self.status()).finish_non_exhaustive()
    }
}

/// Starts to read all GPUs of this node and to emit into the sink.
///
/// # Errors
/// [`NvmlSourceError`] if there is no driver, it does not start in time, or a thread cannot be
/// started. An unreadable kernel log is no error: it is logged once and shown by
/// [`NvmlSource::status`].
pub fn start(options: NvmlOptions, sink: Arc<dyn Sink>) -> Result<NvmlSource, NvmlSourceError> {
    if options.interval < Duration::from_millis(100) {
        return Err(NvmlSourceError::Interval(options.interval));
    }
    let timeout = options.start_timeout;
    let shared = Arc::new(Shared {
        xids: Join::new(options.xid.window),
        log_position: Mutex::new(LogPosition::open(options.xid.position.clone())),
        emitter: Emitter { sink },
        clock: Clock::default(),
        slots: Mutex::new(Arc::from([])),
        status: Mutex::default(),
        options,
    });
    // Set before the first NVML event, which must wait for its line.
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
    thread::Builder::new().name("gpu-supervisor".into()).stack_size(LOADING_STACK).spawn(move || {
        supervisor::run_sessions(&supervised, &ready);
        drop(alive);
    })?;
    match started.recv_timeout(timeout) {
        Ok(started) => started?,
        // The thread hangs in the driver and is left behind.
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
    let emitting = Arc::clone(&shared);
    let xids = thread::Builder::new().name("xids".into()).stack_size(STACK).spawn(move || {
        loop {
            emitting.emit_xids(false);
            // Events that the disk refused are retried with the next one, or after this time.
            if !emitting.clock.wait_for(Duration::from_secs(600), || emitting.xids.is_due(Instant::now())) {
                return emitting.emit_xids(true);
            }
        }
    })?;
    source.xids = Some(xids);
    Ok(source)
}

fn read_kernel_log(shared: &Arc<Shared>) -> Option<KernelLog> {
    let path = shared.options.xid.kernel_log.clone()?;
    let emitting = Arc::clone(shared);
    let after = locked(&shared.log_position).after();
    match KernelLog::start(&path, after, move |report, at_ms, record| {
        emitting.take_kernel_report(report, at_ms, record);
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
    /// Current state of the source.
    pub fn status(&self) -> NvmlStatus {
        let slots = self.shared.slots();
        NvmlStatus {
            lost: slots.iter().filter(|slot| slot.is_lost()).count(),
            stale: slots.iter().filter(|slot| slot.is_stale()).count(),
            kernel_records_lost: self.kernel_log.as_ref().map_or(0, KernelLog::lost),
            ..self.shared.status().clone()
        }
    }

    /// Stops the source and emits what is still pending, within a second. Threads that hang in the
    /// driver are left behind after 5 s.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for NvmlSource {
    fn drop(&mut self) {
        self.shared.clock.stop();
        drop(self.kernel_log.take());
        // The supervisor may hang in the driver; then it is left behind.
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
