//! Jobs that are made to hit a bottleneck: what their devices and steps look like.

use super::levels::Levels;
use super::training::Habits;

/// What holds a job up, as `bottleneck_1m` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bottleneck {
    Compute,
    Memory,
    Pcie,
    Nvlink,
    Host,
    Communication,
    Imbalance,
}

impl Bottleneck {
    pub fn label(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Memory => "memory_bandwidth",
            Self::Pcie => "pcie",
            Self::Nvlink => "nvlink",
            Self::Host => "host",
            Self::Communication => "communication",
            Self::Imbalance => "imbalance",
        }
    }

    /// Of a device that computes: what the wall is made of is near its limit, the rest is not.
    pub fn lift(self, levels: &mut Levels) {
        (levels.sm_active, levels.tensor_active, levels.dram_active) = (650_000.0, 150_000.0, 250_000.0);
        match self {
            Self::Compute => levels.tensor_active = 750_000.0,
            Self::Memory => levels.dram_active = 800_000.0,
            // Of 63 and 450 thousand million bytes a second.
            Self::Pcie => levels.pcie = 50e9,
            Self::Nvlink => levels.nvlink = 360e9,
            Self::Host | Self::Communication | Self::Imbalance => {}
        }
    }

    /// Of its steps, where it reports any.
    pub fn habits(self) -> Habits {
        let shares = match self {
            Self::Host => (0.45, 0.05),
            Self::Communication => (0.01, 0.35),
            _ => (0.01, 0.05),
        };
        let slack = (self == Self::Imbalance).then_some(0.6);
        // One of them also tells of more operations than its device can do.
        let boast = if self == Self::Communication { 10 } else { 0 };
        Habits { shares: Some(shares), slack, boast, ..Habits::default() }
    }
}
