//! What the autopilot did lately, as the guard asks for it.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Context, Refusal, Rule, refuse};
use crate::action::{Action, ActionId, Adjustment, Change, Kind};
use crate::policy::Mode;
use crate::state::{ClusterState, Object, OwnerName};

/// The kill switch, read immediately before by whoever asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillSwitch {
    /// Act.
    On,
    /// Begin nothing; what is open ends by itself.
    Paused,
    /// It could not be read: taken for off.
    #[default]
    Unreadable,
}

/// How an action stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionStatus {
    /// Leased or applied, and not read back yet.
    UnderWay,
    /// Read back as done.
    Verified,
    /// It failed.
    Failed {
        /// Why, in words that are the same for the same failure.
        why: String,
    },
    /// It failed, and what it had done was undone.
    Compensated {
        /// Why.
        why: String,
    },
}

/// An action that was begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAction {
    /// Its id.
    pub id: ActionId,
    /// Its kind.
    pub kind: Kind,
    /// Kind whose budget it uses: see [`counts_as`].
    pub counts_as: Kind,
    /// What it changed, as rests are kept by: see [`subject`].
    pub subject: Object,
    /// 1: more for its subject; -1: less; 0: neither.
    pub direction: i8,
    /// How long the loan that it takes back had been out; `None`: it takes none back.
    #[serde(default)]
    pub lasted_us: Option<i64>,
    /// GPUs it touched.
    pub gpus: u32,
    /// Whose work it disturbed.
    pub owner: Option<OwnerName>,
    /// Work they lost by it, GPUs × milliseconds, as measured or else expected.
    pub lost_gpu_ms: i64,
    /// Racks of the nodes it took out of service.
    pub racks: BTreeSet<String>,
    /// When it was begun.
    pub at_us: i64,
    /// How it stands.
    pub outcome: ActionStatus,
}

/// That a person approved an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Who.
    pub by: String,
    /// When.
    pub at_us: i64,
}

/// What was done, what was approved, and how far each kind has come by its record.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// The kill switch.
    pub switch: KillSwitch,
    /// Actions of the last 24 hours and all under way, oldest first.
    pub past: Vec<PastAction>,
    /// Approvals, by action.
    pub approvals: BTreeMap<ActionId, Approval>,
    /// Mode that a kind's record allows at most; a kind that is not in it is bound by its policy
    /// alone.
    pub earned: BTreeMap<Kind, Mode>,
}

impl History {
    /// The action of that id.
    pub fn find(&self, id: &str) -> Option<&PastAction> {
        self.past.iter().rev().find(|past| past.id == id)
    }

    /// Actions begun within `within_us` before `now_us`.
    pub(super) fn since(&self, now_us: i64, within_us: i64) -> impl Iterator<Item = &PastAction> {
        self.past.iter().filter(move |past| past.at_us > now_us - within_us)
    }

    /// Actions about `subject`, oldest first.
    pub(super) fn about<'a>(
        &'a self,
        subject: &'a Object,
    ) -> impl DoubleEndedIterator<Item = &'a PastAction> {
        self.past.iter().filter(move |past| past.subject == *subject)
    }
}

/// How long the loan that `change` takes back has been out.
pub(super) fn lasted_us(change: &Change, state: &ClusterState, at_us: i64) -> Option<i64> {
    let Change::Reclaim { loan, .. } = change else { return None };
    state.loans.get(loan).map(|loan| at_us - loan.since_us)
}

/// Whether a change only lets a loan go on.
pub(super) fn prolongs(change: &Change) -> bool {
    matches!(change, Change::Lend { extends: Some(_), .. })
}

impl PastAction {
    /// Whether it only let a loan go on: it used no budget.
    pub fn prolongs(&self) -> bool {
        self.kind == Kind::Lend && self.direction == 0
    }

    /// What `action`, begun at `at_us`, is remembered by.
    pub fn begun(action: &Action, state: &ClusterState, lost_gpu_ms: i64, at_us: i64) -> Self {
        let change = &action.change;
        let racks = match change {
            Change::DrainNode { node, .. } => {
                let rack = state.nodes.get(node).and_then(|found| found.rack.clone());
                BTreeSet::from([rack.unwrap_or_else(|| node.clone())])
            }
            _ => BTreeSet::new(),
        };
        let owner = change.job().and_then(|job| state.jobs.get(job)).map(|job| job.owner.clone());
        Self {
            id: action.id.clone(),
            kind: change.kind(),
            counts_as: counts_as(change, state),
            subject: subject(change, state),
            direction: direction(change),
            lasted_us: lasted_us(change, state, at_us),
            gpus: super::gpus_touched(change, state),
            owner,
            lost_gpu_ms,
            racks,
            at_us,
            outcome: ActionStatus::UnderWay,
        }
    }
}

/// What rests are kept by. Lending and taking back are about the lender, or the two could chase
/// each other unseen; to let a loan go on is about that loan.
pub fn subject(change: &Change, state: &ClusterState) -> Object {
    match change {
        Change::Lend { extends: Some(loan), .. } => Object::Loan(loan.clone()),
        Change::Reclaim { loan, .. } => match state.loans.get(loan) {
            Some(loan) => Object::Owner(loan.from.clone()),
            None => change.object(),
        },
        _ => change.object(),
    }
}

/// Kind whose budget a change uses: a job that leaves a loan makes room for the lender, which is
/// what the budget of taking back is for.
pub fn counts_as(change: &Change, state: &ClusterState) -> Kind {
    let job = change.job().and_then(|id| state.jobs.get(id));
    let leaves = direction(change) < 0 && job.is_some_and(|job| state.on_loan(job));
    if leaves { Kind::Reclaim } else { change.kind() }
}

/// Whether a job is made to leave what is being taken back.
pub(super) fn leaves_a_reclaim(change: &Change, state: &ClusterState) -> bool {
    let Some(job) = change.job().and_then(|id| state.jobs.get(id)).filter(|_| direction(change) < 0) else {
        return false;
    };
    let by_name =
        job.loan.as_ref().and_then(|id| state.loans.get(id)).is_some_and(|loan| loan.reclaiming_gpus > 0);
    let on_node = |node| state.loans.values().any(|loan| loan.reclaiming_nodes.contains(node));
    by_name || job.placement.keys().any(on_node)
}

pub(super) fn direction(change: &Change) -> i8 {
    let sign = |from: u32, to: u32| match to.cmp(&from) {
        std::cmp::Ordering::Greater => 1,
        std::cmp::Ordering::Less => -1,
        std::cmp::Ordering::Equal => 0,
    };
    match change {
        Change::ResizeJob { from_gpus, to_gpus, .. }
        | Change::AdjustReservation(
            Adjustment::Quota { from_gpus, to_gpus, .. }
            | Adjustment::Reservation { from_gpus, to_gpus, .. }
            | Adjustment::Commitment { from_gpus, to_gpus, .. },
        ) => sign(*from_gpus, *to_gpus),
        // A longer loan is no step.
        Change::Lend { extends: Some(_), .. } => 0,
        Change::Lend { .. } | Change::DrainNode { .. } | Change::Preempt { .. } => -1,
        Change::Reclaim { .. } | Change::ReturnNode { .. } => 1,
    }
}

pub(super) fn duplicate(case: &Context<'_>) -> Option<Refusal> {
    let past = case.history.find(&case.action.id)?;
    refuse(Rule::Duplicate, format!("{} was begun already and is {:?}", past.id, past.outcome))
}
