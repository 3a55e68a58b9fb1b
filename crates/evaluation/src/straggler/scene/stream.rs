//! Message stream of a job, in order of arrival; only one step at a time is in memory.

use rand::Rng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use tidegate_insight::straggler::{Class, DeviceWindow, Fault, JobShape, StepReport};

use super::arrivals::Arrivals;
use super::devices::Devices;
use super::faults::{Injected, Noise};
use super::message::{Message, MessageBody};
use super::plan::{PER_NODE, Plan};
use super::steps::Steps;
use super::truth::{Attempt, Tally, Truth};
use crate::straggler::random::child;

/// 2026-01-01T00:00:00Z.
const START_US: i64 = 1_767_225_600_000_000;
/// One report in this many has a duration without its parts.
const NO_PARTS: f64 = 0.002;
/// Link faults that also log XID 74.
const LINK_XID: f64 = 0.3;
const TOKENS: f64 = 32_768.0;
const LENGTH: f64 = 4096.0;
/// Share of the computing that grows with squared lengths.
const SQUARED_SHARE: f64 = 0.7;

/// A job: an iterator over its messages, and the truth at the end.
#[derive(Debug)]
pub struct Stream {
    plan: Plan,
    faults: Vec<Injected>,
    tallies: Vec<Tally>,
    rng: ChaCha8Rng,
    steps: Steps,
    devices: Devices,
    arrivals: Arrivals,
    truth: Truth,
    order: Vec<usize>,
    attempt: u32,
    number: u64,
    saved: u64,
    now_s: f64,
    over: bool,
}

impl Stream {
    /// The job of a seed and regime, with its own faults.
    pub fn draw(seed: u64, regime: super::Regime, hours: Option<f64>, noise: Noise) -> Self {
        let plan = Plan::draw(seed, regime, hours);
        let faults = Injected::draw_all(&plan, noise);
        Self::new(plan, faults)
    }

    /// A job with given faults.
    pub fn new(plan: Plan, faults: Vec<Injected>) -> Self {
        let mut stream = Self {
            tallies: vec![Tally::new(); faults.len()],
            faults,
            rng: child(plan.seed, plan.regime.letter(), "stream"),
            steps: Steps::new(&plan),
            devices: Devices::new(&plan),
            arrivals: Arrivals::new(&plan),
            truth: Truth::new(&plan, START_US),
            order: (0..plan.nodes).collect(),
            attempt: 1,
            number: 0,
            saved: 0,
            now_s: 0.0,
            over: false,
            plan,
        };
        stream.arrivals.send(MessageBody::Shape(stream.shape()), START_US);
        stream
    }

    /// Its plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The truth; complete once the iterator has ended.
    pub fn into_truth(mut self) -> Truth {
        let events = self.faults.iter().zip(&self.tallies).filter_map(|(&fault, tally)| tally.event(fault));
        self.truth.events = events.collect();
        self.truth
    }

    fn shape(&self) -> JobShape {
        let ranks = 0..self.plan.ranks();
        JobShape {
            attempt: self.attempt,
            node: ranks.clone().map(|rank| self.plan.node_ids[self.order[rank / PER_NODE]]).collect(),
            role: ranks.map(|rank| self.plan.stage(rank) as u32).collect(),
            stages: self.plan.stages as u32,
            micro_batches: self.plan.micro_batches as u32,
        }
    }

    fn run_step(&mut self) {
        self.steps.run(&self.plan, &self.faults, &self.order, self.now_s);
        let (total_s, gap_s) = (self.steps.step.total_s, self.steps.step.gap_s);
        let end_s = self.now_s + total_s;
        let restart = self.plan.restarts_s.get(self.attempt as usize - 1).copied();
        if restart.is_some_and(|at_s| end_s > at_s) {
            self.restart();
            return;
        }
        if end_s > self.plan.length_s {
            self.over = true;
            return;
        }
        self.tell_truth(end_s);
        self.report(end_s);
        self.tell_devices(end_s);
        self.number += 1;
        if self.steps.step.checkpoint {
            self.saved = self.number;
        }
        self.now_s = end_s + gap_s;
    }

    fn tell_truth(&mut self, end_s: f64) {
        let (start_us, end_us) = (at_us(self.now_s), at_us(end_s));
        for &(fault, without_s) in &self.steps.step.without {
            let tally = &mut self.tallies[fault];
            tally.step(start_us, end_us, self.steps.step.work_s, without_s);
        }
        for fault in &self.faults {
            let begins = fault.class == Class::Link && (self.now_s..end_s).contains(&fault.start_s);
            if begins
                && self.rng.random_bool(LINK_XID)
                && let Some(ranks) = self.truth.ranks_of(fault.place, start_us)
            {
                let xid = Fault { rank: ranks.start, time_us: at_us(fault.start_s), xid: Some(74) };
                self.arrivals.sure(MessageBody::Fault(xid), end_us);
            }
        }
    }

