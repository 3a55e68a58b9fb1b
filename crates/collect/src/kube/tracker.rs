//! Observations to events: a hold begins when it is first seen and ends when it is missed.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, v1};

use super::{Held, HeldDevice, Holds, Observation};
use crate::checkpoint::Checkpoint;
use crate::reading::Sink;

/// A hold that has not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OpenHold {
    source: String,
    held: Held,
    /// When it was first seen, ms since the epoch.
    since_ms: i64,
}

/// Tells a sink of holds that begin and end. Open ones are in a file, so that an agent that starts
/// again goes on with them.
pub struct Tracker {
    node: String,
    sink: Arc<dyn Sink>,
    account: Mutex<Account>,
}

struct Account {
    open: BTreeMap<Key, OpenHold>,
    checkpoint: Checkpoint,
}

/// Source, job and device.
type Key = (String, String, HeldDevice);

impl std::fmt::Debug for Tracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracker").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Tracker {
    /// Goes on with the holds in the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn new(node: impl Into<String>, file: PathBuf, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let (open, checkpoint) = Checkpoint::open::<Vec<OpenHold>>(Some(file))?;
        let keyed = |hold: OpenHold| (key(&hold.source, &hold.held), hold);
        let open = open.unwrap_or_default().into_iter().map(keyed).collect();
        Ok(Self { node: node.into(), sink, account: Mutex::new(Account { open, checkpoint }) })
    }

    fn event(&self, hold: &OpenHold, kind: v1::JobEventKind, at_ms: i64) -> Event {
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
            // Only the hold's id names it: no field of the contract takes what is neither UUID nor
            // number.
            HeldDevice::Named(_) => {}
        }
        Event::Job(event)
    }

    /// `SOURCE/NODE/JOB/DEVICE@SINCE`: pods' names are used again, so the time belongs to it.
    fn hold_id(&self, hold: &OpenHold) -> String {
        let (HeldDevice::Gpu(name) | HeldDevice::Mig(name) | HeldDevice::Named(name)) = &hold.held.device;
        format!("{}/{}/{}/{name}@{}", hold.source, self.node, hold.held.job_id, hold.since_ms)
    }
}

impl Holds for Tracker {
    fn observe(&self, seen: Observation) {
        let mut account = self.account.lock().unwrap_or_else(PoisonError::into_inner);
        let Account { open, checkpoint } = &mut *account;
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
            let at_ms = seen.at_ms.max(hold.since_ms);
            checkpoint.add([self.event(&hold, v1::JobEventKind::DeviceReleased, at_ms)]);
        }
        for (key, held) in now {
            open.entry(key).or_insert_with(|| {
                let hold = OpenHold { source: seen.source.to_owned(), held, since_ms: seen.at_ms };
                checkpoint.add([self.event(&hold, v1::JobEventKind::DeviceHeld, seen.at_ms)]);
                hold
            });
        }
        let kept: Vec<&OpenHold> = open.values().collect();
        if let Err(error) = checkpoint.hand_on(&kept, &*self.sink) {
            tracing::warn!("the account of pods' holds is not safe: {error}");
        }
    }
}

fn key(source: &str, held: &Held) -> Key {
    (source.to_owned(), held.job_id.clone(), held.device.clone())
}
