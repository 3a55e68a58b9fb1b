//! Advice for one series and term: rules for a week or a month, scenario paths for a year.

use tidegate_events::v1;
use tidegate_insight::sizing::{
    Mix, Offer, PathPlan, Prices, Reservation, Sample, SizingError, SpotTerms, Term, buying_mix,
    hold_by_paths, hold_by_sample, reserve_by_paths, scenario_paths,
};

use super::backtest::{Backtest, rule_name};
use super::price_book::PricesInForce;
use crate::publication::ppm;
use crate::time::{WEEK_HOURS, YEAR_HOURS};

/// Paths drawn for a week or a month, for a year, and for longer ownership.
const SHORT_PATHS: usize = 200;
const YEAR_PATHS: usize = 40;
const LONG_PATHS: usize = 24;
/// Weeks that short paths are drawn from; demand of half a year ago says little about next week.
const SHORT_PATH_WEEKS: usize = 26;
/// Longest ownership that is simulated.
const MAX_YEARS: u32 = 5;
/// Weeks of history that `scenario_paths` needs.
const MIN_PATH_WEEKS: usize = 2;
/// Demand above this is an error in the events.
const MAX_GPUS: f64 = 1e8;

/// What advice is based on.
#[derive(Debug, Clone, Copy)]
pub struct Basis<'a> {
    /// All known hours, mean GPUs.
    pub hours: &'a [f64],
    pub prices: &'a Prices,
    /// GPUs per node; 1 if unknown.
    pub node_gpus: u32,
    pub seed: u64,
}

/// Fills in what the hours show regardless of prices. Returns a reason if they allow no advice.
pub fn describe(advice: &mut v1::SizingAdvice, hours: &[f64]) -> Option<&'static str> {
    let seen = &hours[hours.len().saturating_sub(advice.term_hours as usize)..];
    let peak = seen.iter().copied().fold(0.0, f64::max);
    advice.known_hours = hours.len() as u32;
    advice.hours = seen.len() as u32;
    advice.mean_gpus_milli = milli(seen.iter().sum::<f64>() / seen.len().max(1) as f64);
    advice.peak_gpus_milli = milli(peak);
    let is_absurd = hours.iter().any(|gpus| *gpus > MAX_GPUS);
    is_absurd.then_some("DEMAND_TOO_LARGE")
}

/// A week or a month, in whole nodes: the blend of the rules, or last week's quantile while no past
/// decision can be scored.
pub fn by_rules(
    advice: &mut v1::SizingAdvice,
    basis: Basis<'_>,
    backtest: &mut Backtest,
    at_us: i64,
) -> Result<(), SizingError> {
    let Basis { hours, prices, node_gpus, seed } = basis;
    let choice = backtest.choose(hours, at_us, prices)?;
    let seen = Sample::new(hours[hours.len() - advice.hours as usize..].to_vec())?;
    let gpus = whole_nodes(&seen, prices, node_gpus, choice.blend_gpus.unwrap_or(choice.rule_gpus));
    let term = Term { hours: advice.term_hours, node_gpus, limit_gpus: None };
    advice.method = Some(if choice.blend_gpus.is_some() { "BLEND" } else { "LAST_WEEK" }.into());
    advice.rule = Some(rule_name(choice.rule));
    advice.rule_gpus_milli = Some(milli(choice.rule_gpus));
    advice.blend_gpus_milli = choice.blend_gpus.map(milli);
    advice.lessons = choice.decisions as u32;
    advice.lessons_best_micros = (choice.decisions > 0).then(|| micros(choice.best_cost)).flatten();
    advice.regret_rule = choice.regrets.iter().map(|(rule, _)| rule_name(*rule)).collect();
    advice.regret_ppm = choice.regrets.iter().map(|(_, regret)| (regret * 1e6).round() as i64).collect();
    set_backtest(advice, &seen, prices, node_gpus, gpus)?;
    if hours.len() < MIN_PATH_WEEKS * WEEK_HOURS {
        set_expected(advice, &hold_by_sample(&seen, prices, term, gpus)?);
        return Ok(());
    }
    let recent = &hours[hours.len().saturating_sub(SHORT_PATH_WEEKS * WEEK_HOURS)..];
    let plan = PathPlan { hours: term.hours as usize, paths: SHORT_PATHS, growth: None, seed };
    let paths = scenario_paths(recent, plan)?;
    advice.paths = SHORT_PATHS as u32;
    set_expected(advice, &hold_by_paths(&paths, prices, term, gpus)?);
    Ok(())
}

