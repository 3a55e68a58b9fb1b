//! Classes of the ledger, and activities of devices.

use serde::Serialize;

/// Every paid GPU-ms is in exactly one class.
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

    /// Name in the ledger.
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

    /// The class that can be known without samples; one that needs samples is lost.
    pub fn unseen(self) -> Self {
        match self {
            Self::EmptyHeld | Self::IdleHeld | Self::Active => Self::Unknown,
            // The scheduler considers it free, and in this day no job waits meanwhile.
            Self::UnallocatedBusy => Self::NoDemand,
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn classes_are_those_of_the_catalogue() {
        let catalogue = include_str!("../../../../../schemas/ledger_classes.csv");
        let named: BTreeSet<_> = (catalogue.lines().skip(1))
            .map(|row| row.split(',').next().unwrap())
            // The truth of a generated day never holds more than exists.
            .filter(|class| *class != "imbalance")
            .collect();
        assert_eq!(Class::ALL.map(Class::name).into_iter().collect::<BTreeSet<_>>(), named);
    }
}
