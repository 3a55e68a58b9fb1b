//! Satellites: one-node jobs that join a job which declares `grow=satellites`. They are the only
//! way to add GPUs to a running job.
//!
//! A satellite's name holds the joined job, the action and the generation. It counts only if both
//! jobs belong to the same user, so nobody can grow another user's job by a name. To the planner,
//! job and satellites are one job with all their nodes.

use std::collections::BTreeMap;

use tidegate_slurm::JobPhase as Phase;

use super::marker;
use super::queue::QueueJob;
use super::snapshot::Snapshot;

/// Name of the satellites of a job.
pub(super) fn name(parent: &str, action: &str, generation: u64) -> String {
    format!("tidegate-join.{parent}.{action}.g{generation}")
}

/// Parses the joined job and the action from a name.
pub(super) fn read(name: &str) -> Option<(&str, &str)> {
    let (parent, rest) = name.strip_prefix("tidegate-join.")?.split_once('.')?;
    let (action, generation) = rest.rsplit_once(".g")?;
    generation.parse::<u64>().ok().map(|_| (parent, action))
}

/// Satellites of a job, including those that ended.
pub(super) fn of<'a>(jobs: &'a [QueueJob], parent: &'a QueueJob) -> impl Iterator<Item = &'a QueueJob> {
    let joins = |job: &QueueJob| read(&job.name).is_some_and(|(of, _)| of == parent.id);
    jobs.iter().filter(move |job| joins(job) && job.user == parent.user)
}

/// Whether the job is a satellite of a running job, and so counts as part of it.
pub(super) fn is_joined(snapshot: &Snapshot, job: &QueueJob) -> bool {
    let Some((parent, _)) = read(&job.name) else { return false };
    snapshot.job(parent).is_some_and(|parent| parent.phase == Phase::Running && parent.user == job.user)
}

/// GPUs by node of a job with its satellites; `None`: not known.
pub(super) fn placement(jobs: &[QueueJob], job: &QueueJob) -> Option<BTreeMap<String, u32>> {
    let mut all = job.placement.clone()?;
    if job.phase == Phase::Running {
        for satellite in of(jobs, job).filter(|satellite| satellite.is_open()) {
            for (node, gpus) in satellite.placement.as_ref()? {
                *all.entry(node.clone()).or_default() += gpus;
            }
        }
    }
    Some(all)
}

/// Comment of a satellite, for people.
pub(super) fn comment(parent: &str, action: &str, generation: u64) -> String {
    format!("joins job {parent} {}", marker::marker(action, generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::declare::Declaration;
    use crate::slurm::queue;

    #[test]
    fn only_jobs_of_the_same_user_join() {
        assert_eq!(read(&name("12_3", "resize_job-1.g2", 4)), Some(("12_3", "resize_job-1.g2")));
        assert_eq!(read("tidegate-join.12"), None);
        let job = |id: u32, name: &str, user: &str, state: &str, node: &str| {
            format!(
                r#"{{"job_id": {id}, "name": "{name}", "user_name": "{user}", "submit_time": 5, "start_time": 6, "job_state": "{state}",
                    "nodes": "{node}", "tres_per_node": "gres:gpu:8", "gres_detail": ["gpu:h200:8(IDX:0-7)"]}}"#
            )
        };
        let joins = name("1", "a", 4);
        let jobs = [
            job(1, "train", "ada", "RUNNING", "n1"),
            job(2, &joins, "ada", "RUNNING", "n2"),
            job(3, &joins, "bob", "RUNNING", "n3"),
            job(4, &joins, "ada", "COMPLETED", "n4"),
        ];
        let answer = format!(r#"{{"meta": {{}}, "errors": [], "jobs": [{}]}}"#, jobs.join(","));
        let jobs = queue::read(answer.as_bytes()).unwrap();
        let held = placement(&jobs, &jobs[0]).unwrap();
        assert_eq!(held, [("n1".to_owned(), 8), ("n2".to_owned(), 8)].into());
        assert!(
            !Declaration::parse(&comment("1", "a", 4)).opt_in,
            "a satellite is nobody's to change but by its job"
        );
    }
}
