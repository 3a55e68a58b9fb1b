//! Owners: whether one lends, gets GPUs back, or has its quota changed.

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::state::{ForecastOrigin, Object, Share};

use super::{Eligibility, Standing, View, considered, not_considered};

/// What maps an account to an owner.
pub(crate) fn map_account(account: &str) -> String {
    format!(
        "add [slurm.owners.{account}] with accounts = [{account:?}], and its shares, to the deployment file"
    )
}

/// Where an owner stands.
pub(super) fn entries(view: &View<'_>, name: &str) -> Vec<Eligibility> {
    let object = Object::Owner(name.to_owned());
    let Some(owner) = view.state.owners.get(name) else {
        let reason = format!("no owner maps account {name:?}: nothing is lent, kept or foreseen for it");
        return vec![not_considered(&object, None, reason, Some(map_account(name)))];
    };
    if owner.shares.is_empty() {
        let change = format!("[slurm.owners.{name}.shares.POOL] in the deployment file");
        return vec![not_considered(&object, None, "it has no share of any pool", Some(change))];
    }
    let mut found = Vec::new();
    for (pool, share) in &owner.shares {
        for entry in [lend(view, &object, (name, pool), share), quota(view, &object, (name, pool), share)] {
            found.push(Eligibility { pool: Some(pool.clone()), ..entry });
        }
    }
    found.push(reclaim(view, &object, name));
    found
}

/// What the planner said of an owner's share of a pool.
fn said<'a>(view: &View<'a>, kind: Kind, object: &Object, (owner, pool): (&str, &str)) -> Option<&'a str> {
    let of_pool = format!("{owner} in {pool}: ");
    let said = view.considered.get(&(kind, object))?;
    said.iter()
        .filter(|it| it.action.is_none())
        .map(|it| it.reason.as_str())
        .find(|why| why.starts_with(&of_pool))
}

fn lend(view: &View<'_>, object: &Object, of: (&str, &str), share: &Share) -> Eligibility {
    let (kind, (owner, pool)) = (Kind::Lend, of);
    if !share.lendable {
        let reason = format!("{owner} in {pool}: its share is not lendable");
        let change = format!("lendable = true in [slurm.owners.{owner}.shares.{pool}]");
        return not_considered(object, kind, reason, Some(change));
    }
    if share.quota_gpus == 0 {
        let reason = format!("{owner} in {pool}: its quota is 0 GPUs");
        return not_considered(
            object,
            kind,
            reason,
            Some("its quota, or nodes of the pool that are up".to_owned()),
        );
    }
    let why = said(view, kind, object, of)
        .map_or_else(|| format!("{owner} in {pool}: nothing calls for a loan"), str::to_owned);
    if share.demand_gpus.is_none() {
        let change = "its jobs with GPUs by the node or in all, not by the socket: one of unknown size hides its demand";
        return not_considered(object, kind, why, Some(change.to_owned()));
    }
    let origin = view.state.forecast_origins.get(owner).and_then(|pools| pools.get(pool));
    match origin {
        Some(ForecastOrigin::Past { held_ppm: None, why: unpublished }) => {
            let change = format!(
                "history: forecasts on the log (guide/signals.md; now: {unpublished}), or days of its own past (guide/import.md)"
            );
            not_considered(object, kind, why, Some(change))
        }
        Some(ForecastOrigin::Nobody { why: unpublished }) => {
            let change = format!(
                "forecasts on the log (guide/signals.md; now: {unpublished}), or [forecast] source in the policy"
            );
            not_considered(object, kind, why, Some(change))
        }
        _ => considered(object, kind, why),
    }
}

fn quota(view: &View<'_>, object: &Object, of: (&str, &str), share: &Share) -> Eligibility {
    let (kind, (owner, pool)) = (Kind::AdjustReservation, of);
    if share.quota_gpus == 0 {
        let reason = format!("{owner} in {pool}: its quota is 0 GPUs");
        return not_considered(object, kind, reason, None);
    }
    match said(view, kind, object, of) {
        Some(why) => considered(object, kind, why),
        None => considered(object, kind, format!("{owner} in {pool}: nothing calls for another quota")),
    }
}

fn reclaim(view: &View<'_>, object: &Object, owner: &str) -> Eligibility {
    let kind = Kind::Reclaim;
    let lent: u32 = view.state.loans.values().filter(|loan| loan.from == owner).map(|loan| loan.gpus).sum();
    let is_decided = |(id, _): &(&String, _)| view.decided.contains_key(&(kind, Object::Loan((*id).clone())));
    if view.state.loans.iter().filter(|(_, loan)| loan.from == owner).any(|of| is_decided(&of)) {
        let reason = format!("it takes back GPUs of the {lent} that it lends: see the loan");
        return Eligibility { standing: Standing::Decided, ..considered(object, kind, reason) };
    }
    match (lent, view.said(kind, object)) {
        (_, Some(why)) => considered(object, kind, why),
        (0, None) => not_considered(object, kind, "it lends nothing now", None),
        (lent, None) => considered(object, kind, format!("{lent} GPUs are lent, and it needs none of them")),
    }
}
