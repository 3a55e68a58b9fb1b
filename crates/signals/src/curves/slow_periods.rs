//! Spans in which a part of a job was slow, from its straggler signals. Steps of such a span are no
//! measure of how the job scales.

use serde::{Deserialize, Serialize};
use tidegate_events::Millis;
use tidegate_events::v1::{SignalState, StragglerSignal};

use crate::time::US_PER_S;

/// Signals published later than this after a window's end do not count against it, µs. A suspicion
/// takes at most a minute (95 of 100).
pub(super) const HINDSIGHT_US: i64 = 60 * US_PER_S;
/// Statements kept per job; the oldest go first.
const MAX_STATEMENTS: usize = 256;

/// One straggler signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Statement {
    episode: u64,
    revision: u32,
    said_us: i64,
    onset_us: i64,
    /// The episode is over, was withdrawn, or is structural: how a job is built is how it scales.
    is_over: bool,
}

/// Straggler signals of one job.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct SlowPeriods {
    statements: Vec<Statement>,
}

impl SlowPeriods {
    /// Takes a signal.
    pub fn observe(&mut self, signal: &StragglerSignal) {
        let is_open = matches!(signal.state(), SignalState::Suspect | SignalState::Confirmed);
        let word = Statement {
            episode: signal.episode,
            revision: signal.revision,
            said_us: Millis(signal.said_ms).to_micros().0,
            onset_us: Millis(signal.onset_ms).to_micros().0,
            is_over: !is_open || signal.class == "STRUCTURAL",
        };
        let at = self.statements.partition_point(|other| other < &word);
        self.statements.insert(at, word);
        if self.statements.len() > MAX_STATEMENTS {
            self.statements.remove(0);
        }
    }

    /// Whether an episode was open at any time of the span, by signals up to [`HINDSIGHT_US`] after
    /// it.
    /// after it.
    pub fn overlaps(&self, (from_us, to_us): (i64, i64)) -> bool {
        let known_us = to_us.saturating_add(HINDSIGHT_US);
        self.statements.chunk_by(|a, b| a.episode == b.episode).any(|words| {
            let mut known = words.iter().filter(|word| word.said_us <= known_us);
            let Some(first) = known.clone().find(|word| !word.is_over) else { return false };
            let is_over =
                known.any(|word| word.is_over && word.revision > first.revision && word.said_us < from_us);
            first.onset_us <= to_us && !is_over
        })
    }

    /// Forgets episodes that ended before `us`: no earlier span will be asked about.
    pub fn forget(&mut self, us: i64) {
        let over: Vec<u64> = self
            .statements
            .iter()
            .filter(|word| word.is_over && word.said_us < us)
            .map(|word| word.episode)
            .collect();
        self.statements.retain(|word| !over.contains(&word.episode));
    }
}
