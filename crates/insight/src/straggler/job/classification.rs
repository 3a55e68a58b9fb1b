//! Classification of an episode: class, posterior, blame and evidence.

use super::Job;
use crate::straggler::cause::Facts;
use crate::straggler::episode::{Assessment, Episode, Kind};
use crate::straggler::order_statistics;
use crate::straggler::signal::{Blame, Class, Signal, Stage};

impl Job {
    /// Classifies an episode as of step `seq`.
    pub fn classify(&mut self, episode: &mut Episode, seq: u64, excess: f32) {
        let level_shift =
            if episode.kind == Kind::Transfer { self.level_shift(episode.since, seq) } else { 0.0 };
        let companion = episode.kind == Kind::Transfer && self.has_companion(episode);
        let at_us = self.history.step(seq).end_us;
        episode.assessment = Assessment { at_us, excess, level_shift, companion, has_all_evidence: false };
        (episode.class, episode.posterior, episode.evidence, episode.blame) =
            self.facts(episode, at_us).weigh();
    }

    /// Device evidence comes later than steps. Until all of it up to an episode's last signal is
    /// known, new evidence renews the classification; a changed class or blame is signalled.
    pub(super) fn reclassify(&self, episode: &mut Episode, seq: u64, out: &mut Vec<Signal>) {
        if episode.assessment.has_all_evidence || !self.evidence.has_new {
            return;
        }
        // Twice the lag, because of windows that began before that step.
        let lag_us = self.settings.evidence_lag_us.max(0);
        episode.assessment.has_all_evidence =
            self.evidence.until_us >= episode.assessment.at_us.saturating_add(lag_us);
        let (class, posterior, evidence, blame) = self.facts(episode, self.history.step(seq).end_us).weigh();
        // Only a confirmation may find a structural cause.
        if class == Class::Structural || (class, &blame) == (episode.class, &episode.blame) {
            return;
        }
        (episode.class, episode.posterior, episode.evidence, episode.blame) =
            (class, posterior, evidence, blame);
        let stage = if episode.decision.is_some() { Stage::Confirmed } else { Stage::Suspect };
        out.push(self.signal(episode, stage, seq, episode.assessment.excess));
    }

    /// Facts about an episode, with device evidence up to `now_us`.
    fn facts(&self, episode: &Episode, now_us: i64) -> Facts<'_> {
        Facts {
            layout: &self.layout,
            devices: &self.devices,
            settings: &self.settings,
            kind: episode.kind,
            subject: episode.subject,
            excess: f64::from(episode.assessment.excess),
            since_us: episode.since_us,
            now_us,
            level_shift: episode.assessment.level_shift,
            companion: episode.assessment.companion,
        }
    }

    /// Whether another open episode began within ten steps, or ranks wait for input; such ranks
    /// reach collectives late.
    fn has_companion(&self, episode: &Episode) -> bool {
        self.others.iter().any(|(kind, since)| *kind == Kind::Data || since.abs_diff(episode.since) <= 10)
    }

    /// Change of the job's median computing time, from the 50 steps before `since` to the steps
    /// after.
    fn level_shift(&mut self, since: u64, seq: u64) -> f64 {
        let mut middle = |from: u64, to: u64| {
            self.scratch.clear();
            let from = from.max(self.history.oldest());
            let levels = (from..to).map(|seq| self.history.step(seq).level);
            self.scratch.extend(levels.filter(|level| level.is_finite()));
            f64::from(order_statistics::median(&mut self.scratch))
        };
        let shift = middle(since, seq + 1) - middle(since.saturating_sub(50), since);
        if shift.is_finite() { shift } else { 0.0 }
    }

    /// The episode as a signal, as of step `seq`.
    pub fn signal(&self, episode: &Episode, stage: Stage, seq: u64, excess: f32) -> Signal {
        let excess = f64::from(excess);
        let share = if episode.kind == Kind::Data { excess } else { excess.exp_m1() };
        Signal {
            episode: episode.id,
            stage,
            class: episode.class,
            posterior: episode.posterior,
            blame: episode.blame.clone(),
            pipeline_stage: match episode.blame {
                Blame::Rank(rank) => self.layout.stage_of(self.layout.role_of[rank as usize]),
                Blame::Role(role) => self.layout.stage_of(role),
                Blame::Node(_) | Blame::Fabric | Blame::Nobody => None,
            },
            since_us: episode.since_us,
            said_us: self.history.step(seq).end_us,
            excess: if share.is_finite() { share } else { 0.0 },
            lost_gpu_ms: episode.lost_gpu_ms.max(0.0) as u64,
            evidence: episode.evidence.clone(),
        }
    }
}
