//! The account of holds: what was told and seen, as holds that begin and end.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, v1};
use v1::JobEventKind as Kind;

use super::scan::{Evidence, Jobs};
use crate::inlet::{GpuName, HoldEvent, HoldKind};
use crate::reading::Device;

/// What a prolog told is not told on before the job's full name is known, or for this long.
const NAMING_MS: i64 = 30_000;
/// A job has no cgroup yet while its prologs run.
const YOUNG_MS: i64 = 120_000;
/// What was missed in so many looks is gone.
const MISSED: u32 = 2;

/// A device by what is known of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Named {
    pub uuid: Option<String>,
    pub mig_uuid: Option<String>,
    pub index: Option<u32>,
}

impl Named {
    /// The device itself, or one that cannot be told from it.
    fn is(&self, other: &Self) -> bool {
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

/// A hold that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Hold {
    id: String,
    /// As whoever began it named the job: a number, if it was a prolog or a cgroup.
    job: String,
    /// As accounting spells the job.
    spelled: Option<String>,
    step_id: Option<String>,
    device: Named,
    quality: String,
    evidence: String,
    share_milli: Option<u32>,
    since_ms: i64,
    /// Whether it was told on.
    told: bool,
    /// Looks in which it was missed, and the time of the first.
    #[serde(default)]
    missed: u32,
    #[serde(default)]
    missed_ms: i64,
}

/// Open holds, and what names the next one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Book {
    pub boot: String,
    counter: u64,
    open: Vec<Hold>,
}

/// A process of a job on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Seen {
    pub job: String,
    pub spelled: Option<String>,
    pub device: Device,
    pub evidence: Evidence,
}

impl Book {
    /// An empty one. What was before it may be lost, so its numbers begin with the time: none was
    /// used before.
    pub(super) fn begin(boot: &str, now_ms: i64) -> Self {
        Self { boot: boot.to_owned(), counter: now_ms.unsigned_abs(), ..Self::default() }
    }

    /// Goes on with a book; what was open when the node went down ended then.
    pub(super) fn resume(mut self, node: &str, boot: &str, booted_ms: i64) -> (Self, Vec<Event>) {
        if self.boot == boot {
            return (self, Vec::new());
        }
        let (boot, open) = (boot.to_owned(), std::mem::take(&mut self.open));
        let events = open.into_iter().flat_map(|hold| close(node, hold, booted_ms)).collect();
        (Self { boot, ..Self::default() }, events)
    }

    /// Takes what a prolog or an epilog told.
    pub(super) fn told(
        &mut self,
        node: &str,
        told: &HoldEvent,
        now_ms: i64,
        devices: &[Device],
    ) -> Vec<Event> {
        let at_ms = told.time_ms.unwrap_or(now_ms);
        let gpus: Vec<Named> = told.gpus.iter().map(|gpu| named(gpu, devices)).collect();
        if told.kind == HoldKind::Release {
            let step = |hold: &Hold| told.step_id.is_none() || hold.step_id == told.step_id;
            let meant = |hold: &Hold| gpus.is_empty() || gpus.iter().any(|gpu| hold.device.is(gpu));
            return self
                .close_where(node, at_ms, |hold| hold.job == told.job_id && step(hold) && meant(hold));
        }
        let mut events = Vec::new();
        for device in gpus {
            let same = |hold: &Hold| {
                hold.job == told.job_id && hold.device.is(&device) && hold.step_id == told.step_id
            };
            // Told twice is held once; the restart of a requeued job comes after an epilog.
            if self.open.iter().any(|hold| same(hold) && hold.evidence == "prolog") {
                continue;
            }
            // A process was there before the prolog had told: from now on it is known whose the
            // device is. And nobody else has it any more: his epilog was missed.
            let alone = told.share_milli.is_none();
            events.extend(self.close_where(node, at_ms, |hold| {
                same(hold)
                    || (alone
                        && told.step_id.is_none()
                        && hold.device.is(&device)
                        && hold.share_milli.is_none()
                        && hold.job != told.job_id)
            }));
            let quality = if alone { "EXACT" } else { "SHARED_ESTIMATED" };
            let id = self.next_id(node);
            self.open.push(Hold {
                id,
                job: told.job_id.clone(),
                // With a place in an array it is the full name.
                spelled: told.job_id.contains(['_', '+']).then(|| told.job_id.clone()),
                step_id: told.step_id.clone(),
                device,
                quality: quality.to_owned(),
                evidence: "prolog".to_owned(),
                share_milli: told.share_milli,
                since_ms: at_ms,
                told: false,
                missed: 0,
                missed_ms: 0,
            });
        }
        events.extend(self.tell(node, now_ms, &BTreeMap::new()));
        events
    }

