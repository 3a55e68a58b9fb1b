//! Buying mix: which capacity to own, which to reserve, and what to leave to spot and on demand.
//!
//! Order the GPUs of demand: the k-th is needed in a share `u_k` of the hours, which falls with k.
//! An offer costs `fixed` per hour held and `used` per hour of use, so the k-th GPU costs `fixed +
//! used * u_k`: the screening curve of power systems. The cheapest mix nests offers in order of
//! `used`. With limits on offers, the best boundaries between them are found exactly by dynamic
//! programming.

use serde::Serialize;

use super::{SizingError, Spread, error::parameter};

/// Hours in a year.
const YEAR_HOURS: f64 = 8766.0;
/// Most steps that the load is cut into; a larger demand has larger steps.
const STEPS: usize = 4096;

/// A way to buy a GPU, as two prices per GPU-hour.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Offer {
    /// Name for reports.
    pub name: String,
    /// Paid for every hour, used or not.
    pub fixed: f64,
    /// Paid in addition for every hour of use.
    pub used: f64,
    /// Most GPUs of it, if limited.
    pub limit_gpus: Option<u32>,
    /// Length of the commitment in hours; 0 for none. For reports; must not exceed the paths.
    pub term_hours: u32,
}

/// Cost of an owned GPU.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct OwnedCost {
    /// Price of a GPU with its share of node, network and storage.
    pub capital: f64,
    /// Value at the end of its life.
    pub residual: f64,
    /// Years of depreciation, more than 0.
    pub years: f64,
    /// Yearly cost of capital, e.g. 0.08.
    pub interest: f64,
    /// Space, support, spares, insurance: per GPU and year.
    pub yearly: f64,
    /// Staff: per GPU and year.
    pub people_yearly: f64,
    /// Power when idle, kW, cooling included.
    pub idle_kw: f64,
    /// Power when busy, kW, cooling included.
    pub busy_kw: f64,
    /// Price of a kWh.
    pub kwh: f64,
}

/// Terms of spot capacity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SpotTerms {
    /// Price of an hour.
    pub price: f64,
    /// Interruptions per GPU-hour held.
    pub interruptions_per_hour: f64,
    /// GPU-hours lost in each: work since the last checkpoint, restart, waiting.
    pub lost_hours: f64,
    /// Share of the demand above the commitments that spot can serve, because it tolerates
    /// interruption and finds capacity.
    pub share: f64,
}

/// GPUs and cost of one offer in the mix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MixShare {
    /// Its name.
    pub name: String,
    /// GPUs to commit to; of an offer paid by use alone, the most used.
    pub gpus: u32,
    /// The cheapest number path by path, with hindsight.
    pub gpus_by_path: Spread,
    /// Expected cost per hour.
    pub cost_per_hour: f64,
    /// GPU-hours served per hour.
    pub served: f64,
}

/// The mix of least expected cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Mix {
    /// Offers in order of use: the first serves what is always needed.
    pub shares: Vec<MixShare>,
    /// Expected cost per hour.
    pub cost_per_hour: f64,
    /// Cost of this mix per hour, over paths.
    pub cost_by_path: Spread,
    /// GPUs per step of the load; the mix is exact in multiples of it.
    pub step_gpus: u32,
}

impl OwnedCost {
    /// Owned GPUs as an offer: capital as an annuity at `interest` over `years`, less that of the
    /// residual. Idle power is always paid, the rest with use.
    ///
    /// # Errors
    /// A cost that is negative or not finite, a term of 0 years, a residual above the capital, more
    /// power idle than busy.
    pub fn offer(&self, limit_gpus: Option<u32>) -> Result<Offer, SizingError> {
        let plain = [
            ("capital of a GPU", self.capital),
            ("yearly cost of a GPU", self.yearly),
            ("people per GPU and year", self.people_yearly),
            ("the price of a kWh", self.kwh),
            ("the cost of capital", self.interest),
            ("idle power", self.idle_kw),
        ];
        for (what, value) in plain {
            parameter(what, value, "0 or more", |value| value >= 0.0)?;
        }
        parameter("years of ownership", self.years, "above 0 and at most 100", |years| {
            years > 0.0 && years <= 100.0
        })?;
        parameter("the residual", self.residual, "between 0 and the capital", |it| {
            it >= 0.0 && it <= self.capital
        })?;
        parameter("busy power", self.busy_kw, "at least idle power", |kw| kw >= self.idle_kw)?;
        let yearly = if self.interest == 0.0 {
            (self.capital - self.residual) / self.years
        } else {
            let discount = (1.0 + self.interest).powf(-self.years);
            (self.capital - self.residual * discount) * self.interest / (1.0 - discount)
        };
        Ok(Offer {
            name: "owned".to_owned(),
            fixed: (yearly + self.yearly + self.people_yearly) / YEAR_HOURS + self.idle_kw * self.kwh,
            used: (self.busy_kw - self.idle_kw) * self.kwh,
            limit_gpus,
            term_hours: (self.years * YEAR_HOURS).round() as u32,
        })
    }
}

