//! Open holds of a node, and the events that begin and end them. Pure: reports and scans come in as
//! arguments.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, v1};
use v1::JobEventKind as Kind;

use super::owners::KnownJob;
use super::scan::{Evidence, JobCgroups};
use crate::reading::Device;
use crate::receiver::{GpuName, HoldEvent, HoldKind};

/// How long a prolog's hold waits for the job's full id, ms.
const NAMING_MS: i64 = 30_000;
/// A hold this young is not expected to have a cgroup: prologs may still run, ms.
const YOUNG_MS: i64 = 120_000;
/// A hold that this many scans in a row do not find has ended.
const MISSED: u32 = 2;

/// A device, as far as it is identified.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DeviceName {
    pub uuid: Option<String>,
    pub mig_uuid: Option<String>,
    pub index: Option<u32>,
}

impl DeviceName {
    /// Whether it is the same device, as far as can be told.
    fn matches(&self, other: &Self) -> bool {
        match (self.mig_uuid.as_ref(), other.mig_uuid.as_ref()) {
            (Some(mine), Some(others)) => return mine == others,
            (None, None) => {}
            _ => return false,
        }
        match (self.uuid.as_ref(), other.uuid.as_ref()) {
            (Some(mine), Some(others)) => mine == others,
            _ => self.index.is_some() && self.index == other.index,
        }
    }
}

/// An open hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    id: String,
    /// The job as its first report named it: a number, if that was a prolog or a cgroup.
    job: String,
    /// Job id as accounting writes it, once known.
    #[serde(rename = "spelled")]
    full_id: Option<String>,
    step_id: Option<String>,
    device: DeviceName,
    quality: String,
    evidence: String,
    share_milli: Option<u32>,
    /// User that owns the job, as the prolog named it.
    #[serde(default)]
    uid: Option<u32>,
    since_ms: i64,
    /// Whether `DEVICE_HELD` was emitted.
    #[serde(rename = "told")]
    reported: bool,
    /// Scans in a row that did not find it, and the time of the first.
    #[serde(default)]
    missed: u32,
    #[serde(default)]
    missed_ms: i64,
}

/// Open holds, and the counter that names the next one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenHolds {
    pub boot: String,
    counter: u64,
    open: Vec<Hold>,
}

/// A job's process on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JobProcess {
    pub job: String,
    pub full_id: Option<String>,
    pub device: Device,
    pub evidence: Evidence,
}

impl OpenHolds {
    /// An empty set. An earlier one may be lost, so the counter starts at the time, beyond any
    /// number used before.
    pub(super) fn begin(boot: &str, now_ms: i64) -> Self {
        Self { boot: boot.to_owned(), counter: now_ms.unsigned_abs(), ..Self::default() }
    }

    /// Continues with saved holds. Holds of an earlier boot end at `booted_ms`.
    pub(super) fn resume(mut self, node: &str, boot: &str, booted_ms: i64) -> (Self, Vec<Event>) {
        if self.boot == boot {
            return (self, Vec::new());
        }
        let (boot, open) = (boot.to_owned(), std::mem::take(&mut self.open));
        let events = open.into_iter().flat_map(|hold| close(node, hold, booted_ms)).collect();
        (Self { boot, ..Self::default() }, events)
    }