    /// Takes what a look at the node showed: jobs that are there, if that can be known, their
    /// names, and whose processes are on which device.
    pub(super) fn looked(
        &mut self,
        node: &str,
        now_ms: i64,
        jobs: Option<&Jobs>,
        names: &BTreeMap<String, String>,
        seen: &[Seen],
    ) -> Vec<Event> {
        let with_process: BTreeSet<&str> = seen.iter().map(|seen| seen.job.as_str()).collect();
        for hold in &mut self.open {
            let used =
                seen.iter().any(|seen| seen.job == hold.job && hold.device.is(&named_device(&seen.device)));
            let there = with_process.contains(hold.job.as_str())
                || jobs.is_none_or(|jobs| !jobs.complete || jobs.numbers.contains_key(&hold.job));
            // A hold that nobody told of lasts while its process does.
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
                hold.job == seen.job && (hold.device.is(&device) || whole)
            };
            if self.open.iter().any(covers) {
                continue;
            }
            let id = self.next_id(node);
            self.open.push(Hold {
                id,
                job: seen.job.clone(),
                spelled: seen.spelled.clone(),
                step_id: None,
                device,
                quality: "UNKNOWN".to_owned(),
                evidence: seen.evidence.as_str().to_owned(),
                share_milli: None,
                since_ms: now_ms,
                told: false,
                missed: 0,
                missed_ms: 0,
            });
        }
        events.extend(self.tell(node, now_ms, names));
        events
    }

    /// Jobs whose full name is still to be found.
    pub(super) fn unnamed(&self) -> BTreeSet<String> {
        self.open
            .iter()
            .filter(|hold| !hold.told && hold.spelled.is_none())
            .map(|hold| hold.job.clone())
            .collect()
    }

    /// Tells of holds whose job's name is known by now, or will not be.
    fn tell(&mut self, node: &str, now_ms: i64, names: &BTreeMap<String, String>) -> Vec<Event> {
        let mut events = Vec::new();
        for hold in self.open.iter_mut().filter(|hold| !hold.told) {
            hold.spelled = hold.spelled.take().or_else(|| names.get(&hold.job).cloned());
            if hold.spelled.is_some() || now_ms - hold.since_ms >= NAMING_MS {
                hold.told = true;
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

    /// `NODE/BOOT/COUNTER`: no two holds of a node have the same.
    fn next_id(&mut self, node: &str) -> String {
        self.counter += 1;
        format!("{node}/{}/{}", self.boot.get(..8).unwrap_or(&self.boot), self.counter)
    }
}

/// A release, behind the hold if that was not told yet. A clock that was set back must not end it
/// before it began.
fn close(node: &str, hold: Hold, at_ms: i64) -> Vec<Event> {
    let held = (!hold.told).then(|| event(node, &hold, Kind::DeviceHeld, hold.since_ms));
    let released = event(node, &hold, Kind::DeviceReleased, at_ms.max(hold.since_ms));
    held.into_iter().chain([released]).collect()
}

fn event(node: &str, hold: &Hold, kind: Kind, at_ms: i64) -> Event {
    Event::Job(v1::JobEvent {
        envelope: Some(v1::Envelope { event_time_ms: at_ms, ..Default::default() }),
        kind: kind.into(),
        job_id: hold.spelled.as_ref().unwrap_or(&hold.job).clone(),
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

/// What a name means on this node. A number is one of the driver, which a scheduler may count
/// otherwise: the UUID goes before.
fn named(gpu: &GpuName, devices: &[Device]) -> Named {
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
        (None, GpuName::Index(index)) => Named { index: Some(*index), ..Named::default() },
        (None, GpuName::Uuid(uuid)) if uuid.starts_with("MIG-") => {
            Named { mig_uuid: Some(uuid.clone()), ..Named::default() }
        }
        (None, GpuName::Uuid(uuid)) => Named { uuid: Some(uuid.clone()), ..Named::default() },
    }
}

fn named_device(device: &Device) -> Named {
    Named { uuid: Some(device.uuid.clone()), mig_uuid: device.mig_uuid.clone(), index: Some(device.index) }
}
