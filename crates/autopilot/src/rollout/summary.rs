//! Comparison of a shadow with the acting policy over time: decisions of both, of one only, and
//! their results.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::shadow::ShadowEvent;
use crate::action::{ActionId, Kind};
use crate::guard::Rule;
use crate::scorecard::Score;

/// Comparison for one kind of decision. GPU time in GPUs × ms, predicted unless stated otherwise.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct KindComparison {
    /// Decisions both took.
    pub both: u32,
    /// Their predicted net.
    pub both_net_gpu_ms: i64,
    /// Of these, decisions scored with a determinable result.
    pub scored: u32,
    /// Their realised net.
    pub realised_gpu_ms: i64,
    /// Decisions only the acting policy took.
    pub only_acting: u32,
    /// Their predicted net.
    pub only_acting_net_gpu_ms: i64,
    /// Decisions only the shadow took. A standing decision counts once in ten minutes.
    pub only_shadow: u32,
    /// Their predicted net.
    pub only_shadow_net_gpu_ms: i64,
    /// Decisions of the shadow that the guard would refuse, by rule.
    pub refused: BTreeMap<Rule, u32>,
}

/// A shadow compared with the acting policy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ShadowSummary {
    /// Recorded plans both made on the same state.
    pub plans: u32,
    /// Of these, plans with the same decisions, or none on both sides.
    pub alike: u32,
    /// By kind.
    pub kinds: BTreeMap<Kind, KindComparison>,
}

/// Summarises the events of the shadow policy called `policy`, in order, with the scores.
pub fn summary<'a>(
    policy: &str,
    events: impl Iterator<Item = &'a ShadowEvent>,
    scores: impl Iterator<Item = &'a Score>,
) -> ShadowSummary {
    let mut out = ShadowSummary::default();
    let mut taken: BTreeMap<&ActionId, Kind> = BTreeMap::new();
    let mut missed: BTreeSet<&ActionId> = BTreeSet::new();
    for event in events {
        match event {
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
                    // A new process records it again.
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
        let Some((kind, realised)) = taken.get(&score.action).zip(score.known_net_gpu_ms()) else { continue };
        let side = out.kinds.entry(*kind).or_default();
        side.scored += 1;
        side.realised_gpu_ms += realised;
    }
    out
}
