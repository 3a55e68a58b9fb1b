//! Names of the classes of the ledger.

use super::claims::Claim;

/// Class and formula.
pub type ClassName = (&'static str, &'static str);
pub const NO_DEMAND: ClassName = ("no_demand", "queue");

/// How a claim is named in the ledger.
pub fn class_of(claim: Claim) -> ClassName {
    match claim {
        Claim::Quota => ("quota_stranded", "queue"),
        Claim::Fragment => ("fragmented", "queue"),
        Claim::Gang => ("gang_wait", "queue"),
        Claim::Fit => ("unknown", "queue"),
    }
}
