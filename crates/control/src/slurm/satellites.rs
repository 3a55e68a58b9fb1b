//! Jobs of one node that join a job which declares `grow=satellites`: the only way to more GPUs for
//! a job that runs.
//!
//! Which job they join, by which action and generation, stands in their name, and counts only where
//! they are the same user's: nobody's job grows by what somebody else calls his own. Together they
//! are one job to the planner, with the nodes of all.

use std::collections::BTreeMap;

use tidegate_slurm::JobPhase as Phase;

use super::marker;
use super::observe::Look;
use super::queue::QueueJob;

/// Name of the satellites of a job.
pub(super) fn name(parent: &str, action: &str, generation: u64) -> String {
    format!("tidegate-join.{parent}.{action}.g{generation}")
}

/// Job that is joined, and by which action.
pub(super) fn read(name: &str) -> Option<(&str, &str)> {
    let (parent, rest) = name.strip_prefix("tidegate-join.")?.split_once('.')?;
    let (action, generation) = rest.rsplit_once(".g")?;
    generation.parse::<u64>().ok().map(|_| (parent, action))
}

/// Satellites of a job, those that ended too.
pub(super) fn of<'a>(jobs: &'a [QueueJob], parent: &'a QueueJob) -> impl Iterator<Item = &'a QueueJob> {
    let joins = |job: &QueueJob| read(&job.name).is_some_and(|(of, _)| of == parent.id);
    jobs.iter().filter(move |job| joins(job) && job.user == parent.user)
}

/// Whether it joins a job that runs: then that job has what it holds.
pub(super) fn is_joined(look: &Look, job: &QueueJob) -> bool {
    let Some((parent, _)) = read(&job.name) else { return false };
    look.job(parent).is_some_and(|parent| parent.phase == Phase::Running && parent.user == job.user)
}

/// GPUs by node of a job and of what joined it; `None`: not known.
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

/// What a satellite says in its comment, for people.
pub(super) fn comment(parent: &str, action: &str, generation: u64) -> String {
    format!("joins job {parent} {}", marker::marker(action, generation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slurm::declare::Declared;
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
            !Declared::read(&comment("1", "a", 4)).opt_in,
            "a satellite is nobody's to change but by its job"
        );
    }
}
