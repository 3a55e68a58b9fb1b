//! Rollout of policies: a [`shadow`] plans on live data without acting, and a [`Canary`] acts for
//! some owners until its scorecard ends it ([`rollback`]).

mod canaries;
pub mod rollback;
pub mod shadow;
pub mod summary;

use std::collections::BTreeSet;

pub use canaries::{Canaries, CanaryEvent, CanaryStatus};

use crate::action::Action;
use crate::guard::{self, History, Verdict};
pub use crate::policy::Canary;
use crate::policy::{CanaryRules, Policy, ShadowRules};
use crate::state::{ClusterState, OwnerName};

/// Candidate policies beside a base policy.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Rollout {
    /// Plans without acting.
    pub shadow: Option<Policy>,
    /// Acts for some owners.
    pub canary: Option<Canary>,
}

/// A candidate policy that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RolloutError {
    /// Its policy is unreadable or invalid.
    #[error("{key} = {named:?}: {why}")]
    Policy {
        /// The policy key that names it.
        key: &'static str,
        /// The name or file.
        named: String,
        /// What is wrong and how to fix it.
        why: String,
    },
    /// Its owners are unknown.
    #[error("canary.owners: the cluster has no {unknown}; it knows {known}")]
    Owners {
        /// Unknown owners.
        unknown: String,
        /// Known owners.
        known: String,
    },
}

impl Rollout {
    /// Takes the candidates out of a policy, so that they do not affect its own plans. `read` loads
    /// a policy by name or file.
    ///
    /// # Errors
    /// A candidate cannot be read, has the name of this policy, or has candidates itself.
    pub fn from_policy(
        policy: &mut Policy,
        mut read: impl FnMut(&str) -> Result<Policy, String>,
    ) -> Result<Self, RolloutError> {
        let ShadowRules { policy: thinks } = std::mem::take(&mut policy.shadow);
        let CanaryRules { policy: acts, owners, rollback } = std::mem::take(&mut policy.canary);
        let mut named = |key: &'static str, named: String| {
            let wrong = |why: String| RolloutError::Policy { key, named: named.clone(), why };
            if named.is_empty() {
                return Ok(None);
            }
            let candidate = read(&named).map_err(wrong)?;
            check_candidate(policy, &candidate).map_err(wrong)?;
            Ok(Some(candidate))
        };
        let shadow = named("shadow.policy", thinks)?;
        let acting = named("canary.policy", acts)?;
        let canary = acting.map(|policy| Canary { policy, owners: owners.into_iter().collect(), rollback });
        Ok(Self { shadow, canary })
    }
}

/// Whether a candidate may run beside a policy.
///
/// # Errors
/// Why not, and how to fix it.
pub fn check_candidate(policy: &Policy, candidate: &Policy) -> Result<(), String> {
    if candidate.name == policy.name {
        return Err(format!(
            "it is called {:?} as the policy beside it; give it a `name` of its own: what it decides is recorded under it",
            candidate.name
        ));
    }
    if *candidate
        != (Policy { shadow: ShadowRules::default(), canary: CanaryRules::default(), ..candidate.clone() })
    {
        return Err("it has a [shadow] or a [canary] of its own; only the policy that acts may".to_owned());
    }
    Ok(())
}

impl Canary {
    /// The guard's verdict on an action of this canary: its own policy is asked first, then the
    /// base policy with the canary's modes. So the stricter budgets and floors hold, while the
    /// canary's modes decide how far each kind goes.
    pub fn verdict(
        &self,
        base: &Policy,
        state: &ClusterState,
        history: &History,
        action: &Action,
        now_us: i64,
    ) -> Verdict {
        let own = guard::verdict(&self.policy, state, history, action, now_us);
        if own != Verdict::Allowed {
            return own;
        }
        let (modes, scopes) = (self.policy.modes.clone(), self.policy.scopes.clone());
        let base = Policy { modes, scopes, ..base.clone() };
        guard::verdict(&base, state, history, action, now_us)
    }

    /// Whether the cluster knows its owners, by a share of a pool or a job.
    ///
    /// # Errors
    /// [`RolloutError::Owners`].
    pub fn check_owners(&self, state: &ClusterState) -> Result<(), RolloutError> {
        let mut known: BTreeSet<&OwnerName> = state.owners.keys().collect();
        known.extend(state.jobs.values().map(|job| &job.owner));
        let list =
            |names: Vec<&OwnerName>| names.into_iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let unknown: Vec<&OwnerName> = self.owners.iter().filter(|owner| !known.contains(owner)).collect();
        match unknown.is_empty() {
            true => Ok(()),
            false => {
                let known = if known.is_empty() {
                    "nobody yet".to_owned()
                } else {
                    list(known.into_iter().collect())
                };
                Err(RolloutError::Owners { unknown: list(unknown), known })
            }
        }
    }
}

#[cfg(test)]
mod tests;
