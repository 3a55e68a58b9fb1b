//! The thread that waits for NVML events: XIDs, ECC errors, MIG changes.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use nvml_wrapper::EventSet;
use nvml_wrapper::bitmasks::event::EventTypes;
use nvml_wrapper::enums::event::XidError;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::event::EventData;
use tidegate_events::v1::{NodeEvent, NodeEventKind};

use super::driver_call::{DriverError, refusal};
use super::emit::about;
use super::session::Session;
use super::shared::Shared;
use crate::ticker::wall_ms;
use crate::xid::{Occurrence, PciAddress};

/// Event types to wait for. Corrected ECC errors have counters, and a storm of them would wake the
/// thread each time.
const WANTED: EventTypes = EventTypes::CRITICAL_XID_ERROR
    .union(EventTypes::DOUBLE_BIT_ECC_ERROR)
    .union(EventTypes::MIG_CONFIG_CHANGE);
/// Longest single wait, to notice the end of the session.
const WAIT_MS: u32 = 1_000;
const RETRY: Duration = Duration::from_secs(1);

/// Waits for events until the session ends. The thread does nothing else, so that few events pile
/// up: NVML reports the last XID for all that do.
pub(super) fn run(shared: &Shared, session: &Session) {
    while !session.over.load(Ordering::Acquire) {
        session.events_stale.store(false, Ordering::Release);
        match register(shared, session) {
            Ok(Some(set)) => {
                shared.xids.driver_reads(true);
                wait(shared, session, &set);
                shared.xids.driver_reads(false);
            }
            Ok(None) => {
                tracing::warn!("NVML has no events here; XIDs come from the kernel's log alone");
                let again =
                    || session.over.load(Ordering::Acquire) || session.events_stale.load(Ordering::Acquire);
                shared.clock.wait_for(Duration::MAX, again);
            }
            Err(DriverError::Driver(why)) => return session.fails(shared, &why),
            Err(DriverError::DeviceLost(_)) => {
                shared.clock.wait_for(RETRY, || session.over.load(Ordering::Acquire));
            }
        }
    }
}

/// Registers the events of all devices that have any. A refusal destroys the set, so devices that
/// refuse are left out of the next try.
fn register<'a>(shared: &Shared, session: &'a Session) -> Result<Option<EventSet<'a>>, DriverError> {
    let mut refusing = Vec::new();
    'again: loop {
        let mut set = session.nvml.create_event_set().map_err(trouble)?;
        let mut any = false;
        for slot in shared.slots().iter().filter(|slot| !refusing.contains(&slot.gpu.device.uuid)) {
            let found = session.nvml.device_by_index(slot.gpu.device.index);
            let types = found.and_then(|device| Ok((device.supported_event_types()? & WANTED, device)));
            let Ok((types, device)) = types else { continue };
            if types.is_empty() {
                continue;
            }
            match device.register_events(types, set) {
                Ok(registered) => {
                    set = registered;
                    any = true;
                }
                Err(error) => {
                    if let Err(DriverError::Driver(why)) = refusal(&error.error) {
                        return Err(DriverError::Driver(why));
                    }
                    refusing.push(slot.gpu.device.uuid.clone());
                    continue 'again;
                }
            }
        }
        return Ok(any.then_some(set));
    }
}

fn trouble(error: NvmlError) -> DriverError {
    refusal(&error).err().unwrap_or_else(|| DriverError::DeviceLost(error.to_string()))
}

fn wait(shared: &Shared, session: &Session, set: &EventSet<'_>) {
    while !session.over.load(Ordering::Acquire) && !session.events_stale.load(Ordering::Acquire) {
        match set.wait(WAIT_MS) {
            Ok(event) => take(shared, session, &event),
            Err(NvmlError::Timeout) => {}
            Err(error) => {
                if let Err(DriverError::Driver(why)) = refusal(&error) {
                    return session.fails(shared, &why);
                }
                // A lost device may fail every wait; registering again leaves it out.
                shared.clock.wait_for(RETRY, || session.over.load(Ordering::Acquire));
                return;
            }
        }
    }
}

fn take(shared: &Shared, session: &Session, event: &EventData<'_>) {
    // A device that fell off the bus has no UUID any more, but still its address.
    let pci = event.device.pci_info().ok().and_then(|pci| PciAddress::parse(&pci.bus_id));
    if event.event_type.contains(EventTypes::MIG_CONFIG_CHANGE) {
        session.layout_changed.fetch_add(1, Ordering::AcqRel);
    }
    if event.event_type.contains(EventTypes::DOUBLE_BIT_ECC_ERROR) {
        let slot = shared.slot_at(pci);
        let event = NodeEvent {
            fault_class: Some("DOUBLE_BIT_ECC".into()),
            description: Some("a memory error that ECC cannot correct".into()),
            evidence: Some("nvml".into()),
            pci_bus_id: pci.map(|pci| pci.to_string()),
            ..slot.as_deref().map(|slot| about(&slot.gpu)).unwrap_or_default()
        };
        shared.emitter.event(wall_ms(), NodeEventKind::DeviceEvent, event);
    }
    if let Some(xid) = &event.event_data {
        // 999 is how NVML reports a code that it does not know.
        let code = match xid {
            XidError::Value(code) => u32::try_from(*code).unwrap_or(999),
            XidError::Unknown => 999,
        };
        shared
            .xids
            .driver(Occurrence { code, pci, at_ms: wall_ms(), ..Occurrence::default() }, Instant::now());
        shared.clock.wake();
    }
}
