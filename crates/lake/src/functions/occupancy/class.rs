//! Names of the ledger's classes.

use super::claims::Claim;

/// Class, and the formula that attributes it.
pub type ClassName = (&'static str, &'static str);
pub const NO_DEMAND: ClassName = ("no_demand", "queue");

/// The ledger's class of a claim.
pub fn class_of(claim: Claim) -> ClassName {
    match claim {
        Claim::Quota => ("quota_stranded", "queue"),
        Claim::Fragment => ("fragmented", "queue"),
        Claim::Gang => ("gang_wait", "queue"),
        Claim::Fit => ("unknown", "queue"),
    }
}
