//! Whose capacity, quotas and jobs a policy decides about, where two decide in one plan.

use std::collections::BTreeSet;

use crate::state::OwnerName;

/// Part of a cluster.
#[derive(Debug, Clone, Copy)]
pub(super) enum OwnerFilter<'a> {
    /// All of it.
    All,
    /// What is these owners'.
    Only(&'a BTreeSet<OwnerName>),
    /// What is not these owners'. Nodes and purchases are in it: they are nobody's.
    Except(&'a BTreeSet<OwnerName>),
}

impl OwnerFilter<'_> {
    /// Whether what is this owner's belongs to it.
    pub(super) fn includes(self, owner: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(owners) => owners.contains(owner),
            Self::Except(owners) => !owners.contains(owner),
        }
    }

    /// Whether what is nobody's belongs to it.
    pub(super) fn includes_unowned(self) -> bool {
        !matches!(self, Self::Only(_))
    }
}
