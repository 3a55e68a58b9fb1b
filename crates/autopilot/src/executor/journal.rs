//! What the executor thought and did, in order: everything it knows it knows from here, so whoever
//! takes over knows the same.

use std::cell::RefCell;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::intent::{IntentEvent, Lease};
use crate::planner::PlanRecord;
use crate::policy::PolicyChange;
use crate::rollout::{self, shadow};
use crate::scorecard::Score;
use crate::slo::{Alert, Cycles};
use crate::state::ClusterState;

/// One thing that was thought or done.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEvent {
    /// Somebody took or renewed the right to act.
    Lease(Lease),
    /// A plan was made.
    Planned(Box<PlanRecord>),
    /// A step of an action.
    Step(Box<IntentEvent>),
    /// What an action came to.
    Scored(Score),
    /// A policy that only thinks did.
    Shadow(Box<shadow::ShadowEvent>),
    /// A policy that acts for some owners began or ended.
    Canary(Box<rollout::CanaryEvent>),
    /// A policy holds from now on, by whose signatures.
    Policy(PolicyAdopted),
    /// An alert about the autopilot itself began or ended.
    Alert(Box<Alert>),
    /// Plans that were made, and that were missing.
    Cycles(Cycles),
}

/// A policy that holds from now on, where policies are signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyAdopted {
    /// Its name.
    pub policy: String,
    /// The file it was read from.
    pub file: String,
    /// Who signed it: principals and the key's fingerprint of each.
    pub signed_by: Vec<String>,
    /// What it changes against the policy before it.
    pub changes: Vec<PolicyChange>,
}

/// An entry of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// When, µs since 1970.
    pub at_us: i64,
    /// Generation of the lease it was written under.
    pub generation: u64,
    /// What.
    #[serde(rename = "what")]
    pub event: JournalEvent,
}

/// The journal cannot be reached, or does not say. What was written may or may not stand there.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal cannot be used: {0}")]
pub struct JournalError(pub String);

/// A durable order of entries, the same for all who read it. Anybody may write: whose entries count
/// is told by the order alone (a lease that comes first has its generation, and what an older
/// generation wrote after it is nothing), so whoever writes reads back before it acts.
pub trait Journal {
    /// Writes entries of one generation, all of them or none, durable when it returns. After an
    /// error nothing more can be written under that generation, as what failed may still come.
    ///
    /// # Errors
    /// They may or may not stand there.
    fn append(&mut self, entries: Vec<JournalEntry>) -> Result<(), JournalError>;

    /// What stands behind what was read so far, whoever wrote it; what was appended here is in it.
    ///
    /// # Errors
    /// [`JournalError`].
    fn read(&mut self) -> Result<Vec<JournalEntry>, JournalError>;
}

/// A journal in memory that several actuators of one thread share: for simulations.
#[derive(Debug, Clone, Default)]
pub struct InMemoryJournal {
    entries: Rc<RefCell<Vec<JournalEntry>>>,
    next: usize,
    brief: bool,
}

impl InMemoryJournal {
    /// One that keeps of plans only what was decided, as a log does of clusters that are too large
    /// for it: nobody will ask why, or make them again. Nothing that an executor goes by is lost.
    #[must_use]
    pub fn brief() -> Self {
        Self { brief: true, ..Self::default() }
    }

    /// A new reader of the same entries, from the first on.
    #[must_use]
    pub fn reader(&self) -> Self {
        Self { entries: Rc::clone(&self.entries), next: 0, brief: self.brief }
    }
}

impl Journal for InMemoryJournal {
    fn append(&mut self, mut entries: Vec<JournalEntry>) -> Result<(), JournalError> {
        if self.brief {
            entries.iter_mut().for_each(shorten);
        }
        self.entries.borrow_mut().extend(entries);
        Ok(())
    }

    fn read(&mut self) -> Result<Vec<JournalEntry>, JournalError> {
        let entries = self.entries.borrow();
        let new = entries[self.next..].to_vec();
        self.next = entries.len();
        Ok(new)
    }
}

/// Leaves out of a plan what it was made from and why.
fn shorten(entry: &mut JournalEntry) {
    let JournalEvent::Planned(planned) = &mut entry.event else { return };
    planned.state = ClusterState::default();
    planned.report.considered.clear();
    planned.report.answers.clear();
}
