//! What the promises to owners forbid a plan: the guard refuses whatever takes from an owner whose
//! promise is broken ([`crate::promise`]). A plan that decided on it all the same would ask for it
//! again each minute, and never look for another way.

use std::collections::{BTreeMap, BTreeSet};

use crate::policy::PromiseRules;
use crate::promise::breach;
use crate::state::{ClusterState, Job, Owner, OwnerName};

/// Broken promises under one policy.
#[derive(Debug, Default)]
pub(super) struct BrokenPromises<'a> {
    /// The reason, by owner.
    why: BTreeMap<&'a str, String>,
    /// Those of them who wait, by pool.
    waiting: BTreeMap<&'a str, BTreeSet<&'a str>>,
}

impl<'a> BrokenPromises<'a> {
    pub(super) fn of(rules: &PromiseRules, state: &'a ClusterState) -> Self {
        if !rules.keep {
            return Self::default();
        }
        let broken =
            |(name, owner): (&'a OwnerName, &Owner)| Some((name.as_str(), breach(rules, name, owner)?));
        let why: BTreeMap<_, _> = state.owners.iter().filter_map(broken).collect();
        let mut waiting: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        if !why.is_empty() {
            let waits = state.jobs.values().filter(|job| job.pending_since_us().is_some());
            for job in waits.filter(|job| why.contains_key(job.owner.as_str())) {
                waiting.entry(&job.pool).or_default().insert(&job.owner);
            }
        }
        Self { why, waiting }
    }

    /// Why nothing may be taken from an owner. `None`: it may.
    pub(super) fn against_taking(&self, owner: &str) -> Option<String> {
        self.why.get(owner).map(|why| format!("the promise to {owner} is broken: {why}"))
    }

    /// Why an owner may take nothing of a pool for what it has beyond its need. `None`: it may.
    pub(super) fn against_growth(&self, owner: &str, pool: &str) -> Option<String> {
        let waits = self.waiting.get(pool)?.iter().find(|name| **name != owner)?;
        self.against_taking(waits).map(|why| format!("{why}; its jobs wait, so nobody else grows here"))
    }

    /// Whether no more may be taken from a job than it has grown by. What is on loan may be taken.
    pub(super) fn protect(&self, state: &ClusterState, job: &Job) -> bool {
        self.why.contains_key(job.owner.as_str()) && !state.on_loan(job)
    }
}
