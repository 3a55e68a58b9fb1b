//! Rollout of a candidate policy: a shadow that plans without acting, or a canary that acts for
//! some owners.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use super::{Policy, PolicyError};
use crate::fingerprint::fingerprint;
use crate::names::OwnerName;

/// A policy that plans on live data and never acts.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShadowRules {
    /// Its name or file. Empty: none.
    pub policy: String,
}

impl ShadowRules {
    pub(super) fn is_off(&self) -> bool {
        self.policy.is_empty()
    }
}

/// A policy that acts for some owners instead of this one.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CanaryRules {
    /// Its name or file. Empty: none.
    pub policy: String,
    /// Owners it acts for.
    pub owners: Vec<OwnerName>,
    /// When it is rolled back.
    pub rollback: RollbackRules,
}

impl CanaryRules {
    pub(super) fn is_off(&self) -> bool {
        self.policy.is_empty()
    }
}

/// Limits at which a canary is rolled back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RollbackRules {
    /// Scored decisions both sides need before they are compared.
    pub decisions: u32,
    /// How far its ratio of realised to predicted benefit may fall below the base policy's.
    pub worse: f64,
    /// GPU-hours it may lose compared with doing nothing.
    pub loss_gpu_hours: f64,
    /// Failed actions in a row.
    pub failures: u32,
    /// Decisions refused by the circuit breaker.
    pub breaker_trips: u32,
    /// Reclaims that take longer than promised.
    pub unmet: u32,
}

impl Default for RollbackRules {
    /// The shipped limits.
    fn default() -> Self {
        Self { decisions: 10, worse: 0.2, loss_gpu_hours: 16.0, failures: 2, breaker_trips: 1, unmet: 1 }
    }
}

/// A canary: a policy that acts for some owners in place of the base policy.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Canary {
    /// Its policy.
    pub policy: Policy,
    /// Owners it acts for.
    pub owners: BTreeSet<OwnerName>,
    /// When it is rolled back.
    pub rollback: RollbackRules,
}

impl Canary {
    /// Id by content: a changed canary is another one. It has the form of an action id, so that a
    /// person can approve its restart.
    pub fn id(&self) -> String {
        format!("canary-{:016x}", fingerprint(self))
    }
}

pub(super) fn check(shadow: &ShadowRules, canary: &CanaryRules) -> Result<(), PolicyError> {
    let blank = |key: &str, value: &str| match !value.is_empty() && value.trim().is_empty() {
        true => Err(PolicyError::value(
            key,
            format!("{value:?}"),
            "write a policy's name or file, or \"\" for none",
        )),
        false => Ok(()),
    };
    blank("shadow.policy", &shadow.policy)?;
    blank("canary.policy", &canary.policy)?;
    let owners = format!("{:?}", canary.owners);
    if !canary.is_off() && canary.owners.is_empty() {
        return Err(PolicyError::value(
            "canary.owners",
            owners,
            "name the owners it acts for, e.g. [\"team-a\"]",
        ));
    }
    if canary.is_off() && !canary.owners.is_empty() {
        return Err(PolicyError::value(
            "canary.owners",
            owners,
            "name what acts for them in canary.policy, or leave it out",
        ));
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = canary.owners.iter().find(|owner| !seen.insert(*owner)) {
        return Err(PolicyError::value("canary.owners", format!("{twice:?}"), "name each owner once"));
    }
    let rollback = &canary.rollback;
    for (name, value) in [
        ("decisions", rollback.decisions),
        ("failures", rollback.failures),
        ("breaker_trips", rollback.breaker_trips),
        ("unmet", rollback.unmet),
    ] {
        if value == 0 {
            return Err(PolicyError::value(&format!("canary.rollback.{name}"), value, "write 1 or more"));
        }
    }
    for (name, value) in [("worse", rollback.worse), ("loss_gpu_hours", rollback.loss_gpu_hours)] {
        if !(0.0..=1e6).contains(&value) {
            let key = format!("canary.rollback.{name}");
            return Err(PolicyError::value(&key, value, "write a number from 0.0 to a million"));
        }
    }
    Ok(())
}
