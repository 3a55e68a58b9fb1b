//! One life of the driver's library in this process: from its start until the driver changes, a
//! device is plugged in or out, or a lost one is to be found again.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tidegate_events::v1::{NodeEvent, NodeEventKind};

use super::slot::Slot;
use super::{NvmlOptions, NvmlSourceError, Shared, device, events};
use crate::reading::Device;
use crate::ticker::wall_ms;
use crate::xid::PciAddress;

/// Stack of each thread. The largest structure of NVML is 8 KiB; the driver's own needs are not
/// documented.
pub(super) const STACK: usize = 256 << 10;
/// Stack of the thread that loads the library: its hundreds of symbols go through it by value.
pub(super) const LOADING_STACK: usize = 2 << 20;
/// Threads that hang in the driver are waited for this long before a new session begins without
/// them.
const JOIN: Duration = Duration::from_secs(3);
/// How often a driver that does not start is tried.
const RETRY: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// What the threads of a session share. Its `Nvml` ends, and the library is unloaded, when the last
/// of them does.
pub(super) struct Session {
    pub nvml: Nvml,
    pub over: AtomicBool,
    /// A device is back: events must be registered again.
    pub events_stale: AtomicBool,
    /// Grows when the driver says that MIG instances changed.
    pub layout_changed: AtomicU64,
    failed: AtomicBool,
    running: Arc<Running>,
}

/// How many threads a session has. Apart from the session, so that the last of them is counted
/// after it let go of it.
#[derive(Default)]
struct Running {
    count: Mutex<usize>,
    ended: Condvar,
}

impl Session {
    /// The driver does not work any more in this process: the session ends, and another is tried.
    pub(super) fn fails(&self, shared: &Shared, why: &str) {
        if self.failed.swap(true, Ordering::AcqRel) {
            return;
        }
        let event = NodeEvent {
            description: Some(format!("the driver's library was refused: {why}; it is started again")),
            evidence: Some("nvml".into()),
            driver_version: shared.status().driver_version.clone(),
            ..NodeEvent::default()
        };
        shared.teller.event(wall_ms(), NodeEventKind::DriverChanged, event);
        shared.clock.wake();
    }
}

/// A device as the driver lists it.
struct Found {
    device: Arc<Device>,
    pci: String,
}

/// What was known before a session began.
#[derive(Default)]
struct Known {
    devices: BTreeMap<String, Arc<Slot>>,
    /// Devices whose loss was told and that are not back.
    gone: BTreeSet<String>,
    /// Devices of the last NODE_REGISTERED.
    registered: BTreeSet<String>,
    version: Option<String>,
}

/// Keeps a session running, one after the other, until it is to stop. `ready` hears of the first.
pub(super) fn keep(shared: &Arc<Shared>, ready: &SyncSender<Result<(), NvmlSourceError>>) {
    let mut known = Known::default();
    let mut first = true;
    let mut pause = shared.options.reopen_after;
    loop {
        let begun = Instant::now();
        let opened = open(&shared.options);
        // Whoever started this may have given up meanwhile.
        if !shared.clock.wait_until(begun) {
            return;
        }
        match opened {
            Ok((nvml, found, version)) => {
                let any_back = run(shared, nvml, found, version, &mut known, first.then_some(ready), pause);
                pause = if any_back { shared.options.reopen_after } else { (pause * 2).min(LONGEST_PAUSE) };
                first = false;
            }
            Err(error) if first => {
                drop(ready.send(Err(error)));
                return;
            }
            Err(error) => tracing::debug!(%error, "the driver does not start yet"),
        }
        // A session that lasted is followed at once; what fails again and again is tried in a
        // while.
        if !shared.clock.wait_until(begun + RETRY.min(shared.options.look_again)) {
            return;
        }
    }
}

