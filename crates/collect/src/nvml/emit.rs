//! Emits readings and node events of this source.

use std::sync::Arc;

use tidegate_events::Event;
use tidegate_events::v1::{Envelope, NodeEvent, NodeEventKind};

use super::driver_call::Call;
use super::gpu::LocatedGpu;
use crate::reading::{Reading, Sink};
use crate::ticker::{Tick, wall_ms};
use crate::xid::{Occurrence, xid};

/// Emits into the sink.
pub(super) struct Emitter {
    pub sink: Arc<dyn Sink>,
}

impl Emitter {
    pub(super) fn reading(&self, reading: Reading) {
        self.sink.reading(reading);
    }

    /// Emits an event with its time, ms since the epoch.
    pub(super) fn event(&self, at_ms: i64, kind: NodeEventKind, event: NodeEvent) {
        self.sink.event(at(at_ms, kind, event));
    }

    /// Emits an event of a device, now.
    pub(super) fn device(&self, gpu: &LocatedGpu, kind: NodeEventKind, description: String) {
        self.event(wall_ms(), kind, NodeEvent { description: Some(description), ..about(gpu) });
    }

    pub(super) fn stale(&self, gpu: &LocatedGpu, since: &Tick, call: Call) {
        let description =
            format!("the driver does not return from a call ({call:?}); values are missing until it does");
        let event = NodeEvent { description: Some(description), ..about(gpu) };
        self.event(since.ms, NodeEventKind::DeviceStale, event);
    }

    pub(super) fn answers(&self, gpu: &LocatedGpu, since: &Tick) {
        let took = since.at.elapsed();
        let description = format!("the driver answers again after {:.1} s", took.as_secs_f64());
        let amount_ms = i64::try_from(took.as_millis()).ok();
        let event = NodeEvent { description: Some(description), amount_ms, ..about(gpu) };
        self.event(wall_ms(), NodeEventKind::DeviceAnswers, event);
    }
}

fn at(at_ms: i64, kind: NodeEventKind, event: NodeEvent) -> Event {
    let envelope = Envelope { event_time_ms: at_ms, observed_time_ms: wall_ms(), ..Envelope::default() };
    Event::Node(NodeEvent { envelope: Some(envelope), kind: kind.into(), ..event })
}

/// The event of one XID, or of a switch error. `evidence` names its sources.
pub(super) fn xid_event(gpu: Option<&LocatedGpu>, occurrence: &Occurrence, evidence: &str) -> Event {
    let text = occurrence.text.clone().filter(|text| !text.is_empty());
    if occurrence.switch {
        let event = NodeEvent {
            fault_class: Some(format!("SXID-{}", occurrence.code)),
            description: text,
            pci_bus_id: occurrence.pci.map(|pci| pci.to_string()),
            evidence: Some(evidence.into()),
            ..NodeEvent::default()
        };
        return at(occurrence.at_ms, NodeEventKind::DeviceEvent, event);
    }
    let known = xid(occurrence.code);
    let mut description = text.or_else(|| known.map(|x| x.meaning.into())).unwrap_or_default();
    if let Some(process) = &occurrence.process {
        description = format!("{description} (process {process})");
    }
    if let Some(number) = occurrence.gpu_instance {
        description = format!("{description} (GPU instance {number})");
    }
    let event = NodeEvent {
        fault_level: known.map(|x| x.severity.as_str().into()),
        fault_class: known.map(|x| x.name.into()),
        description: (!description.is_empty()).then_some(description),
        pci_bus_id: occurrence.pci.map(|pci| pci.to_string()),
        xid: Some(occurrence.code),
        pid: occurrence.pid,
        evidence: Some(evidence.into()),
        ..gpu.map(about).unwrap_or_default()
    };
    at(occurrence.at_ms, NodeEventKind::Xid, event)
}

/// An event with the identity of a GPU filled in.
pub(super) fn about(gpu: &LocatedGpu) -> NodeEvent {
    NodeEvent {
        gpu_uuid: Some(gpu.device.uuid.clone()),
        gpu_index: Some(gpu.device.index),
        gpu_model: Some(gpu.device.model.clone()),
        pci_bus_id: Some(gpu.pci.clone()),
        evidence: Some("nvml".into()),
        ..NodeEvent::default()
    }
}
