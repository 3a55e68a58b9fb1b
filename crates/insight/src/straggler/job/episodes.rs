//! Episodes of a run: how they start, whom they are about, how they are confirmed and closed.

use super::Job;
use crate::straggler::episode::{Assessment, Episode, Kind, Subject, Transition};
use crate::straggler::history;
use crate::straggler::signal::{Blame, Class, Evidence, Signal, Stage};

impl Job {
    /// Moves each open episode on by one step.
    pub(super) fn advance_episodes(&mut self, seq: u64, out: &mut Vec<Signal>) {
        let open = |episode: &Episode| episode.kind != Kind::Transfer && !episode.closed;
        self.others.clear();
        self.others.extend(
            self.episodes.iter().filter(|episode| open(episode)).map(|episode| (episode.kind, episode.since)),
        );
        let mut episodes = std::mem::take(&mut self.episodes);
        for episode in episodes.iter_mut().filter(|episode| !episode.closed) {
            episode.lost_gpu_ms += self.loss(episode, seq);
            let (settings, step_us) = (self.settings, self.step_us);
            let steps = match episode.kind {
                Kind::Transfer => settings.transfer_hold_steps,
                _ => settings.hold_steps,
            };
            let steps = u64::from(steps.max(1));
            let hold_us = match episode.subject {
                Subject::Node(_) => settings.node_hold_us,
                _ => settings.hold_us,
            };
            let held = self.history.window(episode.since, seq, steps, hold_us, step_us);
            let fast = settings.fast_hold(step_us) as u64;
            // Bursts hit one rank or the network. Nothing harmless slows a whole node, or makes it
            // wait for input.
            let burst = match (episode.kind, episode.subject) {
                (Kind::Compute, Subject::Rank(_)) | (Kind::Transfer, _) => settings.burst(step_us),
                _ => 0,
            };
            match episode.next_transition(self.bank(episode.kind), &settings, held, (fast, burst), seq + 1) {
                Transition::Stay => self.reclassify(episode, seq, out),
                Transition::Confirm(decision) => {
                    episode.decision = Some(decision);
                    let excess = decision.excess;
                    self.classify(episode, seq, excess);
                    if episode.class == Class::Structural || self.is_trifling(episode, excess) {
                        self.release(episode);
                        self.settle(episode, excess);
                        episode.decision = None;
                        out.push(self.signal(episode, Stage::Closed, seq, excess));
                    } else {
                        out.push(self.signal(episode, Stage::Confirmed, seq, excess));
                    }
                }
                Transition::Close => {
                    let excess = episode.decision.map_or_else(
                        || self.bank(episode.kind).window(&episode.series, episode.since, seq + 1).median,
                        |decision| decision.excess,
                    );
                    self.release(episode);
                    out.push(self.signal(episode, Stage::Closed, seq, excess));
                }
            }
        }
        /// Ended episodes are kept this many steps for corrections.
        const KEPT: u64 = history::DEPTH as u64;
        episodes.retain(|episode| {
            !episode.closed || episode.decision.is_some_and(|decision| decision.to + KEPT > seq)
        });
        self.episodes = episodes;
    }

    fn release(&mut self, episode: &mut Episode) {
        episode.closed = true;
        self.hold(episode, false);
    }

    /// A transfer that grew with the work of the whole job stays so; its present time becomes the
    /// baseline.
    fn settle(&mut self, episode: &Episode, excess: f32) {
        if episode.evidence.iter().any(|evidence| evidence.rule == "job_wide_change") {
            let base = self.transfer.base(0);
            self.transfer.rebase(0, base + excess);
        }
    }

    /// Holds or releases the series of an episode; of a node, also those of its ranks.
    pub fn hold(&mut self, episode: &Episode, held: bool) {
        let bank = self.bank(episode.kind);
        episode.series.iter().for_each(|&series| bank.hold(series as usize, held));
        if episode.kind == Kind::Node {
            let ranks = &self.layout.nodes[episode.series[0] as usize];
            ranks.iter().for_each(|&rank| self.compute.hold(rank as usize, held));
        }
    }

