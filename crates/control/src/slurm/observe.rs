//! Builds the autopilot's cluster state from a snapshot of Slurm and our notes.

use std::collections::BTreeMap;

use tidegate_autopilot::action::{ActionId, Adjustment, Change};
use tidegate_autopilot::state::{
    Checkpoint, ClusterState, Drain, DrainedBy, Health, Job, JobKind, JobState, Loan, LoanId, Node,
    NodeState, Owner, Pool, Reservation, Share, Source, Writer,
};
use tidegate_events::{Micros, Millis};
use tidegate_slurm::{Availability, JobPhase as Phase};

use super::config::{ShareConfig, SlurmConfig};
use super::declare::Declaration;
use super::inventory::{SlurmNode, SlurmReservation};
use super::loans;
use super::marker;
use super::notes::Notes;
use super::qos_loans;
use super::queue::QueueJob;
use super::satellites;
use super::snapshot::Snapshot;

/// Word in a node's `Comment` or `Extra` that protects it from the autopilot.
const PROTECTED: &str = "tidegate:do-not-disrupt";

/// The state that the snapshot shows.
pub(super) fn state(config: &SlurmConfig, cluster: &str, snapshot: &Snapshot) -> ClusterState {
    let mut state = ClusterState {
        cluster: cluster.to_owned(),
        at_us: snapshot.at_us,
        sources: [("slurm".to_owned(), Source { last_event_us: Some(snapshot.at_us) })].into(),
        ..ClusterState::default()
    };
    for (name, node) in &snapshot.nodes {
        if let Some(pool) = snapshot.pool_of(config, name) {
            state.pools.entry(pool.clone()).or_insert_with(|| self::pool(config, &pool));
            state.nodes.insert(name.clone(), self::node(name, node, pool, &snapshot.notes));
        }
    }
    state.loans = loans::open(config, snapshot);
    for job in snapshot.jobs.iter().filter(|job| !satellites::is_joined(snapshot, job)) {
        if let Some(job_state) = job_state(job) {
            let loan = loan_of(&state.loans, job);
            let mut seen = self::job(config, job, job_state, loan);
            seen.placement = satellites::placement(&snapshot.jobs, job).unwrap_or_default();
            state.jobs.insert(job.id.clone(), seen);
        }
    }
    for (name, reservation) in &snapshot.reservations {
        if marker::loan_of(name).is_none() {
            state.reservations.insert(name.clone(), self::reservation(config, snapshot, name, reservation));
        }
    }
    for (owner, configured) in &config.owners {
        let shares = configured.shares.iter().map(|(pool, configured)| {
            (pool.clone(), share(config, &state, snapshot, owner, pool, configured))
        });
        let shares = shares.collect();
        let teams = config.accounts(owner).into_iter().collect();
        state.owners.insert(owner.clone(), Owner { shares, teams, ..Owner::default() });
    }
    state
}

fn pool(config: &SlurmConfig, name: &str) -> Pool {
    config.pools.get(name).map_or_else(Pool::default, |pool| Pool {
        floor_gpus: pool.floor_gpus,
        price_micros_per_gpu_hour: pool.price_micros_per_gpu_hour,
        ..Pool::default()
    })
}

fn node(name: &str, node: &SlurmNode, pool: String, notes: &Notes) -> Node {
    let protected = |text: &String| text.contains(PROTECTED);
    Node {
        pool,
        rack: None,
        gpu_model: node.model.clone(),
        gpus: node.gpus,
        state: node_state(&node.state),
        health: Health::default(),
        drain: drain(name, node, notes),
        do_not_disrupt: [&node.comment, &node.extra].into_iter().any(protected),
    }
}

fn node_state(state: &tidegate_slurm::NodeState) -> NodeState {
    match state.availability() {
        Availability::Up => NodeState::Up,
        Availability::Down => NodeState::Down,
        Availability::Unknown => NodeState::Unknown,
    }
}

/// The drain of a node. It is ours only if the reason is exactly what we wrote.
pub(super) fn drain(name: &str, node: &SlurmNode, notes: &Notes) -> Option<Drain> {
    if !node.state.is_draining() {
        return None;
    }
    let written = |id: &str| match notes.actions.get(id).map(|entry| &entry.change) {
        Some(Change::DrainNode { node, reason }) => Some((node.clone(), reason.clone())),
        _ => None,
    };
    let ours = marker::read(&node.reason).filter(|(id, generation)| match written(id) {
        Some((node_then, reason)) => {
            node_then == name && node.reason == marker::drain_reason(id, *generation, &reason)
        }
        // Our notes of it have expired: the marker alone identifies it.
        None => true,
    });
    let by =
        ours.map_or(DrainedBy::Other, |(action, generation)| DrainedBy::Autopilot { action, generation });
    Some(Drain {
        by,
        since_us: node.reason_ms.map(|ms| Millis(ms).to_micros().0),
        reason: node.reason.clone(),
    })
}

