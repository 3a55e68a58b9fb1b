//! Events of a run: what raises one, whom it is about, what confirms it and what ends it.

use super::Job;
use crate::straggler::event::{Event, Kind, Move, Subject, Weighed};
use crate::straggler::history;
use crate::straggler::signal::{Blame, Class, Evidence, Signal, Stage};

impl Job {
    /// Moves each open event on by one step.
    pub(super) fn move_events(&mut self, seq: u64, out: &mut Vec<Signal>) {
        let open = |event: &Event| event.kind != Kind::Transfer && !event.closed;
        self.others.clear();
        self.others
            .extend(self.events.iter().filter(|event| open(event)).map(|event| (event.kind, event.since)));
        let mut events = std::mem::take(&mut self.events);
        for event in events.iter_mut().filter(|event| !event.closed) {
            event.lost_gpu_ms += self.loss(event, seq);
            let (settings, step_us) = (self.settings, self.step_us);
            let steps = match event.kind {
                Kind::Transfer => settings.transfer_hold_steps,
                _ => settings.hold_steps,
            };
            let steps = u64::from(steps.max(1));
            let hold_us = match event.subject {
                Subject::Node(_) => settings.node_hold_us,
                _ => settings.hold_us,
            };
            let held = self.history.window(event.since, seq, steps, hold_us, step_us);
            let fast = settings.fast_hold(step_us) as u64;
            // Bursts strike one rank or the network; nothing harmless slows a whole node, or makes
            // it wait for input.
            let burst = match (event.kind, event.subject) {
                (Kind::Compute, Subject::Rank(_)) | (Kind::Transfer, _) => settings.burst(step_us),
                _ => 0,
            };
            match event.judge(self.tracks(event.kind), &settings, held, (fast, burst), seq + 1) {
                Move::Stay => self.reconsider(event, seq, out),
                Move::Confirm(decision) => {
                    event.decision = Some(decision);
                    let excess = decision.excess;
                    self.weigh(event, seq, excess);
                    if event.class == Class::Structural || self.is_trifling(event, excess) {
                        self.release(event);
                        self.settle(event, excess);
                        event.decision = None;
                        out.push(self.say(event, Stage::Closed, seq, excess));
                    } else {
                        out.push(self.say(event, Stage::Confirmed, seq, excess));
                    }
                }
                Move::Close => {
                    let excess = event.decision.map_or_else(
                        || self.tracks(event.kind).window(&event.series, event.since, seq + 1).median,
                        |decision| decision.excess,
                    );
                    self.release(event);
                    out.push(self.say(event, Stage::Closed, seq, excess));
                }
            }
        }
        /// Ended events kept for corrections.
        const KEPT: u64 = history::DEPTH as u64;
        events
            .retain(|event| !event.closed || event.decision.is_some_and(|decision| decision.to + KEPT > seq));
        self.events = events;
    }

    fn release(&mut self, event: &mut Event) {
        event.closed = true;
        self.hold(event, false);
    }

    /// A transfer that grew with the work of the whole job stays so: what it is now is what it is
    /// held against.
    fn settle(&mut self, event: &Event, excess: f32) {
        if event.evidence.iter().any(|evidence| evidence.rule == "job_wide_change") {
            let base = self.transfer.base(0);
            self.transfer.rebase(0, base + excess);
        }
    }

    /// Holds or releases the series of an event, and with a node its ranks.
    pub fn hold(&mut self, event: &Event, held: bool) {
        let tracks = self.tracks(event.kind);
        event.series.iter().for_each(|&series| tracks.hold(series as usize, held));
        if event.kind == Kind::Node {
            let ranks = &self.layout.nodes[event.series[0] as usize];
            ranks.iter().for_each(|&rank| self.compute.hold(rank as usize, held));
        }
    }

    /// A transfer that is slower but costs the step next to nothing is no fail-slow.
    fn is_trifling(&self, event: &Event, excess: f32) -> bool {
        let share = f64::from(self.transfer.base(0).exp() * (excess.exp() - 1.0)) * 1e6 / self.step_us;
        event.kind == Kind::Transfer && share < self.settings.transfer_step_share
    }

