//! Scorecard: predicted against realised results of decisions, compared with doing nothing. It
//! promotes or demotes a kind of decision, and corrects its predictions.

mod standing;

use serde::{Deserialize, Serialize};

use crate::action::{ActionId, Kind};
use crate::planner::Predicted;
use crate::policy::{Mode, RecordRules};
pub use standing::Standings;

/// How far back scores count for a kind's calibration, µs.
const MONTH_US: i64 = 30 * 86_400_000_000;
/// Decisions as good as predicted that a correction assumes before it has seen any.
const PRIOR_DECISIONS: f64 = 5.0;
/// Age at which a decision counts half in a correction, µs.
const HALVED_US: f64 = 86_400e6;
/// Bounds of a correction.
const LEAST_FACTOR: f64 = 0.1;
const MOST_FACTOR: f64 = 2.0;

/// Result of a decision over its prediction period.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Realised {
    /// Read back as done.
    pub verified: bool,
    /// Useful GPU time gained compared with doing nothing, from the log or a matched window.
    /// `None`: cannot be determined.
    pub benefit_gpu_ms: Option<i64>,
    /// The benefit is an estimate, so it corrects no prediction.
    pub is_estimate: bool,
    /// Useful GPU time it cost. `None`: cannot be determined.
    pub cost_gpu_ms: Option<i64>,
    /// Bounds of benefit less cost, where these are estimates. `None`: there are none but the point
    /// itself.
    pub interval: Option<Interval>,
    /// What would have happened without it, in words.
    pub without: Option<String>,
}

impl Realised {
    /// A result that was read back as done, without bounds.
    pub fn verified(benefit_gpu_ms: Option<i64>, cost_gpu_ms: Option<i64>) -> Self {
        Self {
            verified: true,
            benefit_gpu_ms,
            is_estimate: false,
            cost_gpu_ms,
            interval: None,
            without: None,
        }
    }

    /// A known benefit, less a cost that may lie between two bounds. `None`: the cost is unknown.
    pub fn less(benefit_gpu_ms: i64, cost: Option<Interval>) -> Self {
        let point = cost.and_then(Interval::as_point);
        let interval = cost.filter(|_| point.is_none()).map(|Interval { low_gpu_ms, high_gpu_ms }| {
            Interval { low_gpu_ms: benefit_gpu_ms - high_gpu_ms, high_gpu_ms: benefit_gpu_ms - low_gpu_ms }
        });
        Self { interval, ..Self::verified(Some(benefit_gpu_ms), point) }
    }

    /// A decision that did not take effect. What it cost is unknown.
    pub fn without_effect() -> Self {
        Self { verified: false, ..Self::verified(Some(0), None) }
    }
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
    /// Predicted benefit, and the same before it was corrected by the record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_benefit: Option<Benefit>,
    /// Realised benefit. `None`: cannot be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub realised_benefit_gpu_ms: Option<i64>,
    /// Whether the realised net was between the cautious end of the prediction and its mirror.
    pub within: Option<bool>,
    /// Bounds of the realised net at 95 %, where it is an estimate. `None`: it is exact, or nothing
    /// is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
    /// What would have happened without it, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without: Option<String>,
    /// Name of the canary policy that decided it for its owners. `None`: the base policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<String>,
}

impl Score {
    /// Realised net as far as it speaks for or against the decision: the point, or of an interval
    /// the end nearest to the prediction. `None`: nothing is known, or the interval includes the
    /// prediction.
    pub fn known_net_gpu_ms(&self) -> Option<i64> {
        let Some(Interval { low_gpu_ms, high_gpu_ms }) = self.interval else { return self.realised_gpu_ms };
        if high_gpu_ms < self.predicted_gpu_ms {
            Some(high_gpu_ms)
        } else {
            Some(low_gpu_ms).filter(|low| *low > self.predicted_gpu_ms)
        }
    }

    /// Bounds of the realised net; equal if it is exact. `None`: nothing is known.
    pub fn bounds_gpu_ms(&self) -> Option<Interval> {
        self.interval.or(self.realised_gpu_ms.map(Interval::point))
    }

    /// Realised over predicted, millionths: of the benefit, or where that is an estimate of the
    /// known net.
    fn known_ratio_ppm(&self) -> Option<i64> {
        self.benefit_ratio_ppm.or_else(|| {
            let net = self.interval.and(self.known_net_gpu_ms()).filter(|_| self.predicted_gpu_ms > 0)?;
            Some(ratio_ppm(net, self.predicted_gpu_ms))
        })
    }
}