/// `None`: the job ended, or waits for something that no GPU gives it (a person, another job, a
/// time).
fn job_state(job: &QueueJob) -> Option<JobState> {
    let started_us = Millis(job.start_ms.unwrap_or(job.since_ms)).to_micros().0;
    Some(match job.phase {
        Phase::Over(_) => return None,
        Phase::Waiting if job.requeued_held => {
            JobState::Changing { since_us: Millis(job.since_ms).to_micros().0 }
        }
        Phase::Waiting if job.waits_for_others => return None,
        // There is no telling whether capacity would start it.
        Phase::Waiting if job.has_unknown_size() => JobState::Unknown,
        Phase::Waiting => JobState::Pending { since_us: Millis(job.since_ms).to_micros().0 },
        Phase::Running if job.placement.is_some() => JobState::Running { since_us: started_us },
        Phase::Running => JobState::Unknown,
        Phase::Starting | Phase::Suspended | Phase::Ending => JobState::Changing { since_us: started_us },
    })
}

/// The loan that a job runs on: one whose nodes it uses, or a loan by QOS that counts it.
fn loan_of(loans: &BTreeMap<LoanId, Loan>, job: &QueueJob) -> Option<LoanId> {
    let on = |loan: &Loan| match loan.nodes.is_empty() {
        true => loan.jobs.contains(&job.id),
        false => !job.nodes.is_disjoint(&loan.nodes),
    };
    loans.iter().find(|(_, loan)| on(loan)).map(|(id, _)| id.clone())
}

fn job(config: &SlurmConfig, job: &QueueJob, state: JobState, loan: Option<LoanId>) -> Job {
    let declared = Declaration::parse(&job.comment);
    let placement = job.placement.clone().unwrap_or_default();
    let held: u32 = placement.values().sum();
    let kind = declared.elastic.map_or(JobKind::Gang, |elastic| JobKind::Elastic {
        sizes: if elastic.sizes.is_empty() {
            whole_nodes(elastic.min_gpus, elastic.max_gpus, job.gpus_per_node)
        } else {
            elastic.sizes
        },
        min_gpus: elastic.min_gpus,
        max_gpus: elastic.max_gpus,
        grow: elastic.grow,
    });
    let owner = config.owner_of(&job.account);
    let pools = || job.partition.split(',').filter_map(|name| config.pool_of(name));
    // Of several partitions the one in which its owner has a share counts; Slurm lists the one in
    // which it ran last first.
    let has_share = |pool: &String| config.owners.get(&owner).is_some_and(|of| of.shares.contains_key(pool));
    let pool = pools().find(has_share).or_else(|| pools().next()).unwrap_or_default();
    Job {
        pool,
        owner,
        queue: Some(job.qos.clone()).filter(|qos| !qos.is_empty()),
        priority: job.priority,
        kind,
        gpus: job.asked_gpus.unwrap_or(held),
        state,
        loan,
        placement,
        anchor_node: job.batch_host.clone(),
        restarts: job.restarts,
        preemptible: declared.preemptible || config.preemptible_qos.contains(&job.qos),
        // Slurm does not record why a job was stopped: this is an upper bound.
        preemptions_24h: job.restarts,
        checkpoint: Checkpoint {
            // `preempt` replaces Slurm's own two minutes by this.
            requeue_ms: Some(Millis::from_secs(i64::from(config.restart_after_s)).0),
            on_notice: declared.notice,
            ..Checkpoint::default()
        },
        curve: None,
        remaining_work_ms: None,
        expected_end_us: None,
        end_within_us: None,
        resized_us: job.resized_ms.map(|ms| Millis(ms).to_micros().0),
        opt_in: declared.opt_in || config.opt_in_qos.contains(&job.qos),
        do_not_disrupt: declared.do_not_disrupt || config.protected_qos.contains(&job.qos),
    }
}

/// Sizes in whole nodes between the two; empty (any size) if the job does not request GPUs by the
/// node.
fn whole_nodes(least: u32, most: u32, per_node: Option<u32>) -> Vec<u32> {
    let Some(each) = per_node else { return Vec::new() };
    (least.div_ceil(each)..=most / each).map(|nodes| nodes * each).collect()
}

fn reservation(
    config: &SlurmConfig,
    snapshot: &Snapshot,
    name: &str,
    shown: &SlurmReservation,
) -> Reservation {
    let gpus = snapshot.gpus(&shown.nodes);
    let pool = shown.partition.as_deref().and_then(|partition| config.pool_of(partition));
    let pool = pool.or_else(|| shown.nodes.iter().find_map(|node| snapshot.pool_of(config, node)));
    let owner = shown.accounts.iter().next().or(shown.users.iter().next());
    let writer = match newest(&snapshot.notes, name) {
        Some((_, generation, Adjustment::Reservation { to_gpus, end_us, owner, .. }))
            if *to_gpus == gpus
                && Micros(*end_us).floor_secs() == shown.end_s
                && shown.accounts == config.accounts(owner).into_iter().collect() =>
        {
            Writer::Autopilot { generation }
        }
        _ => Writer::Other,
    };
    Reservation {
        owner: owner.map(|account| config.owner_of(account)).unwrap_or_default(),
        pool: pool.unwrap_or_default(),
        gpus,
        nodes: shown.nodes.clone(),
        start_us: Micros::from_secs(shown.start_s).0,
        end_us: Some(Micros::from_secs(shown.end_s).0),
        writer,
    }
}

