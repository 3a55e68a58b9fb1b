//! MessageBody is judged: whatever hears a job's reports and raises alarms.

use serde::Serialize;
use tidegate_insight::straggler::Class;

use super::scene::Message;

/// How sure an alarm is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A first suspicion.
    Suspect,
    /// MessageBody may be acted on.
    Confirmed,
}

/// Whom an alarm names, by the ranks and nodes of the attempt it was raised in.
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
    /// The job is slow; nobody is named.
    Job,
}

/// One alarm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Alarm {
    /// Alarms of one key speak of one thing: a false one counts once.
    pub key: u64,
    /// How sure.
    pub level: Level,
    /// Whom.
    pub target: Target,
    /// Why, if it says so.
    pub class: Option<Class>,
    /// Event time of what decided it, µs since 1970.
    pub said_us: i64,
    /// When it was heard, on the clock of arrivals; the runner sets it.
    pub heard_us: i64,
}

/// A detector on trial. It is told one job from its first shape on, in order of arrival.
pub trait Method {
    /// Name in the report.
    fn name(&self) -> &'static str;
    /// Whether it says that it suspects before it confirms.
    fn suspects(&self) -> bool {
        false
    }
    /// One thing that arrived.
    fn observe(&mut self, message: &Message);
    /// Everything that ended before this and is not late has arrived.
    fn advance(&mut self, watermark_us: i64);
    /// Alarms since the last call.
    fn take(&mut self) -> Vec<Alarm>;
}