    /// A slower transfer that costs the step next to nothing is no fail-slow.
    fn is_trifling(&self, episode: &Episode, excess: f32) -> bool {
        let share = f64::from(self.transfer.base(0).exp() * (excess.exp() - 1.0)) * 1e6 / self.step_us;
        episode.kind == Kind::Transfer && share < self.settings.transfer_step_share
    }

    /// Turns alarms into suspicions, unless the median since the sum left zero is small.
    pub(super) fn suspect(&mut self, kind: Kind, seq: u64, next_episode: &mut u64, out: &mut Vec<Signal>) {
        let alarms = std::mem::take(&mut self.bank(kind).alarms);
        for &series in &alarms {
            let bank = self.bank(kind);
            if bank.is_held(series as usize) || !bank.may_try(series as usize) {
                continue;
            }
            let since = bank.left_zero(series as usize).max((seq + 1).saturating_sub(240));
            let window = bank.window(&[series], since, seq + 1);
            if window.median < bank.effect() {
                bank.retry_after(series as usize, (window.count as u64 / 8).max(1));
                continue;
            }
            let (kind, subject, members) = self.subject(kind, series, since, seq + 1);
            if let Subject::Node(node) = subject {
                self.absorb(kind, node, seq, out);
            }
            let id = *next_episode;
            *next_episode += 1;
            let mut episode = Episode {
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
                assessment: Assessment::default(),
            };
            self.hold(&episode, true);
            let excess = self.bank(kind).window(&episode.series, since, seq + 1).median;
            episode.lost_gpu_ms = (since..=seq).map(|seq| self.loss(&episode, seq)).sum();
            self.classify(&mut episode, seq, excess);
            out.push(self.signal(&episode, Stage::Suspect, seq, excess));
            self.episodes.push(episode);
        }
        self.bank(kind).alarms = alarms;
    }

    /// Subject of a suspicion: the node, where enough of its ranks are slow since then (rule 7),
    /// else the rank. Waiting for input counts for the node where its ranks of the same role wait.
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
        // Only some roles read input, so the ranks of the same role decide whether it is the node.
        let (asked, least) = match kind {
            Kind::Data if alike < mates.len() => (alike, 1),
            _ => (mates.len(), 2),
        };
        let needed = self.settings.node_ranks.min(asked.div_ceil(2)).max(least);
        let bank = self.bank(kind);
        let half = 0.5 * bank.effect();
        let slow: Vec<u32> =
            mates.into_iter().filter(|mate| bank.window(&[*mate], from, to).median >= half).collect();
        if slow.len() < needed {
            return (kind, Subject::Rank(series), vec![series]);
        }
        if kind == Kind::Compute && !self.nodes.base(node as usize).is_nan() {
            return (Kind::Node, Subject::Node(node), vec![node]);
        }
        (kind, Subject::Node(node), slow)
    }

    /// Closes single-rank episodes where their node's begins.
    fn absorb(&mut self, kind: Kind, node: u32, seq: u64, out: &mut Vec<Signal>) {
        let single = if kind == Kind::Data { Kind::Data } else { Kind::Compute };
        let mut episodes = std::mem::take(&mut self.episodes);
        for episode in episodes.iter_mut().filter(|episode| episode.kind == single && !episode.closed) {
            let Subject::Rank(rank) = episode.subject else { continue };
            if self.layout.node_of[rank as usize] != node {
                continue;
            }
            episode.closed = true;
            episode.evidence.push(Evidence { rule: "rolled_up_into_node".into(), value: 1.0, weight: 0.0 });
            let excess = episode.decision.map_or(0.0, |decision| decision.excess);
            out.push(self.signal(episode, Stage::Closed, seq, excess));
        }
        self.episodes = episodes;
    }
}
