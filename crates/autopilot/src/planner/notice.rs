//! Notice before a disturbance (docs/control.md, 4.15).

use tidegate_units::Millis;

use crate::action::Change;
use crate::policy::PreemptRules;
use crate::state::{ClusterState, GrowBy, Job, JobKind};

/// Notice that `change` gives the job it disturbs, ms. 0: it disturbs no job that takes notices.
///
/// Whether the time to write a checkpoint is known does not matter: the job asked for the notice,
/// and knows itself.
pub(super) fn notice_ms(change: &Change, state: &ClusterState, rules: &PreemptRules) -> i64 {
    let job = change.job().and_then(|id| state.jobs.get(id));
    let is_due = job.is_some_and(|job| job.checkpoint.on_notice && loses_processes(change, job));
    if is_due { Millis::from_secs(rules.notice_s).0 } else { 0 }
}

/// Whether the change ends processes of the job: all of them, or those on nodes that it leaves.
fn loses_processes(change: &Change, job: &Job) -> bool {
    match change {
        Change::Preempt { .. } => true,
        Change::ResizeJob { from_gpus, to_gpus, .. } => {
            to_gpus < from_gpus || matches!(job.kind, JobKind::Elastic { grow: GrowBy::Requeue, .. })
        }
        Change::Lend { .. }
        | Change::Reclaim { .. }
        | Change::AdjustReservation(_)
        | Change::DrainNode { .. }
        | Change::ReturnNode { .. } => false,
    }
}
