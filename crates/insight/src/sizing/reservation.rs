//! One commitment beside an elastic price.
//!
//! R GPUs over T hours cost `C(R) = p_r R T + p_o sum (y - R)+ - l sum (R - y)+`. The cost is
//! convex, and least where `P(y > R) = (p_r - l) / (p_o - l)`: the quantile of demand at one minus
//! the break-even utilisation (the newsvendor's rule).

use serde::Serialize;

use super::{Marginals, Prices, Rule, Sample, SizingError, error};

/// Terms of a commitment: hours, node size, limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Term {
    /// Hours of the commitment, 1 or more.
    pub hours: u32,
    /// GPUs are committed in multiples of this; 1 or more.
    pub node_gpus: u32,
    /// Most GPUs available, if limited.
    pub limit_gpus: Option<u32>,
}

impl Term {
    fn check(self) -> Result<Self, SizingError> {
        error::parameter("the term in hours", f64::from(self.hours), "1 or more", |hours| hours >= 1.0)?;
        error::parameter("GPUs of a node", f64::from(self.node_gpus), "1 or more", |gpus| gpus >= 1.0)?;
        Ok(self)
    }
}

/// The 10 % and 90 % quantiles over scenario paths.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    /// Exceeded by 90 % of the paths.
    pub low: f64,
    /// Exceeded by 10 % of the paths.
    pub high: f64,
}

impl Spread {
    /// Spread of values; `None` without any.
    pub(super) fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| {
            values.get(((values.len().checked_sub(1)?) as f64 * share).round() as usize).copied()
        };
        Some(Self { low: at(0.1)?, high: at(0.9)? })
    }
}

/// A commitment and its basis. Costs are in the currency of the prices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Reservation {
    /// GPUs to commit to: whole nodes.
    pub gpus: u32,
    /// The same in nodes.
    pub nodes: u32,
    /// Cheapest commitment if GPUs were divisible.
    pub exact_gpus: f64,
    /// A committed GPU pays if it is busy at least this share of the hours.
    pub break_even_utilisation: f64,
    /// Share of the hours in which the last committed node is needed, at least in part; `None` if
    /// none is committed.
    pub marginal_utilisation: Option<f64>,
    /// Demand served by the commitment over the commitment; `None` if nothing is committed.
    pub utilisation: Option<f64>,
    /// Expected cost of the whole term.
    pub cost: f64,
    /// Expected cost of the term with nothing committed.
    pub cost_elastic: f64,
    /// Spread over paths of the cheapest commitment and of this one's cost; `None` without paths.
    pub spread: Option<ReservationSpread>,
}

/// Uncertainty of a long commitment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReservationSpread {
    /// Cheapest commitment, over paths, GPUs.
    pub gpus: Spread,
    /// Cost of the advised commitment, over paths.
    pub cost: Spread,
}

/// Commitment from past demand: the trailing quantile.
///
/// # Errors
/// A term of 0, nodes of 0 GPUs; [`Sample::new`] checks the demand.
pub fn reserve_by_sample(sample: &Sample, prices: &Prices, term: Term) -> Result<Reservation, SizingError> {
    let term = term.check()?;
    hold_by_sample(sample, prices, term, sample.cheapest(prices, term.node_gpus, term.limit_gpus))
}

/// Evaluates a given commitment of `gpus` on past demand.
///
/// # Errors
/// As [`reserve_by_sample`].
pub fn hold_by_sample(
    sample: &Sample,
    prices: &Prices,
    term: Term,
    gpus: u32,
) -> Result<Reservation, SizingError> {
    let term = term.check()?;
    let hours = f64::from(term.hours);
    let size = f64::from(gpus);
    let marginal = (gpus > 0).then(|| sample.share_above(size - f64::from(term.node_gpus)));
    Ok(Reservation {
        gpus,
        nodes: gpus / term.node_gpus,
        exact_gpus: sample.quantile(prices.critical_ratio()),
        break_even_utilisation: prices.break_even(),
        marginal_utilisation: marginal,
        utilisation: (gpus > 0).then(|| (sample.mean() - sample.above(size)) / size),
        cost: sample.cost(prices, size) * hours,
        cost_elastic: sample.cost(prices, 0.0) * hours,
        spread: None,
    })
}

