//! MIG instances of a GPU.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device as Handle, Nvml};

use super::driver_call::{Call, DriverError, RefusalCache, refusal, set_memory, value};
use super::gpm::Gpm;
use super::processes::Processes;
use crate::reading::{Device, Metric, MissingReason, Reading, Value};

/// One MIG instance.
pub(super) struct Instance<'nvml> {
    pub device: Arc<Device>,
    handle: Handle<'nvml>,
    /// Number of its GPU instance, which GPM needs. nvml-wrapper has no call for it; see
    /// [`Instances::number`].
    gpu_instance: Option<u32>,
    slices: Option<u32>,
    memory_bytes: Option<u64>,
    refusals: RefusalCache,
    gpm: Gpm<'nvml>,
    processes: Processes,
}

/// All MIG instances of a GPU.
#[derive(Default)]
pub(super) struct Instances<'nvml> {
    pub all: Vec<Instance<'nvml>>,
    /// Number of layout changes at the last listing.
    pub version: u64,
}

impl<'nvml> Instances<'nvml> {
    /// Lists the instances again. Returns a description of the layout if it changed.
    pub(super) fn refresh(
        &mut self,
        gpu: &Handle<'nvml>,
        of: &Arc<Device>,
        refusals: &mut RefusalCache,
        now: Instant,
        proc_root: &Path,
        doing: impl Fn(Call),
    ) -> Result<Option<String>, DriverError> {
        doing(Call::MigMode);
        let on = refusals.call(Call::MigMode, now, || gpu.mig_mode())?.is_ok_and(|mode| mode.current == 1);
        let mut found = Vec::new();
        if on {
            doing(Call::MigList);
            let most = refusals.call(Call::MigList, now, || gpu.mig_device_count())?.unwrap_or(0);
            for index in 0..most {
                // The count is a maximum; unused places are not found.
                match gpu.mig_device_by_index(index).and_then(|handle| Ok((handle.uuid()?, handle))) {
                    Ok(instance) => found.push(instance),
                    Err(NvmlError::NotFound | NvmlError::InvalidArg) => {}
                    Err(error) => drop(refusal(&error)?),
                }
            }
        }
        let same = found.len() == self.all.len()
            && found.iter().zip(&self.all).all(|((uuid, _), i)| i.device.mig_uuid.as_ref() == Some(uuid));
        if same {
            return Ok(None);
        }
        let mut before = std::mem::take(&mut self.all);
        for (uuid, handle) in found {
            let known = before.iter().position(|i| i.device.mig_uuid.as_ref() == Some(&uuid));
            let instance = match known.map(|at| before.swap_remove(at)) {
                Some(known) => Instance { handle, ..known },
                None => Instance::new(uuid, handle, of),
            };
            self.all.push(instance);
        }
        self.number(gpu, proc_root);
        Ok(Some(self.describe()))
    }

    /// Infers the numbers of the GPU instances: the driver lists its capabilities in `/proc`, in
    /// the order of its instances. A process seen in an instance shows its number for certain; see
    /// [`Instance::list`].
    fn number(&mut self, gpu: &Handle<'nvml>, proc_root: &Path) {
        let Ok(minor) = gpu.minor_number() else { return };
        let folder = proc_root.join(format!("driver/nvidia/capabilities/gpu{minor}/mig"));
        let mut listed: Vec<(u32, u32)> = numbered(&folder, "gi")
            .into_iter()
            .flat_map(|gi| {
                numbered(&folder.join(format!("gi{gi}")), "ci").into_iter().map(move |ci| (gi, ci))
            })
            .collect();
        listed.sort_unstable();
        if listed.len() == self.all.len() {
            for (instance, (gi, _)) in self.all.iter_mut().zip(listed) {
                instance.gpu_instance.get_or_insert(gi);
            }
        }
    }

    fn describe(&self) -> String {
        if self.all.is_empty() {
            return "no MIG instances any more".into();
        }
        let one = |i: &Instance<'_>| {
            let uuid = i.device.mig_uuid.as_deref().unwrap_or_default();
            let slices = i.slices.map_or_else(|| "?".into(), |s| s.to_string());
            let gib = i
                .memory_bytes
                .map_or_else(|| "?".into(), |b| format!("{:.1}", b as f64 / f64::from(1 << 30)));
            format!("{uuid}: {slices} compute slices, {gib} GiB")
        };
        self.all.iter().map(one).collect::<Vec<_>>().join("; ")
    }

    /// Sum over all instances; missing if one of them is.
    pub(super) fn sum(&self, of: impl Fn(&Processes) -> Value) -> Value {
        self.all.iter().fold(Value::Is(0), |sum, instance| match (sum, of(&instance.processes)) {
            (Value::Is(a), Value::Is(b)) => Value::Is(a.saturating_add(b)),
            (Value::Missing(reason), _) | (_, Value::Missing(reason)) => Value::Missing(reason),
            _ => Value::Missing(MissingReason::Unspecified),
        })
    }
}

/// Numbers of the entries `PREFIXn` of a folder.
fn numbered(folder: &Path, prefix: &str) -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()).collect()
}

impl<'nvml> Instance<'nvml> {
    fn new(uuid: String, handle: Handle<'nvml>, of: &Arc<Device>) -> Self {
        let attributes = handle.attributes().ok();
        Self {
            device: Arc::new(Device { mig_uuid: Some(uuid), ..Device::clone(of) }),
            slices: attributes.as_ref().map(|a| a.compute_instance_slice_count),
            memory_bytes: attributes.map(|a| a.memory_size_mb << 20),
            handle,
            gpu_instance: None,
            refusals: RefusalCache::default(),
            gpm: Gpm::default(),
            processes: Processes::default(),
        }
    }

    /// Lists its processes.
    pub(super) fn list(
        &mut self,
        now: Instant,
        proc_root: &Path,
        doing: impl Fn(Call),
    ) -> Result<(), DriverError> {
        self.processes.read(&self.handle, &mut self.refusals, now, proc_root, doing)?;
        if let Some(number) = self.processes.gpu_instance
            && self.gpu_instance != Some(number)
        {
            // The samples so far were of another instance.
            self.gpu_instance = Some(number);
            self.gpm = Gpm::default();
        }
        Ok(())
    }

    /// Marks its reading as emitted.
    pub(super) fn committed(&mut self) {
        self.gpm.committed();
    }

    /// Reads its values into `reading`, which holds only the interval yet.
    pub(super) fn read(
        &mut self,
        nvml: &'nvml Nvml,
        gpu: &Handle<'nvml>,
        has_gpm: bool,
        mut reading: Reading,
        now: Instant,
    ) -> Result<Reading, DriverError> {
        let memory = self.refusals.call(Call::Memory, now, || self.handle.memory_info())?;
        set_memory(&mut reading, memory);
        match self.gpu_instance.filter(|_| has_gpm) {
            Some(number) => {
                self.gpm.read(nvml, &mut self.refusals, now, &mut reading, || gpu.gpm_mig_sample(number))?;
            }
            None => super::gpm::metrics()
                .for_each(|metric| reading.set(metric, Value::Missing(MissingReason::NotSupported))),
        }
        reading.set(Metric::Processes, self.processes.count);
        reading.set(Metric::ProcessMemory, self.processes.memory);
        reading.set(Metric::MigSlices, value(self.slices.ok_or(MissingReason::NotSupported)));
        reading.processes.clone_from(&self.processes.list);
        Ok(reading)
    }
}