    /// Records a report of a prolog or an epilog.
    pub(super) fn record(
        &mut self,
        node: &str,
        report: &HoldEvent,
        now_ms: i64,
        devices: &[Device],
    ) -> Vec<Event> {
        let at_ms = report.time_ms.unwrap_or(now_ms);
        let gpus: Vec<DeviceName> = report.gpus.iter().map(|gpu| named(gpu, devices)).collect();
        if report.kind == HoldKind::Release {
            let step = |hold: &Hold| report.step_id.is_none() || hold.step_id == report.step_id;
            let meant = |hold: &Hold| gpus.is_empty() || gpus.iter().any(|gpu| hold.device.matches(gpu));
            return self
                .close_where(node, at_ms, |hold| hold.job == report.job_id && step(hold) && meant(hold));
        }
        let mut events = Vec::new();
        for device in gpus {
            let same = |hold: &Hold| {
                hold.job == report.job_id && hold.device.matches(&device) && hold.step_id == report.step_id
            };
            // A repeated report changes nothing. A requeued job restarts only after its epilog.
            if self.open.iter().any(|hold| same(hold) && hold.evidence == "prolog") {
                continue;
            }
            // The report replaces a hold opened by a scan. It also ends the hold of an earlier job,
            // whose epilog was missed.
            let alone = report.share_milli.is_none();
            events.extend(self.close_where(node, at_ms, |hold| {
                same(hold)
                    || (alone
                        && report.step_id.is_none()
                        && hold.device.matches(&device)
                        && hold.share_milli.is_none()
                        && hold.job != report.job_id)
            }));
            let quality = if alone { "EXACT" } else { "SHARED_ESTIMATED" };
            let id = self.next_id(node);
            self.open.push(Hold {
                id,
                job: report.job_id.clone(),
                // With an array index it is the full id already.
                full_id: report.job_id.contains(['_', '+']).then(|| report.job_id.clone()),
                step_id: report.step_id.clone(),
                device,
                quality: quality.to_owned(),
                evidence: "prolog".to_owned(),
                share_milli: report.share_milli,
                uid: report.uid,
                since_ms: at_ms,
                reported: false,
                missed: 0,
                missed_ms: 0,
            });
        }
        events.extend(self.emit_named(node, now_ms, &BTreeMap::new()));
        events
    }

    /// Records a scan: jobs present (`None` if that cannot be known), full ids by number, and
    /// processes on devices.
    pub(super) fn observe(
        &mut self,
        node: &str,
        now_ms: i64,
        jobs: Option<&JobCgroups>,
        names: &BTreeMap<String, String>,
        seen: &[JobProcess],
    ) -> Vec<Event> {
        let with_process: BTreeSet<&str> = seen.iter().map(|seen| seen.job.as_str()).collect();
        for hold in &mut self.open {
            let used = seen
                .iter()
                .any(|seen| seen.job == hold.job && hold.device.matches(&named_device(&seen.device)));
            let there = with_process.contains(hold.job.as_str())
                || jobs.is_none_or(|jobs| !jobs.complete || jobs.numbers.contains_key(&hold.job));
            // A hold without a prolog lasts while its process does.
            let lasts =
                if hold.evidence == "prolog" { there || now_ms - hold.since_ms < YOUNG_MS } else { used };
            if lasts {
                hold.missed = 0;
                continue;
            }
            if hold.missed == 0 {
                hold.missed_ms = now_ms;
            }
            hold.missed += 1;
        }
        let mut events = Vec::new();
        let (gone, open) =
            std::mem::take(&mut self.open).into_iter().partition(|hold: &Hold| hold.missed >= MISSED);
        self.open = open;
        for hold in gone {
            let at_ms = hold.missed_ms;
            events.extend(close(node, hold, at_ms));
        }
        for seen in seen {
            let device = named_device(&seen.device);
            // A job that holds a whole device holds its slices too.
            let covers = |hold: &Hold| {
                let whole = hold.device.mig_uuid.is_none() && hold.device.uuid == device.uuid;
                hold.job == seen.job && (hold.device.matches(&device) || whole)
            };
            if self.open.iter().any(covers) {
                continue;
            }
            let id = self.next_id(node);
            self.open.push(Hold {
                id,
                job: seen.job.clone(),
                full_id: seen.full_id.clone(),
                step_id: None,
                device,
                quality: "UNKNOWN".to_owned(),
                evidence: seen.evidence.as_str().to_owned(),
                share_milli: None,
                uid: None,
                since_ms: now_ms,
                reported: false,
                missed: 0,
                missed_ms: 0,
            });
        }
        events.extend(self.emit_named(node, now_ms, names));
        events
    }

    /// Jobs that a prolog or the kernel names. A process's environment does not count: anybody can
    /// write another's job there.
    pub(super) fn jobs(&self) -> Vec<KnownJob> {
        let proven = self.open.iter().filter(|hold| hold.evidence != Evidence::Pid.as_str());
        let job =
            |hold: &Hold| KnownJob { number: hold.job.clone(), full_id: hold.full_id.clone(), uid: hold.uid };
        proven.map(job).collect()
    }

    /// Jobs whose full id is still unknown.
    pub(super) fn unnamed(&self) -> BTreeSet<String> {
        self.open
            .iter()
            .filter(|hold| !hold.reported && hold.full_id.is_none())
            .map(|hold| hold.job.clone())
            .collect()
    }