/// Commitment from a quantile forecast of every hour of the term. Use a dense grid: with four
/// levels the measured regret was a tenth higher.
///
/// # Errors
/// As [`Sample::from_forecast`] and [`reserve_by_sample`]; a forecast of another number of hours
/// than the term.
pub fn reserve_by_forecast(
    forecast: Marginals<'_>,
    prices: &Prices,
    term: Term,
) -> Result<Reservation, SizingError> {
    let sample = Sample::from_forecast(forecast)?;
    let hours = forecast.quantiles.len() / forecast.levels.len();
    if hours != term.hours as usize {
        return Err(SizingError::Length {
            what: "the forecast, in hours",
            got: hours,
            expected: term.hours as usize,
        });
    }
    reserve_by_sample(&sample, prices, term)
}

/// Commitment for a long term over equally likely scenario paths ([`super::scenario_paths`]): the
/// least expected cost, with the cheapest commitment path by path as its uncertainty.
///
/// # Errors
/// No paths, or one that is empty or holds no demand; a term of 0.
pub fn reserve_by_paths(paths: &[Vec<f64>], prices: &Prices, term: Term) -> Result<Reservation, SizingError> {
    let all = Sample::new(paths.concat())?;
    let gpus = all.cheapest(prices, term.node_gpus, term.limit_gpus);
    over_paths(&all, paths, prices, term, gpus)
}

/// Evaluates a given commitment of `gpus` over scenario paths, with the cheapest commitment path by
/// path.
///
/// # Errors
/// As [`reserve_by_paths`].
pub fn hold_by_paths(
    paths: &[Vec<f64>],
    prices: &Prices,
    term: Term,
    gpus: u32,
) -> Result<Reservation, SizingError> {
    over_paths(&Sample::new(paths.concat())?, paths, prices, term, gpus)
}

/// `all`: the hours of all `paths`.
fn over_paths(
    all: &Sample,
    paths: &[Vec<f64>],
    prices: &Prices,
    term: Term,
    gpus: u32,
) -> Result<Reservation, SizingError> {
    let mut advice = hold_by_sample(all, prices, term, gpus)?;
    let (mut cheapest, mut costs) = (Vec::new(), Vec::new());
    for path in paths {
        let sample = Sample::new(path.clone())?;
        cheapest.push(f64::from(sample.cheapest(prices, term.node_gpus, term.limit_gpus)));
        costs.push(sample.cost(prices, f64::from(advice.gpus)) * f64::from(term.hours));
    }
    advice.spread =
        Spread::of(cheapest).zip(Spread::of(costs)).map(|(gpus, cost)| ReservationSpread { gpus, cost });
    Ok(advice)
}

/// Cost of a commitment compared with alternatives, each as a share above the cheapest commitment
/// known afterwards.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Comparison {
    /// Cost of the cheapest commitment, known afterwards.
    pub oracle_cost: f64,
    /// That cheapest commitment, GPUs.
    pub oracle_gpus: u32,
    /// Regret of the evaluated commitment.
    pub chosen: Option<f64>,
    /// Regret of the quantile of the last week.
    pub trailing_quantile: Option<f64>,
    /// Regret of the mean of the last four weeks.
    pub mean: Option<f64>,
    /// Regret of the peak of the last four weeks.
    pub peak: Option<f64>,
}

