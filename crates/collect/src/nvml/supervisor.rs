//! Supervises the driver's library: runs one session after another. A session ends when the driver
//! changes, a device is plugged in or out, or a lost one should be looked for.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tidegate_events::v1::{NodeEvent, NodeEventKind};

use super::gpu::LocatedGpu;
use super::options::{NvmlOptions, NvmlSourceError};
use super::session::Session;
use super::shared::Shared;
use super::slot::Slot;
use super::{device, events};
use crate::reading::Device;
use crate::ticker::wall_ms;
use crate::xid::PciAddress;

/// Pause before retrying a driver that does not start.
const RETRY: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// What earlier sessions knew.
#[derive(Default)]
struct PriorState {
    devices: BTreeMap<String, Arc<Slot>>,
    /// Devices reported as lost and not yet back.
    gone: BTreeSet<String>,
    /// Devices of the last NODE_REGISTERED.
    registered: BTreeSet<String>,
    version: Option<String>,
}

/// Runs sessions until the source stops. `ready` gets the result of the first start.
pub(super) fn run_sessions(shared: &Arc<Shared>, ready: &SyncSender<Result<(), NvmlSourceError>>) {
    let mut known = PriorState::default();
    let mut first = true;
    let mut pause = shared.options.reopen_after;
    loop {
        let begun = Instant::now();
        let opened = open(&shared.options);
        // The caller may have given up meanwhile.
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
        // A session that lasted is followed at once; repeated failures are retried after a pause.
        if !shared.clock.wait_until(begun + RETRY.min(shared.options.rescan_every)) {
            return;
        }
    }
}

fn open(options: &NvmlOptions) -> Result<(Nvml, Vec<LocatedGpu>, String), NvmlSourceError> {
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
        // A GPU that does not report its name is unusable; the others are read.
        match find(&nvml, index) {
            Ok(device) => found.push(device),
            Err(error) => tracing::warn!(index, %error, "a GPU does not report its identity"),
        }
    }
    Ok((nvml, found, version))
}

fn find(nvml: &Nvml, index: u32) -> Result<LocatedGpu, NvmlError> {
    let handle = nvml.device_by_index(index)?;
    let device = Device { uuid: handle.uuid()?, index, model: handle.name()?, mig_uuid: None };
    let bus_id = handle.pci_info()?.bus_id;
    let pci = PciAddress::parse(&bus_id).map_or(bus_id, |pci| pci.to_string());
    Ok(LocatedGpu { device: Arc::new(device), pci })
}

/// Runs one session. Returns whether all lost devices are back.
fn run(
    shared: &Arc<Shared>,
    nvml: Nvml,
    found: Vec<LocatedGpu>,
    version: String,
    known: &mut PriorState,
    ready: Option<&SyncSender<Result<(), NvmlSourceError>>>,
    pause: Duration,
) -> bool {
    let slots: Vec<_> = found.into_iter().map(|gpu| Arc::new(Slot::new(gpu))).collect();
    shared.replace(&slots, &version);
    emit_changes(shared, &slots, &version, known, ready.is_some());
    let session = Arc::new(Session::new(nvml));
    for slot in &slots {
        let (shared_, session_, slot) = (Arc::clone(shared), Arc::clone(&session), Arc::clone(slot));
        session
            .spawn(format!("gpu-{}", slot.gpu.device.index), move || device::run(&shared_, &session_, &slot));
    }
    let (shared_, session_) = (Arc::clone(shared), Arc::clone(&session));
    session.spawn("gpu-events".into(), move || events::run(&shared_, &session_));
    if let Some(ready) = ready {
        drop(ready.send(Ok(())));
    }
    wait(shared, &session, &slots, known, pause);
    for slot in &slots {
        slot.suspend();
    }
    session.end(shared);
    known.gone.is_empty()
}

/// Waits for a reason to end the session.
fn wait(shared: &Shared, session: &Session, slots: &[Arc<Slot>], known: &mut PriorState, pause: Duration) {
    let plugged = listed(&shared.options.proc_root);
    let mut lost_since = (!known.gone.is_empty()).then(Instant::now);
    loop {
        if !shared.clock.wait_for(shared.options.rescan_every, || session.has_failed()) {
            return;
        }
        if session.has_failed() {
            return;
        }
        for slot in slots {
            let uuid = &slot.gpu.device.uuid;
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

/// PCI addresses of the kernel module's GPUs, listed without calling the library.
fn listed(proc_root: &Path) -> Option<BTreeSet<std::ffi::OsString>> {
    let entries = std::fs::read_dir(proc_root.join("driver/nvidia/gpus")).ok()?;
    Some(entries.flatten().map(|entry| entry.file_name()).collect())
}

/// Emits the differences from the session before.
fn emit_changes(shared: &Shared, slots: &[Arc<Slot>], version: &str, known: &mut PriorState, first: bool) {
    let now = wall_ms();
    if known.version.as_deref().is_some_and(|before| before != version) {
        let before = known.version.take().unwrap_or_default();
        let event = NodeEvent {
            description: Some(format!("driver {version} runs, before it was {before}")),
            driver_version: Some(version.into()),
            evidence: Some("nvml".into()),
            ..NodeEvent::default()
        };
        shared.emitter.event(now, NodeEventKind::DriverChanged, event);
    }
    known.version = Some(version.into());
    let devices: BTreeMap<_, _> = slots.iter().map(|s| (s.gpu.device.uuid.clone(), Arc::clone(s))).collect();
    for (uuid, slot) in &devices {
        let back = known.gone.remove(uuid);
        if back || (!first && !known.devices.contains_key(uuid)) {
            let what = if back {
                "the driver finds the device again"
            } else {
                "the driver finds a device that was not there"
            };
            shared.emitter.device(&slot.gpu, NodeEventKind::DeviceFound, what.into());
        }
    }
    for (uuid, slot) in &known.devices {
        if !devices.contains_key(uuid) && known.gone.insert(uuid.clone()) {
            shared.emitter.device(
                &slot.gpu,
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

/// Emits NODE_REGISTERED with all devices.
fn register(shared: &Shared, slots: &[Arc<Slot>], version: &str, now: i64) {
    let models: BTreeSet<&str> = slots.iter().map(|s| s.gpu.device.model.as_str()).collect();
    let each = |s: &Arc<Slot>| format!("{} {} {}", s.gpu.device.index, s.gpu.device.uuid, s.gpu.pci);
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
    shared.emitter.event(now, NodeEventKind::NodeRegistered, event);
}
