//! Which waiting jobs start on the copy: by priority, then by age, into what is free and allowed.
//!
//! A job without room holds back all behind it in its pool. A scheduler with backfill may start
//! some of those, so whether it does is not claimed, and no action is refused for it. An owner at
//! its limit holds back only itself.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::copy::ClusterCopy;
use super::packing::Placement;
use super::rules::{room, share_of_node};
use crate::state::{Job, JobState};

/// Jobs that start on the copy.
#[derive(Debug, Clone, Default)]
pub(super) struct Started<'a> {
    /// Jobs that start for certain, with their GPUs.
    pub(super) certain: BTreeMap<&'a str, u32>,
    /// Jobs that can start, but may start later or in another way: after a wait that the scheduler
    /// imposes, by backfill, or spread over more nodes.
    pub(super) possible: BTreeSet<&'a str>,
    /// Pools whose free GPUs depend on those.
    pub(super) unsettled: BTreeSet<&'a str>,
}

/// A job that waits.
struct Waiting<'a> {
    id: &'a str,
    job: &'a Job,
    gpus: u32,
    since_us: i64,
    /// The scheduler lets it wait first.
    is_delayed: bool,
    /// GPUs that it had on each node.
    each: Option<u32>,
}

/// Starts what can start, and leaves it placed on the copy. Jobs in `sought` are tried however many
/// are held back before them: an action was decided for them.
pub(super) fn start_waiting<'a>(copy: &mut ClusterCopy<'a>, sought: &BTreeSet<&str>) -> Started<'a> {
    let mut waiting = waiting(copy);
    waiting.sort_by_key(|it| (it.is_delayed, Reverse(it.job.priority), it.since_us, it.id.len(), it.id));
    let mut started = Started::default();
    let mut full: BTreeSet<&str> = BTreeSet::new();
    let mut at_limit: BTreeSet<(&str, &str)> = BTreeSet::new();
    for Waiting { id, job, gpus, is_delayed, each, .. } in waiting {
        copy.visited += 1;
        let (owner, pool): (&'a str, &'a str) = (&job.owner, &job.pool);
        let is_held_back = full.contains(pool);
        let is_tried = !is_held_back || is_delayed || sought.contains(id);
        if !is_tried || at_limit.contains(&(owner, pool)) {
            continue;
        }
        let limit = copy.limit_gpus(owner, pool);
        if limit.is_some_and(|limit| copy.used_gpus(owner, pool) + gpus > limit) {
            at_limit.insert((owner, pool));
            continue;
        }
        let gang = room(copy, job, gpus, each);
        let is_certain = gang.is_some() && !is_held_back && !is_delayed;
        let Some(placed) = gang.or_else(|| spread(copy, job, gpus).filter(|_| sought.contains(id))) else {
            full.insert(pool);
            continue;
        };
        if is_certain {
            started.certain.insert(id, gpus);
        } else {
            started.possible.insert(id);
            started.unsettled.extend(placed.keys().filter_map(|node| copy.node(node)).map(|node| node.pool));
        }
        copy.requeued.remove(id);
        copy.place(id, job, placed);
    }
    started
}

/// Room for a job that may ask for its GPUs in equal parts by the node.
fn spread<'a>(copy: &ClusterCopy<'a>, job: &'a Job, gpus: u32) -> Option<Placement<'a>> {
    let parts = (1..gpus).rev().filter(|each| gpus.is_multiple_of(*each));
    parts.take_while(|each| gpus / each <= 64).find_map(|each| room(copy, job, gpus, Some(each)))
}

fn waiting<'a>(copy: &mut ClusterCopy<'a>) -> Vec<Waiting<'a>> {
    copy.visited += copy.state.jobs.len() as u64;
    let observed = copy.state.jobs.iter().filter_map(|(id, job)| match job.state {
        JobState::Pending { since_us } if job.gpus > 0 && !copy.requeued.contains_key(id.as_str()) => {
            Some(Waiting { id, job, gpus: job.gpus, since_us, is_delayed: false, each: None })
        }
        _ => None,
    });
    let requeued = copy.requeued.iter().filter_map(|(id, requeued)| {
        let (id, job) = copy.state.jobs.get_key_value(*id)?;
        let had: Placement<'a> = job.placement.iter().map(|(node, gpus)| (node.as_str(), *gpus)).collect();
        let (gpus, is_delayed) = (requeued.gpus, requeued.is_delayed);
        Some(Waiting { id, job, gpus, since_us: copy.now_us, is_delayed, each: share_of_node(&had) })
    });
    observed.chain(requeued).collect()
}
