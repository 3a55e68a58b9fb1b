//! What became of nodes with evidence against them, whether or not they were drained: how often
//! like nodes failed says what a drain prevented.
//!
//! A node becomes suspect when it meets the policy's conditions for a drain. Refused, suggested and
//! rejected drains leave it in service; a drained node may fail all the same. Each suspicion is one
//! trial: within the horizon (`drain.repair_s`) the node failed or it did not.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::policy::DrainRules;
use crate::state::{ClusterState, Health, NodeName, NodeState};

/// Trials kept, newest last.
const KEPT: usize = 64;
/// How far back a trial counts, µs.
const COUNTS_US: i64 = 90 * 86_400_000_000;
/// Quantile of the normal distribution for 95 %.
const Z: f64 = 1.959_964;

/// Evidence against a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// A single fatal signal.
    #[serde(default)]
    pub fatal: bool,
    /// Kinds of evidence.
    #[serde(default)]
    pub families: Vec<String>,
}

/// Suspect nodes and finished trials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Suspects {
    open: BTreeMap<NodeName, Suspect>,
    trials: Vec<Trial>,
}

/// A node that is suspect now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Suspect {
    since_us: i64,
    seen_us: i64,
    /// Time in which nobody looked.
    unseen_us: i64,
    evidence: Evidence,
    /// Its trial is over. It is not tried again before the evidence is gone.
    #[serde(default)]
    is_over: bool,
}

/// What became of a suspect node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Trial {
    node: NodeName,
    since_us: i64,
    evidence: Evidence,
    failed: bool,
}

/// Whether a node meets the policy's conditions for a drain because it fails.
pub(super) fn is_suspect(health: &Health, rules: &DrainRules) -> bool {
    let bad = f64::from(health.bad_ppm.unwrap_or(0)) / 1e6;
    health.fatal || (bad >= rules.bad && health.families.len() >= rules.families as usize)
}

/// Whether a node with that evidence has failed: it is down, or a fatal signal came after milder
/// ones.
pub(super) fn has_failed(state: NodeState, health: &Health, evidence: &Evidence) -> bool {
    state == NodeState::Down || (health.fatal && !evidence.fatal)
}

impl Evidence {
    /// The evidence in a node's health.
    pub fn of(health: &Health) -> Self {
        Self { fatal: health.fatal, families: health.families.clone() }
    }

    /// Whether it is of the same sort: both fatal or neither, and a kind in common.
    fn is_like(&self, other: &Self) -> bool {
        let shares = self.families.iter().any(|family| other.families.contains(family));
        self.fatal == other.fatal && (shares || self.families == other.families)
    }
}

impl Suspects {
    /// Takes in an observation. `longest_us` is the longest time between two of them in which a
    /// failure would not be missed. Returns whether anything began or ended.
    pub fn observe(&mut self, state: &ClusterState, rules: &DrainRules, longest_us: i64) -> bool {
        let horizon_us = rules.repair_s.saturating_mul(1_000_000);
        let (at_us, mut changed) = (state.at_us, false);
        for (name, node) in &state.nodes {
            let suspect = is_suspect(&node.health, rules);
            let Some(open) = self.open.get_mut(name) else {
                if suspect && node.state == NodeState::Up {
                    let evidence = Evidence::of(&node.health);
                    let new =
                        Suspect { since_us: at_us, seen_us: at_us, unseen_us: 0, evidence, is_over: false };
                    self.open.insert(name.clone(), new);
                    changed = true;
                }
                continue;
            };
            open.unseen_us += (at_us - open.seen_us - longest_us).max(0);
            open.seen_us = at_us;
            let failed = has_failed(node.state, &node.health, &open.evidence);
            let timed_out = at_us - open.since_us >= horizon_us;
            if !open.is_over && (failed || timed_out) {
                open.is_over = true;
                changed = true;
                // Whether one failed in a time that was hardly watched is unknown.
                if failed || open.unseen_us <= horizon_us / 4 {
                    let (since_us, evidence) = (open.since_us, open.evidence.clone());
                    self.trials.push(Trial { node: name.clone(), since_us, evidence, failed });
                }
            }
            if open.is_over && !suspect {
                self.open.remove(name);
                changed = true;
            }
        }
        let before = self.open.len();
        self.open.retain(|name, _| state.nodes.contains_key(name));
        let surplus = self.trials.len().saturating_sub(KEPT);
        self.trials.drain(..surplus);
        changed || before != self.open.len()
    }