impl SpotTerms {
    /// Price of an hour of kept work: `price / (1 - interruptions * lost hours)`; infinite when all
    /// work is lost.
    ///
    /// # Errors
    /// A term that is negative or not finite, a share outside 0..=1.
    pub fn useful_price(&self) -> Result<f64, SizingError> {
        for (what, value) in [
            ("the spot price", self.price),
            ("interruptions per hour", self.interruptions_per_hour),
            ("hours lost in an interruption", self.lost_hours),
        ] {
            parameter(what, value, "0 or more", |value| value >= 0.0)?;
        }
        parameter("spot's share", self.share, "between 0 and 1", |share| (0.0..=1.0).contains(&share))?;
        let kept = 1.0 - self.interruptions_per_hour * self.lost_hours;
        Ok(if kept > 0.0 { self.price / kept } else { f64::INFINITY })
    }

    /// Demand above the commitments as an offer: spot for its share where its useful price is below
    /// `on_demand`, the rest on demand.
    ///
    /// # Errors
    /// As [`Self::useful_price`]; a price on demand that is negative or not finite.
    pub fn overflow(&self, on_demand: f64) -> Result<Offer, SizingError> {
        parameter("the price on demand", on_demand, "0 or more", |price| price >= 0.0)?;
        let spot = self.useful_price()?;
        let share = if spot < on_demand { self.share } else { 0.0 };
        let spot = if share > 0.0 { spot * share } else { 0.0 };
        let used = spot + on_demand * (1.0 - share);
        let name = if share > 0.0 { "spot and on demand" } else { "on demand" };
        Ok(Offer { name: name.to_owned(), fixed: 0.0, used, limit_gpus: None, term_hours: 0 })
    }
}

/// The mix of `offers` of least expected cost over equally likely `paths` of hourly demand, in
/// multiples of `node_gpus`. Levels hold for the whole path: a commitment that ends earlier is
/// renewed at the same size.
///
/// # Errors
/// No offers or paths; demand, prices or nodes out of range; no offer without a limit; a commitment
/// longer than the shortest path.
pub fn buying_mix(paths: &[Vec<f64>], offers: &[Offer], node_gpus: u32) -> Result<Mix, SizingError> {
    let offers = check(paths, offers, node_gpus)?;
    let peak = paths.iter().flatten().copied().fold(0.0, f64::max);
    let node = node_gpus as usize;
    let step = ((peak / STEPS as f64 / node as f64).ceil().max(1.0) as usize) * node;
    let steps = (peak / step as f64).ceil() as usize;
    let loads: Vec<Vec<f64>> = paths.iter().map(|path| load(path, step, steps)).collect();
    let mean: Vec<f64> =
        (0..=steps).map(|at| loads.iter().map(|load| load[at]).sum::<f64>() / loads.len() as f64).collect();
    let bounds = nest(&mean, &offers, step);
    let cost = |load: &[f64], bounds: &[usize]| -> f64 {
        offers
            .iter()
            .enumerate()
            .map(|(at, offer)| slice_cost(offer, load, bounds[at], bounds[at + 1], step))
            .sum()
    };
    let by_path: Vec<Vec<usize>> = loads.iter().map(|load| nest(load, &offers, step)).collect();
    let spread = |values: Vec<f64>| Spread::of(values).ok_or(SizingError::Empty { what: "paths" });
    let mut shares = Vec::with_capacity(offers.len());
    for (at, offer) in offers.iter().enumerate() {
        let gpus = |bounds: &[usize]| (bounds[at + 1] - bounds[at]) * step;
        shares.push(MixShare {
            name: offer.name.clone(),
            gpus: gpus(&bounds) as u32,
            gpus_by_path: spread(by_path.iter().map(|bounds| gpus(bounds) as f64).collect())?,
            cost_per_hour: slice_cost(offer, &mean, bounds[at], bounds[at + 1], step),
            served: (mean[bounds[at + 1]] - mean[bounds[at]]) * step as f64,
        });
    }
    Ok(Mix {
        shares,
        cost_per_hour: cost(&mean, &bounds),
        cost_by_path: spread(loads.iter().map(|load| cost(load, &bounds)).collect())?,
        step_gpus: step as u32,
    })
}

