//! Interface of a method under test: it observes a job's messages and raises alarms.

use serde::Serialize;
use tidegate_insight::straggler::Class;

use super::scene::Message;

/// Certainty of an alarm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A first suspicion.
    Suspect,
    /// May be acted on.
    Confirmed,
}

/// Subject of an alarm, by the ranks and nodes of its attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// One rank.
    Rank(u32),
    /// One node.
    Node(u32),
    /// One role (stage).
    Role(u32),
    /// The network, no node of it in particular.
    Fabric,
    /// The job is slow; no subject is named.
    Job,
}

/// One alarm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Alarm {
    /// Alarms of one key are about one thing: a false one counts once.
    pub key: u64,
    /// Certainty.
    pub level: Level,
    /// Subject.
    pub target: Target,
    /// Cause, if named.
    pub class: Option<Class>,
    /// Event time that decided it, µs since 1970.
    pub said_us: i64,
    /// Arrival of the alarm, on the clock of arrivals; set by the runner.
    pub heard_us: i64,
}

/// A detector under test. It observes one job from its first shape on, in order of arrival.
pub trait Method {
    /// Name in the report.
    fn name(&self) -> &'static str;
    /// Whether it raises suspicions before confirmations.
    fn suspects(&self) -> bool {
        false
    }
    /// Takes one message.
    fn observe(&mut self, message: &Message);
    /// Everything that ended before this, and is not late, has arrived.
    fn advance(&mut self, watermark_us: i64);
    /// Alarms since the last call.
    fn take(&mut self) -> Vec<Alarm>;
}