/// A year: the commitment of least expected cost over scenario paths, and the mix of all offers.
/// Returns a reason where history is too short.
pub fn by_paths(
    advice: &mut v1::SizingAdvice,
    basis: Basis<'_>,
    offered: &PricesInForce,
) -> Result<Option<&'static str>, SizingError> {
    let Basis { hours, prices, node_gpus, seed } = basis;
    if hours.len() < MIN_PATH_WEEKS * WEEK_HOURS {
        return Ok(Some("TOO_LITTLE_HISTORY"));
    }
    let seen = Sample::new(hours[hours.len() - advice.hours as usize..].to_vec())?;
    let term = Term { hours: advice.term_hours, node_gpus, limit_gpus: None };
    let plan = PathPlan { hours: YEAR_HOURS, paths: YEAR_PATHS, growth: None, seed };
    let paths = scenario_paths(hours, plan)?;
    let reservation = reserve_by_paths(&paths, prices, term)?;
    advice.method = Some("PATHS".into());
    advice.paths = YEAR_PATHS as u32;
    set_backtest(advice, &seen, prices, node_gpus, reservation.gpus)?;
    set_expected(advice, &reservation);
    let owned = offered.owned.as_ref().and_then(|entry| entry.months);
    // A month has 730.5 hours.
    let owned_hours = owned.map_or(0, |months| (u64::from(months) * 1_461).div_ceil(2));
    let owned_hours = owned_hours.min(u64::from(MAX_YEARS) * YEAR_HOURS as u64) as u32;
    let paths = match owned_hours as usize > YEAR_HOURS {
        true => scenario_paths(hours, PathPlan { hours: owned_hours as usize, paths: LONG_PATHS, ..plan })?,
        false => paths,
    };
    let (offers, spot_share) = offers(offered, prices, owned_hours)?;
    let mix = buying_mix(&paths, &offers, node_gpus)?;
    advice.mix_hours = paths.first().map(|path| path.len() as u32);
    set_mix(advice, &mix, spot_share);
    Ok(None)
}

/// The offers, and the share of demand above the commitments that spot serves.
fn offers(
    offered: &PricesInForce,
    prices: &Prices,
    owned_hours: u32,
) -> Result<(Vec<Offer>, f64), SizingError> {
    let price = |micros: Option<u64>| micros.map_or(0.0, |micros| micros as f64);
    // The book's price of an hour covers everything (owned: capital, power, staff, space), used or
    // idle. What an idle hour earns from lending is lost when it is used.
    let committed =
        [("owned", &offered.owned, owned_hours), ("reserved", &offered.reserved, YEAR_HOURS as u32)];
    let committed = committed.into_iter().filter_map(|(name, entry, term_hours)| {
        let entry = entry.as_ref()?;
        let used = price(entry.lend_micros).min(price(entry.micros));
        let fixed = price(entry.micros) - used;
        Some(Offer { name: name.to_owned(), fixed, used, limit_gpus: None, term_hours })
    });
    let mut offers: Vec<Offer> = committed.collect();
    let spot = offered.spot.as_ref().and_then(|entry| {
        let [interruptions, lost_ms, share] = entry.spot.map(|value| value.map(|value| value as f64));
        Some(SpotTerms {
            price: price(entry.micros),
            interruptions_per_hour: interruptions? / 1e6,
            lost_hours: lost_ms? / 3.6e6,
            share: share? / 1e6,
        })
    });
    // Spot is left out where its terms are missing, because the value of an interrupted hour is
    // unknown.
    let none = SpotTerms { price: 0.0, interruptions_per_hour: 0.0, lost_hours: 0.0, share: 0.0 };
    let spot = spot.unwrap_or(none);
    let share = if spot.useful_price()? < prices.elastic() { spot.share } else { 0.0 };
    offers.push(spot.overflow(prices.elastic())?);
    Ok((offers, share))
}

