//! Maps faults of nodes and their GPUs: spans of time, and what a driver reported at one time.

use std::borrow::Cow;

use tidegate_events::{Event, v1};

use crate::accepted_row::{AcceptedRow, envelope, facts};
use crate::error::{ImportError, Reject, RejectCode};
use crate::fields::{ColumnBinder, NumberField, Row, TextField, TimeField, missing, owned, unsigned};
use crate::mapping::Unit;
use crate::outbox::Outbox;
use crate::time::TimeReader;

/// Columns of faults.
pub(crate) struct FaultMapper {
    cluster: TextField,
    node: TextField,
    kind: TextField,
    gpu_uuid: TextField,
    mig_uuid: TextField,
    pci_bus_id: TextField,
    gpu_index: Option<NumberField>,
    xid: Option<NumberField>,
    fault_id: TextField,
    fault_level: TextField,
    fault_class: TextField,
    description: TextField,
    start_time: TimeField,
    end_time: Option<TimeField>,
}

/// What a row reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Report {
    /// A fault, from its start to its end; without an end it is still open.
    Fault,
    /// An error of the driver, at one time.
    Xid(u32),
    /// A device that is gone, back, silent or answers.
    Device(v1::NodeEventKind),
}

impl FaultMapper {
    pub(crate) fn new(binder: &ColumnBinder<'_>, cluster: TextField) -> Result<Self, ImportError> {
        Ok(Self {
            cluster,
            node: binder.text("node")?,
            kind: binder.text("kind")?,
            gpu_uuid: binder.text("gpu_uuid")?,
            mig_uuid: binder.text("mig_uuid")?,
            pci_bus_id: binder.text("pci_bus_id")?,
            gpu_index: binder.number("gpu_index", Unit::Count)?,
            xid: binder.number("xid", Unit::Count)?,
            fault_id: binder.text("fault_id")?,
            fault_level: binder.text("fault_level")?,
            fault_class: binder.text("fault_class")?,
            description: binder.text("description")?,
            start_time: binder.required_time("start_time")?,
            end_time: binder.time("end_time")?,
        })
    }

    pub(crate) fn row<'r>(
        &'r self,
        row: Row<'r>,
        times: &mut TimeReader,
        out: &mut Outbox<'_>,
    ) -> Result<AcceptedRow<'r>, Reject> {
        let cluster = self.cluster.required("cluster", row)?;
        let node = self.node.required("node", row)?;
        let start_ms = self.start_time.read(row, times)?.ok_or_else(|| missing("start_time"))?;
        let report = self.report(row)?;
        let mut event = self.event(row, &node, report)?;
        let end_ms = match report {
            Report::Fault => self.end_time.as_ref().map_or(Ok(None), |time| time.read(row, times))?,
            Report::Xid(_) | Report::Device(_) => None,
        };
        if let Some(gap_ms) = end_ms.map(|end_ms| start_ms - end_ms).filter(|gap_ms| *gap_ms > 0) {
            let reason = format!("the fault ends {gap_ms} ms before it starts");
            return Err(Reject::new(RejectCode::EndBeforeStart, reason));
        }
        let identity = match report {
            Report::Fault => {
                let id =
                    self.fault_id.read(row).map_or_else(|| default_id(start_ms, &event), Cow::into_owned);
                event.fault_id = Some(id.clone());
                id
            }
            // Several may come at one time, and are told apart by all that they say.
            Report::Xid(_) | Report::Device(_) => format!("{event:?}"),
        };
        let facts = facts(cluster, &node, start_ms, end_ms.unwrap_or(start_ms), &identity);
        event.envelope = envelope(&facts.cluster, start_ms);
        out.add(&mut Event::Node(event.clone()))?;
        if let Some(end_ms) = end_ms {
            event.envelope = envelope(&facts.cluster, end_ms);
            event.kind = v1::NodeEventKind::FaultEnded.into();
            out.add(&mut Event::Node(event))?;
        }
        Ok(facts)
    }

    /// An XID where the row has one; else what `kind` says, by default a fault.
    fn report(&self, row: Row<'_>) -> Result<Report, Reject> {
        use v1::NodeEventKind::{DeviceAnswers, DeviceFound, DeviceLost, DeviceStale};
        let kind = self.kind.read(row).filter(|kind| !kind.is_empty());
        let xid = number(self.xid.as_ref(), "xid", row)?;
        match (kind.as_deref().map(str::to_ascii_uppercase).as_deref(), xid) {
            (None | Some("XID"), Some(1..)) => Ok(Report::Xid(xid.unwrap_or_default())),
            (Some("XID"), _) => Err(missing("xid")),
            (None | Some("FAULT"), _) => Ok(Report::Fault),
            (Some("DEVICE_LOST"), _) => Ok(Report::Device(DeviceLost)),
            (Some("DEVICE_FOUND"), _) => Ok(Report::Device(DeviceFound)),
            (Some("DEVICE_STALE"), _) => Ok(Report::Device(DeviceStale)),
            (Some("DEVICE_ANSWERS"), _) => Ok(Report::Device(DeviceAnswers)),
            (Some(other), _) => {
                let other: String = other.chars().take(64).collect();
                let reason = format!(
                    "kind is {other}; write FAULT, XID, DEVICE_LOST, DEVICE_FOUND, DEVICE_STALE or DEVICE_ANSWERS, and \
                     the source's own words as fault_class"
                );
                Err(Reject::new(RejectCode::UnknownKind, reason))
            }
        }
    }

    /// The event, without time and identity.
    fn event(&self, row: Row<'_>, node: &str, report: Report) -> Result<v1::NodeEvent, Reject> {
        let gpu_uuid = owned(&self.gpu_uuid, row).filter(|uuid| !uuid.is_empty());
        if matches!(report, Report::Device(_)) && gpu_uuid.is_none() {
            return Err(missing("gpu_uuid"));
        }
        let (kind, xid) = match report {
            Report::Fault => (v1::NodeEventKind::FaultStarted, None),
            Report::Xid(xid) => (v1::NodeEventKind::Xid, Some(xid)),
            Report::Device(kind) => (kind, None),
        };
        Ok(v1::NodeEvent {
            kind: kind.into(),
            node: node.to_owned(),
            gpu_uuid,
            mig_uuid: owned(&self.mig_uuid, row).filter(|uuid| !uuid.is_empty()),
            gpu_index: number(self.gpu_index.as_ref(), "gpu_index", row)?,
            pci_bus_id: owned(&self.pci_bus_id, row),
            xid,
            fault_level: owned(&self.fault_level, row),
            fault_class: owned(&self.fault_class, row),
            description: owned(&self.description, row),
            ..v1::NodeEvent::default()
        })
    }
}

/// The start, and the GPU if the fault is of one.
fn default_id(start_ms: i64, event: &v1::NodeEvent) -> String {
    match (&event.gpu_uuid, event.gpu_index) {
        (Some(uuid), _) => format!("{start_ms}/{uuid}"),
        (None, Some(index)) => format!("{start_ms}/{index}"),
        (None, None) => start_ms.to_string(),
    }
}

fn number(field: Option<&NumberField>, name: &str, row: Row<'_>) -> Result<Option<u32>, Reject> {
    let Some(value) = unsigned(field, row)? else { return Ok(None) };
    let reason = |_| Reject::new(RejectCode::BadNumber, format!("{name} is {value}, which is too large"));
    u32::try_from(value).map(Some).map_err(reason)
}
