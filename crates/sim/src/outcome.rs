//! Outcome of a simulation: the numbers by which schedulers are compared.

use serde::Serialize;

use crate::{Class, Job, JobState, Sim};

/// Numbers of one run. Times in µs, GPU time in GPU-µs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Outcome {
    /// Jobs submitted.
    pub jobs: u64,
    /// Jobs finished.
    pub done: u64,
    /// Mean time in the queue of submitted jobs, over all waits of a job; open waits count up to
    /// now.
    pub queue_mean_us: i64,
    /// 95th percentile of the same (nearest rank).
    pub queue_p95_us: i64,
    /// Mean time from submission to end of finished jobs.
    pub completion_mean_us: i64,
    /// Work done and not lost, in GPU time at the size each job asked for.
    pub useful_gpu_us: i128,
    /// Held by jobs.
    pub allocated_gpu_us: i128,
    /// Time of all GPUs, up or not.
    pub paid_gpu_us: i128,
    /// Held by jobs or serving demand.
    pub used_gpu_us: i128,
    /// Progress lost to preemption.
    pub lost_preempted_gpu_us: i128,
    /// Progress lost to node failures.
    pub lost_failed_gpu_us: i128,
    /// Time spent on starts, restarts, checkpoints and kills.
    pub overhead_gpu_us: i128,
    /// Online demand that no GPU served.
    pub unmet_gpu_us: i128,
    /// Time with unmet demand.
    pub unmet_us: i64,
    /// Number of preemptions.
    pub preemptions: u64,
    /// Changes made from outside.
    pub actions: u64,
    /// Nodes lent by services; one counts each time.
    pub lent_nodes: u64,
    /// Teams with jobs, in the order of the description.
    pub teams: Vec<TeamOutcome>,
}

/// Numbers of one team, as those of all.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct TeamOutcome {
    /// Name of the team.
    pub team: String,
    /// Jobs submitted.
    pub jobs: u64,
    /// 95th percentile of the time in the queue.
    pub queue_p95_us: i64,
    /// Work done and not lost.
    pub useful_gpu_us: i128,
    /// Number of preemptions.
    pub preemptions: u64,
}

impl Sim {
    /// The outcome up to now.
    pub fn outcome(&self) -> Outcome {
        let ledger = self.ledger();
        let mut waits = Vec::new();
        let (mut done, mut completion_us, mut useful, mut preemptions) = (0u64, 0i128, 0i128, 0u64);
        for j in self.jobs.iter().filter(|j| j.state != JobState::Future) {
            waits.push(self.wait_us(j));
            preemptions += u64::from(j.preempted);
            useful += useful_gpu_us(j, self.now_us);
            if let Some(end_us) = j.end_us {
                done += 1;
                completion_us += i128::from(end_us - j.spec.submit_us);
            }
        }
        waits.sort_unstable();
        let mean = |sum: i128, n: usize| if n == 0 { 0 } else { (sum / n as i128) as i64 };
        let allocated = ledger.gpu_us(Class::Allocated);
        Outcome {
            jobs: waits.len() as u64,
            done,
            queue_mean_us: mean(waits.iter().map(|w| i128::from(*w)).sum(), waits.len()),
            queue_p95_us: p95(&waits),
            completion_mean_us: mean(completion_us, done as usize),
            useful_gpu_us: useful,
            allocated_gpu_us: allocated,
            paid_gpu_us: ledger.paid_gpu_us(),
            used_gpu_us: allocated + ledger.gpu_us(Class::Serving),
            lost_preempted_gpu_us: ledger.lost_preempted_gpu_us,
            lost_failed_gpu_us: ledger.lost_failed_gpu_us,
            overhead_gpu_us: ledger.overhead_gpu_us,
            unmet_gpu_us: ledger.unmet_gpu_us,
            unmet_us: ledger.unmet_us,
            preemptions,
            actions: self.actions(),
            lent_nodes: self.lent_nodes,
            teams: self.teams(),
        }
    }

    fn teams(&self) -> Vec<TeamOutcome> {
        let mut teams: Vec<(TeamOutcome, Vec<i64>)> = Vec::new();
        let named =
            |team: &crate::TeamSpec| TeamOutcome { team: team.name.clone(), ..TeamOutcome::default() };
        teams.extend(self.spec.teams.iter().map(|team| (named(team), Vec::new())));
        for j in self.jobs.iter().filter(|j| j.state != JobState::Future) {
            let (team, waits) = &mut teams[j.spec.team];
            waits.push(self.wait_us(j));
            team.useful_gpu_us += useful_gpu_us(j, self.now_us);
            team.preemptions += u64::from(j.preempted);
        }
        let with_jobs = teams.into_iter().filter(|(_, waits)| !waits.is_empty());
        with_jobs
            .map(|(team, mut waits)| {
                waits.sort_unstable();
                TeamOutcome { jobs: waits.len() as u64, queue_p95_us: p95(&waits), ..team }
            })
            .collect()
    }

    /// Time in the queue over all waits of a job; an open wait counts up to now.
    fn wait_us(&self, job: &Job) -> i64 {
        let waiting_us = if job.state == JobState::Queued { self.now_us - job.queued_us } else { 0 };
        job.waited_us + waiting_us
    }
}

/// Work done, in GPU time at the size that the job asked for.
fn useful_gpu_us(job: &Job, now_us: i64) -> i128 {
    job.progress(now_us) * i128::from(job.spec.gpus) / i128::from(crate::PPM)
}

/// 95th percentile of sorted values (nearest rank); 0 of none.
fn p95(sorted: &[i64]) -> i64 {
    (sorted.len() * 95).div_ceil(100).checked_sub(1).map_or(0, |i| sorted[i])
}