fn set_mix(advice: &mut v1::SizingAdvice, mix: &Mix, spot_share: f64) {
    for share in &mix.shares {
        match share.name.as_str() {
            "owned" => advice.mix_owned_gpus = Some(share.gpus.into()),
            "reserved" => advice.mix_reserved_gpus = Some(share.gpus.into()),
            _ => {
                advice.mix_spot_gpus_milli = (spot_share > 0.0).then(|| milli(share.served * spot_share));
                advice.mix_on_demand_gpus_milli = Some(milli(share.served * (1.0 - spot_share)));
            }
        }
    }
    advice.mix_micros_per_hour = micros(mix.cost_per_hour);
    advice.mix_low_micros_per_hour = micros(mix.cost_by_path.low);
    advice.mix_high_micros_per_hour = micros(mix.cost_by_path.high);
}

/// `gpus` as whole nodes: rounded down, or up where that would have cost less.
fn whole_nodes(seen: &Sample, prices: &Prices, node_gpus: u32, gpus: f64) -> u32 {
    let below = (gpus / f64::from(node_gpus)).floor() as u32;
    let cost = |nodes: u32| seen.cost(prices, f64::from(nodes) * f64::from(node_gpus));
    let above = below.saturating_add(1);
    let nodes = if cost(above) < cost(below) { above } else { below };
    nodes.saturating_mul(node_gpus)
}

/// Scores the advice, and the usual alternatives, on the hours seen.
fn set_backtest(
    advice: &mut v1::SizingAdvice,
    seen: &Sample,
    prices: &Prices,
    node_gpus: u32,
    gpus: u32,
) -> Result<(), SizingError> {
    let term = Term { hours: advice.hours, node_gpus, limit_gpus: None };
    let held = |gpus: u32| hold_by_sample(seen, prices, term, gpus);
    let nodes_of = |gpus: f64| ((gpus / f64::from(node_gpus)).ceil() as u32).saturating_mul(node_gpus);
    let advised = held(gpus)?;
    advice.quantile_gpus_milli = Some(milli(advised.exact_gpus));
    advice.break_even_ppm = Some(ppm(advised.break_even_utilisation));
    advice.advised_gpus = Some(gpus.into());
    advice.advised_nodes = Some(advised.nodes.into());
    advice.utilisation_ppm = advised.utilisation.map(ppm);
    advice.marginal_utilisation_ppm = advised.marginal_utilisation.map(ppm);
    advice.cost_advised_micros = micros(advised.cost);
    advice.cost_nothing_micros = micros(advised.cost_elastic);
    advice.cost_mean_micros = micros(held(whole_nodes(seen, prices, node_gpus, seen.mean()))?.cost);
    advice.cost_peak_micros = micros(held(nodes_of(seen.peak()))?.cost);
    advice.cost_best_micros = micros(held(seen.cheapest(prices, node_gpus, None))?.cost);
    Ok(())
}

/// Expected cost of the term.
fn set_expected(advice: &mut v1::SizingAdvice, reservation: &Reservation) {
    advice.expected_micros = micros(reservation.cost);
    advice.expected_nothing_micros = micros(reservation.cost_elastic);
    let spread = reservation.spread;
    advice.expected_low_micros = spread.and_then(|spread| micros(spread.cost.low));
    advice.expected_high_micros = spread.and_then(|spread| micros(spread.cost.high));
    advice.gpus_low = spread.map(|spread| spread.gpus.low as u64);
    advice.gpus_high = spread.map(|spread| spread.gpus.high as u64);
}

/// GPUs as thousandths.
fn milli(gpus: f64) -> u64 {
    (gpus * 1e3).round() as u64
}

/// Millionths of the currency; `None` if they exceed a table's integer.
fn micros(cost: f64) -> Option<u64> {
    (cost.is_finite() && cost < 9e18).then(|| cost.round() as u64)
}
