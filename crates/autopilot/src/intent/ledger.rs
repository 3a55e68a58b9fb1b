//! Ledger of all intents, folded from their events: open work after a crash, and the guard's
//! history.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{FoldError, Intent, IntentEvent, POLICY_APPROVER, Stage, Transition};
use crate::action::{Action, ActionId, Change};
use crate::guard::{ActionStatus, Approval, History, KillSwitch, PastAction, Rejection};
use crate::impact::Measured;
use crate::scorecard::Interval;
use crate::state::Object;

const DAY_US: i64 = 86_400_000_000;

/// Intents by action.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct IntentLedger {
    intents: BTreeMap<ActionId, Intent>,
    approvals: BTreeMap<ActionId, Approval>,
    /// What people rejected, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    rejections: Vec<Rejection>,
    /// Newest generation of any event.
    generation: u64,
}

impl IntentLedger {
    /// Applies an event.
    ///
    /// # Errors
    /// Why it changes nothing.
    pub fn fold(&mut self, event: &IntentEvent) -> Result<(), FoldError> {
        // A writer without the lease changes nothing, even for intents that no newer writer has
        // touched.
        if event.generation < self.generation && !event.transition.is_by_a_person() {
            return Err(FoldError::Stale { generation: event.generation, seen: self.generation });
        }
        match self.intents.get_mut(&event.action) {
            Some(intent) => {
                let was_unbegun = intent.is_unbegun();
                intent.fold(event)?;
                if let (Transition::Rejected { by, why }, true) = (&event.transition, was_unbegun) {
                    self.rejections.push(Rejection {
                        by: by.clone(),
                        why: why.clone(),
                        at_us: event.at_us,
                        kind: intent.decision.kind,
                        object: intent.decision.action.change.object(),
                    });
                }
            }
            None => {
                self.intents.insert(event.action.clone(), Intent::proposed(event)?);
            }
        }
        if let Transition::Approved { by, .. } = &event.transition {
            let approval = Approval { by: by.clone(), at_us: event.at_us };
            self.approvals.entry(event.action.clone()).or_insert(approval);
        }
        self.generation = self.generation.max(event.generation);
        Ok(())
    }

    /// The intent of an action.
    pub fn get(&self, action: &str) -> Option<&Intent> {
        self.intents.get(action)
    }

    /// Open intents, ordered by action id.
    pub fn open(&self) -> impl Iterator<Item = &Intent> {
        self.intents.values().filter(|intent| !intent.is_over())
    }

    /// All intents kept, ordered by action id.
    pub fn all(&self) -> impl Iterator<Item = &Intent> {
        self.intents.values()
    }

    /// Whether an action is part of another, which is charged what it loses and scored for both: it
    /// frees GPUs of a loan that is being reclaimed, or moves a gang off a drained node.
    pub fn is_part(&self, intent: &Intent) -> bool {
        let of_another = matches!(intent.decision.serves, Some(Object::Loan(_) | Object::Node(_)));
        of_another || self.frees_a_loan(&intent.decision.action)
    }

    /// Verified actions that moved gangs off a node, begun from `from_us` on.
    pub fn moved_off<'a>(&'a self, node: &'a str, from_us: i64) -> impl Iterator<Item = &'a Intent> {
        self.intents.values().filter(move |intent| {
            matches!(&intent.decision.serves, Some(Object::Node(of)) if of == node)
                && matches!(intent.stage, Stage::Verified { .. })
                && intent.past().at_us >= from_us
        })
    }

    /// Whether an action frees GPUs of a loan that is being reclaimed.
    pub fn frees_a_loan(&self, action: &Action) -> bool {
        action.after.iter().any(|id| self.loan_of(id).is_some())
    }

    /// Work lost from `from_us` until `until_us` because `loan` was reclaimed, GPUs × ms, as
    /// expected when each action began: a range if no checkpoint of a stopped job was known. An
    /// action that frees several loans is split evenly among them.
    pub fn lost_to_reclaim(&self, loan: &str, from_us: i64, until_us: i64) -> Interval {
        let begun = self.intents.values().filter(|intent| outcome(&intent.stage).is_some());
        let lost = begun.filter(|intent| (from_us..until_us).contains(&intent.past().at_us)).map(|intent| {
            let after = intent.decision.action.after.iter();
            let mut loans: BTreeSet<&str> = after.filter_map(|id| self.loan_of(id)).collect();
            if let Some(Object::Loan(loan)) = &intent.decision.serves {
                loans.insert(loan);
            }
            // Older versions recorded only a sum with the time that the job would stand idle.
            let lost = intent.basis.as_ref().and_then(|basis| basis.expected_loss());
            let lost = lost.unwrap_or(Interval::point(intent.past().lost_gpu_ms));
            if loans.contains(loan) { lost.divided(loans.len() as i64) } else { Interval::point(0) }
        });
        lost.fold(Interval::point(0), Interval::plus)
    }

    /// Loan that an action takes back.
    fn loan_of(&self, action: &str) -> Option<&str> {
        match &self.intents.get(action)?.decision.action.change {
            Change::Reclaim { loan, .. } => Some(loan),
            _ => None,
        }
    }

    /// Newest generation seen.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// History for the guard: actions begun within a day or in flight, oldest first. An intent
    /// begins when the target is asked.
    pub fn history(&self, now_us: i64, switch: KillSwitch) -> History {
        let begun = self.intents.values().filter_map(|intent| {
            let outcome = outcome(&intent.stage)?;
            let counts = outcome == ActionStatus::UnderWay || intent.past().at_us > now_us - DAY_US;
            counts.then(|| PastAction { outcome, ..intent.past().clone() })
        });
        let mut past: Vec<PastAction> = begun.collect();
        past.sort_by(|a, b| a.at_us.cmp(&b.at_us).then_with(|| a.id.cmp(&b.id)));
        // An approval by policy is not a person's approval.
        let approvals = self.approvals.iter().filter(|(_, approval)| approval.by != POLICY_APPROVER);
        let approvals = approvals.map(|(id, approval)| (id.clone(), approval.clone())).collect();
        let lately = |rejection: &&Rejection| rejection.at_us > now_us - DAY_US;
        let rejections = self.rejections.iter().filter(lately).cloned().collect();
        History { switch, past, approvals, rejections, earned: BTreeMap::new() }
    }

    /// Forgets intents that ended before `before_us`, and older rejections. The log keeps them.
    /// What is measured for longer is kept as long.
    pub fn forget(&mut self, before_us: i64) {
        self.intents.retain(|_, intent| {
            let is_measured = |of: Measured<'_>| of.ends_us() >= before_us;
            !intent.is_over()
                || intent.past().at_us >= before_us
                || intent.measured().is_some_and(is_measured)
        });
        let Self { intents, approvals, rejections, .. } = self;
        rejections.retain(|rejection| rejection.at_us >= before_us);
        approvals.retain(|id, _| intents.contains_key(id));
    }
}

/// The guard's view of a stage. `None`: not begun.
fn outcome(stage: &Stage) -> Option<ActionStatus> {
    match stage {
        Stage::Proposed | Stage::Approved | Stage::Leased { .. } | Stage::Dropped => None,
        Stage::Applying { .. } | Stage::Compensating { .. } => Some(ActionStatus::UnderWay),
        Stage::Verified { .. } | Stage::Yielded => Some(ActionStatus::Verified),
        Stage::Failed { why, .. } => Some(ActionStatus::Failed { why: why.clone() }),
        Stage::Compensated { why } => Some(ActionStatus::Compensated { why: why.clone() }),
    }
}
