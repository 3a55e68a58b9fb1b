//! Episode of slowness, from suspicion to end, and the tests that move it on.

use serde::{Deserialize, Serialize};

use super::cusum::{CusumBank, Window};
use super::history::DEPTH;
use super::settings::Settings;
use super::signal::{Blame, Class, Evidence};

/// Kind of series in which an episode was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    /// Computing time of ranks against their peers.
    Compute,
    /// Waiting for input, as a share of the step.
    Data,
    /// Median of a node's ranks against their peers.
    Node,
    /// A role that lives on one node, against the other roles.
    Drift,
    /// Transfer time of the job.
    Transfer,
}

/// Subject of an episode; nodes and roles by dense number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Subject {
    Rank(u32),
    Node(u32),
    Role(u32),
    Job,
}

/// Rows that a confirmation is based on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Decision {
    pub from: u64,
    pub to: u64,
    pub fast: bool,
    /// Consecutive rows that may be a harmless burst: the others must pass the test alone.
    pub burst: usize,
    pub excess: f32,
}

/// An episode that is open, or was lately.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Episode {
    pub id: u64,
    pub kind: Kind,
    pub subject: Subject,
    /// Its series, in the bank of its kind.
    pub series: Vec<u32>,
    /// First slow step.
    pub since: u64,
    /// Start of that step.
    pub since_us: i64,
    pub decision: Option<Decision>,
    /// Ended without having been withdrawn.
    pub closed: bool,
    pub lost_gpu_ms: f64,
    /// Last published classification.
    pub class: Class,
    pub posterior: f64,
    pub blame: Blame,
    pub evidence: Vec<Evidence>,
    pub assessment: Assessment,
}

/// Basis of the last classification, apart from device evidence.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub(super) struct Assessment {
    /// End of the step after which it was classified, µs since 1970.
    pub at_us: i64,
    pub excess: f32,
    /// As in [`Facts`](super::cause::Facts).
    pub level_shift: f64,
    pub companion: bool,
    /// Device evidence up to then was complete.
    pub has_all_evidence: bool,
}

/// Transition of an episode after a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Transition {
    Stay,
    Confirm(Decision),
    Close,
}

impl Episode {
    /// Largest noise of its series.
    fn noise(&self, bank: &CusumBank) -> f32 {
        self.series.iter().map(|&series| bank.noise(series as usize)).fold(0.0, f32::max)
    }

    /// Decides on the rows before `end`. `held` is the first row of the shortest window within the
    /// episode that lasts the hold time, `fast` the rows that the fast path needs, `burst` the rows
    /// that a harmless burst may touch.
    pub fn next_transition(
        &self,
        bank: &mut CusumBank,
        settings: &Settings,
        held: Option<u64>,
        (fast, burst): (u64, usize),
        end: u64,
    ) -> Transition {
        if self.is_over(bank, settings, end) {
            return Transition::Close;
        }
        if self.decision.is_some() {
            return Transition::Stay;
        }
        let lasted = end - self.since;
        if self.kind != Kind::Transfer && lasted >= fast {
            let decision = Decision { from: end - fast, to: end, fast: true, burst: 0, excess: 0.0 };
            if let Some(confirmed) = self.test(bank, settings, decision) {
                return Transition::Confirm(confirmed);
            }
        }
        let Some(held) = held else { return Transition::Stay };
        let all = end - lasted.min(DEPTH as u64 - 16);
        for from in [held, all] {
            let decision = Decision { from, to: end, fast: false, burst, excess: 0.0 };
            if let Some(confirmed) = self.test(bank, settings, decision) {
                return Transition::Confirm(confirmed);
            }
        }
        // A suspicion that stays small ends, so that its baseline may follow again.
        let patience = (3 * (end - held)).max(100);
        if lasted >= patience && bank.window(&self.series, all, end).median < bank.effect() {
            return Transition::Close;
        }
        Transition::Stay
    }

    /// Tests the rows of `decision` for persistence, without those that a burst may explain: large
    /// enough, most of the time, and beyond the noise of a median (standard error 1.2533 sigma /
    /// sqrt(n)).
    pub fn test(&self, bank: &mut CusumBank, settings: &Settings, decision: Decision) -> Option<Decision> {
        let Window { count, median, above } =
            bank.window_without(&self.series, decision.from, decision.to, decision.burst);
        let rows = ((decision.to - decision.from) as usize).saturating_sub(decision.burst);
        if count == 0 || count * 5 < rows * 3 {
            return None;
        }
        let noise = self.noise(bank);
        let score = f64::from(median) * (count as f64).sqrt() / (1.2533 * f64::from(noise));
        let (least, share) = if decision.fast {
            // No step may be small: a burst covers its first and last step only in part.
            let least = bank.least(&self.series, decision.from, decision.to);
            if f64::from(least) < 0.75 * settings.fast_excess {
                return None;
            }
            (settings.fast_excess, 1.0)
        } else {
            let share = match self.kind {
                Kind::Transfer => settings.transfer_share,
                _ if noise >= 0.04 => settings.noisy_share,
                _ => settings.persistent_share,
            };
            (f64::from(bank.effect()), share)
        };
        // It must still be going on: two bursts are no fail-slow.
        let last =
            bank.window(&self.series, decision.to - (decision.to - decision.from).clamp(1, 5), decision.to);
        let passed = f64::from(median) >= least
            && f64::from(above) >= share
            && score > settings.persistent_score
            && last.median >= 0.6 * bank.effect();
        passed.then_some(Decision { excess: median, ..decision })
    }

