//! Scorecard: predicted against realised results of decisions, compared with doing nothing. It
//! promotes or demotes a kind of decision.

use serde::{Deserialize, Serialize};

use crate::action::{ActionId, Kind};
use crate::planner::Predicted;
use crate::policy::{Mode, RecordRules};

/// Result of a decision over its prediction period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Realised {
    /// Read back as done.
    pub verified: bool,
    /// Useful GPU time gained compared with doing nothing, from the log or a matched window.
    /// `None`: cannot be determined.
    pub benefit_gpu_ms: Option<i64>,
    /// Useful GPU time it cost. `None`: cannot be determined.
    pub cost_gpu_ms: Option<i64>,
}

/// Score of a decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Score {
    /// The action.
    pub action: ActionId,
    /// Its kind.
    pub kind: Kind,
    /// When it was decided.
    pub decided_us: i64,
    /// Read back as done.
    pub verified: bool,
    /// Predicted net useful GPU time.
    pub predicted_gpu_ms: i64,
    /// Realised net useful GPU time. Negative: doing nothing would have been better. `None`: cannot
    /// be determined.
    pub realised_gpu_ms: Option<i64>,
    /// Realised over predicted benefit, millionths. `None`: cannot be determined, or nothing was
    /// predicted.
    pub benefit_ratio_ppm: Option<i64>,
    /// Whether the realised net was between the cautious end of the prediction and its mirror.
    pub within: Option<bool>,
    /// Name of the canary policy that decided it for its owners. `None`: the base policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<String>,
}

/// Scores a decision.
pub fn score(action: &str, kind: Kind, decided_us: i64, predicted: &Predicted, realised: &Realised) -> Score {
    let net = realised.benefit_gpu_ms.zip(realised.cost_gpu_ms).map(|(benefit, cost)| benefit - cost);
    let ratio = |benefit: i64| {
        let ppm = i128::from(benefit) * 1_000_000 / i128::from(predicted.benefit_gpu_ms.max(1));
        i64::try_from(ppm).unwrap_or(i64::MAX)
    };
    let (expected, low) = (predicted.net_gpu_ms(), predicted.net_low_gpu_ms());
    Score {
        action: action.to_owned(),
        kind,
        decided_us,
        verified: realised.verified,
        predicted_gpu_ms: expected,
        realised_gpu_ms: net,
        benefit_ratio_ppm: realised.benefit_gpu_ms.filter(|_| predicted.benefit_gpu_ms > 0).map(ratio),
        within: net.map(|net| net >= low && net - expected <= expected - low),
        canary: None,
    }
}

/// Summary of a kind's recent decisions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// The kind.
    pub kind: Kind,
    /// Number of decisions.
    pub decisions: u32,
    /// Number with a determinable net.
    pub scored: u32,
    /// Share that took effect, millionths. `None`: no decisions.
    pub verified_ppm: Option<u32>,
    /// Median of realised over predicted benefit, millionths.
    pub median_ratio_ppm: Option<i64>,
    /// Sum of the determinable nets, compared with doing nothing.
    pub net_gpu_ms: i64,
    /// Decisions that doing nothing would have beaten.
    pub worse_than_noop: u32,
}

/// Resulting mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trust {
    /// Mode from now on.
    pub mode: Mode,
    /// Reason.
    pub why: String,
}

/// Summarises the newest decisions of `kind`, at most `window`. `scores` are oldest first.
pub fn summary(kind: Kind, scores: &[Score], window: u32) -> Summary {
    let newest: Vec<&Score> =
        scores.iter().rev().filter(|score| score.kind == kind).take(window as usize).collect();
    let nets: Vec<i64> = newest.iter().filter_map(|score| score.realised_gpu_ms).collect();
    let mut ratios: Vec<i64> = newest.iter().filter_map(|score| score.benefit_ratio_ppm).collect();
    ratios.sort_unstable();
    let decisions = u32::try_from(newest.len()).unwrap_or(u32::MAX);
    let verified = newest.iter().filter(|score| score.verified).count() as u64;
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    Summary {
        kind,
        decisions,
        scored: count(nets.len()),
        // A share of at most a million.
        verified_ppm: (decisions > 0).then(|| (verified * 1_000_000 / u64::from(decisions)) as u32),
        median_ratio_ppm: ratios.get(ratios.len() / 2).copied(),
        net_gpu_ms: nets.iter().fold(0, |sum: i64, net| sum.saturating_add(*net)),
        worse_than_noop: count(nets.iter().filter(|net| **net < 0).count()),
    }
}

/// Mode earned from `mode`: one up, one down, or the same. The caller caps it at the policy's own
/// mode (`History::earned`).
pub fn trust(mode: Mode, summary: &Summary, rules: &RecordRules) -> Trust {
    let ppm = |share: f64| (share * 1e6).round() as i64;
    let (Some(verified), Some(ratio)) = (summary.verified_ppm.map(i64::from), summary.median_ratio_ppm)
    else {
        return Trust { mode, why: "nothing scored yet".to_owned() };
    };
    let figures = format!(
        "{} decisions, {:.3} took effect, median of realised over predicted {:.2}, net {:.1} GPU-hours",
        summary.decisions,
        verified as f64 / 1e6,
        ratio as f64 / 1e6,
        summary.net_gpu_ms as f64 / 3.6e6
    );
    let badly =
        verified < ppm(rules.verified_down) || ratio < ppm(rules.realised_down) || summary.net_gpu_ms < 0;
    // A fifth of the decisions required for trust suffices for distrust.
    if badly && summary.decisions >= (rules.decisions / 5).max(1) {
        return Trust { mode: mode.down(), why: format!("goes badly: {figures}") };
    }
    let well = verified >= ppm(rules.verified) && ratio >= ppm(rules.realised) && summary.net_gpu_ms > 0;
    if well && summary.scored >= rules.decisions {
        return Trust { mode: mode.up(), why: format!("goes well: {figures}") };
    }
    Trust { mode, why: format!("no case for a change: {figures}") }
}

#[cfg(test)]
mod tests;
