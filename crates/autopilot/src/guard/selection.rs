//! Selection checks. An empty selection means nothing, never everything; patterns are not names;
//! one action names few objects.

use super::{Context, Refusal, Rule, refuse};
use crate::action::{Adjustment, Change};
use crate::state::Object;

pub(super) fn selection(ctx: &Context<'_>) -> Option<Refusal> {
    let footprint = &ctx.footprint;
    let named = named(&ctx.action.change);
    if let Some(name) = named.iter().find(|name| !is_name(name)) {
        return refuse(Rule::Selection, format!("{name:?} is not the name of one object"));
    }
    let objects = footprint.nodes.len().max(footprint.jobs.len());
    let most = ctx.policy.blast.objects as usize;
    // A job action selects the job, not its nodes.
    let selected = if ctx.action.change.job().is_some() { footprint.jobs.len() } else { objects };
    if selected > most {
        return refuse(Rule::Selection, format!("it names {selected} objects, the limit is {most}"));
    }
    if let Some(why) = nothing(ctx) {
        return refuse(Rule::Selection, why);
    }
    missing(ctx)
}

/// Names in a change, including nodes in its lists.
fn named(change: &Change) -> Vec<&str> {
    let mut out: Vec<&str> = Vec::new();
    let mut nodes = None;
    match change {
        Change::ResizeJob { job, keep_nodes, add_nodes, .. } => {
            out.push(job);
            out.extend(add_nodes.iter().map(String::as_str));
            nodes = Some(keep_nodes);
        }
        Change::Preempt { job, .. } => out.push(job),
        Change::Lend { from, to, pool, nodes: lent, .. } => {
            out.extend([from.as_str(), to, pool]);
            nodes = Some(lent);
        }
        Change::Reclaim { loan, nodes: back, .. } => {
            out.push(loan);
            nodes = Some(back);
        }
        Change::AdjustReservation(Adjustment::Quota { owner, pool, .. }) => {
            out.extend([owner.as_str(), pool])
        }
        Change::AdjustReservation(Adjustment::Reservation { name, owner, pool, .. }) => {
            out.extend([name.as_str(), owner, pool]);
        }
        Change::AdjustReservation(Adjustment::Commitment { pool, .. }) => out.push(pool),
        Change::DrainNode { node, .. } | Change::ReturnNode { node, .. } => out.push(node),
    }
    out.extend(nodes.into_iter().flatten().map(String::as_str));
    out
}

/// One object by its full name: no list, range or pattern, and no word that schedulers read as
/// "all".
fn is_name(name: &str) -> bool {
    let plain = !name.is_empty() && !name.contains(['*', '?', '[', ']', ',', ' ', '\n', '=']);
    plain && !name.eq_ignore_ascii_case("all")
}

/// Why a change would have no effect.
fn nothing(ctx: &Context<'_>) -> Option<&'static str> {
    match &ctx.action.change {
        Change::ResizeJob { from_gpus, to_gpus, .. } if from_gpus == to_gpus => {
            Some("the size stays the same")
        }
        Change::ResizeJob { from_gpus, to_gpus, keep_nodes, .. }
            if to_gpus < from_gpus && keep_nodes.is_empty() =>
        {
            Some("a shrink that keeps no node")
        }
        Change::Lend { gpus: 0, .. } => Some("no GPU is lent"),
        Change::Lend { extends: Some(loan), gpus, nodes, .. }
            if ctx.state.loans.get(loan).is_some_and(|loan| loan.gpus != *gpus || loan.nodes != *nodes) =>
        {
            Some("an extension must keep the loan as it is")
        }
        Change::Lend { from, to, .. } if from == to => Some("an owner lends to itself"),
        Change::Reclaim { from_gpus, to_gpus, .. } if to_gpus >= from_gpus => Some("nothing is taken back"),
        Change::Reclaim { loan, nodes, .. } if nodes.is_empty() => {
            let of_nodes = ctx.state.loans.get(loan).is_some_and(|loan| !loan.nodes.is_empty());
            of_nodes.then_some("the loan has nodes, and none is named to come back")
        }
        Change::Preempt { frees_gpus: 0, .. } => Some("no GPU is freed"),
        Change::AdjustReservation(
            Adjustment::Quota { from_gpus, to_gpus, .. }
            | Adjustment::Reservation { from_gpus, to_gpus, .. }
            | Adjustment::Commitment { from_gpus, to_gpus, .. },
        ) if from_gpus == to_gpus => Some("the size stays the same"),
        _ => None,
    }
}

/// An object missing from the state cannot be changed: its footprint is unknown.
fn missing(ctx: &Context<'_>) -> Option<Refusal> {
    let state = ctx.state;
    let known = match ctx.action.change.object() {
        Object::Node(name) => state.nodes.contains_key(&name),
        Object::Job(id) => state.jobs.contains_key(&id),
        Object::Owner(name) => state.owners.contains_key(&name),
        Object::Loan(id) => state.loans.contains_key(&id),
        Object::Pool(name) => state.pools.contains_key(&name),
        // A new reservation does not exist yet; preconditions cover it.
        Object::Reservation(_) => true,
    };
    if !known {
        return refuse(Rule::Selection, format!("{} was not observed", ctx.action.change.object()));
    }
    let unknown = ctx.footprint.nodes.iter().find(|name| !state.nodes.contains_key(*name))?;
    refuse(Rule::Selection, format!("node {unknown} was not observed"))
}
