//! All intents, folded from their events: what goes on after a crash, and what the guard remembers.

use std::collections::{BTreeMap, BTreeSet};

use super::{FoldError, Intent, IntentEvent, Stage, Transition};
use crate::action::{Action, ActionId, Change};
use crate::guard::{ActionStatus, Approval, History, KillSwitch, PastAction};

const DAY_US: i64 = 86_400_000_000;

/// Intents by action.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IntentLedger {
    intents: BTreeMap<ActionId, Intent>,
    approvals: BTreeMap<ActionId, Approval>,
    /// Greatest generation that any event was recorded under.
    generation: u64,
}

impl IntentLedger {
    /// Takes an event.
    ///
    /// # Errors
    /// Why it changes nothing.
    pub fn fold(&mut self, event: &IntentEvent) -> Result<(), FoldError> {
        // Whoever lost the lease writes nothing more, also about intents nobody newer has touched.
        let by_a_person = matches!(event.transition, Transition::Approved { .. });
        if event.generation < self.generation && !by_a_person {
            return Err(FoldError::Stale { generation: event.generation, seen: self.generation });
        }
        match self.intents.get_mut(&event.action) {
            Some(intent) => intent.fold(event)?,
            None => {
                self.intents.insert(event.action.clone(), Intent::proposed(event)?);
            }
        }
        if let Transition::Approved { by } = &event.transition {
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

    /// Intents that something is still to be done about, in the order of their actions' ids.
    pub fn open(&self) -> impl Iterator<Item = &Intent> {
        self.intents.values().filter(|intent| !intent.is_over())
    }

    /// All intents that are remembered, in the order of their actions' ids.
    pub fn all(&self) -> impl Iterator<Item = &Intent> {
        self.intents.values()
    }

    /// Whether an action frees GPUs of a loan that is taken back.
    pub fn frees_a_loan(&self, action: &Action) -> bool {
        action.after.iter().any(|id| self.loan_of(id).is_some())
    }

    /// Work that jobs lost from `from_us` until `until_us` because `loan` was taken back, GPUs ×
    /// milliseconds, as expected of each when it was begun. What frees several loans is shared
    /// among them evenly.
    pub fn lost_to_reclaim(&self, loan: &str, from_us: i64, until_us: i64) -> i64 {
        let begun = self.intents.values().filter(|intent| outcome(&intent.stage).is_some());
        let lost = begun.filter(|intent| (from_us..until_us).contains(&intent.past().at_us)).map(|intent| {
            let after = intent.decision.action.after.iter();
            let loans: BTreeSet<&str> = after.filter_map(|id| self.loan_of(id)).collect();
            if loans.contains(loan) { intent.past().lost_gpu_ms / loans.len() as i64 } else { 0 }
        });
        lost.sum()
    }

    /// The loan that an action takes back.
    fn loan_of(&self, action: &str) -> Option<&str> {
        match &self.intents.get(action)?.decision.action.change {
            Change::Reclaim { loan, .. } => Some(loan),
            _ => None,
        }
    }

    /// Greatest generation seen.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What the guard is told: actions begun within a day or still under way, oldest first. An
    /// intent is begun when the target is asked.
    pub fn history(&self, now_us: i64, switch: KillSwitch) -> History {
        let begun = self.intents.values().filter_map(|intent| {
            let past = PastAction { outcome: outcome(&intent.stage)?, ..intent.past().clone() };
            (past.outcome == ActionStatus::UnderWay || past.at_us > now_us - DAY_US).then_some(past)
        });
        let mut past: Vec<PastAction> = begun.collect();
        past.sort_by(|a, b| a.at_us.cmp(&b.at_us).then_with(|| a.id.cmp(&b.id)));
        // The policy's own word is no person's.
        let approvals = self.approvals.iter().filter(|(_, approval)| approval.by != "policy");
        let approvals = approvals.map(|(id, approval)| (id.clone(), approval.clone())).collect();
        History { switch, past, approvals, earned: BTreeMap::new() }
    }

    /// Forgets what ended before `before_us`: the log has it.
    pub fn forget(&mut self, before_us: i64) {
        self.intents.retain(|_, intent| !intent.is_over() || intent.past().at_us >= before_us);
        let Self { intents, approvals, .. } = self;
        approvals.retain(|id, _| intents.contains_key(id));
    }
}

/// How the guard sees a stage; `None`: it was not begun.
fn outcome(stage: &Stage) -> Option<ActionStatus> {
    match stage {
        Stage::Proposed | Stage::Approved | Stage::Leased { .. } | Stage::Dropped => None,
        Stage::Applying { .. } | Stage::Compensating { .. } => Some(ActionStatus::UnderWay),
        Stage::Verified { .. } | Stage::Yielded => Some(ActionStatus::Verified),
        Stage::Failed { why, .. } => Some(ActionStatus::Failed { why: why.clone() }),
        Stage::Compensated { why } => Some(ActionStatus::Compensated { why: why.clone() }),
    }
}
