//! Batch of received lines: parsed into records and delivered to the sink.

use std::sync::Arc;

use serde_json::{Map, Value};
use tidegate_events::Event;

use super::hold::{self, HoldEvent};
use super::limits::PeerId;
use super::{Counts, Shared, step};

/// Most refusals that one HTTP answer lists.
pub(super) const LISTED_REFUSALS: usize = 20;

/// Outcome of a line.
pub(super) enum Outcome {
    /// Its record is safe. `ignored` names unknown fields.
    Taken { ignored: Vec<String> },
    /// It was refused, for this reason.
    Refused(String),
}

/// A parsed record.
enum Record {
    Step(Box<Event>),
    Hold(HoldEvent),
}

/// Lines of one read or request, in order.
#[derive(Default)]
pub(super) struct Batch {
    lines: Vec<Result<(Record, Vec<String>), String>>,
}

impl Batch {
    /// Parses lines; `before` is the number of earlier ones, for messages.
    pub fn of_lines(shared: &Shared, peer: PeerId, text: &[u8], before: u64) -> Self {
        let mut batch = Self::default();
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let number = before + at as u64 + 1;
            let record = record(shared, peer, line).map_err(|what| format!("line {number}: {what}"));
            batch.lines.push(record);
        }
        batch
    }

    /// Adds an event that did not arrive as a line.
    #[cfg(feature = "otlp")]
    pub fn push(&mut self, event: Result<Event, String>) {
        self.lines.push(event.map(|event| (Record::Step(Box::new(event)), Vec::new())));
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Delivers the valid ones and waits until they are safe. `None` if that failed: then nothing
    /// may be acknowledged.
    pub async fn deliver(self, shared: &Arc<Shared>) -> Option<Vec<Outcome>> {
        let for_sink = Arc::clone(shared);
        // The sink may block on the disk while other connections continue.
        let delivered = tokio::task::spawn_blocking(move || {
            let outcomes: Vec<_> = self.lines.into_iter().map(|line| deliver(&for_sink, line)).collect();
            for_sink.parts.sink.store().map(|()| outcomes)
        });
        let stored = delivered.await.map_err(|error| error.to_string()).flatten();
        stored.inspect_err(|error| tracing::error!(%error, "records could not be taken")).ok()
    }
}

fn deliver(shared: &Shared, line: Result<(Record, Vec<String>), String>) -> Outcome {
    let (record, ignored) = match line {
        Ok(good) => good,
        Err(what) => {
            Counts::add(&shared.counts.refused_lines, 1);
            return Outcome::Refused(what);
        }
    };
    match record {
        Record::Step(event) => {
            shared.parts.sink.event(*event);
            Counts::add(&shared.counts.steps, 1);
        }
        Record::Hold(event) => {
            let taken = match &shared.parts.holds {
                Some(holds) => holds.hold_event(event),
                None => Err("this agent takes no holds".into()),
            };
            if let Err(what) = taken {
                Counts::add(&shared.counts.refused_lines, 1);
                return Outcome::Refused(what);
            }
            Counts::add(&shared.counts.holds, 1);
        }
    }
    Outcome::Taken { ignored }
}

fn record(shared: &Shared, peer: PeerId, line: &[u8]) -> Result<(Record, Vec<String>), String> {
    let limit = shared.peers.limits.line_bytes;
    if line.len() > limit {
        return Err(format!("it is longer than {limit} bytes"));
    }
    let fields: Map<String, Value> = serde_json::from_slice(line).map_err(|error| {
        format!(
            "it is not a JSON object (column {}: {}); NaN and Infinity are not JSON",
            error.column(),
            what(&error)
        )
    })?;
    if fields.contains_key("event") {
        check_may_report_holds(shared, peer)?;
        let (event, ignored) = hold::from_json(fields)?;
        return Ok((Record::Hold(event), ignored));
    }
    let (event, ignored) = step::from_json(fields, &shared.node)?;
    Ok((Record::Step(Box::new(event)), ignored))
}

/// serde_json's message without its line number, which is always 1.
fn what(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

fn check_may_report_holds(shared: &Shared, peer: PeerId) -> Result<(), String> {
    let own = nix::unistd::Uid::effective().as_raw();
    match peer {
        Some(uid) if uid == 0 || uid == own || shared.event_uids.contains(&uid) => Ok(()),
        Some(uid) => Err(format!(
            "user {uid} may not report holds; let a prolog that runs as root do it, or allow the user with --event-uid"
        )),
        None => Err("holds are taken on the Unix socket only, where the sender is known".into()),
    }
}