fn open(options: &NvmlOptions) -> Result<(Nvml, Vec<Found>, String), NvmlSourceError> {
    let mut builder = Nvml::builder();
    let path = options.lib_path.as_deref().map(Path::as_os_str);
    if let Some(path) = path {
        builder.lib_path(path);
    }
    let library = path.unwrap_or(OsStr::new("libnvidia-ml.so.1")).to_string_lossy().into_owned();
    let nvml = builder.init().map_err(|error| match error {
        NvmlError::LibloadingError(error) => {
            NvmlSourceError::NoLibrary { library, reason: error.to_string() }
        }
        error => NvmlSourceError::NoDriver { library, reason: error.to_string() },
    })?;
    let asking = |what: &'static str| {
        move |error: NvmlError| NvmlSourceError::Refused { what, reason: error.to_string() }
    };
    let version = nvml.sys_driver_version().map_err(asking("the driver's version"))?;
    let count = nvml.device_count().map_err(asking("how many GPUs there are"))?;
    let mut found = Vec::new();
    for index in 0..count {
        // One that cannot be asked for its name is not usable; the others are.
        match find(&nvml, index) {
            Ok(device) => found.push(device),
            Err(error) => tracing::warn!(index, %error, "a GPU cannot be asked who it is"),
        }
    }
    Ok((nvml, found, version))
}

fn find(nvml: &Nvml, index: u32) -> Result<Found, NvmlError> {
    let handle = nvml.device_by_index(index)?;
    let device = Device { uuid: handle.uuid()?, index, model: handle.name()?, mig_uuid: None };
    let bus_id = handle.pci_info()?.bus_id;
    let pci = PciAddress::parse(&bus_id).map_or(bus_id, |pci| pci.to_string());
    Ok(Found { device: Arc::new(device), pci })
}

/// One session. Whether all devices that were lost are back.
fn run(
    shared: &Arc<Shared>,
    nvml: Nvml,
    found: Vec<Found>,
    version: String,
    known: &mut Known,
    ready: Option<&SyncSender<Result<(), NvmlSourceError>>>,
    pause: Duration,
) -> bool {
    let slots: Vec<_> = found.into_iter().map(|f| Arc::new(Slot::new(f.device, f.pci))).collect();
    shared.replace(&slots, &version);
    tell_changes(shared, &slots, &version, known, ready.is_some());
    let session = Arc::new(Session {
        nvml,
        over: AtomicBool::new(false),
        events_stale: AtomicBool::new(false),
        layout_changed: AtomicU64::new(0),
        failed: AtomicBool::new(false),
        running: Arc::default(),
    });
    for slot in &slots {
        let (shared_, session_, slot) = (Arc::clone(shared), Arc::clone(&session), Arc::clone(slot));
        spawn(&session, format!("gpu-{}", slot.gpu.index), move || device::run(&shared_, &session_, &slot));
    }
    let (shared_, session_) = (Arc::clone(shared), Arc::clone(&session));
    spawn(&session, "gpu-events".into(), move || events::run(&shared_, &session_));
    if let Some(ready) = ready {
        drop(ready.send(Ok(())));
    }
    wait(shared, &session, &slots, known, pause);
    for slot in &slots {
        slot.suspend();
    }
    end(shared, session);
    known.gone.is_empty()
}

/// Waits for a reason to begin anew.
fn wait(shared: &Shared, session: &Session, slots: &[Arc<Slot>], known: &mut Known, pause: Duration) {
    let plugged = listed(&shared.options.proc_root);
    let mut lost_since = (!known.gone.is_empty()).then(Instant::now);
    loop {
        if !shared.clock.wait_for(shared.options.look_again, || session.failed.load(Ordering::Acquire)) {
            return;
        }
        if session.failed.load(Ordering::Acquire) {
            return;
        }
        for slot in slots {
            let uuid = &slot.gpu.uuid;
            if slot.is_lost() {
                known.gone.insert(uuid.clone())
            } else {
                known.gone.remove(uuid)
            };
        }
        lost_since = (!known.gone.is_empty()).then(|| lost_since.unwrap_or_else(Instant::now));
        if lost_since.is_some_and(|since| since.elapsed() >= pause)
            || listed(&shared.options.proc_root) != plugged
        {
            return;
        }
    }
}

/// PCI addresses of the GPUs the kernel module drives; it lists them without a call of the library.
fn listed(proc_root: &Path) -> Option<BTreeSet<std::ffi::OsString>> {
    let entries = std::fs::read_dir(proc_root.join("driver/nvidia/gpus")).ok()?;
    Some(entries.flatten().map(|entry| entry.file_name()).collect())
}

