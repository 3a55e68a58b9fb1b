//! Kinds of faults that a soak injects.

use serde::Serialize;

/// Kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// Single nodes fail.
    NodesFail,
    /// A whole rack at once.
    RacksFail,
    /// Nodes run slowly.
    Stragglers,
    /// The scheduler is unreachable.
    Unreachable,
    /// The scheduler refuses.
    Refuses,
    /// The scheduler reports success and does nothing.
    Lies,
    /// Answers are lost.
    AnswersLost,
    /// The scheduler applies changes late.
    Slow,
    /// Jobs do not acknowledge notices.
    SilentJobs,
    /// Observations are old.
    OldTelemetry,
    /// Observations are lost.
    LostTelemetry,
    /// A person approves late.
    SlowApproval,
    /// An executor dies at a write.
    #[serde(rename = "actuator_dies")]
    ExecutorDies,
    /// An executor hangs while another acts, then continues.
    #[serde(rename = "two_actuators")]
    TwoExecutors,
    /// People drain nodes.
    PeopleDrain,
    /// People reserve nodes, also under names that the autopilot uses.
    PeopleReserve,
    /// Demand doubles suddenly.
    DemandJumps,
    /// The forecast is biased.
    ForecastBias,
    /// The forecast is noisy.
    ForecastNoise,
    /// The forecast learns late.
    ForecastStale,
    /// A person turns the kill switch off, or it is unreadable.
    SwitchOff,
}

pub(super) const KINDS: [FaultKind; 21] = [
    FaultKind::NodesFail,
    FaultKind::RacksFail,
    FaultKind::Stragglers,
    FaultKind::Unreachable,
    FaultKind::Refuses,
    FaultKind::Lies,
    FaultKind::AnswersLost,
    FaultKind::Slow,
    FaultKind::SilentJobs,
    FaultKind::OldTelemetry,
    FaultKind::LostTelemetry,
    FaultKind::SlowApproval,
    FaultKind::ExecutorDies,
    FaultKind::TwoExecutors,
    FaultKind::PeopleDrain,
    FaultKind::PeopleReserve,
    FaultKind::DemandJumps,
    FaultKind::ForecastBias,
    FaultKind::ForecastNoise,
    FaultKind::ForecastStale,
    FaultKind::SwitchOff,
];
