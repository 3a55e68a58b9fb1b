//! Scheduler reservations ahead of an owner's peak (docs/control.md, 4.5 and 4.6).
//!
//! r = Q_q[max over h ≤ H of D(t+h)] - D(t) in whole nodes, at the quantile that lending keeps
//! back. The reservation begins one reclaim time before demand may first rise, so that the owner
//! gets the GPUs that are returned by then. It lasts for H, because the rise may come that late,
//! and then ends by itself.
//!
//! Until it begins it follows the forecast. Afterwards it only grows: the owner's jobs may be on
//! it, and what remains of it ends soon.

use tidegate_units::{Micros, Millis};

use super::builder::{ActionSpec, PlanBuilder};
use super::lend::level_for;
use crate::action::{Adjustment, Change, Kind, Precondition};
use crate::forecast::Series;
use crate::policy::Footprint;
use crate::state::{Object, Reservation, Share, Writer};

/// Most times ahead at which demand is sampled.
const SAMPLES: i64 = 24;

pub(super) fn plan(builder: &mut PlanBuilder<'_>) {
    let state = builder.state;
    let part = builder.owners;
    for (owner, most) in
        builder.policy.reservation.ahead.clone().into_iter().filter(|(owner, _)| part.includes(owner))
    {
        let shares = state.owners.get(&owner).into_iter().flat_map(|owner| &owner.shares);
        for (pool, share) in shares.filter(|(_, share)| share.quota_gpus > 0) {
            builder.count_considered(Kind::AdjustReservation, 1);
            let name = format!("ahead-{owner}-{pool}");
            let object = Object::Reservation(name.clone());
            let footprint =
                Footprint { owners: vec![owner.clone()], pools: vec![pool.clone()], ..Footprint::default() };
            if builder.stopped(Kind::AdjustReservation, &footprint, object.clone()) {
                continue;
            }
            if let Err(why) = reserve(builder, Series { owner: &owner, pool }, share, &name, most) {
                let reason = format!("{owner} in {pool}: {why}");
                builder.noop(Kind::AdjustReservation, Some(object), reason, None, Vec::new());
            }
        }
    }
}

/// A predicted rise of demand.
struct Rise {
    level: f64,
    /// GPUs beyond current demand, and how many of them are needed half of the time.
    gpus: u32,
    half: u32,
    /// Earliest time it may begin, and the end of a horizon from then.
    from_us: i64,
    until_us: i64,
}

impl Rise {
    /// Expected number of `gpus` additional GPUs that are needed: up to the median with probability
    /// one half at least, from there to the bound with a probability that falls linearly to the
    /// tail, beyond it with half of the tail.
    fn needed(&self, gpus: u32) -> f64 {
        let tail = 1.0 - self.level;
        let (often, span) = (gpus.min(self.half), f64::from(self.gpus - self.half));
        let between = f64::from(gpus.min(self.gpus).saturating_sub(self.half));
        let falls = if span > 0.0 { (0.5 - tail) * between / span } else { 0.0 };
        0.5 * f64::from(often)
            + (0.5 - falls / 2.0) * between
            + tail / 2.0 * f64::from(gpus.saturating_sub(self.gpus))
    }
}

fn rise(builder: &mut PlanBuilder<'_>, of: Series<'_>, share: &Share) -> Result<Rise, String> {
    let now = share.demand_gpus.ok_or("its demand is unknown")?;
    let rules = &builder.policy.lend;
    let (least, fresh_us) = (
        rules.least_coverage,
        Micros::from_secs(builder.policy.freshness.most_s.max(2 * rules.reclaim_within_s)).0,
    );
    let ahead_ms = Millis::from_secs(builder.policy.reservation.ahead_s).0;
    let looks = (ahead_ms / Millis::from_secs(rules.reclaim_within_s).0).clamp(1, SAMPLES);
    let step_ms = ahead_ms / looks;
    let as_of = builder.as_of(of).ok_or("there is no forecast of its demand")?;
    if builder.now_us - as_of > fresh_us {
        return Err(format!(
            "the forecast's data ended {} s ago",
            Micros(builder.now_us - as_of).floor_secs()
        ));
    }
    let coverage = builder.coverage(of).ok_or("too few forecasts have been compared with actual demand")?;
    if coverage < least {
        return Err(format!("only {coverage:.3} of the forecast bounds held; the policy requires {least}"));
    }
    let level = level_for(builder, Some(coverage));
    let more = |bound: f64| (bound.ceil().clamp(0.0, 4e9) as u32).min(share.quota_gpus).saturating_sub(now);
    let far = "the forecast does not cover that period";
    let (mut gpus, mut begins) = (0, None);
    for look in 1..=looks {
        gpus = more(builder.highest(of, level, look * step_ms).ok_or(far)?);
        if gpus > 0 && begins.is_none() {
            begins = Some(look - 1);
        }
    }
    let half = more(builder.highest(of, 0.5, ahead_ms).ok_or(far)?);
    let from_us = builder.now_us + begins.unwrap_or(0) * Millis(step_ms).to_micros().0;
    Ok(Rise {
        level,
        gpus,
        half: half.min(gpus),
        from_us,
        until_us: from_us + Millis(ahead_ms).to_micros().0,
    })
}

