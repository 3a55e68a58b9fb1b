//! Insight as a streaming operator: what jobs, steps, devices and nodes tell goes in, signals and
//! forecasts come out, as events.
//!
//! The files, in the order the data goes: `operator` (the log, the only one that does I/O) → `feed`
//! (order of event time, the clock of ticks) → `job` (a detector each; `roles`: whose peers its
//! ranks are), `device` (windows of samples), `node` (health), `demand` (forecasts), `coverage`
//! (whether they hold), `sizing` (what to commit to), `curves` (scaling), `fleet` (who holds what:
//! `holds`; which fault ended a job: `ends`; nodes that fail again and again: `lemons`).

mod coverage;
mod curves;
mod demand;
mod device;
mod ends;
mod feed;
mod fleet;
mod holds;
mod job;
mod lemons;
mod node;
mod operator;
mod roles;
mod sizing;

use tidegate_events::Event;
use tidegate_events::v1::Envelope;
use tidegate_insight::straggler::Evidence;

pub use operator::{Operator, Pace, Published};

const US_PER_MS: i64 = 1_000;
const US_PER_S: i64 = 1_000_000;

/// Events that are published together, under a source that names what they are about: published
/// again, from the beginning of the log or by another process, they are known to the log and not
/// written twice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Publication {
    pub source: String,
    pub events: Vec<Event>,
}

/// Envelope of what is said at an event time. It depends on nothing but what is said.
fn envelope(cluster: &str, source: &str, at_us: i64, seq: u64) -> Option<Envelope> {
    let at_ms = at_us.div_euclid(US_PER_MS);
    Some(Envelope {
        cluster: cluster.into(),
        source: source.into(),
        seq,
        event_time_ms: at_ms,
        observed_time_ms: at_ms,
        ..Envelope::default()
    })
}

/// Name of the producer of what is said about one thing. On Kafka, producers that are equal up to
/// the `#` share what is dear to open.
fn source(about: &[&str]) -> String {
    format!("insight#{}", about.join("/").replace('#', "%23"))
}

/// A share from 0 to 1 in millionths.
fn ppm(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * 1e6).round() as u32
}

fn lines(evidence: &[Evidence]) -> Vec<String> {
    evidence.iter().map(|e| format!("{} value={:.3} weight={:.2}", e.rule, e.value, e.weight)).collect()
}
