//! The classes of the ledger, and what a device does while its time is in one.

use serde::Serialize;

/// Every GPU-millisecond that was paid for is in exactly one of these, from paid to useful.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    NotProvisioned,
    Unhealthy,
    Drained,
    NoDemand,
    Fragmented,
    QuotaStranded,
    GangWait,
    UnallocatedBusy,
    EmptyHeld,
    IdleHeld,
    Startup,
    Recovery,
    Restore,
    Redone,
    Checkpoint,
    DataStall,
    CommunicationStall,
    Productive,
    Active,
    Unknown,
}

impl Class {
    pub const ALL: [Self; 20] = [
        Self::NotProvisioned,
        Self::Unhealthy,
        Self::Drained,
        Self::NoDemand,
        Self::Fragmented,
        Self::QuotaStranded,
        Self::GangWait,
        Self::UnallocatedBusy,
        Self::EmptyHeld,
        Self::IdleHeld,
        Self::Startup,
        Self::Recovery,
        Self::Restore,
        Self::Redone,
        Self::Checkpoint,
        Self::DataStall,
        Self::CommunicationStall,
        Self::Productive,
        Self::Active,
        Self::Unknown,
    ];

    /// As the ledger spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotProvisioned => "not_provisioned",
            Self::Unhealthy => "unhealthy",
            Self::Drained => "drained",
            Self::NoDemand => "no_demand",
            Self::Fragmented => "fragmented",
            Self::QuotaStranded => "quota_stranded",
            Self::GangWait => "gang_wait",
            Self::UnallocatedBusy => "unallocated_busy",
            Self::EmptyHeld => "empty_held",
            Self::IdleHeld => "idle_held",
            Self::Startup => "startup",
            Self::Recovery => "recovery",
            Self::Restore => "restore",
            Self::Redone => "redone",
            Self::Checkpoint => "checkpoint",
            Self::DataStall => "data_stall",
            Self::CommunicationStall => "communication_stall",
            Self::Productive => "productive",
            Self::Active => "active",
            Self::Unknown => "unknown",
        }
    }

    /// What can be known of the time where no sample is: a class that rests on nothing else is
    /// lost.
    pub fn unseen(self) -> Self {
        match self {
            Self::EmptyHeld | Self::IdleHeld | Self::Active => Self::Unknown,
            // By the books it is free, and in this day nobody waits while a stranger computes.
            Self::UnallocatedBusy => Self::NoDemand,
            other => other,
        }
    }
}

/// What a device does for whoever has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doing {
    /// No process is there.
    Nothing,
    /// A process is there and computes nothing.
    Idle,
    /// Kernels run, of inference or of anything else.
    Busy,
    /// Programs and models are loaded.
    Load,
    Compute,
    /// Collectives: a kernel spins, and little else happens.
    Communicate,
    WaitForData,
    Save,
}

impl Doing {
    /// Whether a process is on the device.
    pub fn has_process(self) -> bool {
        self != Self::Nothing
    }
}
