//! Observations to events: a hold begins when it is first seen and ends when it is missed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, v1};

use super::{Held, HeldDevice, Holds, Observation};
use crate::reading::Sink;

/// A hold that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenHold {
    pub source: String,
    pub held: Held,
    /// When it was first seen, ms since the epoch.
    pub since_ms: i64,
}

/// Tells a sink of holds that begin and end.
pub struct Tracker {
    node: String,
    sink: Arc<dyn Sink>,
    open: Mutex<BTreeMap<Key, OpenHold>>,
}

/// Source, job and device.
type Key = (String, String, HeldDevice);

impl std::fmt::Debug for Tracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracker").field("node", &self.node).field("open", &self.open).finish_non_exhaustive()
    }
}

impl Tracker {
    /// Goes on with holds that were open when the agent ended; without them each would begin a second time.
    pub fn new(node: impl Into<String>, sink: Arc<dyn Sink>, open: Vec<OpenHold>) -> Self {
        let open = open.into_iter().map(|hold| (key(&hold.source, &hold.held), hold)).collect();
        Self { node: node.into(), sink, open: Mutex::new(open) }
    }

    /// Holds that have not ended, to be kept for the next [`Tracker::new`].
    pub fn open(&self) -> Vec<OpenHold> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    fn tell(&self, hold: &OpenHold, kind: v1::JobEventKind, at_ms: i64) {
        let mut event = v1::JobEvent {
            envelope: Some(v1::Envelope {
                event_time_ms: at_ms,
                observed_time_ms: at_ms,
                ..Default::default()
            }),
            kind: kind.into(),
            job_id: hold.held.job_id.clone(),
            hold_id: Some(self.hold_id(hold)),
            node: Some(self.node.clone()),
            hold_quality: Some(hold.held.quality.as_str().into()),
            hold_evidence: Some(hold.source.clone()),
            share_milli: hold.held.share_milli,
            ..Default::default()
        };
        match &hold.held.device {
            HeldDevice::Gpu(uuid) => event.gpu_uuid = Some(uuid.clone()),
            HeldDevice::Mig(uuid) => event.mig_uuid = Some(uuid.clone()),
            // Only the hold's id names it: no field of the contract takes what is neither UUID nor number.
            HeldDevice::Named(_) => {}
        }
        self.sink.event(Event::Job(event));
    }

    /// `SOURCE/NODE/JOB/DEVICE@SINCE`: pods' names are used again, so the time belongs to it.
    fn hold_id(&self, hold: &OpenHold) -> String {
        let (HeldDevice::Gpu(name) | HeldDevice::Mig(name) | HeldDevice::Named(name)) = &hold.held.device;
        format!("{}/{}/{}/{name}@{}", hold.source, self.node, hold.held.job_id, hold.since_ms)
    }
}

impl Holds for Tracker {
    fn observe(&self, seen: Observation) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let now: BTreeMap<Key, Held> =
            seen.held.into_iter().map(|held| (key(seen.source, &held), held)).collect();
        // A hold whose share or quality is another one now ends, and begins anew.
        let ended: Vec<Key> = open
            .iter()
            .filter(|(key, hold)| match now.get(key) {
                Some(held) => *held != hold.held,
                None => seen.complete && hold.source == seen.source,
            })
            .map(|(key, _)| key.clone())
            .collect();
        for hold in ended.iter().filter_map(|key| open.remove(key)) {
            // A clock that was set back must not end a hold before it began.
            self.tell(&hold, v1::JobEventKind::DeviceReleased, seen.at_ms.max(hold.since_ms));
        }
        for (key, held) in now {
            open.entry(key).or_insert_with(|| {
                let hold = OpenHold { source: seen.source.to_owned(), held, since_ms: seen.at_ms };
                self.tell(&hold, v1::JobEventKind::DeviceHeld, seen.at_ms);
                hold
            });
        }
    }
}

fn key(source: &str, held: &Held) -> Key {
    (source.to_owned(), held.job_id.clone(), held.device.clone())
}
