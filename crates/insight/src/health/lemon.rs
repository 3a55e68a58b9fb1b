//! Lemon nodes, which fail again and again. The rate of bad hours (confirmed signals, XIDs,
//! fail-stops) over 28 days is a Beta-Binomial shrunk to the fleet's mean. RSC'25 finds lemons by
//! thresholds on a 28-day distribution; of the StepFun nodes that failed, 42 % failed again.

use serde::{Deserialize, Serialize};
use statrs::distribution::{Beta, ContinuousCDF};

/// Record of a node over 28 days.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Number of the node.
    pub node: u32,
    /// Hours it was in use.
    pub hours: u32,
    /// Hours with a bad event.
    pub bad_hours: u32,
}

/// Verdict on a node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Lemon {
    /// Number of the node.
    pub node: u32,
    /// Its rate of bad hours, shrunk to the fleet's.
    pub rate: f64,
    /// Probability that its rate is above three times the fleet's.
    pub probability: f64,
    /// Its rate relative to the fleet's.
    pub times: f64,
    /// Lower bound of that ratio at a probability of 0.95.
    pub least_times: f64,
    /// Whether to keep the node out of jobs: the probability is above 0.95.
    pub exclude: bool,
}

/// A lemon's rate is above this multiple of the fleet's, with this probability.
const MULTIPLE: f64 = 3.0;
const SURE: f64 = 0.95;

/// Evaluates each node against the fleet, in the given order.
///
/// The prior Beta(a, b) has the fleet's mean and, by moments, its spread beyond chance, with a
/// weight of at least one day and at most 28. A fleet without bad hours has no lemons.
pub fn lemons(records: &[NodeRecord]) -> Vec<Lemon> {
    let bad = |record: &NodeRecord| f64::from(record.bad_hours.min(record.hours));
    let hours: f64 = records.iter().map(|record| f64::from(record.hours)).sum();
    let fleet = records.iter().map(bad).sum::<f64>() / hours;
    let usable = fleet > 0.0 && fleet < 1.0;
    let weight = if usable { prior_weight(records, fleet) } else { 1.0 };
    let judge = |record: &NodeRecord| {
        let none = Lemon {
            node: record.node,
            rate: 0.0,
            probability: 0.0,
            times: 0.0,
            least_times: 0.0,
            exclude: false,
        };
        if !usable {
            return none;
        }
        let (a, b) =
            (fleet * weight + bad(record), (1.0 - fleet) * weight + f64::from(record.hours) - bad(record));
        let Ok(rate) = Beta::new(a, b) else { return none };
        let probability = 1.0 - rate.cdf((MULTIPLE * fleet).min(1.0));
        let exclude = probability > SURE;
        Lemon {
            node: record.node,
            rate: a / (a + b),
            probability,
            times: a / (a + b) / fleet,
            // Found by bisection, so only for excluded nodes.
            least_times: if exclude { rate.inverse_cdf(1.0 - SURE) / fleet } else { 0.0 },
            exclude,
        }
    };
    records.iter().map(judge).collect()
}

/// Weight of the prior in hours, from the variance of the nodes' rates beyond the binomial one.
fn prior_weight(records: &[NodeRecord], fleet: f64) -> f64 {
    const LEAST: f64 = 24.0;
    const MOST: f64 = 28.0 * 24.0;
    let used = records.iter().filter(|record| record.hours > 0);
    let (mut beyond, mut count) = (0.0, 0.0);
    for record in used {
        let hours = f64::from(record.hours);
        let rate = f64::from(record.bad_hours.min(record.hours)) / hours;
        beyond += (rate - fleet).powi(2) - fleet * (1.0 - fleet) / hours;
        count += 1.0;
    }
    let variance = beyond / count;
    let weight = fleet * (1.0 - fleet) / variance - 1.0;
    if variance > 0.0 && weight.is_finite() { weight.clamp(LEAST, MOST) } else { MOST }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(worst: u32) -> Vec<NodeRecord> {
        let node = |node| NodeRecord { node, hours: 600, bad_hours: u32::from(node % 10 == 0) };
        let mut records: Vec<NodeRecord> = (0..100).map(node).collect();
        records[7].bad_hours = worst;
        records
    }

    #[test]
    fn one_bad_day_is_no_lemon_and_a_dozen_are() {
        let once = lemons(&fleet(1));
        assert!(once.iter().all(|lemon| !lemon.exclude));
        let often = lemons(&fleet(12));
        assert_eq!(
            often.iter().filter(|lemon| lemon.exclude).map(|lemon| lemon.node).collect::<Vec<_>>(),
            [7]
        );
        assert!(often[7].rate < 12.0 / 600.0 && often[7].rate > often[8].rate);
        // A node is excluded exactly when the bound is above three times.
        assert!(often[7].least_times > MULTIPLE && often[7].least_times < often[7].times);
        // The fleet has 10 + 12 bad hours in 60,000.
        assert!((often[7].times - often[7].rate * 60_000.0 / 22.0).abs() < 1e-9);
    }

    #[test]
    fn empty_and_absurd_records_are_no_lemons() {
        assert!(lemons(&[]).is_empty());
        let odd =
            [NodeRecord { node: 1, hours: 0, bad_hours: 9 }, NodeRecord { node: 2, hours: 5, bad_hours: 9 }];
        assert!(lemons(&odd).iter().all(|lemon| !lemon.exclude && lemon.probability.is_finite()));
        assert!(!lemons(&[NodeRecord { node: 1, hours: 9, bad_hours: 0 }])[0].exclude);
    }
}
