//! Whether a team's jobs resume after a stop, or start from the beginning.
//!
//! No checkpoint has to be reported for this: it shows in how long jobs run once they are
//! restarted. A job that starts from the beginning runs for at least as long as before the stop. A
//! job that resumes often finishes sooner, with a probability that [`crate::RunTimes`] gives. If a
//! team's restarted jobs should have finished sooner several times, and hardly ever did, they lose
//! their work at each stop.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::bounded::drop_silent;

/// Teams kept; beyond it a quarter goes, those silent longest.
const MAX_TEAMS: usize = 4_096;
/// Expected early ends, thousandths, from which on their number says something: if five are
/// expected, none come with a probability of 0.7 %.
const ENOUGH_MILLI: u64 = 5_000;
/// A team resumes if at least one in so many of the expected early ends came.
const RESUMES_FROM: u64 = 10;
/// Expected early ends, thousandths, from which on older ones fade: both counts are halved.
const FADES_AT_MILLI: u64 = 40_000;

/// Restarted jobs that completed, by team.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Restarts(BTreeMap<String, Restarted>);

#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Restarted {
    /// Jobs that finished sooner than one can that lost everything.
    early: u64,
    /// How many would have, on average, had they lost nothing; thousandths.
    expected_milli: u64,
    newest_ms: i64,
}

impl Restarts {
    /// Adds a restarted job that completed: whether it ended early, and with which probability it
    /// would have, had it lost nothing.
    pub fn add(&mut self, team: &str, is_early: bool, probability: f64, at_ms: i64) {
        drop_silent(&mut self.0, team, MAX_TEAMS, |seen| seen.newest_ms);
        let seen = self.0.entry(team.to_owned()).or_default();
        seen.early += u64::from(is_early);
        seen.expected_milli += (probability.clamp(0.0, 1.0) * 1e3).round() as u64;
        seen.newest_ms = seen.newest_ms.max(at_ms);
        if seen.expected_milli >= FADES_AT_MILLI {
            seen.early = seen.early.div_ceil(2);
            seen.expected_milli /= 2;
        }
    }

    /// Whether a team's jobs resume where they were stopped. `None`: too few have shown.
    pub fn resume(&self, team: &str) -> Option<bool> {
        let seen = self.0.get(team).filter(|seen| seen.expected_milli >= ENOUGH_MILLI)?;
        Some(seen.early * 1_000 * RESUMES_FROM >= seen.expected_milli)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_team_whose_restarted_jobs_never_end_early_where_many_should_loses_its_work() {
        let mut seen = Restarts::default();
        for n in 0..9 {
            seen.add("starts-over", false, 0.5, n);
            assert_eq!(seen.resume("starts-over"), None);
        }
        seen.add("starts-over", false, 0.5, 9);
        assert_eq!(seen.resume("starts-over"), Some(false));
        // Jobs that are stopped young hardly ever end early, whatever they save.
        (0..40).for_each(|n| seen.add("young", false, 0.1, n));
        assert_eq!(seen.resume("young"), None);
        // Every other one is stopped before its first checkpoint.
        (0..10).for_each(|n| seen.add("resumes", n % 4 == 0, 0.5, n));
        assert_eq!((seen.resume("resumes"), seen.resume("other")), (Some(true), None));
        // It mends its ways, and is believed.
        (10..300).for_each(|n| seen.add("starts-over", n % 4 == 0, 0.5, n));
        assert_eq!(seen.resume("starts-over"), Some(true));
        (0..2 * MAX_TEAMS as i64).for_each(|n| seen.add(&format!("t{n}"), false, 0.5, n));
        assert!(seen.0.len() <= MAX_TEAMS);
    }
}
