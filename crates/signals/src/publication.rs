//! What the service appends to the log: events with a producer name that makes appends idempotent.

use tidegate_events::v1::Envelope;
use tidegate_events::{Event, Micros};
use tidegate_insight::straggler::Evidence;

/// Events that are appended together under one producer name.
///
/// The name states what the events are about (model, cluster, subject, time). A replay of the log,
/// or a second process, produces the same name, and the log drops the duplicate.
#[derive(Debug, Clone, PartialEq)]
pub struct Publication {
    pub source: String,
    pub events: Vec<Event>,
}

/// Envelope of an output at event time `at_us`. A pure function of its arguments, so that replays
/// give the same bytes.
pub fn envelope(cluster: &str, source: &str, at_us: i64, seq: u64) -> Option<Envelope> {
    let at_ms = Micros(at_us).floor_millis().0;
    Some(Envelope {
        cluster: cluster.into(),
        source: source.into(),
        seq,
        event_time_ms: at_ms,
        observed_time_ms: at_ms,
        ..Envelope::default()
    })
}

/// Producer name for outputs about `about`. On Kafka, producers whose names are equal up to the `#`
/// share a connection, which is expensive to open.
pub fn producer_name(about: &[&str]) -> String {
    format!("insight#{}", about.join("/").replace('#', "%23"))
}

/// A share from 0 to 1 in millionths.
pub fn ppm(share: f64) -> u32 {
    (share.clamp(0.0, 1.0) * 1e6).round() as u32
}

/// Evidence as text, one line an item.
pub fn evidence_lines(evidence: &[Evidence]) -> Vec<String> {
    evidence.iter().map(|e| format!("{} value={:.3} weight={:.2}", e.rule, e.value, e.weight)).collect()
}