/// Lower and upper end, useful GPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interval {
    /// Lower end.
    pub low_gpu_ms: i64,
    /// Upper end.
    pub high_gpu_ms: i64,
}

impl Interval {
    /// An interval of one value.
    pub fn point(gpu_ms: i64) -> Self {
        Self { low_gpu_ms: gpu_ms, high_gpu_ms: gpu_ms }
    }

    /// Its value, if it has only one.
    pub fn as_point(self) -> Option<i64> {
        (self.low_gpu_ms == self.high_gpu_ms).then_some(self.low_gpu_ms)
    }

    /// An equal part of it.
    #[must_use]
    pub fn divided(self, by: i64) -> Self {
        Self { low_gpu_ms: self.low_gpu_ms / by, high_gpu_ms: self.high_gpu_ms / by }
    }

    /// Sum of two.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            low_gpu_ms: self.low_gpu_ms.saturating_add(other.low_gpu_ms),
            high_gpu_ms: self.high_gpu_ms.saturating_add(other.high_gpu_ms),
        }
    }
}

/// `part` over `whole`, millionths.
fn ratio_ppm(part: i64, whole: i64) -> i64 {
    i64::try_from(i128::from(part) * 1_000_000 / i128::from(whole.max(1))).unwrap_or(i64::MAX)
}

/// A predicted benefit, useful GPU time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Benefit {
    /// As it was stated.
    pub stated_gpu_ms: i64,
    /// Before the correction.
    pub raw_gpu_ms: i64,
}

