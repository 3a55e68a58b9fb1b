//! Processes on a device.

use std::path::Path;
use std::time::Instant;

use nvml_wrapper::Device;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use tidegate_events::v1::gpu_sample_batch::process::Kind;

use super::driver_call::{Answer, Call, DriverError, RefusalCache};
use crate::reading::{MissingReason, RunningProcess, Value};

/// Processes of a device, as last listed.
#[derive(Debug)]
pub(super) struct Processes {
    pub list: Vec<RunningProcess>,
    pub count: Value,
    pub memory: Value,
    /// GPU instance of one of the processes.
    pub gpu_instance: Option<u32>,
}

impl Default for Processes {
    fn default() -> Self {
        let unknown = Value::Missing(MissingReason::Unspecified);
        Self { list: Vec::new(), count: unknown, memory: unknown, gpu_instance: None }
    }
}

impl Processes {
    /// Lists them again. Kinds that the driver does not list are left out, but it must list compute
    /// processes.
    pub(super) fn read(
        &mut self,
        device: &Device<'_>,
        refusals: &mut RefusalCache,
        now: Instant,
        proc_root: &Path,
        doing: impl Fn(Call),
    ) -> Result<(), DriverError> {
        doing(Call::Compute);
        let compute = refusals.call(Call::Compute, now, || device.running_compute_processes())?;
        doing(Call::Graphics);
        let graphics = refusals.call(Call::Graphics, now, || device.running_graphics_processes())?;
        doing(Call::Mps);
        let mps = refusals.call(Call::Mps, now, || device.mps_running_compute_processes())?;
        self.list.clear();
        self.gpu_instance = None;
        let why = compute.as_ref().err().copied();
        for (kind, found) in [(Kind::Compute, compute), (Kind::Mps, mps), (Kind::Graphics, graphics)] {
            self.take(kind, found, proc_root);
        }
        if let Some(reason) = why {
            (self.count, self.memory) = (Value::Missing(reason), Value::Missing(reason));
            return Ok(());
        }
        self.count = Value::Is(self.list.len() as i64);
        let sum = self.list.iter().try_fold(0u64, |sum, process| sum.checked_add(process.memory_bytes?));
        self.memory = match sum.and_then(|sum| i64::try_from(sum).ok()) {
            Some(sum) => Value::Is(sum),
            None => Value::Missing(MissingReason::NotSupported),
        };
        Ok(())
    }

    /// Adds processes of one kind. The driver lists a process twice if it computes and draws, or is
    /// an MPS client; here it counts once.
    fn take(&mut self, kind: Kind, found: Answer<Vec<ProcessInfo>>, proc_root: &Path) {
        for process in found.unwrap_or_default() {
            self.gpu_instance = self.gpu_instance.or(process.gpu_instance_id);
            let memory_bytes = match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            };
            if let Some(known) = self.list.iter_mut().find(|p| p.pid == process.pid) {
                known.memory_bytes = known.memory_bytes.max(memory_bytes);
                if kind == Kind::Mps {
                    known.kind = kind;
                }
                continue;
            }
            let name = name(proc_root, process.pid);
            self.list.push(RunningProcess { pid: process.pid, kind, memory_bytes, name, job_id: None });
        }
    }
}

/// The kernel's name of a process, at most 15 bytes. `None` if it is gone or in another namespace.
fn name(proc_root: &Path, pid: u32) -> Option<String> {
    let comm = std::fs::read(proc_root.join(pid.to_string()).join("comm")).ok()?;
    let name = String::from_utf8_lossy(&comm);
    Some(name.trim_end()).filter(|name| !name.is_empty()).map(str::to_owned)
}