/// Ends the session's threads. Those that hang in the driver are left behind and end when they
/// return.
fn end(shared: &Shared, session: Arc<Session>) {
    session.over.store(true, Ordering::Release);
    shared.clock.wake();
    let running = &session.running;
    let waited = running.ended.wait_timeout_while(locked(&running.count), JOIN, |count| *count > 0);
    let hang = *waited.unwrap_or_else(PoisonError::into_inner).0;
    if hang > 0 {
        tracing::warn!(hang, "threads hang in the driver and are left behind");
    }
}

/// A thread of a session.
fn spawn(session: &Arc<Session>, name: String, work: impl FnOnce() + Send + 'static) {
    *locked(&session.running.count) += 1;
    let running = Counted(Arc::clone(&session.running));
    let thread = thread::Builder::new().name(name.clone()).stack_size(STACK).spawn(move || {
        let running = running;
        work();
        drop(running);
    });
    if let Err(error) = thread {
        tracing::error!(%error, name, "cannot start a thread; this device is not read");
    }
}

/// Counts a thread, however it ends.
struct Counted(Arc<Running>);

impl Drop for Counted {
    fn drop(&mut self) {
        *locked(&self.0.count) -= 1;
        self.0.ended.notify_all();
    }
}

/// Tells what is other than before.
fn tell_changes(shared: &Shared, slots: &[Arc<Slot>], version: &str, known: &mut Known, first: bool) {
    let now = wall_ms();
    if known.version.as_deref().is_some_and(|before| before != version) {
        let before = known.version.take().unwrap_or_default();
        let event = NodeEvent {
            description: Some(format!("driver {version} runs, before it was {before}")),
            driver_version: Some(version.into()),
            evidence: Some("nvml".into()),
            ..NodeEvent::default()
        };
        shared.teller.event(now, NodeEventKind::DriverChanged, event);
    }
    known.version = Some(version.into());
    let devices: BTreeMap<_, _> = slots.iter().map(|s| (s.gpu.uuid.clone(), Arc::clone(s))).collect();
    for (uuid, slot) in &devices {
        let back = known.gone.remove(uuid);
        if back || (!first && !known.devices.contains_key(uuid)) {
            let what = if back {
                "the driver finds the device again"
            } else {
                "the driver finds a device that was not there"
            };
            shared.teller.device(slot, NodeEventKind::DeviceFound, what.into());
        }
    }
    for (uuid, slot) in &known.devices {
        if !devices.contains_key(uuid) && known.gone.insert(uuid.clone()) {
            shared.teller.device(
                slot,
                NodeEventKind::DeviceLost,
                "the driver does not list the device any more".into(),
            );
        }
    }
    let registered: BTreeSet<_> = devices.keys().cloned().collect();
    let same = !first && registered == known.registered;
    known.registered = registered;
    known.devices.retain(|uuid, _| known.gone.contains(uuid));
    known.devices.extend(devices);
    if !same {
        register(shared, slots, version, now);
    }
}

/// The node and its devices, from now on.
fn register(shared: &Shared, slots: &[Arc<Slot>], version: &str, now: i64) {
    let models: BTreeSet<&str> = slots.iter().map(|s| s.gpu.model.as_str()).collect();
    let each = |s: &Arc<Slot>| format!("{} {} {}", s.gpu.index, s.gpu.uuid, s.pci);
    let boot_id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok();
    let event = NodeEvent {
        gpu_model: (!models.is_empty()).then(|| models.into_iter().collect::<Vec<_>>().join(", ")),
        gpus_milli: Some(slots.len() as u64 * tidegate_events::GPU_MILLI),
        driver_version: Some(version.into()),
        boot_id: boot_id.map(|id| id.trim().to_owned()),
        description: Some(slots.iter().map(each).collect::<Vec<_>>().join("; ")),
        evidence: Some("nvml".into()),
        ..NodeEvent::default()
    };
    shared.teller.event(now, NodeEventKind::NodeRegistered, event);
}

/// A mutex whose holder panicked still holds what it held.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