/// Checks the input, and sorts offers by `used`, cheapest first.
fn check(paths: &[Vec<f64>], offers: &[Offer], node_gpus: u32) -> Result<Vec<Offer>, SizingError> {
    parameter("GPUs of a node", f64::from(node_gpus), "1 or more", |gpus| gpus >= 1.0)?;
    let Some(shortest) = paths.iter().map(Vec::len).min() else {
        return Err(SizingError::Empty { what: "the list of paths" });
    };
    for path in paths {
        super::error::demand("a path", path)?;
        let peak = path.iter().copied().fold(0.0, f64::max);
        parameter("the peak of a path", peak, "at most 100 million GPUs", |gpus| gpus <= 1e8)?;
    }
    for offer in offers {
        parameter("an offer's fixed price", offer.fixed, "0 or more", |price| price >= 0.0)?;
        parameter("an offer's price of use", offer.used, "0 or more", |price| price >= 0.0)?;
        let range = "at most the hours of the shortest path: draw longer paths";
        parameter("an offer's term in hours", f64::from(offer.term_hours), range, |term| {
            term <= shortest as f64
        })?;
    }
    if offers.iter().all(|offer| offer.limit_gpus.is_some()) {
        return Err(SizingError::Empty { what: "the list of offers without a limit" });
    }
    let mut ordered = offers.to_vec();
    ordered.sort_by(|one, other| one.used.total_cmp(&other.used).then(other.fixed.total_cmp(&one.fixed)));
    Ok(ordered)
}

/// `load[k]`: sum over the first k steps of the share of hours in which each is needed; partly
/// needed steps count in part.
fn load(path: &[f64], step: usize, steps: usize) -> Vec<f64> {
    let mut sorted = path.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let mut load = Vec::with_capacity(steps + 1);
    let (mut below, mut sum_below) = (0, 0.0);
    // Mean of min(demand, k steps), in steps: the demand that k steps serve.
    for k in 0..=steps {
        let gpus = (k * step) as f64;
        while below < sorted.len() && sorted[below] <= gpus {
            sum_below += sorted[below];
            below += 1;
        }
        let served = sum_below + gpus * (sorted.len() - below) as f64;
        load.push(served / sorted.len() as f64 / step as f64);
    }
    load
}

fn slice_cost(offer: &Offer, load: &[f64], from: usize, to: usize, step: usize) -> f64 {
    (offer.fixed * (to - from) as f64 + offer.used * (load[to] - load[from])) * step as f64
}

/// Boundaries between the offers, in steps, from 0 to the last: `best[i][b]` is the least cost of
/// serving the first b steps with the first i offers.
fn nest(load: &[f64], offers: &[Offer], step: usize) -> Vec<usize> {
    let steps = load.len() - 1;
    let mut best = vec![f64::INFINITY; steps + 1];
    best[0] = 0.0;
    let mut from = Vec::with_capacity(offers.len());
    for offer in offers {
        let most = offer.limit_gpus.map_or(steps, |gpus| gpus as usize / step);
        let (next, chosen) = extend(&best, load, offer, most, step);
        best = next;
        from.push(chosen);
    }
    let mut bounds = vec![steps; offers.len() + 1];
    for at in (0..offers.len()).rev() {
        bounds[at] = from[at][bounds[at + 1]];
    }
    bounds
}

/// Adds one offer: for each boundary the cheapest start, at most `most` steps before it, by a
/// sliding minimum.
fn extend(best: &[f64], load: &[f64], offer: &Offer, most: usize, step: usize) -> (Vec<f64>, Vec<usize>) {
    let up_to = |at: usize| slice_cost(offer, load, 0, at, step);
    let key = |at: usize| best[at] - up_to(at);
    let mut window = std::collections::VecDeque::new();
    let (mut next, mut chosen) = (Vec::with_capacity(best.len()), Vec::with_capacity(best.len()));
    for to in 0..best.len() {
        while window.back().is_some_and(|&back| key(back) > key(to)) {
            window.pop_back();
        }
        window.push_back(to);
        while window.front().is_some_and(|&front| front + most < to) {
            window.pop_front();
        }
        let begin = window.front().copied().unwrap_or(to);
        next.push(key(begin) + up_to(to));
        chosen.push(begin);
    }
    (next, chosen)
}

#[cfg(test)]
mod tests;