    /// Of nodes like one that became suspect at `at_us`, how many failed, and how many there were.
    /// The node itself does not count.
    pub(super) fn like(&self, node: &str, evidence: &Evidence, at_us: i64) -> (u32, u32) {
        let counts = |trial: &&Trial| {
            trial.node != node && trial.evidence.is_like(evidence) && at_us - trial.since_us <= COUNTS_US
        };
        let trials = self.trials.iter().filter(counts);
        trials.fold((0, 0), |(failed, all), trial| (failed + u32::from(trial.failed), all + 1))
    }
}

/// 95 % interval of a probability after `hits` in `all` trials, by Wilson's score (JASA 22, 1927).
/// Brown, Cai and DasGupta recommend it for few trials (Statistical Science 16, 2001). Without
/// trials it is 0 to 1.
pub(super) fn wilson(hits: u32, all: u32) -> (f64, f64) {
    if all == 0 {
        return (0.0, 1.0);
    }
    let (n, share) = (f64::from(all), f64::from(hits) / f64::from(all));
    let center = share + Z * Z / (2.0 * n);
    let half = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    (((center - half) / scale).max(0.0), ((center + half) / scale).min(1.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{NOW, S, cluster};
    use crate::policy::Policy;

    #[test]
    fn wilsons_interval_is_that_of_the_tables() {
        // Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
        for (hits, all, low, high) in [
            (81, 263, 0.2553, 0.3662),
            (15, 148, 0.0624, 0.1605),
            (0, 20, 0.0, 0.1611),
            (1, 29, 0.0061, 0.1718),
        ] {
            let (found_low, found_high) = wilson(hits, all);
            assert!(
                (found_low - low).abs() < 6e-5 && (found_high - high).abs() < 6e-5,
                "{found_low} {found_high}"
            );
        }
        assert_eq!(wilson(0, 0), (0.0, 1.0));
    }

    #[test]
    fn a_suspicion_is_one_trial_and_unlike_evidence_does_not_count() {
        let rules = Policy::shipped().drain;
        let (mut state, mut suspects) = (cluster(), Suspects::default());
        let ecc = Health {
            bad_ppm: Some(990_000),
            families: vec!["ecc".into(), "xid".into()],
            ..Health::default()
        };
        for node in ["t0", "t1", "t2"] {
            state.nodes.get_mut(node).unwrap().health = ecc.clone();
        }
        state.nodes.get_mut("t3").unwrap().health = Health { fatal: true, ..Health::default() };
        let mut lists = |state: &mut ClusterState, at_s: i64| {
            state.at_us = NOW + at_s * S;
            suspects.observe(state, &rules, 3_600 * S)
        };
        assert!(lists(&mut state, 0) && !lists(&mut state, 60));
        state.nodes.get_mut("t0").unwrap().state = NodeState::Down;
        state.nodes.get_mut("t3").unwrap().state = NodeState::Down;
        assert!(lists(&mut state, 120) && !lists(&mut state, 180));
        for hour in 1..=8 {
            lists(&mut state, hour * 3_600);
        }
        let evidence = Evidence::of(&ecc);
        assert_eq!(suspects.like("t9", &evidence, NOW), (1, 3));
        assert_eq!(suspects.like("t1", &evidence, NOW), (1, 2), "without the node itself");
        let fatal = Evidence { fatal: true, families: vec![] };
        assert_eq!(suspects.like("t9", &fatal, NOW), (1, 1));
        let text = serde_json::to_string(&suspects).unwrap();
        assert_eq!(serde_json::from_str::<Suspects>(&text).unwrap(), suspects);
    }

    #[test]
    fn a_time_that_nobody_watched_says_nothing() {
        let rules = Policy::shipped().drain;
        let (mut state, mut suspects) = (cluster(), Suspects::default());
        state.nodes.get_mut("t0").unwrap().health = Health { fatal: true, ..Health::default() };
        for hour in [0, 9] {
            state.at_us = NOW + hour * 3_600 * S;
            suspects.observe(&state, &rules, 300 * S);
        }
        assert_eq!(suspects.like("t9", &Evidence { fatal: true, families: vec![] }, NOW), (0, 0));
    }
}
