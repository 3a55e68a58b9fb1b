//! Recent actions as the guard needs them, and what a change counts as.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{Context, Refusal, Rule, refuse};
use crate::action::{Action, ActionId, Adjustment, Change, Kind};
use crate::policy::Mode;
use crate::state::{ClusterState, Object, OwnerName};

/// Kill switch. The caller reads it immediately before each check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KillSwitch {
    /// May act.
    On,
    /// Begins nothing; open effects end by themselves.
    Paused,
    /// Could not be read; counts as off.
    #[default]
    Unreadable,
}

/// State of a begun action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ActionStatus {
    /// Sent to the target and not verified yet.
    UnderWay,
    /// Read back as done.
    Verified,
    /// Failed.
    Failed {
        /// Reason, in the same words for the same failure.
        why: String,
    },
    /// Failed, and its effects were undone.
    Compensated {
        /// Reason.
        why: String,
    },
}

/// A begun action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastAction {
    /// Its id.
    pub id: ActionId,
    /// Its kind.
    pub kind: Kind,
    /// Kind whose budget it uses: see [`counts_as`].
    pub counts_as: Kind,
    /// Object whose rests it counts against: see [`subject`].
    pub subject: Object,
    /// 1: more for the subject. -1: less. 0: neither.
    pub direction: i8,
    /// Age of the loan it takes back. `None`: it takes none back.
    #[serde(default)]
    pub lasted_us: Option<i64>,
    /// GPUs it touched.
    pub gpus: u32,
    /// Owner whose work it disturbed.
    pub owner: Option<OwnerName>,
    /// Work that owner lost, GPUs × ms, measured or otherwise expected.
    pub lost_gpu_ms: i64,
    /// Racks of the nodes it drained.
    pub racks: BTreeSet<String>,
    /// When it began.
    pub at_us: i64,
    /// Its state.
    pub outcome: ActionStatus,
}

/// A person's approval of an action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    /// Who approved.
    pub by: String,
    /// When.
    pub at_us: i64,
}

/// A person's rejection of an action that had not begun.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rejection {
    /// Who rejected it.
    pub by: String,
    /// The person's reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// When.
    pub at_us: i64,
    /// Kind of the action.
    pub kind: Kind,
    /// What it would have changed.
    pub object: Object,
}

/// Recent actions, approvals and rejections, and the modes earned by scorecard.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// The kill switch.
    pub switch: KillSwitch,
    /// Actions of the last 24 hours and all in flight, oldest first.
    pub past: Vec<PastAction>,
    /// Approvals by action.
    pub approvals: BTreeMap<ActionId, Approval>,
    /// Rejections of the last 24 hours, oldest first.
    pub rejections: Vec<Rejection>,
    /// Highest mode each kind has earned. A kind that is absent is bound by its policy alone.
    pub earned: BTreeMap<Kind, Mode>,
}

impl History {
    /// The action with that id.
    pub fn find(&self, id: &str) -> Option<&PastAction> {
        self.past.iter().rev().find(|past| past.id == id)
    }

    /// Actions begun within `within_us` before `now_us`.
    pub(super) fn since(&self, now_us: i64, within_us: i64) -> impl Iterator<Item = &PastAction> {
        self.past.iter().filter(move |past| past.at_us > now_us - within_us)
    }

    /// Actions on `subject`, oldest first.
    pub(super) fn about<'a>(
        &'a self,
        subject: &'a Object,
    ) -> impl DoubleEndedIterator<Item = &'a PastAction> {
        self.past.iter().filter(move |past| past.subject == *subject)
    }
}

/// Age of the loan, or of a job's growth, that `change` takes back.
pub(super) fn lasted_us(change: &Change, state: &ClusterState, at_us: i64) -> Option<i64> {
    if gives_back(change, state) {
        let resized_us = change.job().and_then(|job| state.jobs.get(job)?.resized_us);
        return resized_us.map(|resized_us| at_us - resized_us);
    }
    let Change::Reclaim { loan, .. } = change else { return None };
    state.loans.get(loan).map(|loan| at_us - loan.since_us)
}

/// Whether a change only extends a loan.
pub(super) fn prolongs(change: &Change) -> bool {
    matches!(change, Change::Lend { extends: Some(_), .. })
}

impl PastAction {
    /// Whether it only extended a loan. Extensions use no budget.
    pub fn prolongs(&self) -> bool {
        self.kind == Kind::Lend && self.direction == 0
    }

    /// Record of `action`, begun at `at_us`.
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

/// Object whose rests a change counts against.
///
/// Lending and reclaiming count against the lender; otherwise the two could alternate unnoticed. An
/// extension counts against its loan.
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

/// Kind whose budget a change uses. A job that leaves a loan makes room for the lender, so it uses
/// the budget for reclaiming.
pub fn counts_as(change: &Change, state: &ClusterState) -> Kind {
    let job = change.job().and_then(|id| state.jobs.get(id));
    let leaves = direction(change) < 0 && job.is_some_and(|job| state.on_loan(job));
    if leaves { Kind::Reclaim } else { change.kind() }
}

/// Whether a change makes a job leave capacity that is being reclaimed.
pub(super) fn leaves_a_reclaim(change: &Change, state: &ClusterState) -> bool {
    let Some(job) = change.job().and_then(|id| state.jobs.get(id)).filter(|_| direction(change) < 0) else {
        return false;
    };
    let by_name =
        job.loan.as_ref().and_then(|id| state.loans.get(id)).is_some_and(|loan| loan.reclaiming_gpus > 0);
    let on_node = |node| state.loans.values().any(|loan| loan.reclaiming_nodes.contains(node));
    by_name || job.placement.keys().any(on_node)
}

/// Whether a job gives back no more than it has grown by beyond what it asked for.
pub(super) fn gives_back(change: &Change, state: &ClusterState) -> bool {
    let Change::ResizeJob { job, from_gpus, to_gpus, .. } = change else { return false };
    to_gpus < from_gpus && state.jobs.get(job).is_some_and(|job| *to_gpus >= job.gpus)
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
        // An extension is no step.
        Change::Lend { extends: Some(_), .. } => 0,
        Change::Lend { .. } | Change::DrainNode { .. } | Change::Preempt { .. } => -1,
        Change::Reclaim { .. } | Change::ReturnNode { .. } => 1,
    }
}

pub(super) fn duplicate(ctx: &Context<'_>) -> Option<Refusal> {
    let past = ctx.history.find(&ctx.action.id)?;
    refuse(Rule::Duplicate, format!("{} has already begun and is {:?}", past.id, past.outcome))
}
