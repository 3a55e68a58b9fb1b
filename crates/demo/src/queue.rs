//! Jobs as the site's scheduler has them: who waits, who holds which GPUs, and who ended.

use std::collections::BTreeMap;

use tidegate_events::FinalState;

use crate::plan::GPUS_PER_NODE;

/// A job that waits or holds GPUs.
#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub name: String,
    pub team: String,
    pub user: String,
    pub pool: &'static str,
    /// GPUs it asks for; of a GPU that is divided, each slice counts as one and a share as none.
    pub gpus: u32,
    pub priority: i64,
    pub limit_ms: i64,
    /// Of the last submission: a requeue is one. Full seconds, as Slurm has all its times.
    pub submit_ms: i64,
    pub hold: Option<Hold>,
}

/// What a job holds since when.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    pub start_ms: i64,
    /// Start before it was resized.
    pub first_ms: i64,
    pub on: Vec<OnNode>,
    /// Whether the scheduler knows the devices: it does not know slices and shares.
    pub shows_devices: bool,
}

/// GPUs of one node, by their indices.
#[derive(Debug, Clone)]
pub(crate) struct OnNode {
    pub node: usize,
    pub gpus: Vec<u32>,
}

impl Hold {
    pub fn gpus(&self) -> usize {
        self.on.iter().map(|on| on.gpus.len()).sum()
    }
}

/// An attempt that ended since accounting was last asked.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
    pub id: u64,
    pub job: Job,
    pub hold: Hold,
    pub end_ms: i64,
    pub state: FinalState,
}

/// All jobs that are not over.
#[derive(Debug)]
pub(crate) struct Queue {
    jobs: BTreeMap<u64, Job>,
    ended: Vec<Ended>,
    /// By node: a bit for each GPU that is held.
    taken: Vec<u32>,
    /// Whether anything differs from what was last shown.
    changed: bool,
}

impl Queue {
    pub fn new(nodes: usize) -> Self {
        Self { jobs: BTreeMap::new(), ended: Vec::new(), taken: vec![0; nodes], changed: true }
    }

    pub fn jobs(&self) -> impl Iterator<Item = (u64, &Job)> {
        self.jobs.iter().map(|(id, job)| (*id, job))
    }

    pub fn get(&self, id: u64) -> Option<&Job> {
        self.jobs.get(&id)
    }

    pub fn submit(&mut self, id: u64, job: Job) {
        let submit_ms = full_second(job.submit_ms);
        self.jobs.insert(id, Job { submit_ms, ..job });
        self.changed = true;
    }

    /// Starts a job on so many GPUs of each node, those with the lowest free indices.
    pub fn start(&mut self, id: u64, at_ms: i64, counts: &[(usize, u32)], resized: bool) {
        let on = counts.iter().map(|(node, count)| self.take(*node, *count)).collect();
        self.hold(id, at_ms, on, resized, true);
    }

    /// Starts a job on these GPUs, which others may hold too unless `shows_devices`.
    pub fn start_on(&mut self, id: u64, at_ms: i64, on: OnNode, shows_devices: bool) {
        self.hold(id, at_ms, vec![on], false, shows_devices);
    }

    fn hold(&mut self, id: u64, at_ms: i64, on: Vec<OnNode>, resized: bool, shows_devices: bool) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let start_ms = full_second(at_ms);
        let first_ms = job.hold.as_ref().filter(|_| resized).map_or(start_ms, |hold| hold.first_ms);
        job.hold = Some(Hold { start_ms, first_ms, on, shows_devices });
        self.changed = true;
    }

    fn take(&mut self, node: usize, count: u32) -> OnNode {
        let free: Vec<u32> = (0..GPUS_PER_NODE)
            .filter(|gpu| self.taken[node] & (1 << gpu) == 0)
            .take(count as usize)
            .collect();
        free.iter().for_each(|gpu| self.taken[node] |= 1 << gpu);
        OnNode { node, gpus: free }
    }

    /// Ends the attempt of a job; it leaves the queue, waits again, or goes on with other GPUs.
    pub fn end(&mut self, id: u64, at_ms: i64, state: FinalState) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let end_ms = full_second(at_ms);
        let before = job.clone();
        match state {
            FinalState::Resized => {}
            FinalState::NodeFail | FinalState::Preempted => {
                (job.hold, job.submit_ms) = (None, end_ms);
            }
            _ => {
                self.jobs.remove(&id);
            }
        }
        if let Some(hold) = before.hold.clone() {
            for on in hold.on.iter().filter(|_| hold.shows_devices) {
                on.gpus.iter().for_each(|gpu| self.taken[on.node] &= !(1 << gpu));
            }
            self.ended.push(Ended { id, job: before, hold, end_ms, state });
        }
        self.changed = true;
    }

    /// Whether anything changed since the last call.
    pub fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.changed)
    }

    pub fn take_ended(&mut self) -> Vec<Ended> {
        std::mem::take(&mut self.ended)
    }

    /// GPUs that a team holds.
    pub fn held_by(&self, team: &str) -> usize {
        let of_team = self.jobs.values().filter(|job| job.team == team);
        of_team.filter_map(|job| job.hold.as_ref()).map(Hold::gpus).sum()
    }
}

fn full_second(at_ms: i64) -> i64 {
    at_ms.div_euclid(1_000) * 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        Job {
            name: "a".into(),
            team: "t".into(),
            user: "u".into(),
            pool: "train",
            gpus: 4,
            priority: 1,
            limit_ms: 60_000,
            submit_ms: 1_500,
            hold: None,
        }
    }

    #[test]
    fn a_job_that_loses_its_node_waits_again_and_gets_free_gpus() {
        let mut queue = Queue::new(2);
        queue.submit(1, job());
        queue.submit(2, job());
        queue.start(1, 2_999, &[(0, 4)], false);
        queue.start(2, 3_000, &[(0, 4)], false);
        let second = queue.get(2).and_then(|job| job.hold.clone()).expect("it holds GPUs");
        assert_eq!(second.on[0].gpus.clone(), vec![4, 5, 6, 7]);
        queue.end(1, 9_900, FinalState::NodeFail);
        assert_eq!(queue.get(1).map(|job| (job.hold.is_none(), job.submit_ms)), Some((true, 9_000)));
        queue.submit(3, job());
        queue.start(3, 10_000, &[(0, 3)], false);
        assert_eq!(
            queue.get(3).and_then(|job| job.hold.clone()).map(|hold| hold.on[0].gpus.clone()),
            Some(vec![0, 1, 2])
        );
        assert_eq!(queue.take_ended().len(), 1);
    }
}
