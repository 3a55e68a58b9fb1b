//! What the journal tells of canaries: which began, which ended and why, and what counts against
//! them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Canary;
use crate::guard::Rule;
use crate::intent::{IntentEvent, IntentLedger, Transition};

/// What is told of a canary.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "canary", rename_all = "snake_case")]
pub enum CanaryEvent {
    /// It acts for its owners from now on.
    Began {
        /// All of it.
        #[serde(rename = "what")]
        canary: Box<Canary>,
        /// Who started it anew; `None`: the policy file says so.
        by: Option<String>,
    },
    /// The policy that acts for the rest acts for its owners from now on.
    Ended {
        /// Its id.
        id: String,
        /// The candidate's name.
        policy: String,
        /// Why.
        why: String,
        /// Its record ended it: it stays so until a person starts it anew. Else the policy file
        /// does not name it any more.
        rolled_back: bool,
    },
}

/// How a canary stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CanaryStatus {
    /// The candidate's name.
    pub policy: String,
    /// When it began last.
    pub began_us: i64,
    /// When and why it ended, and whether by its record; `None`: it acts.
    pub ended: Option<(i64, String, bool)>,
}

impl CanaryStatus {
    /// What whoever starts it anew signs in the place of a plan: this beginning and no later one.
    pub fn beginning(&self) -> String {
        format!("canary begun {}", self.began_us)
    }
}

/// All canaries that the journal tells of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Canaries {
    all: BTreeMap<String, CanaryStatus>,
    /// When the breaker refused a canary's decision.
    trips_us: Vec<i64>,
}

impl Canaries {
    /// How the canary of that id stands; `None`: it never began.
    pub fn get(&self, id: &str) -> Option<&CanaryStatus> {
        self.all.get(id)
    }

    /// All, by id.
    pub fn all(&self) -> impl Iterator<Item = (&String, &CanaryStatus)> {
        self.all.iter()
    }

    /// The ones that act.
    pub fn acting(&self) -> impl Iterator<Item = (&String, &CanaryStatus)> {
        self.all.iter().filter(|(_, stands)| stands.ended.is_none())
    }

    /// Times since `since_us` that the breaker refused a canary's decision.
    pub fn trips(&self, since_us: i64) -> usize {
        self.trips_us.iter().filter(|at_us| **at_us >= since_us).count()
    }

    /// Takes what is told.
    pub fn fold(&mut self, told: &CanaryEvent, at_us: i64) {
        match told {
            CanaryEvent::Began { canary, .. } => {
                let stands =
                    CanaryStatus { policy: canary.policy.name.clone(), began_us: at_us, ended: None };
                self.all.insert(canary.id(), stands);
                // What counted against another, or against it before a person started it anew,
                // counts no more.
                self.trips_us.clear();
            }
            CanaryEvent::Ended { id, why, rolled_back, .. } => {
                if let Some(stands) = self.all.get_mut(id) {
                    stands.ended = Some((at_us, why.clone(), *rolled_back));
                }
            }
        }
    }

    /// Takes a step of an action.
    pub fn fold_step(&mut self, event: &IntentEvent, intents: &IntentLedger) {
        let Transition::Dropped { refusal: Some(refusal) } = &event.transition else { return };
        let of_canary = intents.get(&event.action).is_some_and(|intent| intent.decision.canary.is_some());
        if of_canary && refusal.rule == Rule::Breaker {
            self.trips_us.push(event.at_us);
        }
    }
}