/// Scores a decision.
pub fn score(action: &str, kind: Kind, decided_us: i64, predicted: &Predicted, realised: &Realised) -> Score {
    let net = realised.benefit_gpu_ms.zip(realised.cost_gpu_ms).map(|(benefit, cost)| benefit - cost);
    let (expected, low) = (predicted.net_gpu_ms(), predicted.net_low_gpu_ms());
    let is_within = |net: i64| net >= low && net - expected <= expected - low;
    let benefit = realised.benefit_gpu_ms.filter(|_| !realised.is_estimate);
    let within = match realised.interval {
        None => net.map(is_within),
        Some(interval) => {
            let ends = [interval.low_gpu_ms, interval.high_gpu_ms];
            let apart = ends[1] < low || ends[0] - expected > expected - low;
            if apart { Some(false) } else { ends.into_iter().all(is_within).then_some(true) }
        }
    };
    Score {
        action: action.to_owned(),
        kind,
        decided_us,
        verified: realised.verified,
        predicted_gpu_ms: expected,
        realised_gpu_ms: net,
        benefit_ratio_ppm: benefit
            .filter(|_| predicted.benefit_gpu_ms > 0)
            .map(|benefit| ratio_ppm(benefit, predicted.benefit_gpu_ms)),
        predicted_benefit: Some(Benefit {
            stated_gpu_ms: predicted.benefit_gpu_ms,
            raw_gpu_ms: predicted.raw_benefit_gpu_ms.unwrap_or(predicted.benefit_gpu_ms),
        }),
        realised_benefit_gpu_ms: benefit,
        within,
        interval: realised.interval,
        without: realised.without.clone(),
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
    /// Number with a known net.
    pub scored: u32,
    /// Number whose net is known between bounds that include the prediction: they count neither for
    /// nor against the kind.
    #[serde(default)]
    pub undecided: u32,
    /// Share that took effect, millionths. `None`: no decisions.
    pub verified_ppm: Option<u32>,
    /// Median of realised over predicted benefit, millionths.
    pub median_ratio_ppm: Option<i64>,
    /// Upper end of its 95 % interval, millionths. `None`: too few are known for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub median_high_ppm: Option<i64>,
    /// Realised over predicted benefit of the last month, both summed, millionths. `None`: nothing
    /// can be determined.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_ppm: Option<i64>,
    /// 95 % interval of it, millionths. `None`: fewer than two decisions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration_bounds_ppm: Option<[i64; 2]>,
    /// Sum of the known nets, compared with doing nothing. Of an interval the end nearest to the
    /// prediction counts.
    pub net_gpu_ms: i64,
    /// Bounds of the sum over all decisions of which anything is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub net_bounds: Option<Interval>,
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
    let nets: Vec<i64> = newest.iter().filter_map(|score| score.known_net_gpu_ms()).collect();
    let undecided =
        newest.iter().filter(|score| score.interval.is_some() && score.known_net_gpu_ms().is_none());
    let mut ratios: Vec<i64> = newest.iter().filter_map(|score| score.known_ratio_ppm()).collect();
    ratios.sort_unstable();
    let decisions = u32::try_from(newest.len()).unwrap_or(u32::MAX);
    let verified = newest.iter().filter(|score| score.verified).count() as u64;
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (calibration_ppm, calibration_bounds_ppm) = calibration_ppm(&newest).unzip();
    Summary {
        kind,
        decisions,
        scored: count(nets.len()),
        undecided: count(undecided.count()),
        // A share of at most a million.
        verified_ppm: (decisions > 0).then(|| (verified * 1_000_000 / u64::from(decisions)) as u32),
        median_ratio_ppm: ratios.get(ratios.len() / 2).copied(),
        median_high_ppm: median_high_ppm(&ratios),
        calibration_ppm,
        calibration_bounds_ppm: calibration_bounds_ppm.flatten(),
        net_gpu_ms: nets.iter().fold(0, |sum: i64, net| sum.saturating_add(*net)),
        net_bounds: newest.iter().filter_map(|score| score.bounds_gpu_ms()).reduce(Interval::plus),
        worse_than_noop: count(nets.iter().filter(|net| **net < 0).count()),
    }
}

/// Upper bound of the median's 95 % confidence interval: of n sorted values, the one of rank
/// n/2 + 0.98 √n. `None` for fewer than six values, where even the largest is no such bound.
fn median_high_ppm(sorted: &[i64]) -> Option<i64> {
    let n = sorted.len() as f64;
    let rank = (n / 2.0 + 0.98 * n.sqrt()).ceil() as usize;
    sorted.get(rank.checked_sub(1)?).copied().filter(|_| sorted.len() >= 6)
}

/// Benefit realised in the last month divided by the benefit predicted, and the 95 % confidence
/// interval of that ratio, both in millionths.
///
/// The interval assumes that decisions are independent (ratio estimator; Cochran, *Sampling
/// Techniques*, section 6.4). Decisions made in the same hour are correlated, so the true interval
/// is wider.
fn calibration_ppm(scores: &[&Score]) -> Option<(i64, Option<[i64; 2]>)> {
    let newest_us = scores.iter().map(|score| score.decided_us).max()?;
    let of_month = scores.iter().filter(|score| score.verified && newest_us - score.decided_us <= MONTH_US);
    let benefit = |score: &&&Score| score.predicted_benefit.zip(score.realised_benefit_gpu_ms);
    let known: Vec<(i64, i64)> = of_month
        .filter_map(|score| benefit(&score))
        .map(|(it, realised)| (it.stated_gpu_ms, realised))
        .collect();
    let sum = |of: fn(&(i64, i64)) -> i64| known.iter().map(|pair| i128::from(of(pair))).sum::<i128>();
    let (stated, realised) = (sum(|pair| pair.0), sum(|pair| pair.1));
    if stated <= 0 {
        return None;
    }
    let ratio_ppm = i64::try_from(realised * 1_000_000 / stated).unwrap_or(i64::MAX);
    let (count, ratio) = (known.len() as f64, realised as f64 / stated as f64);
    let squares: f64 =
        known.iter().map(|(stated, realised)| (*realised as f64 - ratio * *stated as f64).powi(2)).sum();
    let error = (squares * count / (count - 1.0)).sqrt() / stated as f64;
    let bound = |z: f64| ((ratio + z * error) * 1e6).round().clamp(-9e18, 9e18) as i64;
    Some((ratio_ppm, (known.len() > 1).then(|| [bound(-1.96), bound(1.96)])))
}

/// Factor by which a kind's predicted benefits are to be multiplied, millionths.
///
/// It is the realised over the raw predicted benefit of the newest decisions; one counts half after
/// each day, or a kind that once did badly would decide nothing, and never learn otherwise. Five
/// imagined decisions that came true exactly keep it near 1 while there are few. `None`: no benefit
/// of this kind can be determined.
pub fn correction_ppm(kind: Kind, scores: &[Score], window: u32, now_us: i64) -> Option<u32> {
    let of_kind = scores.iter().rev().filter(|score| score.kind == kind && score.verified);
    let known = of_kind.take(window as usize).filter_map(|score| {
        let raw = score.predicted_benefit?.raw_gpu_ms as f64;
        let weight = 0.5f64.powf((now_us - score.decided_us).max(0) as f64 / HALVED_US);
        Some((weight, raw, score.realised_benefit_gpu_ms? as f64)).filter(|(_, raw, _)| *raw > 0.0)
    });
    let (mut count, mut raw, mut realised) = (0.0, 0.0, 0.0);
    for (weight, predicted, benefit) in known {
        (count, raw, realised) = (count + weight, raw + weight * predicted, realised + weight * benefit);
    }
    let prior = PRIOR_DECISIONS * raw / f64::max(count, f64::MIN_POSITIVE);
    let factor = ((realised + prior) / (raw + prior)).clamp(LEAST_FACTOR, MOST_FACTOR);
    (count > 0.0).then(|| (factor * 1e6).round() as u32)
}

/// What a kind's record says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It does badly: one mode down.
    Down,
    /// It gains, but not what was predicted: a person decides until it does.
    Doubtful,
    /// Neither.
    Stays,
    /// It does well, often enough: one mode up.
    Up,
}

