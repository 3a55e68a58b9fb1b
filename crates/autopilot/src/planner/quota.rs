//! Quotas and commitments (docs/control.md, 4.6), sized as a newsvendor problem.
//!
//! Unit k is worth reserving if P(D ≥ k) ≥ c_r / c_o, so the size is the quantile 1 - c_r / c_o of
//! demand. A team's quota follows the policy's quantile of its demand, one step at a time.
//! Purchases are only ever proposed.

use std::collections::BTreeMap;

use tidegate_insight::sizing::Prices;
use tidegate_units::Millis;

use super::builder::{ActionSpec, PlanBuilder};
use super::plan::Alternative;
use crate::action::{Adjustment, Change, Kind, Precondition};
use crate::forecast::Series;
use crate::policy::Footprint;
use crate::state::{Object, OwnerName, Pool, PoolName, Share};

/// Level at which demand is checked to bound how often a smaller quota would be missed.
const EXTREME: f64 = 0.99;

pub(super) fn plan(builder: &mut PlanBuilder<'_>) {
    let state = builder.state;
    let mut quotas: BTreeMap<&PoolName, u32> = BTreeMap::new();
    for owner in state.owners.values() {
        for (pool, share) in &owner.shares {
            *quotas.entry(pool).or_default() += share.quota_gpus;
        }
    }
    let part = builder.owners;
    for (owner, entry) in state.owners.iter().filter(|(owner, _)| part.includes(owner)) {
        for (pool, share) in entry.shares.iter().filter(|(_, share)| share.quota_gpus > 0) {
            builder.count_considered(Kind::AdjustReservation, 1);
            let object = Object::Owner(owner.clone());
            let footprint =
                Footprint { owners: vec![owner.clone()], pools: vec![pool.clone()], ..Footprint::default() };
            if builder.stopped(Kind::AdjustReservation, &footprint, object.clone()) {
                continue;
            }
            let sold = quotas[pool];
            if let Err(why) = quota(builder, owner, pool, share, sold) {
                builder.noop(
                    Kind::AdjustReservation,
                    Some(object),
                    format!("{owner} in {pool}: {why}"),
                    None,
                    Vec::new(),
                );
            }
        }
    }
    let pools: Vec<&PoolName> = state.pools.keys().filter(|_| part.includes_unowned()).collect();
    for pool in pools {
        if let Err(why) = commitment(builder, pool) {
            let object = Object::Pool(pool.clone());
            builder.noop(Kind::AdjustReservation, Some(object), why, None, Vec::new());
        }
    }
}

fn quota(
    builder: &mut PlanBuilder<'_>,
    owner: &OwnerName,
    pool: &PoolName,
    share: &Share,
    sold: u32,
) -> Result<(), String> {
    let rules = builder.policy.reservation.clone();
    let horizon_ms = Millis::from_secs(rules.horizon_s).0;
    let of = Series { owner, pool };
    let demand =
        builder.typical(of, rules.quantile, horizon_ms).ok_or("demand over the horizon is unknown")?;
    let target = demand.ceil().clamp(0.0, 4e9) as u32;
    let (from, step) = (share.quota_gpus, rules.step_gpus);
    let lent = builder.state.lent_gpus(owner, pool);
    let needed = share.demand_gpus.unwrap_or(from);
    let service = builder.policy.service_floor(owner, pool, f64::from(needed));
    let least = share.floor_gpus.max(lent).max(needed).max(service);
    let capacity = crate::guard::pool_gpus(builder.state, pool);
    let to = if target + step <= from && from.saturating_sub(step) >= least {
        from - step
    } else if target >= from + step && sold + step <= capacity {
        from + step
    } else {
        return Err(format!(
            "demand of {target} GPUs at quantile {} against a quota of {from}; quotas take {} of the pool's {capacity} GPUs",
            rules.quantile, sold
        ));
    };
    if let Some(why) = builder.promises.against_taking(owner).filter(|_| to < from) {
        return Err(why);
    }
    let hours = f64::from(step) * horizon_ms as f64;
    // Lowering: the step stands idle except when it is missed, bounded by the extreme quantile.
    // Raising: it is missed at least as often as the level leaves.
    let (benefit, cost) = if to < from {
        let extreme = builder.typical(of, EXTREME, horizon_ms).is_some_and(|demand| demand <= f64::from(to));
        let missed = 1.0 - if extreme { EXTREME } else { rules.quantile };
        (hours * (1.0 - missed), hours * missed * builder.missing_ratio())
    } else {
        (hours * (1.0 - rules.quantile) * builder.missing_ratio(), 0.0)
    };
    let predicted = builder.predict(benefit, cost, None, rules.quantile, horizon_ms);
    let change = |from_gpus, to_gpus| {
        Change::AdjustReservation(Adjustment::Quota {
            owner: owner.clone(),
            pool: pool.clone(),
            from_gpus,
            to_gpus,
        })
    };
    if !builder.worth_it(&predicted) {
        return Err(format!("a quota of {to} instead of {from} would not be worth the risk"));
    }
    builder.decide(ActionSpec {
        change: change(from, to),
        inverse: Some(change(to, from)),
        preconditions: vec![Precondition::QuotaIs { owner: owner.clone(), pool: pool.clone(), gpus: from }],
        effect_ends_us: None,
        after: Vec::new(),
        predicted,
        reason: format!("demand at quantile {} is {target} GPUs; the quota is {from}", rules.quantile),
        alternatives: vec![Alternative {
            what: "noop".to_owned(),
            net_gpu_ms: 0,
            why_not: "the quota differs from demand by at least one step".to_owned(),
        }],
    });
    Ok(())
}