    /// Emits holds whose full id is known by now, or overdue.
    fn emit_named(&mut self, node: &str, now_ms: i64, names: &BTreeMap<String, String>) -> Vec<Event> {
        let mut events = Vec::new();
        // A job's user writes its environment: the id of another job here is not taken from it.
        let taken: BTreeMap<String, String> =
            self.open.iter().filter_map(|hold| Some((hold.full_id.clone()?, hold.job.clone()))).collect();
        let free = |name: &&String, job: &str| taken.get(*name).is_none_or(|holder| holder == job);
        for hold in self.open.iter_mut().filter(|hold| !hold.reported) {
            let named = || names.get(&hold.job).filter(|name| free(name, &hold.job)).cloned();
            hold.full_id = hold.full_id.take().or_else(named);
            if hold.full_id.is_some() || now_ms - hold.since_ms >= NAMING_MS {
                hold.reported = true;
                events.push(event(node, hold, Kind::DeviceHeld, hold.since_ms));
            }
        }
        events
    }

    fn close_where(&mut self, node: &str, at_ms: i64, ends: impl Fn(&Hold) -> bool) -> Vec<Event> {
        let (gone, open) = std::mem::take(&mut self.open).into_iter().partition(ends);
        self.open = open;
        let gone: Vec<Hold> = gone;
        gone.into_iter().flat_map(|hold| close(node, hold, at_ms)).collect()
    }

    /// `NODE/BOOT/COUNTER`: unique within a node.
    fn next_id(&mut self, node: &str) -> String {
        self.counter += 1;
        format!("{node}/{}/{}", self.boot.get(..8).unwrap_or(&self.boot), self.counter)
    }
}

/// Ends a hold, after beginning it if that was not emitted yet. A clock that was set back must not
/// end a hold before it began.
fn close(node: &str, hold: Hold, at_ms: i64) -> Vec<Event> {
    let held = (!hold.reported).then(|| event(node, &hold, Kind::DeviceHeld, hold.since_ms));
    let released = event(node, &hold, Kind::DeviceReleased, at_ms.max(hold.since_ms));
    held.into_iter().chain([released]).collect()
}

fn event(node: &str, hold: &Hold, kind: Kind, at_ms: i64) -> Event {
    Event::Job(v1::JobEvent {
        envelope: Some(v1::Envelope { event_time_ms: at_ms, ..Default::default() }),
        kind: kind.into(),
        job_id: hold.full_id.as_ref().unwrap_or(&hold.job).clone(),
        step_id: hold.step_id.clone(),
        hold_id: Some(hold.id.clone()),
        node: Some(node.to_owned()),
        gpu_uuid: hold.device.uuid.clone(),
        mig_uuid: hold.device.mig_uuid.clone(),
        gpu_index: hold.device.index,
        hold_quality: Some(hold.quality.clone()),
        hold_evidence: Some(hold.evidence.clone()),
        share_milli: hold.share_milli,
        ..Default::default()
    })
}

/// Resolves a device name on this node. A number is the driver's, and schedulers may count
/// otherwise, so a UUID takes precedence.
fn named(gpu: &GpuName, devices: &[Device]) -> DeviceName {
    let found = match gpu {
        GpuName::Index(index) => {
            devices.iter().find(|device| device.index == *index && device.mig_uuid.is_none())
        }
        GpuName::Uuid(uuid) => {
            devices.iter().find(|device| device.mig_uuid.as_ref().unwrap_or(&device.uuid) == uuid)
        }
    };
    match (found, gpu) {
        (Some(device), _) => named_device(device),
        (None, GpuName::Index(index)) => DeviceName { index: Some(*index), ..DeviceName::default() },
        (None, GpuName::Uuid(uuid)) if uuid.starts_with("MIG-") => {
            DeviceName { mig_uuid: Some(uuid.clone()), ..DeviceName::default() }
        }
        (None, GpuName::Uuid(uuid)) => DeviceName { uuid: Some(uuid.clone()), ..DeviceName::default() },
    }
}

fn named_device(device: &Device) -> DeviceName {
    DeviceName {
        uuid: Some(device.uuid.clone()),
        mig_uuid: device.mig_uuid.clone(),
        index: Some(device.index),
    }
}
