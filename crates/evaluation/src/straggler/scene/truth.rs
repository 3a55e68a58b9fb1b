//! Truth about a job: what happened, and what an alarm about it is worth.

use serde::Serialize;
use tidegate_insight::straggler::Class;

use super::faults::{Injected, Place};
use super::plan::{PER_NODE, Plan};

/// Relevance of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Relevance {
    /// Counts: it slows the job by 5 % or more for at least 10 steps and 60 s.
    Counts,
    /// Smaller or shorter, but longer than 30 s or 5 steps: an alarm about it is neither right nor
    /// wrong.
    DontCare,
    /// Shorter still: an alarm about it is wrong.
    Ignored,
}

/// A fault as it took effect.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Event {
    /// The injected fault.
    pub fault: Injected,
    /// Start of the first slow step, µs since 1970.
    pub start_us: i64,
    /// End of the last slow step.
    pub end_us: i64,
    /// End of the first slow step, from which delays count.
    pub first_us: i64,
    /// Slow steps.
    pub steps: u64,
    /// How much longer the job's steps took during the fault: 0.05 is 5 %.
    pub slowdown: f64,
    /// Its relevance.
    pub relevance: Relevance,
}

/// Placement of an attempt: the node of each block of eight ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Attempt {
    /// Start, µs since 1970.
    pub from_us: i64,
    /// Index of the node of each block of eight ranks.
    pub order: Vec<usize>,
}

/// The truth about one job.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Truth {
    /// Its faults, by start.
    pub events: Vec<Event>,
    /// Its attempts, by start.
    pub attempts: Vec<Attempt>,
    /// Number of each node, by index.
    pub node_ids: Vec<u32>,
    /// Ranks of a stage.
    pub data_parallel: usize,
    /// Length of the job, h.
    pub hours: f64,
    /// GPUs times length, h.
    pub gpu_hours: f64,
}

impl Truth {
    pub(crate) fn new(plan: &Plan, start_us: i64) -> Self {
        Self {
            events: Vec::new(),
            attempts: vec![Attempt { from_us: start_us, order: (0..plan.nodes).collect() }],
            node_ids: plan.node_ids.clone(),
            data_parallel: plan.data_parallel(),
            hours: plan.length_s / 3600.0,
            gpu_hours: plan.ranks() as f64 * plan.length_s / 3600.0,
        }
    }

    fn order(&self, at_us: i64) -> &[usize] {
        let attempt = self.attempts.iter().rev().find(|attempt| attempt.from_us <= at_us);
        attempt.or(self.attempts.first()).map_or(&[], |attempt| &attempt.order)
    }

    /// First rank of a node, by its index.
    fn first_rank(&self, node: usize, at_us: i64) -> Option<u32> {
        self.order(at_us).iter().position(|&at| at == node).map(|position| (position * PER_NODE) as u32)
    }

    /// Ranks of a node, by its number.
    pub fn ranks_of_node(&self, id: u32, at_us: i64) -> Option<std::ops::Range<u32>> {
        let node = self.node_ids.iter().position(|&at| at == id)?;
        self.first_rank(node, at_us).map(|first| first..first + PER_NODE as u32)
    }

    /// Ranks of a role.
    pub fn ranks_of_role(&self, role: u32) -> std::ops::Range<u32> {
        let dp = self.data_parallel as u32;
        role.saturating_mul(dp)..role.saturating_add(1).saturating_mul(dp)
    }

    /// Ranks at a place at some time; `None` when no rank is there.
    pub fn ranks_of(&self, place: Place, at_us: i64) -> Option<std::ops::Range<u32>> {
        match place {
            Place::Device(device) => {
                let rank = self.first_rank(device / PER_NODE, at_us)? + (device % PER_NODE) as u32;
                Some(rank..rank + 1)
            }
            Place::Node(node) => self.first_rank(node, at_us).map(|first| first..first + PER_NODE as u32),
            Place::Fabric => Some(0..(self.order(at_us).len() * PER_NODE) as u32),
        }
    }
}

/// Accumulates the effect of a fault, step by step.
#[derive(Debug, Clone)]
pub(crate) struct Tally {
    span_us: Option<(i64, i64, i64)>,
    steps: u64,
    with_s: f64,
    without_s: f64,
}

impl Tally {
    pub(crate) const fn new() -> Self {
        Self { span_us: None, steps: 0, with_s: 0.0, without_s: 0.0 }
    }

    pub(crate) fn step(&mut self, start_us: i64, end_us: i64, with_s: f64, without_s: f64) {
        self.span_us =
            Some(self.span_us.map_or((start_us, end_us, end_us), |(start, first, _)| (start, first, end_us)));
        self.steps += 1;
        self.with_s += with_s;
        self.without_s += without_s;
    }

    pub(crate) fn event(&self, fault: Injected) -> Option<Event> {
        let (start_us, first_us, end_us) = self.span_us?;
        let slowdown = self.with_s / self.without_s - 1.0;
        let lasted_s = (end_us - start_us) as f64 / 1e6;
        let relevance = if slowdown >= 0.05 && self.steps >= 10 && lasted_s >= 60.0 {
            Relevance::Counts
        } else if lasted_s > 30.0 || self.steps > 5 {
            Relevance::DontCare
        } else {
            Relevance::Ignored
        };
        Some(Event { fault, start_us, end_us, first_us, steps: self.steps, slowdown, relevance })
    }
}

impl Event {
    /// Class the fault was injected with.
    pub fn class(&self) -> Class {
        self.fault.class
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(steps: u64, step_s: f64, slowdown: f64) -> Relevance {
        let fault = Injected {
            class: Class::Host,
            place: Place::Node(0),
            start_s: 0.0,
            end_s: 1.0,
            size: 0.1,
            evidence: false,
        };
        let mut tally = Tally::new();
        for step in 0..steps as i64 {
            let us = (step_s * 1e6) as i64;
            tally.step(step * us, (step + 1) * us, step_s, step_s / (1.0 + slowdown));
        }
        tally.event(fault).unwrap().relevance
    }

    #[test]
    fn an_event_counts_by_effect_and_length() {
        assert_eq!(event(60, 1.0, 0.05001), Relevance::Counts);
        assert_eq!(event(59, 1.0, 0.06), Relevance::DontCare);
        assert_eq!(event(10, 6.0, 0.06), Relevance::Counts);
        assert_eq!(event(9, 15.0, 0.06), Relevance::DontCare);
        assert_eq!(event(600, 1.0, 0.049), Relevance::DontCare);
        assert_eq!(event(5, 6.0, 0.5), Relevance::Ignored);
        assert_eq!(event(6, 2.0, 0.5), Relevance::DontCare);
        assert_eq!(
            Tally::new().event(Injected {
                class: Class::Host,
                place: Place::Fabric,
                start_s: 0.0,
                end_s: 0.0,
                size: 0.0,
                evidence: false,
            }),
            None
        );
    }
}