/// Our newest action on the reservation: its generation and the requested change.
fn newest<'a>(notes: &'a Notes, name: &str) -> Option<(&'a ActionId, u64, &'a Adjustment)> {
    let ours = notes.actions.iter().filter_map(|(id, entry)| match &entry.change {
        Change::AdjustReservation(adjust @ Adjustment::Reservation { name: of, .. }) if of == name => {
            entry.begun_us.map(|at| (at, id, entry.generation, adjust))
        }
        _ => None,
    });
    ours.max_by_key(|(at, id, ..)| (*at, *id)).map(|(_, id, generation, adjust)| (id, generation, adjust))
}

fn share(
    config: &SlurmConfig,
    state: &ClusterState,
    snapshot: &Snapshot,
    owner: &str,
    pool: &str,
    configured: &ShareConfig,
) -> Share {
    let of_pool: u32 = state.nodes.values().filter(|node| node.pool == pool).map(|node| node.gpus).sum();
    let limit = match (&configured.quota_account, &configured.quota_qos) {
        (Some(account), _) => snapshot.limits.accounts.get(account).copied().flatten(),
        (_, Some(qos)) => snapshot.limits.qos.get(qos).and_then(qos_loans::own_limit),
        _ => None,
    };
    let of_owner = || state.jobs.values().filter(|job| job.owner == owner && job.pool == pool);
    // A job of unknown size makes the owner's demand unknown.
    let of_unknown_size =
        |job: &QueueJob| job.is_open() && job.has_unknown_size() && config.owner_of(&job.account) == owner;
    let demand = if snapshot.jobs.iter().any(of_unknown_size) {
        None
    } else {
        let gpus = |job: &Job| if job.placement.is_empty() { job.gpus } else { job.held_gpus() };
        Some(of_owner().map(gpus).sum())
    };
    Share {
        quota_gpus: configured.quota_gpus.or(limit).unwrap_or(of_pool),
        limit_gpus: limit,
        floor_gpus: configured.floor_gpus,
        lendable: configured.lendable,
        demand_gpus: demand,
        // Slurm does not record it; the scorecard of loans does.
        reclaim_took_ms: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::config::OwnerConfig;
    use crate::slurm::inventory::Limits;
    use crate::slurm::queue;

    /// The state of a cluster with one job of owner `ada`.
    fn with_job(job: &str) -> ClusterState {
        let answer = format!(
            r#"{{"meta": {{}}, "errors": [], "jobs": [{{"job_id": 1, "account": "ada", "partition": "p",
                "submit_time": 5, {job}}}]}}"#
        );
        let snapshot = Snapshot {
            at_us: 7,
            jobs: queue::read(answer.as_bytes()).unwrap(),
            nodes: BTreeMap::new(),
            reservations: BTreeMap::new(),
            limits: Limits::default(),
            notes: Notes::default(),
        };
        let shares = [("p".to_owned(), ShareConfig::default())].into();
        let owner = OwnerConfig { shares, ..OwnerConfig::default() };
        let config = SlurmConfig { owners: [("ada".to_owned(), owner)].into(), ..SlurmConfig::default() };
        state(&config, "c", &snapshot)
    }

    #[test]
    fn a_job_of_unknown_size_makes_its_owners_demand_unknown() {
        let seen = |job: &str| {
            let state = with_job(job);
            (state.jobs["1"].state, state.jobs["1"].gpus, state.owners["ada"].shares["p"].demand_gpus)
        };
        let by_socket = r#""tres_per_socket": "gres:gpu:4""#;
        let pending = JobState::Pending { since_us: 5_000_000 };
        let running = JobState::Running { since_us: 6_000_000 };
        assert_eq!(seen(r#""job_state": "PENDING", "tres_per_job": "gres:gpu:4""#), (pending, 4, Some(4)));
        assert_eq!(seen(r#""job_state": "PENDING""#), (pending, 0, Some(0)), "it asks for no GPUs");
        assert_eq!(seen(&format!(r#""job_state": "PENDING", {by_socket}"#)), (JobState::Unknown, 0, None));
        let runs = format!(r#""job_state": "RUNNING", "start_time": 6, "nodes": "n1", {by_socket}"#);
        assert_eq!(seen(&runs), (JobState::Unknown, 0, None), "Slurm does not show yet what it holds");
        let shown = format!(r#"{runs}, "gres_detail": ["gpu:h200:8(IDX:0-7)"]"#);
        assert_eq!(seen(&shown), (running, 8, Some(8)), "what it holds is its size");
    }
}
