//! Choice among rules, by their costs in past decisions.
//!
//! [`follow`] keeps to one rule and leaves it only if the saving exceeds a switching cost;
//! [`blend`] weighs all of them. Only decisions whose whole term has passed may be used.

use serde::{Deserialize, Serialize};

use super::{Sample, SizingError, error};

/// Regret that a switch must save: 1 % of the cost of the cheapest commitments.
pub const SWITCHING: f64 = 0.01;
/// Regret by which an expert's weight in the blend falls by e. Both tuned on public traces
/// (`crates/evaluation/src/sizing`).
pub const TEMPERATURE: f64 = 0.1;

/// Cost of each expert in one past decision.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// Cost of each expert's commitment, in the experts' order.
    pub costs: Vec<f64>,
    /// Cost of the cheapest commitment, known afterwards.
    pub oracle: f64,
}

/// Regret of each expert over past decisions: total cost over the oracle's, less one. All 0 where
/// the oracle's total is 0.
///
/// # Errors
/// Decisions of another number of experts than `experts`; costs that are not finite.
pub fn regrets(past: &[Decision], experts: usize) -> Result<Vec<f64>, SizingError> {
    let mut totals = vec![0.0; experts];
    let mut oracle = 0.0;
    for decision in past {
        if decision.costs.len() != experts {
            let got = decision.costs.len();
            return Err(SizingError::Length { what: "costs of a past decision", got, expected: experts });
        }
        for (total, &cost) in totals.iter_mut().zip(&decision.costs) {
            *total += error::parameter("the cost of a past decision", cost, "finite", |_| true)?;
        }
        oracle += error::parameter("the oracle's cost", decision.oracle, "finite", |_| true)?;
    }
    let regret = |total: f64| if oracle > 0.0 { total / oracle - 1.0 } else { 0.0 };
    Ok(totals.into_iter().map(regret).collect())
}

/// Follow the leader: the expert of least trailing regret, unless the `current` one is within
/// `switching_cost` of it (a share of the oracle's cost, as regret is).
///
/// # Errors
/// As [`regrets`]; no experts; a `current` that is none of them; a negative switching cost.
pub fn follow(
    past: &[Decision],
    experts: usize,
    current: Option<usize>,
    switching_cost: f64,
) -> Result<usize, SizingError> {
    error::parameter("the switching cost", switching_cost, "0 or more", |cost| cost >= 0.0)?;
    let regrets = regrets(past, experts)?;
    let leader = (0..experts).min_by(|&one, &other| regrets[one].total_cmp(&regrets[other]));
    let Some(leader) = leader else { return Err(SizingError::Empty { what: "the list of experts" }) };
    match current {
        None => Ok(leader),
        Some(current) if current < experts => {
            Ok(if regrets[current] - regrets[leader] > switching_cost { leader } else { current })
        }
        Some(current) => Err(SizingError::Length {
            what: "experts, by the current one's number",
            got: experts,
            expected: current + 1,
        }),
    }
}

/// Blend of all experts: the quantile at `level` of their commitments, each weighed by
/// `exp(-(regret - least) / temperature)`.
///
/// A quantile rather than a mean, by the same cost as of a single commitment: each expert's number
/// is an estimate of demand; too much costs the reserved price, too little the elastic one. So the
/// best estimate again lies at the critical ratio. On public traces at a break-even of 0.6 its
/// regret was below the weighted mean's.
///
/// # Errors
/// As [`regrets`]; no experts, a commitment that is negative or not finite, a level outside 0..=1,
/// a temperature of 0 or less.
pub fn blend(
    past: &[Decision],
    commitments: &[f64],
    level: f64,
    temperature: f64,
) -> Result<f64, SizingError> {
    error::demand("commitments", commitments)?;
    error::parameter("the level", level, "between 0 and 1", |level| (0.0..=1.0).contains(&level))?;
    error::parameter("the temperature", temperature, "more than 0", |temperature| temperature > 0.0)?;
    let regrets = regrets(past, commitments.len())?;
    let least = regrets.iter().copied().fold(f64::INFINITY, f64::min);
    let mut weighed: Vec<(f64, f64)> = commitments
        .iter()
        .zip(&regrets)
        .map(|(&gpus, regret)| (gpus, (-(regret - least) / temperature).exp()))
        .collect();
    weighed.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let all: f64 = weighed.iter().map(|(_, weight)| weight).sum();
    let mut sum = 0.0;
    for &(gpus, weight) in &weighed {
        sum += weight;
        if sum >= level * all {
            return Ok(gpus);
        }
    }
    // Rounding can leave the sum short of a level of 1.
    Ok(weighed[weighed.len() - 1].0)
}

impl Decision {
    /// Prices the experts' commitments on the demand of their term.
    ///
    /// # Errors
    /// Demand that is empty, negative or not finite.
    pub fn priced(commitments: &[f64], demand: &[f64], prices: &super::Prices) -> Result<Self, SizingError> {
        let sample = Sample::new(demand.to_vec())?;
        let hours = demand.len() as f64;
        let cost = |gpus: f64| sample.cost(prices, gpus) * hours;
        let costs = commitments.iter().map(|&gpus| cost(gpus)).collect();
        Ok(Self { costs, oracle: cost(sample.quantile(prices.critical_ratio())) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sizing::Prices;

    fn past(costs: &[[f64; 2]]) -> Vec<Decision> {
        costs.iter().map(|costs| Decision { costs: costs.to_vec(), oracle: 10.0 }).collect()
    }

    #[test]
    fn a_switch_has_to_pay() {
        let past = past(&[[12.0, 11.0], [12.0, 11.0]]);
        assert_eq!(regrets(&past, 2).unwrap(), [0.19999999999999996, 0.10000000000000009]);
        assert_eq!(follow(&past, 2, None, 0.0), Ok(1));
        assert_eq!(follow(&past, 2, Some(0), 0.2), Ok(0));
        assert_eq!(follow(&past, 2, Some(0), 0.05), Ok(1));
        assert!(follow(&past, 2, Some(2), 0.0).is_err());
        assert!(follow(&[], 0, None, 0.0).is_err());
        assert!(follow(&past, 3, None, 0.0).is_err());
    }

    #[test]
    fn a_blend_is_a_weighed_quantile() {
        // Without past decisions all weigh the same: of 1, 2, 3, 4, 5 the 40 % quantile is 2.
        assert_eq!(blend(&[], &[5.0, 3.0, 1.0, 4.0, 2.0], 0.4, 0.1), Ok(2.0));
        // The second is far better, so only it counts.
        assert_eq!(blend(&past(&[[30.0, 10.0]]), &[1.0, 9.0], 0.4, 0.1), Ok(9.0));
        assert!(blend(&[], &[], 0.4, 0.1).is_err());
        assert!(blend(&[], &[f64::NAN], 0.4, 0.1).is_err());
        assert!(blend(&[], &[1.0], 1.4, 0.1).is_err());
        assert!(blend(&[], &[1.0], 0.4, 0.0).is_err());
    }

    #[test]
    fn the_oracle_is_the_cheapest() {
        let prices = Prices::from_ratio(0.6).unwrap();
        let demand: Vec<f64> = (1..=10).map(f64::from).collect();
        let all: Vec<f64> = (0..=12).map(f64::from).collect();
        let decision = Decision::priced(&all, &demand, &prices).unwrap();
        let least = decision.costs.iter().copied().fold(f64::INFINITY, f64::min);
        assert!((decision.oracle - least).abs() < 1e-9);
        assert!((least - 45.0).abs() < 1e-9);
    }
}
