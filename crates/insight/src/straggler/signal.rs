//! What the detector says.

use serde::Serialize;

/// How sure a signal is. The autopilot acts on `Confirmed` alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A change that has not lasted yet.
    Suspect,
    /// It lasted and is large enough to matter.
    Confirmed,
    /// It is over.
    Closed,
    /// Reports that came late changed what was said before: this replaces it.
    Corrected,
}

/// Why a job is slow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// One device computes slower, and its clock or its throttling says so.
    ComputeThermal,
    /// One device computes slower, and no counter says why.
    ComputeSilent,
    /// A host link or NVLink: narrower, or it retries.
    Link,
    /// Ranks of one node together: the host.
    Host,
    /// Waiting for input.
    Data,
    /// The network.
    Communication,
    /// The work is uneven by construction: sequences, a long stage, experts. Nobody's fault.
    Structural,
}

/// Whom a signal blames.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// One rank, and so its device.
    Rank(u32),
    /// One node.
    Node(u32),
    /// A whole role, e.g. a stage that is one node.
    Role(u32),
    /// The network between nodes, no one of them in particular.
    Fabric,
    /// Nobody: the job's own shape.
    Nobody,
}

/// What speaks for or against a class, with its weight.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Evidence {
    /// Name of the rule, e.g. `clock_below_peers`.
    pub rule: &'static str,
    /// What was seen, in the rule's unit.
    pub value: f64,
    /// Logarithm of the likelihood ratio it adds.
    pub weight: f64,
}

/// One statement about one job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Signal {
    /// Number of the event it speaks of: a suspicion, its confirmation and its end have the same.
    #[serde(rename = "event")]
    pub episode: u64,
    /// How sure.
    pub stage: Stage,
    /// Most probable class.
    pub class: Class,
    /// Probability of that class, 0 to 1.
    pub posterior: f64,
    /// Whom.
    pub blame: Blame,
    /// Stage of the pipeline: of the rank or role that is blamed, or the long one of a structural
    /// cause. `None` without a pipeline.
    pub pipeline_stage: Option<u32>,
    /// Since when, µs since 1970.
    pub since_us: i64,
    /// Episode time at which it was said: that of the report that decided it.
    pub said_us: i64,
    /// How much longer the blamed part takes than its baseline: 0.2 is 20 %.
    pub excess: f64,
    /// GPU time lost so far, ms.
    pub lost_gpu_ms: u64,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
}
