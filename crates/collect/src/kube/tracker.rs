//! Turns observations of holds into events: a hold begins when first seen and ends when first
//! missed.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tidegate_events::{Event, v1};

use super::{HoldObserver, Observation, PodDevice, PodHold};
use crate::checkpoint::Checkpoint;
use crate::reading::Sink;

/// An open hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct OpenHold {
    source: String,
    held: PodHold,
    /// When it was first seen, ms since the epoch.
    since_ms: i64,
}

/// Emits holds that begin and end. Open holds are saved in a file, so that a restarted agent
/// continues with them.
pub struct Tracker {
    node: String,
    sink: Arc<dyn Sink>,
    tracked: Mutex<Tracked>,
}

struct Tracked {
    open: BTreeMap<Key, OpenHold>,
    checkpoint: Checkpoint,
}

/// Source, job and device.
type Key = (String, String, PodDevice);

impl std::fmt::Debug for Tracker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tracker").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Tracker {
    /// Continues with the holds in the file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn new(node: impl Into<String>, file: PathBuf, sink: Arc<dyn Sink>) -> io::Result<Self> {
        let (open, checkpoint) = Checkpoint::open::<Vec<OpenHold>>(Some(file))?;
        let keyed = |hold: OpenHold| (key(&hold.source, &hold.held), hold);
        let open = open.unwrap_or_default().into_iter().map(keyed).collect();
        Ok(Self { node: node.into(), sink, tracked: Mutex::new(Tracked { open, checkpoint }) })
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
            PodDevice::Gpu(uuid) => event.gpu_uuid = Some(uuid.clone()),
            PodDevice::Mig(uuid) => event.mig_uuid = Some(uuid.clone()),
            // Only the hold's id names it: the contract has no field for a name that is neither
            // UUID nor number.
            PodDevice::Named(_) => {}
        }
        Event::Job(event)
    }

    /// `SOURCE/NODE/JOB/DEVICE@SINCE`: pod names are reused, so the time is part of it.
    fn hold_id(&self, hold: &OpenHold) -> String {
        let (PodDevice::Gpu(name) | PodDevice::Mig(name) | PodDevice::Named(name)) = &hold.held.device;
        format!("{}/{}/{}/{name}@{}", hold.source, self.node, hold.held.job_id, hold.since_ms)
    }
}

impl HoldObserver for Tracker {
    fn observe(&self, observation: Observation) {
        let mut tracked = self.tracked.lock().unwrap_or_else(PoisonError::into_inner);
        let Tracked { open, checkpoint } = &mut *tracked;
        let now: BTreeMap<Key, PodHold> =
            observation.holds.into_iter().map(|held| (key(observation.source, &held), held)).collect();
        // A hold whose share or quality changed ends and begins anew.
        let ended: Vec<Key> = open
            .iter()
            .filter(|(key, hold)| match now.get(key) {
                Some(held) => *held != hold.held,
                None => observation.complete && hold.source == observation.source,
            })
            .map(|(key, _)| key.clone())
            .collect();
        for hold in ended.iter().filter_map(|key| open.remove(key)) {
            // A clock that was set back must not end a hold before it began.
            let at_ms = observation.at_ms.max(hold.since_ms);
            checkpoint.add([self.event(&hold, v1::JobEventKind::DeviceReleased, at_ms)]);
        }
        for (key, held) in now {
            open.entry(key).or_insert_with(|| {
                let hold =
                    OpenHold { source: observation.source.to_owned(), held, since_ms: observation.at_ms };
                checkpoint.add([self.event(&hold, v1::JobEventKind::DeviceHeld, observation.at_ms)]);
                hold
            });
        }
        let kept: Vec<&OpenHold> = open.values().collect();
        if let Err(error) = checkpoint.save_and_emit(&kept, &*self.sink) {
            tracing::warn!("holds of pods cannot be saved: {error}");
        }
    }
}

fn key(source: &str, held: &PodHold) -> Key {
    (source.to_owned(), held.job_id.clone(), held.device.clone())
}
