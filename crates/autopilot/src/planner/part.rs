//! Whose capacity, quotas and jobs a policy decides about, where two decide in one plan.

use std::collections::BTreeSet;

use crate::state::OwnerName;

/// Part of a cluster.
#[derive(Debug, Clone, Copy)]
pub(super) enum Part<'a> {
    /// All of it.
    All,
    /// What is these owners'.
    Of(&'a BTreeSet<OwnerName>),
    /// What is not these owners'. Nodes and purchases are in it: they are nobody's.
    Rest(&'a BTreeSet<OwnerName>),
}

impl Part<'_> {
    /// Whether what is this owner's belongs to it.
    pub(super) fn has(self, owner: &str) -> bool {
        match self {
            Self::All => true,
            Self::Of(owners) => owners.contains(owner),
            Self::Rest(owners) => !owners.contains(owner),
        }
    }

    /// Whether what is nobody's belongs to it.
    pub(super) fn has_nodes(self) -> bool {
        !matches!(self, Self::Of(_))
    }
}
