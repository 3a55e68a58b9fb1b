//! What is said of an event: class, posterior, whom it blames and why.

use super::Job;
use crate::straggler::cause::Facts;
use crate::straggler::event::{Event, Kind};
use crate::straggler::order;
use crate::straggler::signal::{Blame, Signal, Stage};

impl Job {
    /// Class, posterior, blame and evidence of an event as of step `seq`.
    pub fn weigh(&mut self, event: &mut Event, seq: u64, excess: f32) {
        let level_shift = if event.kind == Kind::Transfer { self.level_shift(event.since, seq) } else { 0.0 };
        let companion = event.kind == Kind::Transfer && self.has_companion(event);
        let facts = Facts {
            layout: &self.layout,
            devices: &self.devices,
            settings: &self.settings,
            kind: event.kind,
            subject: event.subject,
            excess: f64::from(excess),
            since_us: event.since_us,
            now_us: self.history.step(seq).end_us,
            level_shift,
            companion,
        };
        (event.class, event.posterior, event.evidence, event.blame) = facts.weigh();
    }

    /// Another event is open that began within ten steps of this one, or ranks wait for input: who waits comes late to collectives.
    fn has_companion(&self, event: &Event) -> bool {
        self.others.iter().any(|(kind, since)| *kind == Kind::Data || since.abs_diff(event.since) <= 10)
    }

    /// How much the job's median computing time changed from the 50 steps before `since` to those from then on.
    fn level_shift(&mut self, since: u64, seq: u64) -> f64 {
        let mut middle = |from: u64, to: u64| {
            self.scratch.clear();
            let from = from.max(self.history.oldest());
            let levels = (from..to).map(|seq| self.history.step(seq).level);
            self.scratch.extend(levels.filter(|level| level.is_finite()));
            f64::from(order::median(&mut self.scratch))
        };
        let shift = middle(since, seq + 1) - middle(since.saturating_sub(50), since);
        if shift.is_finite() { shift } else { 0.0 }
    }

    /// Puts an event into words, as of step `seq`.
    pub fn say(&self, event: &Event, stage: Stage, seq: u64, excess: f32) -> Signal {
        let excess = f64::from(excess);
        let share = if event.kind == Kind::Data { excess } else { excess.exp_m1() };
        Signal {
            event: event.id,
            stage,
            class: event.class,
            posterior: event.posterior,
            blame: event.blame.clone(),
            pipeline_stage: match event.blame {
                Blame::Rank(rank) => self.layout.stage_of(self.layout.role_of[rank as usize]),
                Blame::Role(role) => self.layout.stage_of(role),
                Blame::Node(_) | Blame::Fabric | Blame::Nobody => None,
            },
            since_us: event.since_us,
            said_us: self.history.step(seq).end_us,
            excess: if share.is_finite() { share } else { 0.0 },
            lost_gpu_ms: event.lost_gpu_ms.max(0.0) as u64,
            evidence: event.evidence.clone(),
        }
    }
}
