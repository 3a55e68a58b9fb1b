//! Rules that turn past hours into a commitment. Each is one expert for [`super::leader`]; a
//! forecast is one more. Simple rules are strong: for a week ahead the quantile of the last week
//! beats most models.

use serde::{Deserialize, Serialize};

/// Hours between the terms sampled for changes; neighbouring terms say nearly the same.
const CHANGE_STRIDE: usize = 3;

/// A rule. `hours` is how far it looks back; a shorter history is used whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// Nothing.
    None,
    /// The last hour.
    Last,
    /// The mean.
    Mean {
        /// Hours looked back.
        hours: usize,
    },
    /// The largest hour.
    Peak {
        /// Hours looked back.
        hours: usize,
    },
    /// The quantile at the critical ratio.
    Quantile {
        /// Hours looked back.
        hours: usize,
    },
    /// The last hour, changed as demand changed over past terms: the quantile of `y(u + s) - y(u)`,
    /// or of their ratio, over s in the term.
    Change {
        /// Hours looked back.
        hours: usize,
        /// Ratios instead of differences.
        ratio: bool,
        /// Only terms that began within two hours of this time of day.
        same_hour: bool,
    },
}

impl Rule {
    /// Experts that earned their place by regret on public traces: fast ones (for a day), slow ones
    /// (for a week) and changes.
    pub const EXPERTS: [Self; 10] = [
        Self::Last,
        Self::Quantile { hours: 24 },
        Self::Quantile { hours: 72 },
        Self::Quantile { hours: 168 },
        Self::Quantile { hours: 336 },
        Self::Quantile { hours: 672 },
        Self::Change { hours: 672, ratio: false, same_hour: false },
        Self::Change { hours: 672, ratio: true, same_hour: false },
        Self::Change { hours: 1008, ratio: false, same_hour: true },
        Self::Change { hours: 1008, ratio: true, same_hour: true },
    ];

    /// Commitment in GPUs, not rounded, for a term of `term_hours`, from the hourly demand before
    /// it. `level` is the critical ratio. 0 without history. Values must be finite.
    pub fn reserve(self, history: &[f64], term_hours: usize, level: f64) -> f64 {
        let Some(&last) = history.last() else { return 0.0 };
        let back = |hours: usize| &history[history.len().saturating_sub(hours.max(1))..];
        match self {
            Self::None => 0.0,
            Self::Last => last,
            Self::Mean { hours } => back(hours).iter().sum::<f64>() / back(hours).len() as f64,
            Self::Peak { hours } => back(hours).iter().copied().fold(0.0, f64::max),
            Self::Quantile { hours } => quantile(back(hours).to_vec(), level),
            Self::Change { hours, ratio, same_hour } => {
                let changes = changes(back(hours.saturating_add(term_hours)), term_hours, ratio, same_hour);
                // Too few past terms to know how demand changes: the last week stands in.
                if changes.is_empty() {
                    quantile(back(168).to_vec(), level)
                } else if ratio {
                    last.max(1.0) * quantile(changes, level)
                } else {
                    (last + quantile(changes, level)).max(0.0)
                }
            }
        }
    }
}

/// Changes of demand from the hour before a term to each of its hours, over all terms in `history`;
/// empty with fewer than eight terms.
fn changes(history: &[f64], term_hours: usize, ratio: bool, same_hour: bool) -> Vec<f64> {
    let Some(newest) = history.len().checked_sub(term_hours) else { return Vec::new() };
    let begins = |start: &usize| {
        let phase = (history.len() - start) % 24;
        if same_hour { phase <= 2 || phase >= 22 } else { (newest - start).is_multiple_of(CHANGE_STRIDE) }
    };
    let starts: Vec<usize> = (1..=newest).filter(begins).collect();
    if starts.len() < 8 {
        return Vec::new();
    }
    let mut changes = Vec::with_capacity(starts.len() * term_hours);
    for start in starts {
        let before = history[start - 1];
        let hours = &history[start..start + term_hours];
        if ratio {
            // Below one GPU a ratio is noise.
            changes.extend(hours.iter().map(|hour| hour / before.max(1.0)));
        } else {
            changes.extend(hours.iter().map(|hour| hour - before));
        }
    }
    changes
}

/// Quantile with linear interpolation between order statistics; 0 if empty.
fn quantile(mut values: Vec<f64>, level: f64) -> f64 {
    let Some(last) = values.len().checked_sub(1) else { return 0.0 };
    let position = last as f64 * level.clamp(0.0, 1.0);
    let below = position.floor() as usize;
    let (_, &mut low, above) = values.select_nth_unstable_by(below, f64::total_cmp);
    let high = above.iter().copied().fold(f64::INFINITY, f64::min);
    if high.is_finite() { low + (high - low) * (position - below as f64) } else { low }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rules_on_a_ramp() {
        let ramp: Vec<f64> = (0..1000).map(f64::from).collect();
        assert_eq!(Rule::Last.reserve(&ramp, 24, 0.4), 999.0);
        assert_eq!(Rule::Mean { hours: 3 }.reserve(&ramp, 24, 0.4), 998.0);
        assert_eq!(Rule::Peak { hours: 672 }.reserve(&ramp, 24, 0.4), 999.0);
        assert_eq!(Rule::Quantile { hours: 11 }.reserve(&ramp, 24, 0.4), 993.0);
        // Every term of 24 hours rises by 1 to 24 over the hour before it: at level 0.5 by 12.5.
        for same_hour in [false, true] {
            let change = Rule::Change { hours: 672, ratio: false, same_hour };
            assert_eq!(change.reserve(&ramp, 24, 0.5), 999.0 + 12.5);
        }
    }

    #[test]
    fn short_histories_are_answered() {
        for rule in Rule::EXPERTS {
            assert_eq!(rule.reserve(&[], 168, 0.4), 0.0);
            assert_eq!(rule.reserve(&[7.0], 168, 0.4), 7.0);
            assert_eq!(rule.reserve(&[0.0; 30], 24, 0.4), 0.0);
        }
    }

    proptest! {
        #[test]
        fn never_negative_never_a_panic(history in prop::collection::vec(0.0f64..1e6, 0..300), term in 0usize..200, level in 0.0f64..=1.0) {
            for rule in Rule::EXPERTS {
                let gpus = rule.reserve(&history, term, level);
                prop_assert!(gpus >= 0.0 && gpus.is_finite());
            }
        }
    }
}
