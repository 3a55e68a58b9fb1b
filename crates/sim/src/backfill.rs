//! EASY backfill: jobs may overtake the head of the queue unless they delay it.
//!
//! The head is promised the nodes on which it could start first if all jobs ran until their time
//! limits. As in Slurm's `sched/backfill` the promise names nodes: a promised number of GPUs may be
//! free but scattered, and a head of whole nodes would wait for ever. Slurm promises nodes to all
//! jobs that it tries, EASY to the head alone.

use std::collections::BTreeMap;

use crate::{Sim, nodes::Room, schedule::StartAttempt};

/// Start of the head, and what it leaves to others.
struct Promise {
    /// When the head could start, µs; `i64::MAX` if not even when all jobs have ended.
    start_us: i64,
    /// By node promised to the head: GPUs that will be free beside it then.
    left: BTreeMap<u32, u32>,
    /// GPUs that are free now and when the head has started.
    room: Room,
}

impl Sim {
    /// Starts jobs that end before the head could start, or leave it its nodes.
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

    /// Lets the running jobs end in order until the head fits.
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

    /// Takes the GPUs of a job that has started out of what the head leaves.
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
