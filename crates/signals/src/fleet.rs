//! What happens to nodes and jobs of one cluster beside steps and samples: allocations
//! ([`Allocations`]), causes of job ends ([`EndCauses`]), lemon nodes ([`LemonTracker`]). All three
//! run on the clock of events.
//!
//! A late event never changes published output. A late fault counts for ends not yet attributed,
//! and towards lemons from the next midnight on. An attempt that ended earlier than it was counted
//! to leaves its nodes those hours of use. An attempt whose start arrives after its end is not
//! taken to run.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tidegate_events::v1;
use tidegate_insight::health::{XidClass, xid};

use crate::allocations::{Allocation, Allocations};
use crate::end_causes::{EndCauses, EndedAttempt};
use crate::facts::{HoldFact, JobFact};
use crate::lemons::{LemonTracker, LemonVerdict};
use crate::publication::Publication;
use crate::time::DAY_US;

/// After this many days no past event counts any more; midnights after a longer silence are
/// skipped.
const MAX_SILENT_DAYS: i64 = 30;

/// Result of the passing of time.
#[derive(Debug, Clone)]
pub enum FleetEvent {
    /// The fault that ended a job.
    EndCause(Publication),
    /// At a midnight (µs since 1970) a node was found to be a lemon, or no longer to be one.
    Lemon(i64, String, LemonVerdict),
}

/// Allocations, ends and lemons of one cluster.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fleet {
    allocations: Allocations,
    end_causes: EndCauses,
    lemons: LemonTracker,
    /// The next midnight to evaluate.
    midnight_us: i64,
    /// Time of the last change.
    newest_us: i64,
}

impl Fleet {
    /// A cluster first seen at `at_us`.
    pub fn new(cluster: &str, at_us: i64) -> Self {
        Self {
            allocations: Allocations::default(),
            end_causes: EndCauses::new(cluster),
            lemons: LemonTracker::default(),
            midnight_us: next_midnight(at_us),
            newest_us: at_us,
        }
    }

    /// Allocation of a job, if it runs.
    pub fn allocation(&self, job_id: &str) -> Option<&Allocation> {
        self.allocations.get(job_id)
    }

    /// Jobs that hold something on a node.
    pub fn jobs_on(&self, node: &str) -> impl Iterator<Item = &String> {
        self.allocations.jobs_on(node)
    }

    /// An attempt started, or now holds other devices.
    pub fn job_started(&mut self, fact: &JobFact, at_us: i64) {
        self.newest_us = self.newest_us.max(at_us);
        self.allocations.job_started(fact, at_us);
        self.record_node_use();
    }

    /// An attempt ended. `reported_nodes`: the nodes that its ranks reported; used where no other
    /// source names any.
    pub fn job_ended(
        &mut self,
        fact: &JobFact,
        final_state: Option<&str>,
        reported_nodes: &[String],
        at_us: i64,
    ) {
        self.newest_us = self.newest_us.max(at_us);
        let held = self.allocations.job_ended(&fact.job_id, fact.attempt, at_us);
        self.record_node_use();
        let attempt = fact.attempt.or(held.as_ref().and_then(|held| held.attempt));
        if self.allocations.record_end(&fact.job_id, attempt, at_us) {
            return;
        }
        let mut nodes: BTreeSet<String> = BTreeSet::new();
        nodes.extend(held.iter().flat_map(|held| held.nodes()).map(str::to_owned));
        if nodes.is_empty() {
            let hosts = fact.hosts.as_deref().unwrap_or("").split(',').map(str::trim);
            nodes.extend(hosts.filter(|host| !host.is_empty()).map(str::to_owned));
        }
        if nodes.is_empty() {
            nodes.extend(reported_nodes.iter().cloned());
        }
        self.end_causes.attempt_ended(EndedAttempt {
            job_id: fact.job_id.clone(),
            attempt,
            end_us: at_us,
            final_state: final_state.unwrap_or_default().into(),
            nodes,
            devices: held.iter().flat_map(Allocation::exclusive_devices).cloned().collect(),
            gpus_milli: held.as_ref().and_then(|held| held.gpus_milli).or(fact.gpus_milli),
            checkpoint_us: held.and_then(|held| held.checkpoint_us),
        });
    }

    /// A device hold begins or ends. Returns whether it ended a job that no scheduler reported.
    pub fn observe_hold(&mut self, fact: &HoldFact, at_us: i64) -> bool {
        self.newest_us = self.newest_us.max(at_us);
        let is_over = self.allocations.apply_hold(fact, at_us);
        self.record_node_use();
        is_over
    }

    /// Takes one rank's step.
    pub fn observe_step(&mut self, report: &v1::StepReport, end_us: i64) {
        if report.checkpoint_us.is_some_and(|saving_us| saving_us > 0) {
            self.allocations.checkpoint_saved(&report.job_id, report.attempt_id, end_us);
        }
    }

    /// Takes a node event; only faults count.
    pub fn observe_node(&mut self, event: &v1::NodeEvent, at_us: i64) {
        let is_fault = match event.kind() {
            v1::NodeEventKind::Xid | v1::NodeEventKind::DeviceLost | v1::NodeEventKind::FaultStarted => true,
            v1::NodeEventKind::StateChanged => event.state.as_deref().is_some_and(is_down),
            _ => false,
        };
        if !is_fault {
            return;
        }
        self.newest_us = self.newest_us.max(at_us);
        self.end_causes.observe_fault(event, at_us);
        if event.xid.is_none_or(|code| xid(code).class != XidClass::Application) {
            self.lemons.record_fault(&event.node, at_us);
        }
    }

