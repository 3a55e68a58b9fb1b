//! What the actuator thought and did, in order: everything it knows it knows from here, so whoever takes over knows the same.

use std::cell::RefCell;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::action::ActionId;
use crate::forecast::Recorded;
use crate::intent::{IntentEvent, Lease};
use crate::planner::{self, Plan, Report};
use crate::policy::Policy;
use crate::record::Score;
use crate::state::ClusterState;

/// A plan with everything it was made from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// Why it is so; it holds what the forecast answered.
    pub report: Report,
    /// The policy.
    pub policy: Policy,
    /// The state as it was observed.
    pub state: ClusterState,
    /// Decisions of the plan before that had not come to nothing: those are the ones it was told of.
    pub kept: Vec<ActionId>,
}

impl Planned {
    /// Makes the plan again from what is on record. `parent`: the plan before, whole.
    pub fn again(&self, parent: Option<&Plan>) -> (Plan, Report) {
        let parent = parent.map(|parent| pruned(parent, &self.kept));
        let forecast = Recorded { answers: self.report.answers.clone() };
        planner::plan(
            &self.policy,
            &self.state,
            &forecast,
            parent.as_ref(),
            self.plan.made_us,
            self.plan.seed,
        )
    }
}

/// A plan with these decisions of it alone.
pub(super) fn pruned(plan: &Plan, kept: &[ActionId]) -> Plan {
    let mut plan = plan.clone();
    plan.decisions.retain(|decision| kept.contains(&decision.action.id));
    plan
}

/// One thing that was thought or done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// Somebody took or renewed the right to act.
    Lease(Lease),
    /// A plan was made.
    Planned(Box<Planned>),
    /// A step of an action.
    Step(Box<IntentEvent>),
    /// What an action came to.
    Scored(Score),
}

/// An entry of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When, µs since 1970.
    pub at_us: i64,
    /// Generation of the lease it was written under.
    pub generation: u64,
    /// What.
    pub what: What,
}

/// Why something does not stand in the journal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JournalError {
    /// Another took the right to write: stop acting.
    #[error("generation {0} may not write any more: another actuator took over")]
    Lost(u64),
    /// It cannot be reached, or does not say. It may or may not stand there: read before anything else.
    #[error("the journal cannot be used: {0}")]
    Away(String),
}

/// A durable order of entries that many may read and one may write.
pub trait Journal {
    /// Takes the right to write under `entry.generation` and writes `entry`, a [`What::Lease`]. Of two who take the same generation one is
    /// refused, and nobody of an older generation writes after it.
    ///
    /// # Errors
    /// [`JournalError::Lost`]: somebody else has this generation or a newer one.
    fn take(&mut self, entry: Entry) -> Result<(), JournalError>;

    /// Writes entries under the generation taken last, all of them or none, durable when it returns.
    ///
    /// # Errors
    /// [`JournalError::Lost`]: somebody took a newer generation. Nothing was written.
    fn append(&mut self, entries: Vec<Entry>) -> Result<(), JournalError>;

    /// What stands behind what was read so far, whoever wrote it.
    ///
    /// # Errors
    /// [`JournalError::Away`].
    fn read(&mut self) -> Result<Vec<Entry>, JournalError>;
}

/// A journal in memory that several actuators of one thread share: for simulations.
#[derive(Debug, Clone, Default)]
pub struct InMemory {
    shared: Rc<RefCell<Shared>>,
    next: usize,
    generation: u64,
}

#[derive(Debug, Default)]
struct Shared {
    entries: Vec<Entry>,
    generation: u64,
}

impl InMemory {
    /// A new reader of the same entries, from the first on.
    #[must_use]
    pub fn reader(&self) -> Self {
        Self { shared: Rc::clone(&self.shared), next: 0, generation: 0 }
    }
}

impl Journal for InMemory {
    fn take(&mut self, entry: Entry) -> Result<(), JournalError> {
        let mut shared = self.shared.borrow_mut();
        let renews = entry.generation == self.generation && shared.generation == self.generation;
        if entry.generation <= shared.generation && !renews {
            return Err(JournalError::Lost(entry.generation));
        }
        shared.generation = entry.generation;
        self.generation = entry.generation;
        shared.entries.push(entry);
        Ok(())
    }

    fn append(&mut self, entries: Vec<Entry>) -> Result<(), JournalError> {
        let mut shared = self.shared.borrow_mut();
        if self.generation == 0 || shared.generation != self.generation {
            return Err(JournalError::Lost(self.generation));
        }
        shared.entries.extend(entries);
        Ok(())
    }

    fn read(&mut self) -> Result<Vec<Entry>, JournalError> {
        let shared = self.shared.borrow();
        let new = shared.entries[self.next..].to_vec();
        self.next = shared.entries.len();
        Ok(new)
    }
}