/// Mode earned from `mode`: one up, one down, or the same. The caller caps it at the policy's own
/// mode (`History::earned`).
pub fn trust(mode: Mode, summary: &Summary, rules: &RecordRules) -> Trust {
    let (verdict, why) = judge(summary, rules);
    let mode = match verdict {
        Verdict::Down => mode.down(),
        Verdict::Doubtful => mode.min(Mode::Approve),
        Verdict::Stays => mode,
        Verdict::Up => mode.up(),
    };
    Trust { mode, why }
}

/// Judges a kind by its record, with the reason.
pub fn judge(summary: &Summary, rules: &RecordRules) -> (Verdict, String) {
    let ppm = |share: f64| (share * 1e6).round() as i64;
    let Some(verified) = summary.verified_ppm.map(i64::from) else {
        return (Verdict::Stays, "nothing scored yet".to_owned());
    };
    let ratio = summary.median_ratio_ppm;
    let bounds =
        summary.net_bounds.filter(|bounds| bounds.as_point().is_none()).map_or_else(String::new, |b| {
            format!(" ({:.1} to {:.1})", b.low_gpu_ms as f64 / 3.6e6, b.high_gpu_ms as f64 / 3.6e6)
        });
    let share =
        |ppm: Option<i64>| ppm.map_or_else(|| "-".to_owned(), |ppm| format!("{:.2}", ppm as f64 / 1e6));
    let between = summary.calibration_bounds_ppm.map_or_else(String::new, |[low, high]| {
        format!(" ({:.2} to {:.2})", low as f64 / 1e6, high as f64 / 1e6)
    });
    let figures = format!(
        "{} decisions, {:.3} took effect, realised over predicted {} in the median and {} in sum{between}, net {:.1}{bounds} GPU-hours",
        summary.decisions,
        verified as f64 / 1e6,
        share(ratio),
        share(summary.calibration_ppm),
        summary.net_gpu_ms as f64 / 3.6e6
    );
    // Chance alone takes no mode: the whole interval has to be outside.
    let is_outside =
        |[low, high]: [i64; 2]| high < ppm(rules.calibrated_least) || low > ppm(rules.calibrated_most);
    // A fifth of the decisions required for trust suffices for distrust.
    let least = (rules.decisions / 5).max(1);
    let are_enough = summary.decisions.saturating_sub(summary.undecided) >= least;
    let are_known = summary.scored >= least;
    let badly = verified < ppm(rules.verified_down)
        || summary.median_high_ppm.is_some_and(|high| high < ppm(rules.realised_down))
        || are_known && summary.net_gpu_ms < 0;
    if badly && are_enough {
        return (Verdict::Down, format!("goes badly: {figures}"));
    }
    if are_known && summary.calibration_bounds_ppm.is_some_and(is_outside) {
        return (Verdict::Doubtful, format!("gains, but not what was predicted: {figures}"));
    }
    let well = verified >= ppm(rules.verified)
        && ratio.is_some_and(|ratio| ratio >= ppm(rules.realised))
        && summary.net_gpu_ms > 0;
    if well && summary.scored >= rules.decisions {
        return (Verdict::Up, format!("goes well: {figures}"));
    }
    (Verdict::Stays, format!("no case for a change: {figures}"))
}

#[cfg(test)]
mod tests;
