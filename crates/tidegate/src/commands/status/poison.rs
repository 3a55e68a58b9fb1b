//! What readers of the log have died of, and what they skip.

use serde::Serialize;
use tidegate_control::service::READER as AUTOPILOT;
use tidegate_log::DataDir;
use tidegate_log::poison::{Deaths, Place, SetAside};
use tidegate_workspace::DEATHS;

/// Those who note what they die of.
const READERS: [&str; 2] = ["tables", "signals"];

/// Something that a reader skips, because it died of it.
#[derive(Debug, Serialize)]
pub struct Skipped {
    reader: &'static str,
    /// A record, an event by its id, or the steps of a job.
    what: String,
    /// Where the first record stands that was skipped.
    topic: Option<String>,
    partition: Option<u32>,
    offset: Option<u64>,
}

/// What the readers of a data folder skip.
pub fn skipped(folder: &DataDir) -> Vec<Skipped> {
    let of = |reader| {
        let deaths = Deaths::read(&folder.path().join(DEATHS), reader);
        deaths.set_aside.into_iter().map(move |it| Skipped::new(reader, it))
    };
    READERS.into_iter().flat_map(of).collect()
}

impl Skipped {
    fn new(reader: &'static str, SetAside { place, skipped }: SetAside) -> Self {
        let what = match &place {
            Place::Work => "work".into(),
            Place::Records { .. } => "record".into(),
            Place::Event(id) => format!("event {id}"),
            Place::Job(cluster, job) => format!("steps of job {job:?} of cluster {cluster:?}"),
        };
        let stands = match place {
            Place::Records { topic, partition, from, .. } => Some((topic, partition, from)),
            _ => skipped,
        };
        let (topic, partition, offset) = match stands {
            Some((topic, partition, offset)) => (Some(topic), Some(partition), Some(offset)),
            None => (None, None, None),
        };
        Self { reader, what, topic, partition, offset }
    }
}

/// Where a reader goes no further, because it died there and skips nothing.
#[derive(Debug, Serialize)]
pub struct Stopped {
    reader: &'static str,
    topic: String,
    partition: u32,
    offset: u64,
}

/// Where the autopilot of a data folder goes no further.
pub fn stopped(folder: &DataDir) -> Vec<Stopped> {
    let deaths = Deaths::read(&folder.path().join(DEATHS), AUTOPILOT);
    let stopped = deaths.stopped_at().into_iter().map(|(topic, partition, offset)| Stopped {
        reader: AUTOPILOT,
        topic: topic.to_owned(),
        partition,
        offset,
    });
    stopped.collect()
}

pub fn print_stopped(stopped: &[Stopped]) {
    for Stopped { reader, topic, partition, offset } in stopped {
        say!(
            "stopped  {reader} does not act: it died twice while it read {topic}/{partition} from offset {offset} on; report it, \
             and delete {DEATHS}/{reader}.json once a newer version reads it"
        );
    }
}

pub fn print(skipped: &[Skipped]) {
    for Skipped { reader, what, topic, partition, offset } in skipped {
        let place = match (topic, partition, offset) {
            (Some(topic), Some(partition), Some(offset)) => format!("{topic}/{partition} offset {offset}"),
            _ => "not read again yet".into(),
        };
        say!(
            "skipped  {what}, {place}: {reader} died of it twice and then alone (dead_letters, code POISON)"
        );
    }
}
