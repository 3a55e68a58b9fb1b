//! The journal: ordered events of what the executor decided and did. Its state comes from here
//! alone, so a successor starts with the same state.

use std::cell::RefCell;
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::action::ActionId;
use crate::dry_run::{Compared, Expected};
use crate::impact::Measurements;
use crate::intent::{IntentEvent, Lease};
use crate::planner::{Plan, PlanRecord, Report};
use crate::policy::{Canary, Policy, PolicyChange};
use crate::promise::PromiseEvent;
use crate::rollout::{self, shadow};
use crate::scorecard::Score;
use crate::slo::{Alert, Cycles};
use crate::state::ClusterState;

/// An event of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalEvent {
    /// A lease was taken or renewed.
    Lease(Lease),
    /// A plan was made.
    Planned(Box<PlanRecord>),
    /// A transition of an intent.
    Step(Box<IntentEvent>),
    /// The score of an action.
    Scored(Score),
    /// An event of the shadow policy.
    Shadow(Box<shadow::ShadowEvent>),
    /// The canary began or ended.
    Canary(Box<rollout::CanaryEvent>),
    /// A signed policy was adopted.
    Policy(PolicyAdopted),
    /// An SLO alert began or ended.
    Alert(Box<Alert>),
    /// Plans made and missed.
    Cycles(Cycles),
    /// The kill switch was switched on or off, where that is signed.
    Switched(Switched),
    /// Measurements under way, so that a successor goes on with them.
    Measured(Box<Measurements>),
    /// Entries of the journal that do not count: forged, replayed or out of order.
    Refused(EntriesRefused),
    /// What a dry run expects of an action that is about to begin.
    Expected(Box<Expected>),
    /// What was observed of it, next to that.
    Compared(Box<Compared>),
    /// An owner's promise: what was before, what it lacked, whether it holds.
    Promise(Box<PromiseEvent>),
}

/// A signed policy that applies from now on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyAdopted {
    /// Name of the policy.
    pub policy: String,
    /// File it was read from.
    pub file: String,
    /// Signers: principals with key fingerprints.
    pub signed_by: Vec<String>,
    /// Changes from the policy before it.
    pub changes: Vec<PolicyChange>,
    /// What was signed; `None` in entries of older versions, which signed the file alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issued: Option<IssuedPolicy>,
}

/// A policy with the statement and the signatures that let it act.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedPolicy {
    /// The statement's number and hash.
    #[serde(flatten)]
    pub adopted: AdoptedStatement,
    /// The statement.
    pub statement: String,
    /// The signatures, armoured.
    pub signatures: Vec<String>,
    /// Text of the policy file.
    pub text: String,
}

/// A statement under which a policy acts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptedStatement {
    /// Number among the cluster's policies, from 1.
    pub sequence: u64,
    /// Hash of the statement, which the next one names.
    pub id: String,
}

/// The kill switch as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Switched {
    /// Whether the autopilot may act.
    pub on: bool,
    /// Who switched it, as far as is known.
    pub by: String,
    /// When it was given, or found off, µs since 1970: an older one no longer counts.
    pub sequence: i64,
    /// The signature of a switch that is on, armoured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<String>,
}

/// Entries that were read and do not count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntriesRefused {
    /// How many.
    pub count: u64,
    /// Offsets of the first and the last in the journal's partition.
    pub offsets: (u64, u64),
    /// Who wrote the last, by its own account.
    pub holder: String,
    /// Why the last does not count.
    pub why: String,
}

/// An entry of the journal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// When, µs since 1970.
    pub at_us: i64,
    /// Generation of the lease it was written under.
    pub generation: u64,
    /// The event.
    #[serde(rename = "what")]
    pub event: JournalEvent,
}

/// A plan just made, with all its inputs: its JSON is that of a [`PlanRecord`].
#[derive(Debug, Clone, Copy, Serialize)]
pub struct MadePlan<'a> {
    /// The plan.
    pub plan: &'a Plan,
    /// Its report.
    pub report: &'a Report,
    /// The policy.
    pub policy: &'a Policy,
    /// The canary that decided for its owners.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub canary: Option<&'a Canary>,
    /// The state as observed.
    pub state: &'a ClusterState,
    /// Decisions of the previous plan that still stand.
    pub kept: &'a [ActionId],
    /// Generation of the lease under which it was made.
    #[serde(skip)]
    pub generation: u64,
    /// Whether it is recorded in the journal.
    #[serde(skip)]
    pub is_recorded: bool,
}

/// The journal could not be used. An attempted write may or may not have succeeded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the journal cannot be used: {0}")]
pub struct JournalError(pub String);

/// A durable sequence of entries, the same for every reader.
///
/// Anybody may append. The order alone decides which entries count: a lease defines its generation,
/// and later entries of older generations are void. So a writer reads back before it acts.
pub trait Journal {
    /// Appends entries of one generation, all or none, durable on return. After an error that
    /// generation may append nothing more, because the failed entries may still arrive.
    ///
    /// # Errors
    /// The entries may or may not have been written.
    fn append(&mut self, entries: Vec<JournalEntry>) -> Result<(), JournalError>;

    /// Reads new entries from all writers, including those appended here.
    ///
    /// # Errors
    /// [`JournalError`].
    fn read(&mut self) -> Result<Vec<JournalEntry>, JournalError>;

    /// What was read last has become part of the executor's state.
    fn folded(&mut self) {}

    /// A plan was made, and may be shown to people whether or not it is recorded. Nothing depends
    /// on it.
    fn made(&mut self, _: &MadePlan<'_>) {}
}

/// In-memory journal shared by several executors of one thread, for simulations.
#[derive(Debug, Clone, Default)]
pub struct InMemoryJournal {
    entries: Rc<RefCell<Vec<JournalEntry>>>,
    next: usize,
    brief: bool,
}

impl InMemoryJournal {
    /// A journal that keeps only the decisions of plans, for clusters too large to record whole.
    /// Plans cannot be explained or replayed from it; an executor's state is complete.
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

/// Removes a plan's inputs and report.
fn shorten(entry: &mut JournalEntry) {
    let JournalEvent::Planned(planned) = &mut entry.event else { return };
    planned.state = ClusterState::default();
    planned.report.considered.clear();
    planned.report.answers.clear();
}
