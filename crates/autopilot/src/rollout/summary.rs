//! A shadow beside the policy that acts, over a time: what both decided, what only one, and what
//! became of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::shadow::ShadowEvent;
use crate::action::{ActionId, Kind};
use crate::guard::Rule;
use crate::scorecard::Score;

/// What there is to say of a kind of decision. GPU time in GPUs × milliseconds, as predicted unless
/// it says otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KindComparison {
    /// Decisions that both took.
    pub both: u32,
    /// Net of them.
    pub both_net_gpu_ms: i64,
    /// Of them those that were scored so that what they came to can be said, and that.
    pub scored: u32,
    /// What these came to.
    pub realised_gpu_ms: i64,
    /// Decisions of the acting policy alone.
    pub only_acting: u32,
    /// Net of them.
    pub only_acting_net_gpu_ms: i64,
    /// Decisions of the shadow alone: of one that stands from plan to plan one in ten minutes.
    pub only_shadow: u32,
    /// Net of them.
    pub only_shadow_net_gpu_ms: i64,
    /// Decisions of the shadow that the guard would refuse, by rule.
    pub refused: BTreeMap<Rule, u32>,
}

/// A shadow beside the policy that acts.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ShadowSummary {
    /// Plans that both made on the same state and that are on record.
    pub plans: u32,
    /// Of them those in which both decided the same, or both nothing.
    pub alike: u32,
    /// By kind.
    pub kinds: BTreeMap<Kind, KindComparison>,
}

/// Sums up what was told of the shadow called `policy`, in order, and what was scored.
pub fn summary<'a>(
    policy: &str,
    told: impl Iterator<Item = &'a ShadowEvent>,
    scores: impl Iterator<Item = &'a Score>,
) -> ShadowSummary {
    let mut out = ShadowSummary::default();
    let mut taken: BTreeMap<&ActionId, Kind> = BTreeMap::new();
    let mut missed: BTreeSet<&ActionId> = BTreeSet::new();
    for told in told {
        match told {
            ShadowEvent::Policy { .. } => {}
            ShadowEvent::Planned(planned) if planned.policy == policy => {
                out.plans += 1;
                out.alike += u32::from(planned.same == planned.decisions && planned.only_acting.is_empty());
                for only in planned.only_acting.iter().filter(|only| missed.insert(&only.action)) {
                    let side = out.kinds.entry(only.kind).or_default();
                    side.only_acting += 1;
                    side.only_acting_net_gpu_ms += only.net_gpu_ms;
                }
            }
            ShadowEvent::Decided(decided) if decided.policy == policy => {
                let side = out.kinds.entry(decided.kind).or_default();
                let net = decided.predicted.net_gpu_ms();
                match &decided.same_as {
                    // A second life tells it again.
                    Some(action) if taken.insert(action, decided.kind).is_some() => continue,
                    Some(_) => {
                        (side.both, side.both_net_gpu_ms) = (side.both + 1, side.both_net_gpu_ms + net)
                    }
                    None => {
                        side.only_shadow += 1;
                        side.only_shadow_net_gpu_ms += net;
                    }
                }
                if let Some(refusal) = &decided.refusal {
                    *side.refused.entry(refusal.rule).or_default() += 1;
                }
            }
            ShadowEvent::Planned(_) | ShadowEvent::Decided(_) => {}
        }
    }
    for score in scores {
        let Some((kind, realised)) = taken.get(&score.action).zip(score.realised_gpu_ms) else { continue };
        let side = out.kinds.entry(*kind).or_default();
        side.scored += 1;
        side.realised_gpu_ms += realised;
    }
    out
}
