//! Output of the detector.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

/// Certainty of a signal. The autopilot acts on `Confirmed` alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A change that has not lasted yet.
    Suspect,
    /// It lasted and is large enough to matter.
    Confirmed,
    /// It is over.
    Closed,
    /// Late reports changed an earlier signal; this one replaces it.
    Corrected,
}

/// Why a job is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// One device computes slower; its clock or throttling explains it.
    ComputeThermal,
    /// One device computes slower; no counter explains it.
    ComputeSilent,
    /// A host link or NVLink: narrower, or it retries.
    Link,
    /// All ranks of one node: the host.
    Host,
    /// Waiting for input.
    Data,
    /// The network.
    Communication,
    /// The work is uneven by construction: sequences, a long stage, experts. Nobody is to blame.
    Structural,
}

/// Subject of blame.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// One rank, and so its device.
    Rank(u32),
    /// One node.
    Node(u32),
    /// A whole role, e.g. a stage that is one node.
    Role(u32),
    /// The network between nodes, none of them in particular.
    Fabric,
    /// Nobody: the job's own shape.
    Nobody,
}

/// Evidence for or against a class, with its weight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Name of the rule, e.g. `clock_below_peers`.
    pub rule: Cow<'static, str>,
    /// Observed value, in the rule's unit.
    pub value: f64,
    /// Logarithm of the likelihood ratio it adds.
    pub weight: f64,
}

/// A signal about one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Signal {
    /// Number of the episode, shared by its suspicion, confirmation and end.
    #[serde(rename = "event")]
    pub episode: u64,
    /// Certainty.
    pub stage: Stage,
    /// Most probable class.
    pub class: Class,
    /// Probability of that class, 0 to 1.
    pub posterior: f64,
    /// Who is to blame.
    pub blame: Blame,
    /// Pipeline stage of the blamed rank or role, or the long stage of a structural cause. `None`
    /// without a pipeline.
    pub pipeline_stage: Option<u32>,
    /// Onset, µs since 1970.
    pub since_us: i64,
    /// Event time of the signal: that of the report that decided it, µs since 1970.
    pub said_us: i64,
    /// How much longer the blamed part takes than its baseline: 0.2 is 20 %.
    pub excess: f64,
    /// GPU time lost so far, ms.
    pub lost_gpu_ms: u64,
    /// What it is based on.
    pub evidence: Vec<Evidence>,
}