/// Proposes a commitment for a pool: the sum of its owners' demand quantiles, assuming they rise
/// and fall together.
fn commitment(builder: &mut PlanBuilder<'_>, pool: &PoolName) -> Result<(), String> {
    let rules = builder.policy.reservation.clone();
    let Some((ratio, on_demand)) = prices_of(&builder.state.pools[pool], rules.price_ratio) else {
        return Err(format!("pool {pool} has no known price, so no commitment can be proposed"));
    };
    let prices = Prices::from_ratio(ratio).map_err(|error| error.to_string())?;
    let (level, horizon_ms) = (prices.critical_ratio(), Millis::from_secs(rules.horizon_s).0);
    let owners: Vec<&OwnerName> = builder
        .state
        .owners
        .iter()
        .filter(|(_, owner)| owner.shares.contains_key(pool))
        .map(|(name, _)| name)
        .collect();
    let mut demand = 0.0;
    for owner in &owners {
        demand += builder
            .typical(Series { owner, pool }, level, horizon_ms)
            .ok_or_else(|| format!("demand of {owner} over the horizon is unknown"))?;
    }
    let from = crate::guard::pool_gpus(builder.state, pool);
    let to = demand.ceil().clamp(0.0, 4e9) as u32;
    if owners.is_empty() || to.abs_diff(from) < rules.step_gpus {
        return Err(format!("{to} GPUs would be bought at a price ratio of {ratio:.2}; the pool has {from}"));
    }
    let term_hours = f64::from(rules.term_days) * 24.0;
    let idle = f64::from(from.abs_diff(to)) * term_hours * 3.6e6;
    // Saved per GPU given up: its unused hours. Per GPU bought: hours now bought on demand.
    let saved = if to < from { idle * ratio } else { idle * (1.0 - ratio) };
    let mut predicted = builder.predict(saved, 0.0, None, 0.7, rules.term_days as i64 * 86_400_000);
    predicted.net_micros = (saved / 3.6e6 * on_demand as f64).round().min(9e18) as i64;
    let reason = format!(
        "{pool}: demand at the critical ratio {level:.2} is {to} GPUs and the pool has {from}; a GPU pays off if it is used in \
         {:.0} % of the hours of {} days",
        prices.break_even() * 100.0,
        rules.term_days
    );
    let proposal = |from_gpus, to_gpus| {
        Change::AdjustReservation(Adjustment::Commitment {
            pool: pool.clone(),
            from_gpus,
            to_gpus,
            term_days: rules.term_days,
        })
    };
    builder.decide(ActionSpec {
        change: proposal(from, to),
        inverse: None,
        preconditions: Vec::new(),
        effect_ends_us: None,
        after: Vec::new(),
        predicted,
        reason,
        alternatives: Vec::new(),
    });
    Ok(())
}

/// Price of a committed GPU relative to one by the hour, and the latter, millionths per hour.
///
/// Where the price book has GPUs by the hour that cost more than the pool's, the ratio is theirs.
/// Otherwise the pool's price is taken as one by the hour, and the policy gives the ratio. `None`:
/// the pool has no price.
fn prices_of(pool: &Pool, usual_ratio: f64) -> Option<(f64, u64)> {
    let price = pool.price_micros_per_gpu_hour?;
    Some(match pool.on_demand_micros_per_gpu_hour {
        Some(on_demand) if price < on_demand => (price as f64 / on_demand as f64, on_demand),
        _ => (usual_ratio, price),
    })
}
