//! Evidence checks: freshness, agreement of log and target, forecast quality, preconditions, order.

use tidegate_insight::forecast::{Drift, Reach};
use tidegate_units::Micros;

use super::{ActionStatus, Context, Refusal, Rule, refuse};
use crate::action::{Adjustment, Change, Kind};
use crate::state::{ForecastOrigin, Object};

pub(super) fn expired(ctx: &Context<'_>) -> Option<Refusal> {
    let late_us = ctx.now_us - ctx.action.expires_us;
    (late_us >= 0).then_some(())?;
    refuse(Rule::Expired, format!("its deadline passed {} s ago", Micros(late_us).floor_secs()))
}

/// Every action needs a fresh observation. All but restoring actions also need fresh sources.
pub(super) fn freshness(ctx: &Context<'_>) -> Option<Refusal> {
    let rules = &ctx.policy.freshness;
    let age_us = ctx.now_us - ctx.state.at_us;
    if age_us > Micros::from_secs(rules.most_s).0 {
        return refuse(
            Rule::Freshness,
            format!("the cluster was observed {} s ago", Micros(age_us).floor_secs()),
        );
    }
    // A source clock ahead of ours would make everything look fresh.
    if age_us < -Micros::from_secs(rules.most_s).0 {
        return refuse(
            Rule::Freshness,
            format!("the cluster was observed {} s in the future", Micros(-age_us).floor_secs()),
        );
    }
    if ctx.restores {
        return None;
    }
    if let Some(name) = rules.required.iter().find(|name| !ctx.state.sources.contains_key(*name)) {
        return refuse(Rule::Freshness, format!("required source {name} is unknown"));
    }
    for (name, source) in &ctx.state.sources {
        let most_s = rules.sources.get(name).copied().unwrap_or(rules.most_s);
        let Some(last_us) = source.last_event_us else {
            return refuse(Rule::Freshness, format!("source {name} has never sent an event"));
        };
        let age_us = ctx.now_us - last_us;
        if age_us > Micros::from_secs(most_s).0 {
            let age_s = Micros(age_us).floor_secs();
            return refuse(
                Rule::Freshness,
                format!("source {name} has been silent for {age_s} s, the limit is {most_s}"),
            );
        }
    }
    None
}

pub(super) fn disagreement(ctx: &Context<'_>) -> Option<Refusal> {
    let disputes = &ctx.state.disagreements;
    let footprint = &ctx.footprint;
    let touches = |object: &Object| match object {
        Object::Node(name) => footprint.nodes.contains(name),
        Object::Job(id) => footprint.jobs.contains(id),
        Object::Owner(name) => footprint.owners.contains(name),
        Object::Pool(name) => footprint.pools.contains(name),
        Object::Loan(_) | Object::Reservation(_) => *object == ctx.action.change.object(),
    };
    if let Some(found) = disputes.iter().find(|found| touches(&found.object)) {
        let why = format!(
            "log and cluster disagree about {}: {} against {}",
            found.object, found.log, found.target
        );
        return refuse(Rule::Disagreement, why);
    }
    let most = ctx.policy.freshness.disagreements as usize;
    if disputes.len() > most && !ctx.restores {
        let why = format!("log and cluster disagree about {} objects, the limit is {most}", disputes.len());
        return refuse(Rule::Disagreement, why);
    }
    None
}

/// Refuses loans and quota changes based on published bounds that drift, or on a past whose own
/// bounds did not hold. A forecast may be as old as the policy allows, so its use lies that much
/// further ahead.
pub(super) fn forecast(ctx: &Context<'_>) -> Option<Refusal> {
    let policy = ctx.policy;
    let (owner, pool, within_s) = match &ctx.action.change {
        Change::Lend { from, pool, .. } => (from, pool, policy.lend.term_s + policy.lend.reclaim_within_s),
        Change::AdjustReservation(Adjustment::Quota { owner, pool, .. }) => {
            (owner, pool, policy.reservation.horizon_s)
        }
        _ => return None,
    };
    let (series, off) = match ctx.state.forecast_origins.get(owner)?.get(pool)? {
        ForecastOrigin::Published { series, off, .. } => (series, off),
        ForecastOrigin::Past { held_ppm, .. } => {
            let least = policy.lend.least_coverage;
            let why = match held_ppm.map(|ppm| f64::from(ppm) / 1e6) {
                Some(held) if held >= least => return None,
                Some(held) => {
                    format!(
                        "only {held:.3} of the bounds from {owner}'s own past held; the policy requires {least}"
                    )
                }
                None => {
                    format!("too few bounds from {owner}'s own past have been compared with actual demand")
                }
            };
            return refuse(Rule::Forecast, why);
        }
        ForecastOrigin::Nobody { .. } => return None,
    };
    let ahead_s = within_s + policy.forecast.most_age_s;
    let begins_s = |reach: Reach| match reach {
        Reach::Step => 0,
        Reach::Day => 3_600,
        Reach::Week => 86_400,
        Reach::Beyond => 7 * 86_400,
    };
    let found = off.iter().find(|off| begins_s(off.reach) < ahead_s)?;
    let why = format!(
        "forecast bounds for {series} do not hold {}: {} for {} s; {:.3} of the actual values lay between quantiles 0.1 and 0.9, {:.3} at or below 0.95",
        match found.reach {
            Reach::Step => "an hour ahead",
            Reach::Day => "within a day",
            Reach::Week => "within a week",
            Reach::Beyond => "beyond a week",
        },
        match found.drift {
            Drift::TooLow => "demand is above them too often",
            _ => "demand is outside of them too often",
        },
        Micros(ctx.now_us - found.since_us).floor_secs(),
        f64::from(found.inside80_ppm) / 1e6,
        f64::from(found.below95_ppm) / 1e6,
    );
    refuse(Rule::Forecast, why)
}

pub(super) fn precondition(ctx: &Context<'_>) -> Option<Refusal> {
    // An action that disturbs something must state what it saw.
    let must_say = matches!(
        ctx.kind,
        Kind::ResizeJob | Kind::Preempt | Kind::DrainNode | Kind::ReturnNode | Kind::Reclaim | Kind::Lend
    );
    if must_say && ctx.action.preconditions.is_empty() {
        return refuse(Rule::Precondition, "it names no precondition");
    }
    let broken = ctx.action.preconditions.iter().find_map(|fact| fact.check(ctx.state).err())?;
    refuse(Rule::Precondition, broken.to_string())
}

pub(super) fn order(ctx: &Context<'_>) -> Option<Refusal> {
    for id in &ctx.action.after {
        match ctx.history.find(id).map(|past| &past.outcome) {
            Some(ActionStatus::UnderWay | ActionStatus::Verified) => {}
            Some(ActionStatus::Failed { why } | ActionStatus::Compensated { why }) => {
                return refuse(Rule::Order, format!("{id}, which comes before, failed: {why}"));
            }
            None => return refuse(Rule::Order, format!("{id} comes before and was not begun")),
        }
    }
    None
}
