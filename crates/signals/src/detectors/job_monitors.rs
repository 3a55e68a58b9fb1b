//! The monitors of all jobs, with an index by node.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::limits::EVICTED_PART;
use super::{JobKey, NodeKey};
use crate::job::JobMonitor;
use crate::publication::Publication;
use crate::time::DAY_US;

/// A job that is over is kept this long, for late events and for another attempt.
const JOB_RETENTION_US: i64 = DAY_US;

#[derive(Debug, Default, Serialize, Deserialize)]
pub struct JobMonitors {
    jobs: BTreeMap<JobKey, JobMonitor>,
    /// Jobs that the passing of time alone may change.
    active: BTreeSet<JobKey>,
    /// Active jobs by node.
    on_node: BTreeMap<NodeKey, BTreeSet<String>>,
    /// Jobs that changed since the last [`take_changed`](Self::take_changed).
    changed: BTreeSet<JobKey>,
    /// Memory of all jobs, bytes.
    bytes: usize,
}

impl JobMonitors {
    pub fn get(&self, job: &JobKey) -> Option<&JobMonitor> {
        self.jobs.get(job)
    }

    pub fn get_mut(&mut self, job: &JobKey) -> Option<&mut JobMonitor> {
        self.jobs.get_mut(job)
    }

    pub fn contains(&self, job: &JobKey) -> bool {
        self.jobs.contains_key(job)
    }

    pub fn none_active(&self) -> bool {
        self.active.is_empty()
    }

    pub fn active(&self) -> BTreeSet<JobKey> {
        self.active.clone()
    }

    pub fn take_changed(&mut self) -> BTreeSet<JobKey> {
        std::mem::take(&mut self.changed)
    }

    pub fn for_each_on_node(&mut self, node: &NodeKey, mut apply: impl FnMut(&mut JobMonitor)) {
        for job in self.on_node.get(node).into_iter().flatten() {
            if let Some(job) = self.jobs.get_mut(&(node.0.clone(), job.clone())) {
                apply(job);
            }
        }
    }

    /// Memory of all jobs, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts a job's memory anew, after it was changed through [`get_mut`](Self::get_mut).
    pub fn recount(&mut self, name: &JobKey) {
        if let Some(job) = self.jobs.get_mut(name) {
            let (before, after) = job.recount();
            self.bytes = self.bytes - before + after;
        }
    }

    /// Forgets a job as if it had never been.
    pub fn forget(&mut self, name: &JobKey) {
        self.bytes -= self.jobs.remove(name).map_or(0, |mut job| job.recount().0);
        self.active.remove(name);
        self.changed.remove(name);
        self.on_node.retain(|_, jobs| {
            jobs.remove(&name.1);
            !jobs.is_empty()
        });
    }

    /// Forgets the least useful job: of those that do not run the longest silent, else the one that
    /// is watched for the shortest time, whose baselines are learnt soonest again. To find it, all
    /// are looked at, so of those that do not run one in sixteen goes at once. Returns what closes
    /// their signals; nothing if no job is left.
    pub fn evict(&mut self) -> Vec<(JobKey, Vec<Publication>)> {
        let use_of = |(name, job): (&JobKey, &JobMonitor)| match self.active.contains(name) {
            false => (false, job.newest_us()),
            true => (true, -job.since_us()),
        };
        let mut jobs: Vec<_> = self.jobs.iter().map(|entry| (use_of(entry), entry.0)).collect();
        jobs.sort_unstable();
        let part = jobs.len().div_ceil(EVICTED_PART);
        let least = jobs.into_iter().take(part).enumerate();
        let idle = least.take_while(|(place, ((runs, _), _))| *place == 0 || !runs);
        let names: Vec<JobKey> = idle.map(|(_, (_, name))| name.clone()).collect();
        let evicted = names.into_iter().map(|name| {
            let publications = self.update(&name, i64::MIN, JobMonitor::close);
            self.changed.remove(&name);
            self.bytes -= self.jobs.remove(&name).map_or(0, |mut job| job.recount().0);
            (name, publications)
        });
        evicted.collect()
    }

    /// Changes a job, and updates where its ranks are and whether it is active. One that is new was
    /// first heard of at `at_us`.
    pub fn update(
        &mut self,
        name: &JobKey,
        at_us: i64,
        change: impl FnOnce(&mut JobMonitor) -> Vec<Publication>,
    ) -> Vec<Publication> {
        let job = self.jobs.entry(name.clone()).or_insert_with(|| JobMonitor::new(&name.0, &name.1, at_us));
        let was_active = self.active.contains(name);
        let before = job.nodes().to_vec();
        let publications = change(job);
        let (is_active, after) = (job.is_active(), job.nodes().to_vec());
        let (counted, bytes) = job.recount();
        self.bytes = self.bytes - counted + bytes;
        self.changed.insert(name.clone());
        if was_active == is_active && before == after {
            return publications;
        }
        let key = |node: &String| (name.0.clone(), node.clone());
        for node in &before {
            if let Some(jobs) = self.on_node.get_mut(&key(node)) {
                jobs.remove(&name.1);
            }
        }
        if is_active {
            for node in &after {
                self.on_node.entry(key(node)).or_default().insert(name.1.clone());
            }
            self.active.insert(name.clone());
        } else {
            self.active.remove(name);
        }
        self.on_node.retain(|_, jobs| !jobs.is_empty());
        publications
    }

    /// Forgets inactive jobs without news for a day.
    pub fn forget_old(&mut self, now_us: i64) {
        self.jobs.retain(|name, job| {
            let keeps =
                self.active.contains(name) || now_us.saturating_sub(job.newest_us()) < JOB_RETENTION_US;
            self.bytes -= if keeps { 0 } else { job.recount().0 };
            keeps
        });
    }
}
