//! Where a kind stands by its record, kept in the journal's state.
//!
//! What a bad record took away stays away until the kind earns it back, whatever else is scored
//! meanwhile, and across restarts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Score, Verdict, judge, summary};
use crate::action::Kind;
use crate::policy::{Mode, RecordRules};

/// Modes between `act` and `observe`.
const MOST_BELOW: u8 = 3;

/// How one kind stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
struct Standing {
    /// Modes below the policy's own.
    below: u8,
    /// Scores since the last judgement.
    unjudged: u32,
    /// Decisions up to here have cost it a mode, and are not held against it again.
    counted_us: Option<i64>,
}

/// How each kind with scores stands.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Standings(BTreeMap<Kind, Standing>);

impl Standings {
    /// Takes in the newest of `scores`, which are those of its kind, oldest first. A kind is judged
    /// after every fifth of the decisions required for trust, so that one bad hour counts once.
    pub fn fold(&mut self, kind: Kind, scores: &[Score], rules: &RecordRules) {
        let standing = self.0.entry(kind).or_default();
        standing.unjudged += 1;
        if standing.unjudged < (rules.decisions / 5).max(1) {
            return;
        }
        standing.unjudged = 0;
        let counts = |score: &&Score| standing.counted_us.is_none_or(|us| score.decided_us > us);
        let new: Vec<Score> = scores.iter().filter(counts).cloned().collect();
        let before = standing.below;
        match judge(&summary(kind, &new, rules.window), rules).0 {
            Verdict::Down => standing.below = (before + 1).min(MOST_BELOW),
            Verdict::Doubtful => standing.below = before.max(1),
            Verdict::Up => standing.below = before.saturating_sub(1),
            Verdict::Stays => {}
        }
        if standing.below > before {
            standing.counted_us = scores.iter().map(|score| score.decided_us).max();
        }
    }

    /// Mode of each kind with scores, from the policy's own. No record lowers a kind that restores.
    pub fn modes(&self, most: impl Fn(Kind) -> Mode) -> BTreeMap<Kind, Mode> {
        let lowered = |(kind, standing): (&Kind, &Standing)| {
            let below = if kind.restores() { 0 } else { standing.below };
            (*kind, (0..below).fold(most(*kind), |mode, _| mode.down()))
        };
        self.0.iter().map(lowered).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;
    use crate::scorecard::tests::scored;

    #[test]
    fn what_a_bad_record_took_stays_away_until_the_kind_earns_it() {
        let rules = Policy::shipped().record;
        let (mut standings, mut scores) = (Standings::default(), Vec::new());
        let mode = |standings: &Standings| standings.modes(|_| Mode::Act).get(&Kind::Lend).copied();
        let mut add = |standings: &mut Standings, score: Score, count: u32| {
            for _ in 0..count {
                scores.push(score.clone());
                let newest = scores.len().saturating_sub(rules.window as usize);
                standings.fold(Kind::Lend, &scores[newest..], &rules);
            }
        };
        assert_eq!(mode(&standings), None);
        add(&mut standings, scored(0, 9, true), 10);
        assert_eq!(mode(&standings), Some(Mode::Approve));
        // Scores of another kind are no scores of this one: nothing is forgotten behind them.
        let resizes = vec![Score { kind: Kind::ResizeJob, ..scored(9, 2, true) }; 2_000];
        resizes.iter().for_each(|score| standings.fold(score.kind, &resizes[..200], &rules));
        assert_eq!(mode(&standings), Some(Mode::Approve));
        let text = serde_json::to_string(&standings).unwrap();
        let mut standings: Standings = serde_json::from_str(&text).unwrap();
        // What was decided before has cost its mode already; what comes after counts.
        add(&mut standings, scored(0, 9, true), 40);
        assert_eq!(mode(&standings), Some(Mode::Approve));
        for day in 1..4 {
            add(&mut standings, Score { decided_us: day, ..scored(0, 9, true) }, 10);
        }
        assert_eq!(mode(&standings), Some(Mode::Observe), "never to stop");
        add(&mut standings, Score { decided_us: 9, ..scored(9, 2, true) }, 200);
        assert_eq!(mode(&standings), Some(Mode::Act));
    }

    #[test]
    fn no_record_lowers_a_kind_that_restores() {
        let rules = Policy::shipped().record;
        for kind in Kind::ALL {
            let mut standings = Standings::default();
            let scores = vec![Score { kind, ..scored(0, 9, true) }; 200];
            scores.iter().for_each(|_| standings.fold(kind, &scores, &rules));
            let kept = standings.modes(|_| Mode::Act)[&kind] == Mode::Act;
            assert_eq!(kept, matches!(kind, Kind::Reclaim | Kind::ReturnNode), "{kind}");
        }
    }

    #[test]
    fn what_gains_but_not_what_was_predicted_waits_for_a_person_and_no_less() {
        let rules = Policy::shipped().record;
        let (mut standings, mut scores) = (Standings::default(), Vec::new());
        let mut decided_us = 0;
        let mut add = |standings: &mut Standings, benefit: i64, count: u32| {
            for _ in 0..count {
                decided_us += 1;
                scores.push(Score { decided_us, ..scored(benefit, 1, true) });
                standings.fold(Kind::Lend, &scores, &rules);
            }
            standings.modes(|_| Mode::Act)[&Kind::Lend]
        };
        // Ten are predicted: six come true, then ten.
        assert_eq!(add(&mut standings, 6, 100), Mode::Approve);
        assert_eq!(add(&mut standings, 10, 150), Mode::Act);
    }

    #[test]
    fn what_may_be_chance_takes_no_mode() {
        let rules = Policy::shipped().record;
        let (mut standings, mut scores) = (Standings::default(), Vec::new());
        // Ten are predicted and seven come true on average: three, then eleven. 95 % are 0.46 to
        // 0.94 after twelve decisions, 0.60 to 0.80 after sixty, and 0.61 to 0.79 after seventy.
        let mut add = |count: usize| {
            for _ in 0..count {
                let decided_us = scores.len() as i64;
                let benefit = if decided_us % 2 == 0 { 3 } else { 11 };
                scores.push(Score { decided_us, ..scored(benefit, 1, true) });
                standings.fold(Kind::Lend, &scores, &rules);
            }
            standings.modes(|_| Mode::Act)[&Kind::Lend]
        };
        assert_eq!(add(12), Mode::Act);
        assert_eq!(add(48), Mode::Act);
        assert_eq!(add(10), Mode::Approve);
    }
}
