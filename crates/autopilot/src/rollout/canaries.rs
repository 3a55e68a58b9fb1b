//! Canaries in the journal: which began, which ended and why, and breaker refusals against them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Canary;
use crate::guard::Rule;
use crate::intent::{IntentEvent, IntentLedger, SignedApproval, Transition};

/// An event of a canary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "canary", rename_all = "snake_case")]
pub enum CanaryEvent {
    /// It acts for its owners from now on.
    Began {
        /// The canary.
        #[serde(rename = "what")]
        canary: Box<Canary>,
        /// Who restarted it. `None`: started by the policy file.
        by: Option<String>,
        /// The signature of who restarted it, where approvals are signed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signed: Option<SignedApproval>,
    },
    /// The base policy acts for its owners again.
    Ended {
        /// Id of the canary.
        id: String,
        /// Name of its policy.
        policy: String,
        /// Reason.
        why: String,
        /// It was rolled back and stays so until a person restarts it. `false`: the policy file no
        /// longer names it.
        rolled_back: bool,
    },
}

/// Status of a canary.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CanaryStatus {
    /// Name of its policy.
    pub policy: String,
    /// When it last began.
    pub began_us: i64,
    /// When and why it ended, and whether by rollback. `None`: it acts.
    pub ended: Option<(i64, String, bool)>,
}

impl CanaryStatus {
    /// Text that an approver of a restart signs in place of a plan; it covers this beginning only.
    pub fn beginning(&self) -> String {
        format!("canary begun {}", self.began_us)
    }
}

/// All canaries in the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Canaries {
    all: BTreeMap<String, CanaryStatus>,
    /// When the breaker refused a canary's decision.
    trips_us: Vec<i64>,
}

impl Canaries {
    /// Status of a canary. `None`: it never began.
    pub fn get(&self, id: &str) -> Option<&CanaryStatus> {
        self.all.get(id)
    }

    /// All canaries by id.
    pub fn all(&self) -> impl Iterator<Item = (&String, &CanaryStatus)> {
        self.all.iter()
    }

    /// Canaries that act now.
    pub fn acting(&self) -> impl Iterator<Item = (&String, &CanaryStatus)> {
        self.all.iter().filter(|(_, status)| status.ended.is_none())
    }

    /// Breaker refusals of a canary's decisions since `since_us`.
    pub fn trips(&self, since_us: i64) -> usize {
        self.trips_us.iter().filter(|at_us| **at_us >= since_us).count()
    }

    /// Applies an event.
    pub fn fold(&mut self, event: &CanaryEvent, at_us: i64) {
        match event {
            CanaryEvent::Began { canary, .. } => {
                let status =
                    CanaryStatus { policy: canary.policy.name.clone(), began_us: at_us, ended: None };
                self.all.insert(canary.id(), status);
                // Refusals of another canary, or from before a restart, no longer count.
                self.trips_us.clear();
            }
            CanaryEvent::Ended { id, why, rolled_back, .. } => {
                if let Some(status) = self.all.get_mut(id) {
                    status.ended = Some((at_us, why.clone(), *rolled_back));
                }
            }
        }
    }

    /// Applies a transition of an intent.
    pub fn fold_step(&mut self, event: &IntentEvent, intents: &IntentLedger) {
        let Transition::Dropped { refusal: Some(refusal) } = &event.transition else { return };
        let of_canary = intents.get(&event.action).is_some_and(|intent| intent.decision.canary.is_some());
        if of_canary && refusal.rule == Rule::Breaker {
            self.trips_us.push(event.at_us);
        }
    }
}