    fn report(&mut self, end_s: f64) {
        let (step, dp) = (&self.steps.step, self.plan.data_parallel());
        let end_us = at_us(end_s);
        for (position, &node) in self.order.iter().enumerate() {
            let together = self.arrivals.together();
            for rank in position * PER_NODE..(position + 1) * PER_NODE {
                let parts = !self.rng.random_bool(NO_PARTS);
                let part = |seconds: f64| parts.then_some((seconds * 1e6) as u64);
                let tokens = TOKENS * step.bias[rank % dp] * step.tokens;
                // Squares for which computing grows by the sequence's factor, if it is linear in
                // tokens and squares.
                let squares = tokens * LENGTH * (1.0 + (step.sequence[rank % dp] - 1.0) / SQUARED_SHARE);
                let report = StepReport {
                    attempt: self.attempt,
                    rank: rank as u32,
                    step: self.number,
                    end_us: end_us + self.plan.skew_us[node] + self.rng.random_range(0..2_000),
                    duration_us: (step.total_s * 1e6) as u64,
                    compute_us: part(step.compute_s[rank]),
                    communication_us: part(step.comm_s[rank]),
                    data_us: part(step.data_s[rank]),
                    tokens: self.plan.tokens.then_some(tokens as u64),
                    squared_tokens: self.plan.squared_tokens.then_some(squares.max(0.0) as u64),
                };
                self.arrivals.report(MessageBody::Step(report), end_us, together);
            }
        }
    }

    fn tell_devices(&mut self, now_s: f64) {
        let (arrivals, skew) = (&mut self.arrivals, &self.plan.skew_us);
        while self.devices.due(now_s) {
            let weather = &self.steps.confounders;
            self.devices.windows(&self.plan, &self.faults, &self.order, weather, |node, end_s, window| {
                let end_us = at_us(end_s) + skew[node];
                let start_us = end_us - (super::devices::WINDOW_S * 1e6) as i64;
                // Windows are sent with the step that just ended; nothing sent later may arrive
                // before.
                arrivals.sure(MessageBody::Device(DeviceWindow { start_us, end_us, ..window }), at_us(now_s));
            });
        }
        self.devices.xids(&self.plan, &self.order, now_s, |node, at_s, fault| {
            let time_us = at_us(at_s) + skew[node];
            arrivals.sure(MessageBody::Fault(Fault { time_us, ..fault }), at_us(now_s));
        });
    }

    /// The job dies and restarts from its last checkpoint, with its ranks shuffled over the nodes;
    /// one node may be replaced by the spare.
    fn restart(&mut self) {
        let died_s = self.plan.restarts_s[self.attempt as usize - 1];
        self.now_s = died_s + self.rng.random_range(120.0..600.0);
        if self.rng.random_bool(0.5) {
            let position = self.rng.random_range(0..self.order.len());
            let spare = (0..=self.plan.nodes).find(|node| !self.order.contains(node));
            if let Some(spare) = spare {
                let left = std::mem::replace(&mut self.order[position], spare);
                for fault in &mut self.faults {
                    let gone = match fault.place {
                        super::Place::Device(device) => device / PER_NODE == left,
                        super::Place::Node(node) => node == left,
                        super::Place::Fabric => false,
                    };
                    if gone {
                        fault.end_s = fault.end_s.min(died_s);
                    }
                }
            }
        }
        self.order.shuffle(&mut self.rng);
        self.attempt += 1;
        self.number = self.saved;
        self.steps.confounders.restarted();
        self.devices.skip_to(self.now_s);
        let from_us = at_us(self.now_s);
        self.truth.attempts.push(Attempt { from_us, order: self.order.clone() });
        self.arrivals.send(MessageBody::Shape(self.shape()), from_us);
    }
}

impl Iterator for Stream {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        loop {
            let horizon_us = if self.over { i64::MAX } else { at_us(self.now_s) };
            if let Some(message) = self.arrivals.next(horizon_us) {
                return Some(message);
            }
            if self.over {
                return None;
            }
            self.run_step();
        }
    }
}

/// Seconds into the job as µs since 1970.
fn at_us(seconds: f64) -> i64 {
    START_US + (seconds * 1e6) as i64
}

#[cfg(test)]
mod tests;