    /// A confirmed straggler signal blamed this node.
    pub fn straggler_confirmed(&mut self, node: &str, at_us: i64) {
        self.newest_us = self.newest_us.max(at_us);
        self.lemons.record_fault(node, at_us);
    }

    /// Moves on to `now_us`: attributes the ends that are due, and evaluates the midnights, in
    /// order of time. All events before `now_us` were applied.
    pub fn advance(&mut self, now_us: i64) -> Vec<FleetEvent> {
        let mut passed = Vec::new();
        while self.midnight_us <= now_us {
            let at_us = self.midnight_us;
            if at_us.saturating_sub(self.newest_us) > MAX_SILENT_DAYS * DAY_US {
                self.midnight_us = next_midnight(now_us);
                break;
            }
            self.attribute_ends(at_us, &mut passed);
            self.end_causes.forget(at_us);
            self.allocations.accrue_use(at_us);
            self.record_node_use();
            let found = self.lemons.evaluate(at_us).into_iter();
            passed.extend(found.map(|(node, of)| FleetEvent::Lemon(at_us, node, of)));
            self.midnight_us = at_us.saturating_add(DAY_US);
        }
        self.attribute_ends(now_us, &mut passed);
        passed
    }

    fn attribute_ends(&mut self, now_us: i64, passed: &mut Vec<FleetEvent>) {
        for judged in self.end_causes.attribute_due(now_us) {
            if let Some((node, at_us)) = judged.blamed_node {
                self.lemons.record_fault(&node, at_us);
            }
            passed.push(FleetEvent::EndCause(judged.publication));
        }
    }

    fn record_node_use(&mut self) {
        for (node, from_us, to_us) in self.allocations.take_node_use() {
            self.lemons.record_use(&node, from_us, to_us);
        }
    }
}

fn next_midnight(at_us: i64) -> i64 {
    at_us.div_euclid(DAY_US).saturating_add(1).saturating_mul(DAY_US)
}

/// Whether a Slurm node state means the node is gone, e.g. `DOWN*` or `IDLE+FAIL`. A node switched
/// off to save power is not gone.
fn is_down(state: &str) -> bool {
    let words = state.split(['+', ',', ' ']).map(|word| word.trim_end_matches(['*', '~', '#', '$', '@']));
    words.into_iter().any(|word| ["DOWN", "FAIL", "FAILING"].contains(&word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lemons_of(passed: Vec<FleetEvent>) -> Vec<(i64, String)> {
        let lemon = |passed| match passed {
            FleetEvent::Lemon(at_us, node, found) if found.lemon.exclude => Some((at_us / DAY_US, node)),
            _ => None,
        };
        passed.into_iter().filter_map(lemon).collect()
    }

    /// Forty nodes in use; one loses a device every day.
    fn fleet() -> Fleet {
        let mut fleet = Fleet::new("c", 0);
        let hosts: Vec<String> = (0..40).map(|n| format!("n{n:02}")).collect();
        let fact = JobFact {
            kind: v1::JobEventKind::Started,
            job_id: "j".into(),
            attempt: Some(1),
            team: None,
            pool: None,
            gpus_milli: None,
            hosts: Some(hosts.join(",")),
            continues: false,
        };
        fleet.job_started(&fact, 0);
        fleet
    }

    fn lost(node: &str) -> v1::NodeEvent {
        v1::NodeEvent {
            kind: v1::NodeEventKind::DeviceLost.into(),
            node: node.into(),
            ..v1::NodeEvent::default()
        }
    }

    #[test]
    fn lemons_do_not_depend_on_the_pace_of_time() {
        let run = |step_us: i64| {
            let (mut fleet, mut found) = (fleet(), Vec::new());
            for day in 0..6 {
                for at_us in (day * DAY_US..(day + 1) * DAY_US).step_by(step_us as usize) {
                    found.extend(lemons_of(fleet.advance(at_us)));
                }
                found.extend(lemons_of(fleet.advance(day * DAY_US + DAY_US / 2)));
                fleet.observe_node(&lost("n13"), day * DAY_US + DAY_US / 2);
            }
            found.extend(lemons_of(fleet.advance(90 * DAY_US)));
            found
        };
        let found = run(DAY_US);
        assert_eq!(found, run(DAY_US / 7));
        assert!(found.iter().all(|(_, node)| node == "n13") && found.len() > 20, "{found:?}");
        // The last fault is on day 5. The 28 days before the midnight that begins day 34 do not
        // include it.
        assert_eq!(found.last().unwrap().0, 33);
        let days: Vec<i64> = found.iter().map(|(day, _)| *day).collect();
        assert!(days.windows(2).all(|pair| pair[1] == pair[0] + 1), "once a day: {days:?}");
    }

    #[test]
    fn a_silence_of_years_is_passed_over() {
        let mut fleet = fleet();
        assert!(fleet.advance(i64::MAX / 2).is_empty());
        fleet.observe_node(&lost("n13"), i64::MAX / 2);
        assert!(fleet.advance(i64::MAX).is_empty());
    }

    #[test]
    fn states_of_nodes_that_are_gone() {
        assert!(["DOWN", "DOWN*", "IDLE+FAIL", "DOWN+DRAIN"].into_iter().all(is_down));
        assert!(!["IDLE", "POWERED_DOWN", "IDLE+POWERING_DOWN~", "MIXED+DRAIN"].into_iter().any(is_down));
    }
}
