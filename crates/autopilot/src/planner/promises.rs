//! Owners whose promise is broken. The guard refuses every action that takes from them
//! ([`crate::promise`]), so a plan must find another way: it would only ask for the same action
//! again each minute.

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

    /// Why an owner's jobs may not grow in a pool, nor its reservations: somebody else waits there
    /// whose promise is broken. `None`: they may.
    pub(super) fn against_growth(&self, owner: &str, pool: &str) -> Option<String> {
        let waits = self.waiting.get(pool)?.iter().find(|name| **name != owner)?;
        self.against_taking(waits).map(|why| format!("{why}; its jobs wait, so nobody else grows here"))
    }

    /// Whether a job keeps at least what it asked for. Jobs on loans do not: borrowers have agreed
    /// to give back.
    pub(super) fn protects(&self, state: &ClusterState, job: &Job) -> bool {
        self.why.contains_key(job.owner.as_str()) && !state.on_loan(job)
    }
}
