//! EASY backfill: a job may overtake the head of the queue if that does not delay the head.
//!
//! If every running job ran to its time limit, there is a first moment at which the head fits. The
//! nodes that it would take then are reserved for it. Counting GPUs is not enough: enough of them
//! can be free but scattered, and a job that needs whole nodes would never start. Slurm's
//! `sched/backfill` reserves nodes too, for every job that it considers; EASY only for the head.

use std::collections::BTreeMap;

use crate::{Sim, nodes::Room, schedule::StartAttempt};

/// What is reserved for the head, and what is left for other jobs.
struct Promise {
    /// When the head could start, µs; `i64::MAX` if not even when all jobs have ended.
    start_us: i64,
    /// Nodes reserved for the head: GPUs of each that stay free once it has started.
    left: BTreeMap<u32, u32>,
    /// GPUs that are free now and stay free once the head has started.
    room: Room,
}

impl Sim {
    /// Starts jobs that end before the head can start, and jobs that leave its nodes alone.
    pub(crate) fn backfill(&mut self, pool: usize, head: u32, open: &[usize], depth: usize) {
        let (own, lent) = self.nodes.free(pool);
        if own + lent == 0 {
            return;
        }
        let mut promise = self.promise(pool, head);
        let waiting = open.iter().flat_map(|t| self.queues[*t].iter().take(depth + 1));
        let mut waiting: Vec<(i32, u32)> = waiting.filter(|key| key.1 != head).copied().collect();
        waiting.sort_unstable();
        for (_, job) in waiting.into_iter().take(depth) {
            let estimate_us = self.jobs[job as usize].spec.estimate_us;
            let ends_before = self.now_us.saturating_add(estimate_us) <= promise.start_us;
            let room = (!ends_before).then_some(&promise.room);
            if self.try_start(job, room) == StartAttempt::Started {
                self.take(&mut promise, job, ends_before);
            }
        }
    }

    /// Finds when and where the head can start, by letting running jobs end one after the other.
    fn promise(&self, pool: usize, head: u32) -> Promise {
        let spec = &self.jobs[head as usize].spec;
        let (mut room, mut later) = (self.nodes.room(pool), self.nodes.room(pool));
        let mut left = BTreeMap::new();
        for (end_us, job) in &self.ends {
            if self.pool_of(*job) != pool {
                continue;
            }
            for (node, gpus) in &self.jobs[*job as usize].held {
                if let Some(free) = later.free(&self.nodes, *node) {
                    later.set_free(&self.nodes, *node, free + gpus);
                }
            }
            let Some(held) = later.fit(spec.model, spec.gpus, spec.loan) else { continue };
            for (node, gpus) in held {
                let beside = later.free(&self.nodes, node).unwrap_or(0) - gpus;
                let now = room.free(&self.nodes, node).unwrap_or(0);
                room.set_free(&self.nodes, node, now.min(beside));
                left.insert(node, beside);
            }
            return Promise { start_us: (*end_us).max(self.now_us), left, room };
        }
        Promise { start_us: i64::MAX, left, room }
    }

    /// Updates what is left after a job has started.
    fn take(&self, promise: &mut Promise, job: u32, ends_before: bool) {
        for (node, gpus) in &self.jobs[job as usize].held {
            let mut free = self.nodes.get(*node).free;
            if let Some(left) = promise.left.get_mut(node) {
                *left -= if ends_before { 0 } else { *gpus };
                free = free.min(*left);
            }
            promise.room.set_free(&self.nodes, *node, free);
        }
    }
}
