//! Owners a policy decides for, when a base policy and a canary share one plan.

use std::collections::BTreeSet;

use crate::state::OwnerName;

/// A set of owners.
#[derive(Debug, Clone, Copy)]
pub(super) enum OwnerFilter<'a> {
    /// All owners, and what belongs to no owner.
    All,
    /// These owners only.
    Only(&'a BTreeSet<OwnerName>),
    /// All other owners, and what belongs to no owner: nodes and purchases.
    Except(&'a BTreeSet<OwnerName>),
}

impl OwnerFilter<'_> {
    /// Whether the owner is in the set.
    pub(super) fn includes(self, owner: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(owners) => owners.contains(owner),
            Self::Except(owners) => !owners.contains(owner),
        }
    }

    /// Whether the policy decides on what belongs to no owner.
    pub(super) fn includes_unowned(self) -> bool {
        !matches!(self, Self::Only(_))
    }
}