    /// Series over their bound: suspicions, unless their median since the sum left zero is small.
    pub(super) fn suspect(&mut self, kind: Kind, seq: u64, next_event: &mut u64, out: &mut Vec<Signal>) {
        let over = std::mem::take(&mut self.tracks(kind).over);
        for &series in &over {
            let tracks = self.tracks(kind);
            if tracks.is_held(series as usize) || !tracks.may_try(series as usize) {
                continue;
            }
            let since = tracks.left_zero(series as usize).max((seq + 1).saturating_sub(240));
            let window = tracks.window(&[series], since, seq + 1);
            if window.median < tracks.effect() {
                tracks.retry_after(series as usize, (window.count as u64 / 8).max(1));
                continue;
            }
            let (kind, subject, members) = self.subject(kind, series, since, seq + 1);
            if let Subject::Node(node) = subject {
                self.absorb(kind, node, seq, out);
            }
            let id = *next_event;
            *next_event += 1;
            let mut event = Event {
                id,
                kind,
                subject,
                series: members,
                since,
                since_us: self.history.begin_us(since.max(self.history.oldest())),
                decision: None,
                closed: false,
                lost_gpu_ms: 0.0,
                class: Class::Structural,
                posterior: 0.0,
                blame: Blame::Nobody,
                evidence: Vec::new(),
                weighed: Weighed::default(),
            };
            self.hold(&event, true);
            let excess = self.tracks(kind).window(&event.series, since, seq + 1).median;
            event.lost_gpu_ms = (since..=seq).map(|seq| self.loss(&event, seq)).sum();
            self.weigh(&mut event, seq, excess);
            out.push(self.say(&event, Stage::Suspect, seq, excess));
            self.events.push(event);
        }
        self.tracks(kind).over = over;
    }

    /// Whom a suspicion is about: the node, where enough of its ranks are slow since then (rule 7),
    /// else the rank. Waiting for input is the node's where its ranks of the same role wait.
    fn subject(&mut self, kind: Kind, series: u32, from: u64, to: u64) -> (Kind, Subject, Vec<u32>) {
        match kind {
            Kind::Transfer => return (kind, Subject::Job, vec![0]),
            Kind::Drift => {
                return (kind, Subject::Role(self.layout.lone_roles[series as usize]), vec![series]);
            }
            Kind::Node => return (kind, Subject::Node(series), vec![series]),
            Kind::Compute | Kind::Data => {}
        }
        let node = self.layout.node_of[series as usize];
        let mates = self.layout.nodes[node as usize].clone();
        let role = self.layout.role_of[series as usize];
        let alike = mates.iter().filter(|&&mate| self.layout.role_of[mate as usize] == role).count();
        // Input is read by some roles only: those of the rank's own role tell whether it is the
        // node.
        let (asked, least) = match kind {
            Kind::Data if alike < mates.len() => (alike, 1),
            _ => (mates.len(), 2),
        };
        let needed = self.settings.node_ranks.min(asked.div_ceil(2)).max(least);
        let tracks = self.tracks(kind);
        let half = 0.5 * tracks.effect();
        let slow: Vec<u32> =
            mates.into_iter().filter(|mate| tracks.window(&[*mate], from, to).median >= half).collect();
        if slow.len() < needed {
            return (kind, Subject::Rank(series), vec![series]);
        }
        if kind == Kind::Compute && !self.nodes.base(node as usize).is_nan() {
            return (Kind::Node, Subject::Node(node), vec![node]);
        }
        (kind, Subject::Node(node), slow)
    }

    /// Events of single ranks end where their node's begins.
    fn absorb(&mut self, kind: Kind, node: u32, seq: u64, out: &mut Vec<Signal>) {
        let single = if kind == Kind::Data { Kind::Data } else { Kind::Compute };
        let mut events = std::mem::take(&mut self.events);
        for event in events.iter_mut().filter(|event| event.kind == single && !event.closed) {
            let Subject::Rank(rank) = event.subject else { continue };
            if self.layout.node_of[rank as usize] != node {
                continue;
            }
            event.closed = true;
            event.evidence.push(Evidence { rule: "rolled_up_into_node", value: 1.0, weight: 0.0 });
            let excess = event.decision.map_or(0.0, |decision| decision.excess);
            out.push(self.say(event, Stage::Closed, seq, excess));
        }
        self.events = events;
    }
}
