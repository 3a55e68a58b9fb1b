//! State shared by all threads of the NVML source.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use super::emit::{Emitter, xid_event};
use super::options::{NvmlOptions, NvmlStatus};
use super::slot::Slot;
use crate::ticker::Clock;
use crate::xid::{Join, KernelReport, LogPosition, Occurrence, PciAddress};

/// State shared by all threads.
pub(super) struct Shared {
    pub options: NvmlOptions,
    pub emitter: Emitter,
    pub clock: Clock,
    pub slots: Mutex<Arc<[Arc<Slot>]>>,
    pub xids: Join,
    pub log_position: Mutex<LogPosition>,
    pub status: Mutex<NvmlStatus>,
}

impl Shared {
    pub fn slots(&self) -> Arc<[Arc<Slot>]> {
        Arc::clone(&locked(&self.slots))
    }

    pub fn status(&self) -> MutexGuard<'_, NvmlStatus> {
        locked(&self.status)
    }

    /// Installs the devices of a new session. Each tick is emitted by the old slot of a device or
    /// by the new one, never by both.
    pub fn replace(&self, slots: &[Arc<Slot>], version: &str) {
        let mut current = locked(&self.slots);
        let last = self.clock.last();
        current.iter().for_each(|slot| slot.close(last, &self.clock, &self.emitter));
        for slot in slots {
            slot.begin_after(last);
            if let Some(before) = current.iter().find(|before| before.gpu.device.uuid == slot.gpu.device.uuid)
            {
                slot.follow(before);
            }
        }
        *current = slots.into();
        drop(current);
        let mut status = self.status();
        status.devices = slots.len();
        status.driver_version = Some(version.into());
    }

    pub fn slot_at(&self, pci: Option<PciAddress>) -> Option<Arc<Slot>> {
        let pci = pci?.to_string();
        self.slots().iter().find(|slot| slot.gpu.pci == pci).cloned()
    }

    /// Emits complete XID occurrences; `all` of them at the end. Waits for the disk.
    pub fn emit_xids(&self, all: bool) {
        let mut log_position = locked(&self.log_position);
        let due = self.xids.due(Instant::now(), all);
        let event = |(occurrence, evidence): &(Occurrence, &str)| {
            xid_event(self.slot_at(occurrence.pci).as_deref().map(|slot| &slot.gpu), occurrence, evidence)
        };
        let record = due.iter().filter_map(|(occurrence, _)| occurrence.record).max();
        log_position.emit(due.iter().map(event).collect(), record, &*self.emitter.sink);
    }

    /// Handles a report of the kernel log.
    pub fn take_kernel_report(&self, report: KernelReport, at_ms: i64, record: Option<u64>) {
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

/// Locks a mutex. State stays valid across a panic, so poisoning is ignored.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
