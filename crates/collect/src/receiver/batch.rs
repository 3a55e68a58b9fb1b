//! Batch of received lines: parsed into records and delivered to the sink.

use std::sync::Arc;

use serde_json::{Map, Value};
use tidegate_events::Event;

use super::hold::{self, HoldEvent};
use super::limits::{LINE_COST_BYTES, Peer};
use super::{Counts, Shared, admission, step};

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
    cost: usize,
}

impl Batch {
    /// Parses lines; `before` is the number of earlier ones, for messages.
    pub fn of_lines(shared: &Shared, peer: &Peer, text: &[u8], before: u64) -> Self {
        let mut batch = Self::default();
        let text = text.strip_suffix(b"\n").unwrap_or(text);
        for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let number = before + at as u64 + 1;
            let record = record(shared, peer, line).map_err(|what| format!("line {number}: {what}"));
            batch.lines.push(record);
            batch.cost += 1 + line.len() / LINE_COST_BYTES;
        }
        batch
    }

    /// A batch that arrives as `bytes` that are no lines.
    #[cfg(feature = "otlp")]
    pub fn of_bytes(bytes: usize) -> Self {
        Self { lines: Vec::new(), cost: bytes / LINE_COST_BYTES }
    }

    /// Adds a step report that did not arrive as a line. `name` is for messages.
    #[cfg(feature = "otlp")]
    pub fn push(&mut self, shared: &Shared, peer: &Peer, fields: Map<String, Value>, name: &str) {
        let record = step_record(shared, peer, fields).map_err(|what| format!("{name}: {what}"));
        self.lines.push(record);
        self.cost += 1;
    }

    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// What it counts towards the peer's rate, in lines.
    pub fn cost(&self) -> usize {
        self.cost
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

fn record(shared: &Shared, peer: &Peer, line: &[u8]) -> Result<(Record, Vec<String>), String> {
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
    step_record(shared, peer, fields)
}

fn step_record(
    shared: &Shared,
    peer: &Peer,
    fields: Map<String, Value>,
) -> Result<(Record, Vec<String>), String> {
    let (report, ignored) = step::from_json(fields, &shared.node, super::now_ms())?;
    admission::admit(shared, peer, &report)?;
    Ok((Record::Step(Box::new(Event::Step(report))), ignored))
}

/// serde_json's message without its line number, which is always 1.
fn what(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}

fn check_may_report_holds(shared: &Shared, peer: &Peer) -> Result<(), String> {
    let own = nix::unistd::Uid::effective().as_raw();
    match peer.id {
        // Root of a container is no more than the job that runs in it.
        Some(0) if peer.reporter.contained => {
            Err("root of a container may not report holds; let a prolog on the node do it".into())
        }
        Some(uid) if uid == 0 || uid == own || shared.event_uids.contains(&uid) => Ok(()),
        Some(uid) => Err(format!(
            "user {uid} may not report holds; let a prolog that runs as root do it, or allow the user with --event-uid"
        )),
        None => Err("holds are taken on the Unix socket only, where the sender is known".into()),
    }
}
