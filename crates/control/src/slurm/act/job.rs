//! Jobs: shrunk to the nodes they keep, grown by a restart, preempted.

use std::collections::BTreeSet;
use std::thread;
use std::time::Instant;

use tidegate_autopilot::state::GrowBy;
use tidegate_autopilot::target::TargetError;
use tidegate_events::{Micros, Millis};
use tidegate_slurm::JobPhase as Phase;

use super::{Act, Before, POLL_EVERY};
use crate::slurm::ask::{ChangeError, now_us, unknown};
use crate::slurm::declare::Declaration;
use crate::slurm::marker;
use crate::slurm::notes::{Entry, Notes};
use crate::slurm::queue::{self, QueueJob};
use crate::slurm::satellites;
use crate::slurm::snapshot::Snapshot;

/// Time in which a job has left after the deadline of its notice: the autopilot looks at it every
/// few seconds, and Slurm ends it.
const LEAVE_S: i64 = 15;

fn joined<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    names.into_iter().map(String::as_str).collect::<Vec<_>>().join(",")
}

impl Act<'_> {
    fn running<'l>(&self, snapshot: &'l Snapshot, id: &str) -> Result<&'l QueueJob, TargetError> {
        let job = snapshot.job(id).ok_or_else(|| self.refuse(format!("job {id} is not there")))?;
        if job.phase != Phase::Running {
            return Err(self.refuse(format!("job {id} does not run")));
        }
        Ok(job)
    }

    pub(super) fn check_shrink(
        &self,
        snapshot: &Snapshot,
        id: &str,
        to_gpus: u32,
        keep: &BTreeSet<String>,
    ) -> Result<Before, TargetError> {
        let job = self.running(snapshot, id)?;
        let Some(held) = &satellites::placement(&snapshot.jobs, job) else {
            return Err(self.refuse(format!("what job {id} holds on which node is not known")));
        };
        let kept: u32 = keep.iter().filter_map(|node| held.get(node)).sum();
        if keep.is_empty() || !keep.iter().all(|node| held.contains_key(node)) || kept != to_gpus {
            return Err(
                self.refuse(format!("job {id} does not hold {to_gpus} GPUs on the nodes it shall keep"))
            );
        }
        if job.batch_host.as_ref().is_none_or(|host| !keep.contains(host)) {
            let host = job.batch_host.as_deref().unwrap_or("not known");
            return Err(self.refuse(format!("job {id} must keep the node its script runs on, {host}")));
        }
        if job.resized_ms.is_some() && !self.setup.accounting && !job.nodes.is_subset(keep) {
            return Err(
                self.refuse(format!("job {id} was resized before; without slurmdbd Slurm does it once"))
            );
        }
        Ok(Before { restarts: Some(job.restarts), nodes: job.nodes.iter().cloned().collect() })
    }

    pub(super) fn shrink(
        &self,
        id: &str,
        keep: &BTreeSet<String>,
        entry: &Entry,
    ) -> Result<String, TargetError> {
        let job = self.job_now(id)?.ok_or_else(|| self.refuse(format!("job {id} is gone")))?;
        if Some(job.restarts) != entry.restarts || job.phase != Phase::Running {
            return Err(self.refuse(format!("job {id} was stopped meanwhile")));
        }
        self.leave(&job, Some(keep))?;
        if job.nodes.is_subset(keep) {
            self.have_left(&job, keep)?;
            return Ok(format!("job {id} has only {}", joined(keep)));
        }
        // Satellites hold their nodes themselves.
        let keep = &job.nodes.intersection(keep).cloned().collect::<BTreeSet<String>>();
        self.wait_for_record(&job)?;
        let update = [format!("JobId={id}"), format!("NodeList={}", joined(keep)), self.mark(&job)];
        let result = self.slurm.run("scontrol", &["update", &update[0], &update[1], &update[2]]);
        let after = self.job_now(id)?;
        match (after, result) {
            (Some(after), _) if after.phase == Phase::Running && after.nodes == *keep => {
                Ok(format!("scontrol update {} {}", update[0], update[1]))
            }
            (Some(after), Ok(_)) if after.phase == Phase::Waiting => {
                // It was requeued at the same moment: for a waiting job the list requests nodes,
                // and this job had requested none.
                let undo = self.slurm.run("scontrol", &["update", &update[0], "ReqNodeList="]);
                let undone =
                    undo.map_or_else(|failed| format!("; the list stays: {failed:?}"), |_| String::new());
                Err(self.refuse(format!("job {id} was requeued in the same moment{undone}")))
            }
            (_, Err(failed)) => Err(failed.as_error(&self.action.id)),
            _ => Err(unknown(format!("job {id} did not shrink to {}", joined(keep)))),
        }
    }

    /// Waits until accounting has recorded the last resize: before that Slurm refuses another.
    fn wait_for_record(&self, job: &QueueJob) -> Result<(), TargetError> {
        let Some(resized_ms) = job.resized_ms else { return Ok(()) };
        let deadline = self.deadline();
        loop {
            let found = self.slurm.client.has_attempt(&job.id, Millis(resized_ms).floor_secs()).map_err(|error| {
                self.refuse(format!(
                    "job {} was resized before, and Slurm does it again only when slurmdbd has the record of that; it does \
                     not answer: {error}",
                    job.id
                ))
            })?;
            if found {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(self.refuse(format!(
                    "job {} was resized before, and slurmdbd has no record of that after {} ms",
                    job.id, self.config.settle_ms
                )));
            }
            thread::sleep(POLL_EVERY);
        }
    }

    pub(super) fn check_grow(
        &self,
        snapshot: &Snapshot,
        id: &str,
        to_gpus: u32,
    ) -> Result<Before, TargetError> {
        let job = self.running(snapshot, id)?;
        match Declaration::parse(&job.comment).elastic.map(|elastic| elastic.grow) {
            Some(GrowBy::Satellites) => return self.check_join(snapshot, job, to_gpus),
            Some(GrowBy::Requeue) => {}
            _ => {
                return Err(self.refuse(format!(
                    "job {id} does not declare grow=requeue or grow=satellites, and Slurm adds no GPUs to a job that runs"
                )));
            }
        }
        if !job.requeues {
            return Err(self.refuse(format!("job {id} was submitted with --no-requeue")));
        }
        self.nodes_for(job, to_gpus)?;
        Ok(Before { restarts: Some(job.restarts), nodes: Vec::new() })
    }

    /// Waits until the job's satellites have left all nodes but these.
    fn have_left(&self, job: &QueueJob, keep: &BTreeSet<String>) -> Result<(), TargetError> {
        let deadline = self.deadline();
        loop {
            let jobs = queue::jobs(self.slurm)?;
            let held = satellites::placement(&jobs, job).unwrap_or_default();
            if held.keys().all(|node| keep.contains(node)) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(unknown(format!("the satellites of job {} do not release their nodes", job.id)));
            }
            thread::sleep(POLL_EVERY);
        }
    }

    /// Number of nodes that makes this many GPUs.
    pub(super) fn nodes_for(&self, job: &QueueJob, gpus: u32) -> Result<u32, TargetError> {
        match job.gpus_per_node {
            Some(each) if gpus > 0 && gpus.is_multiple_of(each) => Ok(gpus / each),
            Some(each) => Err(self.refuse(format!(
                "{gpus} GPUs are not whole nodes of job {}, which have {each} each",
                job.id
            ))),
            None => Err(self.refuse(format!("job {} does not ask for its GPUs by the node", job.id))),
        }
    }

    pub(super) fn grow(
        &self,
        id: &str,
        to_gpus: u32,
        keep: &BTreeSet<String>,
        add: &BTreeSet<String>,
        entry: &Entry,
    ) -> Result<String, TargetError> {
        let Some(job) = self.stopped(id, "requeuehold", entry)? else {
            return Ok(format!("job {id} is gone"));
        };
        if !job.requeued_held {
            return Ok(format!("job {id} was released"));
        }
        let nodes = self.nodes_for(&job, to_gpus)?;
        let mut update = vec![
            "update".to_owned(),
            format!("JobId={id}"),
            // A single number may not be less than the largest request before.
            format!("NumNodes={nodes}-{nodes}"),
            self.start(),
            self.mark(&job),
        ];
        if !add.is_empty() {
            update.push(format!("ReqNodeList={}", joined(keep.union(add))));
        }
        let args: Vec<&str> = update.iter().map(String::as_str).collect();
        let sized = self.slurm.run("scontrol", &args);
        if let Err(ChangeError::Unreachable(why) | ChangeError::Unknown(why)) = &sized {
            return Err(unknown(format!("job {id} is stopped and not released: {why}")));
        }
        // Whether or not its size was changed, the job must not stay held.
        let released = self.slurm.run("scontrol", &["release", id]);
        if let Err(failed) = released {
            let open = self.job_now(id)?.is_some_and(|job| job.requeued_held);
            if open {
                return Err(unknown(format!("job {id} is stopped and not released: {failed:?}")));
            }
        }
        match sized {
            Ok(_) => Ok(format!("scontrol requeuehold {id}; update {}; release", update[2])),
            Err(failed) => Err(self.refuse(format!("job {id} starts again at its old size: {failed:?}"))),
        }
    }

    pub(super) fn check_preempt(&self, snapshot: &Snapshot, id: &str) -> Result<Before, TargetError> {
        let job = self.running(snapshot, id)?;
        if !job.requeues {
            return Err(
                self.refuse(format!("job {id} was submitted with --no-requeue: it would not start again"))
            );
        }
        Ok(Before { restarts: Some(job.restarts), nodes: job.nodes.iter().cloned().collect() })
    }

    pub(super) fn preempt(&self, id: &str, entry: &Entry, notes: &Notes) -> Result<String, TargetError> {
        if let Some(job) = self.job_now(id)?.filter(|job| Some(job.restarts) == entry.restarts) {
            self.leave(&job, None)?;
        }
        let Some(job) = self.stopped(id, "requeue", entry)? else {
            return Ok(format!("job {id} is gone"));
        };
        if job.phase != Phase::Waiting {
            return Ok(format!("job {id} was stopped and runs again"));
        }
        let update = [format!("JobId={id}"), self.mark(&job)];
        let start = format!("StartTime=now+{}", self.restart_after_s(notes));
        let result = self.slurm.run("scontrol", &["update", &update[0], &start, &update[1]]);
        match result {
            Ok(_) => Ok(format!("scontrol requeue {id}; update {start}")),
            // It has started or ended in between.
            Err(ChangeError::Rejected(_)) => Ok(format!("scontrol requeue {id}")),
            Err(failed) => {
                Err(unknown(format!("job {id} was requeued; when it may start is not known: {failed:?}")))
            }
        }
    }

    /// The marker beside a change of a job: in the `AdminComment`, or, if we may not write that, in
    /// the `Comment`.
    fn mark(&self, job: &QueueJob) -> String {
        if self.setup.notes_access.as_administrator {
            format!("AdminComment={}", marker::with_marker(&job.admin_comment, &self.marker()))
        } else {
            format!("Comment={}", marker::with_marker(&job.comment, &self.marker()))
        }
    }

    /// Seconds after which a job that was stopped for others may start again: not before jobs that
    /// were notified beside it have left too. It would take the GPUs that all of them are stopped
    /// for, while the waiting job still lacks theirs.
    fn restart_after_s(&self, notes: &Notes) -> i64 {
        let others_us = notes.others_ready_by_us(&self.action.id);
        let others_s = others_us.map_or(0, |at_us| Micros(at_us - now_us()).floor_secs() + LEAVE_S);
        others_s.max(i64::from(self.config.restart_after_s))
    }

    /// When a stopped job may start again: sooner than Slurm's two minutes, but not at once.
    fn start(&self) -> String {
        format!("StartTime=now+{}", self.config.restart_after_s)
    }

    /// Stops the job unless it was stopped since the action began, and waits until it has released
    /// its nodes; `None`: it ended.
    fn stopped(&self, id: &str, how: &str, entry: &Entry) -> Result<Option<QueueJob>, TargetError> {
        let deadline = self.deadline();
        let mut sent = None;
        loop {
            let Some(job) = self.job_now(id)? else { return Ok(None) };
            let again = Some(job.restarts) > entry.restarts;
            match job.phase {
                Phase::Waiting => return Ok(Some(job)),
                Phase::Running | Phase::Starting if again => return Ok(Some(job)),
                Phase::Running if sent.is_none() => {
                    // A second request would find a waiting job and do nothing.
                    let done = self.slurm.run("scontrol", &[how, id]);
                    if let Err(ChangeError::Unreachable(why)) = &done {
                        return Err(ChangeError::Unreachable(why.clone()).as_error(&self.action.id));
                    }
                    sent = Some(done);
                }
                Phase::Running => {
                    if let Some(Err(ChangeError::Rejected(why))) = sent {
                        return Err(self.refuse(why));
                    }
                }
                _ => {}
            }
            if Instant::now() > deadline {
                return Err(unknown(format!(
                    "job {id} does not release its nodes after {} ms",
                    self.config.settle_ms
                )));
            }
            thread::sleep(POLL_EVERY);
        }
    }
}
