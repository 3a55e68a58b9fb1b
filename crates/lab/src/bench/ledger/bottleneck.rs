//! Jobs with a planted bottleneck: metrics of their devices and habits of their steps.

use super::training::Habits;
use tidegate_demo::levels::Levels;

/// A bottleneck, as `bottleneck_1m` names it.
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

    /// Raises the limiting metric of a computing device near its limit, and none of the others.
    pub fn lift(self, levels: &mut Levels) {
        (levels.sm_active, levels.tensor_active, levels.dram_active) = (650_000.0, 150_000.0, 250_000.0);
        match self {
            Self::Compute => levels.tensor_active = 750_000.0,
            Self::Memory => levels.dram_active = 800_000.0,
            // Limits: 63e9 and 450e9 bytes per second.
            Self::Pcie => levels.pcie = 50e9,
            Self::Nvlink => levels.nvlink = 360e9,
            Self::Host | Self::Communication | Self::Imbalance => {}
        }
    }

    /// Habits of its steps, if it reports steps.
    pub fn habits(self) -> Habits {
        let shares = match self {
            Self::Host => (0.45, 0.05),
            Self::Communication => (0.01, 0.35),
            _ => (0.01, 0.05),
        };
        let slack = (self == Self::Imbalance).then_some(0.6);
        // One of them also reports more operations than its device can do.
        let boast = if self == Self::Communication { 10 } else { 0 };
        Habits { shares: Some(shares), slack, boast, ..Habits::default() }
    }
}