fn reserve(
    builder: &mut PlanBuilder<'_>,
    of: Series<'_>,
    share: &Share,
    name: &str,
    most: u32,
) -> Result<(), String> {
    let there = builder.state.reservations.get(name);
    if there.is_some_and(|there| there.writer == Writer::Other) {
        return Err(format!("someone else changed reservation {name} last"));
    }
    let each = node_gpus(builder, of.pool)?;
    let rise = rise(builder, of, share)?;
    let wanted = (rise.gpus.div_ceil(each) * each).min(most / each * each);
    let from = there.map_or(0, |there| there.gpus);
    let begun = there.is_some_and(|there| there.start_us <= builder.now_us);
    let reason = format!(
        "demand may rise by {} GPUs at quantile {:.3} and by {} at the median, starting in {} s",
        rise.gpus,
        rise.level,
        rise.half,
        Micros(rise.from_us - builder.now_us).floor_secs()
    );
    if wanted == from {
        return Err(format!("{reason}; {from} are already reserved"));
    }
    if wanted < from && (begun || from - wanted <= each) {
        return Err(format!("{reason}; the reservation of {from} ends by itself"));
    }
    if let Some(why) = builder.promises.against_growth(of.owner, of.pool).filter(|_| wanted > from) {
        return Err(format!("{reason}; {why}"));
    }
    let (start_us, end_us) = times(there, &rise, wanted > from);
    let over_ms = Micros(end_us - start_us.max(builder.now_us)).floor_millis().0;
    let (needed, gpus) =
        ((rise.needed(wanted.max(from)) - rise.needed(wanted.min(from))), f64::from(wanted.abs_diff(from)));
    let (missing, idle) =
        (needed * builder.missing_ratio() * over_ms as f64, (gpus - needed) * over_ms as f64);
    let (benefit, cost) = if wanted > from { (missing, idle) } else { (idle, missing) };
    let predicted = builder.predict(benefit, cost, None, rise.level, over_ms);
    if !builder.worth_it(&predicted) {
        return Err(format!("{reason}; reserving {wanted} instead of {from} would not be worth it"));
    }
    let change = |from_gpus, to_gpus| {
        Change::AdjustReservation(Adjustment::Reservation {
            name: name.to_owned(),
            owner: of.owner.to_owned(),
            pool: of.pool.to_owned(),
            from_gpus,
            to_gpus,
            start_us,
            end_us,
        })
    };
    let before = match there {
        Some(_) => Precondition::ReservationIs { name: name.to_owned(), gpus: from },
        None => Precondition::NoReservation { name: name.to_owned() },
    };
    builder.decide(ActionSpec {
        change: change(from, wanted),
        inverse: Some(change(wanted, from)),
        preconditions: vec![before],
        effect_ends_us: Some(end_us),
        after: Vec::new(),
        predicted,
        reason: format!("{reason}; reserves {wanted} instead of {from}"),
        alternatives: Vec::new(),
    });
    Ok(())
}

/// Begin and end. An existing reservation keeps its begin, and its end unless it grows.
fn times(there: Option<&Reservation>, rise: &Rise, grows: bool) -> (i64, i64) {
    let start_us = there.map_or(rise.from_us, |there| there.start_us);
    let kept = there.and_then(|there| there.end_us).filter(|_| !grows);
    (start_us, kept.unwrap_or(rise.until_us))
}

/// GPUs per node of the pool, since schedulers reserve whole nodes.
fn node_gpus(builder: &PlanBuilder<'_>, pool: &str) -> Result<u32, String> {
    let mut sizes: Vec<u32> =
        builder.state.nodes.values().filter(|node| node.pool == pool).map(|node| node.gpus).collect();
    sizes.sort_unstable();
    sizes.dedup();
    match sizes[..] {
        [each] if each > 0 => Ok(each),
        _ => Err(format!("its nodes have {sizes:?} GPUs; a reservation needs whole nodes of one size")),
    }
}