/// Compares `chosen_gpus` with alternatives after the term. A regret is `None` where the cheapest
/// cost was 0.
///
/// # Errors
/// Demand or history that is empty, negative or not finite; nodes of 0 GPUs.
pub fn compare(
    history: &[f64],
    demand: &[f64],
    chosen_gpus: f64,
    prices: &Prices,
    term: Term,
) -> Result<Comparison, SizingError> {
    let term = term.check()?;
    error::demand("history", history)?;
    error::parameter("the commitment in GPUs", chosen_gpus, "0 or more", |gpus| gpus >= 0.0)?;
    let oracle_gpus = Sample::new(demand.to_vec())?.cheapest(prices, term.node_gpus, term.limit_gpus);
    let oracle_cost = prices.total(f64::from(oracle_gpus), demand);
    let regret = |gpus: f64| (oracle_cost > 0.0).then(|| prices.total(gpus, demand) / oracle_cost - 1.0);
    let of_rule = |rule: Rule| regret(rule.reserve(history, demand.len(), prices.critical_ratio()));
    Ok(Comparison {
        oracle_cost,
        oracle_gpus,
        chosen: regret(chosen_gpus),
        trailing_quantile: of_rule(Rule::Quantile { hours: 168 }),
        mean: of_rule(Rule::Mean { hours: 672 }),
        peak: of_rule(Rule::Peak { hours: 672 }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: Term = Term { hours: 10, node_gpus: 1, limit_gpus: None };

    #[test]
    fn the_quantile_of_ten_known_hours() {
        // 1 to 10 GPUs at rho 0.6: unit k pays if k or more are needed in 6 of 10 hours, so 4 do (5
        // to 10 are six hours above 4; unit 5 is busy in just six and gains nothing).
        let hours: Vec<f64> = (1..=10).map(f64::from).collect();
        let prices = Prices::new(0.6, 1.0, 0.0).unwrap();
        let advice = reserve_by_sample(&Sample::new(hours.clone()).unwrap(), &prices, TERM).unwrap();
        assert_eq!(advice.gpus, 4);
        assert_eq!(advice.marginal_utilisation, Some(0.7));
        // 4 x 10 x 0.6 + (1+2+3+4+5+6) above.
        assert!((advice.cost - 45.0).abs() < 1e-9);
        assert!((advice.cost_elastic - 55.0).abs() < 1e-9);
        assert!((advice.utilisation.unwrap() - 34.0 / 40.0).abs() < 1e-12);
        let nodes = Term { node_gpus: 8, ..TERM };
        let advice = reserve_by_sample(&Sample::new(hours).unwrap(), &prices, nodes).unwrap();
        // A node costs 48 and saves the demand up to 8: 36 + 16 = 52.
        assert_eq!((advice.gpus, advice.nodes), (8, 1));
        assert!((advice.cost - 51.0).abs() < 1e-9);
    }

    #[test]
    fn lending_enlarges_and_a_limit_bounds() {
        let hours: Vec<f64> = (1..=10).map(f64::from).collect();
        let sample = Sample::new(hours).unwrap();
        let plain = reserve_by_sample(&sample, &Prices::new(0.6, 1.0, 0.0).unwrap(), TERM).unwrap();
        let lent = reserve_by_sample(&sample, &Prices::new(0.6, 1.0, 0.4).unwrap(), TERM).unwrap();
        assert!(lent.gpus > plain.gpus, "break-even 1/3: 7 GPUs or 6");
        let bound = Term { limit_gpus: Some(3), ..TERM };
        assert_eq!(reserve_by_sample(&sample, &Prices::from_ratio(0.6).unwrap(), bound).unwrap().gpus, 3);
    }

    #[test]
    fn no_term_and_no_demand_are_refused() {
        let sample = Sample::new(vec![1.0]).unwrap();
        let prices = Prices::from_ratio(0.6).unwrap();
        let term = Term { hours: 0, ..TERM };
        assert!(reserve_by_sample(&sample, &prices, term).unwrap_err().to_string().contains("term"));
        assert!(reserve_by_sample(&sample, &prices, Term { node_gpus: 0, ..TERM }).is_err());
        assert!(reserve_by_paths(&[], &prices, TERM).is_err());
        assert!(reserve_by_paths(&[vec![1.0], vec![]], &prices, TERM).is_err());
        let forecast = Marginals { levels: &[0.1, 0.9], quantiles: &[1.0, 2.0] };
        assert!(matches!(reserve_by_forecast(forecast, &prices, TERM), Err(SizingError::Length { .. })));
    }

    #[test]
    fn demand_of_zero_reserves_nothing_and_claims_no_regret() {
        let prices = Prices::from_ratio(0.6).unwrap();
        let advice = reserve_by_sample(&Sample::new(vec![0.0; 24]).unwrap(), &prices, TERM).unwrap();
        assert_eq!((advice.gpus, advice.cost, advice.utilisation), (0, 0.0, None));
        let compared = compare(&[0.0; 24], &[0.0; 24], 0.0, &prices, TERM).unwrap();
        assert_eq!(compared.chosen, None);
    }

    #[test]
    fn paths_give_the_uncertainty() {
        let paths: Vec<Vec<f64>> = (1..=11).map(|level| vec![f64::from(level); 10]).collect();
        let advice = reserve_by_paths(&paths, &Prices::from_ratio(0.5).unwrap(), TERM).unwrap();
        let spread = advice.spread.unwrap();
        assert_eq!((spread.gpus.low, spread.gpus.high), (2.0, 10.0));
        assert!(spread.cost.low < advice.cost && advice.cost < spread.cost.high);
        // A given commitment, 2: 0.5 x 2 and the mean of 0, 0, 1 to 9 an hour.
        let held = hold_by_paths(&paths, &Prices::from_ratio(0.5).unwrap(), TERM, 2).unwrap();
        assert!((held.cost - 10.0 * (1.0 + 45.0 / 11.0)).abs() < 1e-9, "{held:?}");
        assert_eq!((held.gpus, held.spread.unwrap().gpus), (2, spread.gpus));
    }
}