    /// Whether the last steps are near the baseline again. More steps are needed where one step's
    /// noise reaches half the effect.
    fn is_over(&self, bank: &mut CusumBank, settings: &Settings, end: u64) -> bool {
        const NOISY_STEPS: u64 = 20;
        let least = u64::from(settings.close_steps.max(1));
        let noisy = 4.0 * self.noise(bank) > bank.effect();
        let steps = if noisy { least.max(NOISY_STEPS) } else { least };
        if end - self.since < steps {
            return false;
        }
        let window = bank.window(&self.series, end - steps, end);
        let half = 0.5 * bank.effect();
        window.count > 0 && if noisy { window.median < half } else { window.above == 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::super::cusum::Tuning;
    use super::*;

    fn episode(since: u64) -> Episode {
        Episode {
            id: 1,
            kind: Kind::Compute,
            subject: Subject::Rank(0),
            series: vec![0],
            since,
            since_us: 0,
            decision: None,
            closed: false,
            lost_gpu_ms: 0.0,
            class: Class::ComputeSilent,
            posterior: 0.0,
            blame: Blame::Rank(0),
            evidence: Vec::new(),
            assessment: Assessment::default(),
        }
    }

    /// A bank of one series.
    fn bank(settings: &Settings) -> CusumBank {
        let tuning = Tuning {
            noise_floor: 0.005,
            effect_floor: 0.05,
            effect_cap: 0.1,
            slack: 0.5,
            cautious: false,
            centred: false,
        };
        CusumBank::new(1, 8, tuning, settings)
    }

    fn feed(bank: &mut CusumBank, from: u64, rows: u64, value: f32) -> u64 {
        for seq in from..from + rows {
            bank.values.row_mut(seq)[0] = value;
            bank.advance(seq);
        }
        from + rows
    }

    #[test]
    fn the_hold_confirms_and_five_steps_close() {
        let settings = Settings::default();
        let mut bank = bank(&settings);
        let start = feed(&mut bank, 0, 100, 0.0);
        let mut episode = episode(start);
        bank.hold(0, true);
        // First too short for the hold, then long enough.
        let end = feed(&mut bank, start, 15, 0.12);
        assert_eq!(episode.next_transition(&mut bank, &settings, None, (7, 0), end), Transition::Stay);
        let Transition::Confirm(decision) =
            episode.next_transition(&mut bank, &settings, Some(start), (7, 0), end)
        else {
            panic!()
        };
        assert_eq!((decision.from, decision.to, decision.fast), (start, end, false));
        episode.decision = Some(decision);
        let end = feed(&mut bank, end, 4, 0.0);
        assert_eq!(episode.next_transition(&mut bank, &settings, Some(start), (7, 0), end), Transition::Stay);
        let end = feed(&mut bank, end, 1, 0.0);
        assert_eq!(
            episode.next_transition(&mut bank, &settings, Some(start), (7, 0), end),
            Transition::Close
        );
    }

    #[test]
    fn a_great_slowdown_is_confirmed_after_seven_steps() {
        let settings = Settings::default();
        let mut bank = bank(&settings);
        let start = feed(&mut bank, 0, 100, 0.0);
        let episode = episode(start);
        let end = feed(&mut bank, start, 6, 0.4);
        assert_eq!(episode.next_transition(&mut bank, &settings, None, (7, 0), end), Transition::Stay);
        let end = feed(&mut bank, end, 1, 0.4);
        assert!(
            matches!(episode.next_transition(&mut bank, &settings, None, (7, 0), end), Transition::Confirm(found) if found.fast)
        );
    }

    #[test]
    fn a_burst_does_not_carry_a_confirmation() {
        let settings = Settings::default();
        let mut bank = bank(&settings);
        let start = feed(&mut bank, 0, 100, 0.0);
        let episode = episode(start);
        // Six steps of a burst, then four slightly slow ones: the median of all ten is 0.4, of the
        // four 0.04.
        let end = feed(&mut bank, start, 6, 0.4);
        let end = feed(&mut bank, end, 4, 0.04);
        let all = Decision { from: start, to: end, fast: false, burst: 6, excess: 0.0 };
        assert_eq!(episode.test(&mut bank, &settings, all), None);
        assert!(episode.test(&mut bank, &settings, Decision { burst: 0, ..all }).is_some());
        // Slow steps after the burst do confirm.
        let end = feed(&mut bank, end, 10, 0.08);
        let more = Decision { to: end, ..all };
        let confirmed = episode.test(&mut bank, &settings, more).expect("ten slow steps");
        assert!((confirmed.excess - 0.08).abs() < 1e-6);
    }
}
