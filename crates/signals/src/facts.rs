//! What job events state, as the detectors need it.

use serde::{Deserialize, Serialize};
use tidegate_events::v1;

/// Start, resize, submission or end of a job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JobFact {
    #[serde(with = "crate::stored::job_event_kind")]
    pub kind: v1::JobEventKind,
    pub job_id: String,
    pub attempt: Option<i64>,
    pub team: Option<String>,
    pub pool: Option<String>,
    pub gpus_milli: Option<u64>,
    /// Hosts of the allocation, separated by commas.
    pub hosts: Option<String>,
    /// Of an end: the job is queued again, or continues on other devices.
    pub continues: bool,
}

impl JobFact {
    /// `None` for job steps, heartbeats and device holds.
    pub fn from_event(job: v1::JobEvent) -> Option<Self> {
        let kind = job.kind();
        let counts = matches!(
            kind,
            v1::JobEventKind::Submitted
                | v1::JobEventKind::Started
                | v1::JobEventKind::Resized
                | v1::JobEventKind::Ended
        );
        (counts && job.step_id.is_none()).then_some(Self {
            kind,
            job_id: job.job_id,
            attempt: job.attempt_id,
            team: job.team,
            pool: job.pool,
            gpus_milli: job.gpus_milli,
            hosts: job.nodes,
            continues: matches!(job.final_state.as_deref(), Some("REQUEUED" | "RESIZED")),
        })
    }

    /// Hosts of the allocation, in the scheduler's order.
    pub fn host_names(&self) -> impl Iterator<Item = &str> {
        let hosts = self.hosts.as_deref().unwrap_or("").split(',').map(str::trim);
        hosts.filter(|host| !host.is_empty())
    }
}

/// A device that a job holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldDevice {
    pub node: String,
    pub uuid: Option<String>,
    pub index: Option<u32>,
    /// The whole device belongs to this job alone, as its allocator states.
    pub is_exclusive: bool,
}

/// A device hold begins or ends.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HoldFact {
    pub job_id: String,
    pub hold_id: String,
    pub begins: bool,
    pub device: HeldDevice,
}

impl HoldFact {
    /// `None` for an event without a node, and for other kinds of job events.
    pub fn from_event(job: &v1::JobEvent) -> Option<Self> {
        let begins = match job.kind() {
            v1::JobEventKind::DeviceHeld => true,
            v1::JobEventKind::DeviceReleased => false,
            _ => return None,
        };
        let device = HeldDevice {
            node: job.node.clone().filter(|node| !node.is_empty())?,
            uuid: job.gpu_uuid.clone(),
            index: job.gpu_index,
            is_exclusive: job.hold_quality.as_deref() == Some("EXACT") && job.mig_uuid.is_none(),
        };
        let hold_id = job.hold_id.clone().unwrap_or_else(|| {
            format!("{}/{}/{:?}", device.node, device.uuid.as_deref().unwrap_or(""), device.index)
        });
        Some(Self { job_id: job.job_id.clone(), hold_id, begins, device })
    }
}
