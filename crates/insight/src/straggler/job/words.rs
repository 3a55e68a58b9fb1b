//! What is said of an event: class, posterior, whom it blames and why.

use super::Job;
use crate::straggler::cause::Facts;
use crate::straggler::event::{Event, Kind, Weighed};
use crate::straggler::order;
use crate::straggler::signal::{Blame, Class, Signal, Stage};

impl Job {
    /// Class, posterior, blame and evidence of an event as of step `seq`.
    pub fn weigh(&mut self, event: &mut Event, seq: u64, excess: f32) {
        let level_shift = if event.kind == Kind::Transfer { self.level_shift(event.since, seq) } else { 0.0 };
        let companion = event.kind == Kind::Transfer && self.has_companion(event);
        let at_us = self.history.step(seq).end_us;
        event.weighed = Weighed { at_us, excess, level_shift, companion, is_informed: false };
        (event.class, event.posterior, event.evidence, event.blame) = self.facts(event, at_us).weigh();
    }

    /// What devices showed comes later than steps: until all of it up to an event's last statement
    /// is known, the event is weighed again with what is new, and said again if its class or whom
    /// it blames is another one.
    pub(super) fn reconsider(&self, event: &mut Event, seq: u64, out: &mut Vec<Signal>) {
        if event.weighed.is_informed || !self.evidence.is_news {
            return;
        }
        // As long again, because of windows that began before it.
        let lag_us = self.settings.evidence_lag_us.max(0);
        event.weighed.is_informed = self.evidence.until_us >= event.weighed.at_us.saturating_add(lag_us);
        let (class, posterior, evidence, blame) = self.facts(event, self.history.step(seq).end_us).weigh();
        // That it is nobody's fault is for a confirmation to find.
        if class == Class::Structural || (class, &blame) == (event.class, &event.blame) {
            return;
        }
        (event.class, event.posterior, event.evidence, event.blame) = (class, posterior, evidence, blame);
        let stage = if event.decision.is_some() { Stage::Confirmed } else { Stage::Suspect };
        out.push(self.say(event, stage, seq, event.weighed.excess));
    }

    /// What speaks for and against classes of an event, with what devices showed up to `now_us`.
    fn facts(&self, event: &Event, now_us: i64) -> Facts<'_> {
        Facts {
            layout: &self.layout,
            devices: &self.devices,
            settings: &self.settings,
            kind: event.kind,
            subject: event.subject,
            excess: f64::from(event.weighed.excess),
            since_us: event.since_us,
            now_us,
            level_shift: event.weighed.level_shift,
            companion: event.weighed.companion,
        }
    }

    /// Another event is open that began within ten steps of this one, or ranks wait for input: who
    /// waits comes late to collectives.
    fn has_companion(&self, event: &Event) -> bool {
        self.others.iter().any(|(kind, since)| *kind == Kind::Data || since.abs_diff(event.since) <= 10)
    }

    /// How much the job's median computing time changed from the 50 steps before `since` to those
    /// from then on.
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
