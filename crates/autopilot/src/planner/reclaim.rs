//! Reclaiming loans (docs/control.md, 4.5): when Q[D(t+τ)] > C - L - b at the promised level, or
//! the owner is short now.
//!
//! Free GPUs come first, then what loses least. Where jobs have nodes of their own, an exact cover
//! chooses among the surplus of elastic jobs and whole jobs. Where jobs share nodes, Lyra's server
//! preemption cost does: cost(s) = Σ over jobs on s of L_j / |S_j|, lowest first, recomputed each
//! time.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_units::{Micros, Millis};

use super::builder::{ActionSpec, PlanBuilder};
use super::lend::{headroom, level_for, promise_to_requests, promised};
use super::victims::{
    Cause, VictimOption, alternatives, disturb, may_disturb, most_freed, pick, victim_options,
};
use crate::action::{Change, Kind, Precondition};
use crate::forecast::Series;
use crate::state::{Job, JobId, Loan, LoanId, NodeName, Object, Writer};

/// Quantiles of the highest demand whose mean stands for what is expected.
const USE_LEVELS: [f64; 5] = [0.1, 0.3, 0.5, 0.7, 0.9];

pub(super) fn plan(builder: &mut PlanBuilder<'_>) {
    let state = builder.state;
    let part = builder.owners;
    let ours = || state.loans.values().filter(|loan| part.includes(&loan.from));
    builder.count_considered(Kind::Reclaim, ours().count());
    let lenders: BTreeSet<(&String, &String)> = ours().map(|loan| (&loan.from, &loan.pool)).collect();
    for (owner, pool) in lenders {
        let mut loans: Vec<(&LoanId, &Loan)> = Vec::new();
        for (id, loan) in state.loans.iter().filter(|(_, loan)| (&loan.from, &loan.pool) == (owner, pool)) {
            if loan.writer == Writer::Other {
                let reason = "someone else changed the loan last".to_owned();
                builder.noop(Kind::Reclaim, Some(Object::Loan(id.clone())), reason, None, Vec::new());
            } else {
                loans.push((id, loan));
            }
        }
        of_lender(builder, Series { owner, pool }, &loans);
    }
}

/// What must come back, and why.
struct Need {
    gpus: u32,
    /// Of these, GPUs that the owner is expected to use before the loans would have ended.
    used: f64,
    /// Loans that end soon and are not renewed.
    ending: BTreeSet<LoanId>,
    why: String,
}

fn of_lender(builder: &mut PlanBuilder<'_>, of: Series<'_>, loans: &[(&LoanId, &Loan)]) {
    let Some(need) = need(builder, of, loans) else { return };
    if need.gpus == 0 {
        let object = Some(Object::Owner(of.owner.to_owned()));
        builder.noop(Kind::Reclaim, object, need.why, None, Vec::new());
        return;
    }
    let (nodes, numbers): (Vec<_>, Vec<_>) =
        loans.iter().copied().partition(|(_, loan)| !loan.nodes.is_empty());
    let mut left = need.gpus;
    left = from_nodes(builder, of, &need, &nodes, left);
    for (id, loan) in numbers {
        let must = if need.ending.contains(id) { loan.gpus - loan.reclaiming_gpus.min(loan.gpus) } else { 0 };
        left = from_number(builder, &need, id, loan, left.max(must)).min(left);
    }
    if left > 0 {
        let object = Some(Object::Owner(of.owner.to_owned()));
        let reason = format!("{left} more GPUs should come back, but the jobs on them may not be disturbed");
        builder.noop(Kind::Reclaim, object, reason, None, Vec::new());
    }
}

fn need(builder: &mut PlanBuilder<'_>, of: Series<'_>, loans: &[(&LoanId, &Loan)]) -> Option<Need> {
    let share = builder.state.share(of.owner, of.pool);
    let (quota, floor, demand) =
        share.map_or((0, 0, None), |share| (share.quota_gpus, share.floor_gpus, share.demand_gpus));
    let lent = builder.state.lent_gpus(of.owner, of.pool);
    let coming: u32 = loans.iter().map(|(_, loan)| loan.reclaiming_gpus.min(loan.gpus)).sum();
    let available: u32 = loans.iter().map(|(_, loan)| loan.gpus - loan.reclaiming_gpus.min(loan.gpus)).sum();
    if available == 0 {
        return None;
    }
    let rules = &builder.policy.lend;
    let within_ms = loans
        .iter()
        .map(|(_, loan)| loan.reclaim_within_ms)
        .max()
        .unwrap_or(Millis::from_secs(rules.reclaim_within_s).0);
    let level = level_for(builder, None).max(rules.promise_to(of.owner));
    let buffer = rules.reclaim_buffer_gpus;
    let bound = promised(builder, of, within_ms);
    let have = (quota + coming).saturating_sub(lent).saturating_sub(builder.out_of_service(of));
    let now = demand.unwrap_or(0).min(quota);
    let predicted_gpus = bound.map_or(0, |bound| bound.ceil().clamp(0.0, f64::from(quota)) as u32);
    let service = builder.policy.service_floor(of.owner, of.pool, f64::from(predicted_gpus.max(now)));
    let floor = floor.max(service);
    let wanted = predicted_gpus.max(now).saturating_add(buffer).min(quota).max(floor.min(quota));
    let mut gpus = wanted.saturating_sub(have);
    let mut ending = BTreeSet::new();
    // Excess that prevents renewing loans that end soon. What is already coming back is
    // reconsidered once it is there.
    let mut over = 0;
    for (id, loan) in loans.iter().filter(|_| gpus == 0) {
        let (left_us, back_us) =
            (loan.expires_us - builder.now_us, Millis(loan.reclaim_within_ms).to_micros().0);
        let on = if left_us <= 2 * back_us { renew(builder, of, id, loan) } else { continue };
        match on {
            Renewal::Renewed => {}
            Renewal::AfterReturning(gpus) if left_us > back_us => over = gpus.max(over),
            Renewal::AfterReturning(_) | Renewal::Ends => drop(ending.insert((*id).clone())),
        }
    }
    let ends: u32 = loans
        .iter()
        .filter(|(id, _)| ending.contains(*id))
        .map(|(_, loan)| loan.gpus - loan.reclaiming_gpus.min(loan.gpus))
        .sum();
    gpus = gpus.max(ends).max(over.saturating_sub(coming)).min(available);
    let known = |gpus: Option<f64>| gpus.map_or("unknown".to_owned(), |gpus| format!("{gpus:.1}"));
    let why = format!(
        "{} has {have} of {quota} GPUs; it needs {now} now and at most {} within {} s at quantile {level:.3}{}; {} loans end",
        of.owner,
        known(bound),
        Millis(within_ms).floor_secs(),
        promise_to_requests(service),
        ending.len()
    );
    let lasts_ms = loans.iter().map(|(_, loan)| lasts_ms(builder, loan)).max().unwrap_or(0);
    let used = expected_use(builder, of, (have, now.saturating_sub(have).min(gpus), gpus), lasts_ms);
    Some(Need { gpus, used, ending, why })
}

/// How many of the `gpus` that come back the owner is expected to use, at the peak of its demand in
/// the next `within_ms`. It has `have` GPUs without them and lacks `short` now. Without a forecast
/// only what it lacks now counts.
fn expected_use(
    builder: &mut PlanBuilder<'_>,
    of: Series<'_>,
    (have, short, gpus): (u32, u32, u32),
    within_ms: i64,
) -> f64 {
    if gpus == 0 {
        return 0.0;
    }
    let mut sum = 0.0;
    for level in USE_LEVELS {
        let peak = builder.highest(of, level, within_ms);
        let beyond = peak.map_or(0.0, |peak| peak - f64::from(have));
        sum += beyond.clamp(f64::from(short), f64::from(gpus));
    }
    sum / USE_LEVELS.len() as f64
}

/// Fate of a loan that ends soon.
enum Renewal {
    Renewed,
    /// Once so many of the lender's GPUs are back.
    AfterReturning(u32),
    Ends,
}

/// Renews a loan that ends soon if jobs use it, its owner can still spare it, and the promise to
/// that owner holds. If the owner can spare only part of its loans, the rest comes back first; so
/// do nodes that nobody needs.
fn renew(builder: &mut PlanBuilder<'_>, of: Series<'_>, id: &LoanId, loan: &Loan) -> Renewal {
    let used = !loan.jobs.is_empty() || loan.nodes.iter().any(|node| builder.jobs_on.contains_key(node));
    if !used || builder.promises.against_taking(of.owner).is_some() {
        return Renewal::Ends;
    }
    let Ok(room) = headroom(builder, of) else { return Renewal::Ends };
    if loan.reclaiming_gpus > 0 || room.spare < 0 {
        return Renewal::AfterReturning(u32::try_from(-room.spare).unwrap_or(0));
    }
    let idle = idle_gpus(builder, loan);
    if idle > 0 && !builder.state.jobs.values().any(|job| job.owner == loan.to && may_borrow(job)) {
        return Renewal::AfterReturning(idle);
    }
    let term_ms = Millis::from_secs(builder.policy.lend.term_s).0;
    let gained = i64::from(held_gpus(builder, id, loan)) * term_ms;
    let effect = (gained as f64, room.risk(builder, loan.gpus));
    let predicted = builder.predict_corrected(Kind::Lend, effect, room.level, term_ms);
    let expires_us = builder.now_us + Millis(term_ms).to_micros().0;
    let change = Change::Lend {
        from: loan.from.clone(),
        to: loan.to.clone(),
        pool: loan.pool.clone(),
        gpus: loan.gpus,
        nodes: loan.nodes.clone(),
        extends: Some(id.clone()),
        expires_us,
        reclaim_within_ms: loan.reclaim_within_ms,
    };
    let inverse =
        Change::Reclaim { loan: id.clone(), from_gpus: loan.gpus, to_gpus: 0, nodes: loan.nodes.clone() };
    builder.decide(ActionSpec {
        change,
        inverse: Some(inverse),
        preconditions: vec![
            Precondition::LoanIs { loan: id.clone(), gpus: loan.gpus },
            Precondition::LoanEnds { loan: id.clone(), at_us: loan.expires_us },
        ],
        effect_ends_us: Some(expires_us),
        after: Vec::new(),
        predicted,
        reason: format!("the loan is in use and ends soon; {}", room.why),
        alternatives: Vec::new(),
    });
    Renewal::Renewed
}

/// A waiting job that may start on a loan.
fn may_borrow(job: &Job) -> bool {
    job.pending_since_us().is_some() && job.preemptible && !job.do_not_disrupt
}

/// GPUs of lent nodes on which no job runs.
fn idle_gpus(builder: &PlanBuilder<'_>, loan: &Loan) -> u32 {
    let idle = loan.nodes.iter().filter(|node| !builder.jobs_on.contains_key(node));
    idle.filter_map(|node| builder.state.nodes.get(node)).map(|node| node.gpus).sum()
}

/// GPUs of a loan that jobs hold.
fn held_gpus(builder: &PlanBuilder<'_>, id: &LoanId, loan: &Loan) -> u32 {
    let on_nodes = loan.nodes.iter().map(|node| builder.occupancy.held_on(node)).sum::<u32>();
    let by_number =
        builder.state.jobs.values().filter(|job| loan.nodes.is_empty() && job.loan.as_ref() == Some(id));
    (on_nodes + by_number.map(Job::held_gpus).sum::<u32>()).min(loan.gpus)
}

/// Reclaims whole nodes. Returns the GPUs still missing.
fn from_nodes(
    builder: &mut PlanBuilder<'_>,
    of: Series<'_>,
    need: &Need,
    loans: &[(&LoanId, &Loan)],
    mut left: u32,
) -> u32 {
    let state = builder.state;
    let gpus_of = |node: &NodeName| state.nodes.get(node).map_or(0, |node| node.gpus);
    let mut of_loan: BTreeMap<&NodeName, &LoanId> = BTreeMap::new();
    for (id, loan) in loans {
        of_loan.extend(loan.nodes.difference(&loan.reclaiming_nodes).map(|node| (node, *id)));
    }
    let mut back: BTreeSet<&NodeName> = BTreeSet::new();
    let mut order: Vec<&NodeName> = of_loan.keys().copied().collect();
    order.sort_by_key(|node| !need.ending.contains(of_loan[node]));
    for node in order {
        if left > 0 && !builder.jobs_on.contains_key(node) && gpus_of(node) > 0 {
            left = left.saturating_sub(gpus_of(node));
            back.insert(node);
        }
    }
    let free = back.len();
    let busy: BTreeSet<&NodeName> = of_loan.keys().copied().filter(|node| !back.contains(node)).collect();
    let hold_ms = Millis::from_secs(builder.policy.lend.term_s).0;
    let mut options: BTreeMap<&JobId, Vec<VictimOption>> = BTreeMap::new();
    if left > 0 {
        for node in &busy {
            for id in builder.jobs_on.get(*node).into_iter().flatten() {
                let job = &state.jobs[*id];
                if may_disturb(builder, id, job) {
                    options
                        .entry(id)
                        .or_insert_with(|| victim_options(builder, id, job, &busy, true, hold_ms, gpus_of));
                }
            }
        }
    }
    let shared = busy.iter().any(|node| builder.jobs_on.get(*node).is_some_and(|jobs| jobs.len() > 1));
    let picked = if left == 0 {
        Vec::new()
    } else if shared {
        by_server_cost(builder, &busy, &options, left)
    } else {
        by_cover(&options, left)
    };
    let mut freed: BTreeSet<&NodeName> = BTreeSet::new();
    for (_, way) in &picked {
        freed.extend(way.leaves.iter().filter_map(|node| busy.get(node).copied()));
    }
    // A shared node is free once all its jobs have left it.
    let gone: BTreeMap<&JobId, &VictimOption> = picked.iter().map(|(id, way)| (*id, way)).collect();
    freed.retain(|node| {
        builder.jobs_on[*node].iter().all(|id| gone.get(*id).is_some_and(|way| way.leaves.contains(*node)))
    });
    for node in freed {
        if left > 0 {
            left = left.saturating_sub(gpus_of(node));
            back.insert(node);
        }
    }
    let selection = Selection { of_loan, back, free, options, picked };
    decide(builder, of, need, loans, selection);
    left
}

fn by_cover<'a>(
    options: &BTreeMap<&'a JobId, Vec<VictimOption>>,
    need: u32,
) -> Vec<(&'a JobId, VictimOption)> {
    // If all together do not suffice, take as much as there is.
    pick(options, need.min(most_freed(options))).unwrap_or_default()
}

/// Lyra's greedy: takes the node whose jobs cost least, spreading each job's loss over its nodes,
/// then repeats without the jobs that left.
fn by_server_cost<'a>(
    builder: &PlanBuilder<'_>,
    busy: &BTreeSet<&NodeName>,
    options: &BTreeMap<&'a JobId, Vec<VictimOption>>,
    need: u32,
) -> Vec<(&'a JobId, VictimOption)> {
    let stop = |id: &JobId| options.get(id)?.iter().find(|way| way.to_gpus == 0);
    let gpus_of = |node: &NodeName| builder.state.nodes.get(node).map_or(0, |node| node.gpus);
    let mut gone: BTreeMap<&JobId, VictimOption> = BTreeMap::new();
    let mut freed = 0;
    // A node held by a job that stays has no cost: it cannot be freed.
    let cost = |node: &NodeName, gone: &BTreeMap<&JobId, VictimOption>| -> Option<i64> {
        let staying = builder.jobs_on[node].iter().filter(|id| !gone.contains_key(**id));
        let sum: Option<i64> =
            staying.map(|id| stop(id).map(|way| way.choice.cost / way.leaves.len().max(1) as i64)).sum();
        Some(sum? / i64::from(gpus_of(node).max(1)))
    };
    let mut costs: BTreeMap<&NodeName, i64> =
        busy.iter().filter_map(|node| Some((*node, cost(node, &gone)?))).collect();
    let mut order: BTreeSet<(i64, &NodeName)> = costs.iter().map(|(node, cost)| (*cost, *node)).collect();
    while freed < need {
        let Some((_, node)) = order.first().copied() else { break };
        let mut changed: BTreeSet<&NodeName> = BTreeSet::from([node]);
        for id in &builder.jobs_on[node] {
            if let (Some((key, _)), Some(way)) = (options.get_key_value(*id), stop(id)) {
                changed.extend(way.leaves.iter().filter_map(|node| busy.get(node).copied()));
                gone.insert(key, way.clone());
            }
        }
        for node in changed {
            let Some(old) = costs.remove(node) else { continue };
            order.remove(&(old, node));
            if builder.jobs_on[node].iter().all(|id| gone.contains_key(*id)) {
                freed += gpus_of(node);
            } else if let Some(new) = cost(node, &gone) {
                costs.insert(node, new);
                order.insert((new, node));
            }
        }
    }
    gone.into_iter().collect()
}

/// Nodes that come back, and the jobs that leave them.
struct Selection<'a> {
    of_loan: BTreeMap<&'a NodeName, &'a LoanId>,
    back: BTreeSet<&'a NodeName>,
    free: usize,
    options: BTreeMap<&'a JobId, Vec<VictimOption>>,
    picked: Vec<(&'a JobId, VictimOption)>,
}

fn decide(
    builder: &mut PlanBuilder<'_>,
    of: Series<'_>,
    need: &Need,
    loans: &[(&LoanId, &Loan)],
    selection: Selection<'_>,
) {
    let state = builder.state;
    let Selection { of_loan, back, free, options, picked } = selection;
    let mut after = Vec::new();
    for (id, loan) in loans {
        let nodes: BTreeSet<NodeName> =
            back.iter().filter(|node| of_loan.get(**node) == Some(id)).map(|node| (*node).clone()).collect();
        if nodes.is_empty() {
            continue;
        }
        let gpus: u32 = nodes.iter().filter_map(|node| state.nodes.get(node)).map(|node| node.gpus).sum();
        after.push(reclaim(builder, need, id, loan, gpus.min(loan.gpus), nodes));
    }
    let taken: BTreeSet<&JobId> = picked.iter().map(|(id, _)| *id).collect();
    let alternatives = alternatives(&options, &taken);
    let why = format!("{} takes back {} nodes, {free} of them free", of.owner, back.len());
    let lasts_ms = loans.iter().map(|(_, loan)| lasts_ms(builder, loan)).max().unwrap_or(0);
    for (id, way) in picked {
        let benefit = owner_gain(builder, need, way.choice.frees, lasts_ms);
        let cause = Cause {
            serves: None,
            is_owed: false,
            over_ms: 0,
            benefit,
            after: after.clone(),
            why: &why,
            alternatives: alternatives.clone(),
        };
        disturb(builder, id, &state.jobs[id], &way, cause);
    }
}

/// What the owner gains if `gpus` come back now instead of at the end of the loan, `lasts_ms` from
/// now: their share of what it is expected to use.
fn owner_gain(builder: &PlanBuilder<'_>, need: &Need, gpus: u32, lasts_ms: i64) -> f64 {
    let share = (need.used / f64::from(need.gpus.max(1))).min(1.0);
    share * f64::from(gpus) * lasts_ms as f64 * builder.missing_ratio()
}

/// Time for which the loan would go on, ms.
fn lasts_ms(builder: &PlanBuilder<'_>, loan: &Loan) -> i64 {
    Micros(loan.expires_us - builder.now_us).floor_millis().0.max(0)
}

fn reclaim(
    builder: &mut PlanBuilder<'_>,
    need: &Need,
    id: &LoanId,
    loan: &Loan,
    gpus: u32,
    nodes: BTreeSet<NodeName>,
) -> String {
    let lasts_ms = lasts_ms(builder, loan);
    // The peak does not last. How much of it does, the record says.
    let effect = (owner_gain(builder, need, gpus, lasts_ms), 0.0);
    let predicted = builder.predict_corrected(Kind::Reclaim, effect, 0.95, lasts_ms);
    builder.decide(ActionSpec {
        change: Change::Reclaim { loan: id.clone(), from_gpus: loan.gpus, to_gpus: loan.gpus - gpus, nodes },
        inverse: None,
        preconditions: vec![Precondition::LoanIs { loan: id.clone(), gpus: loan.gpus }],
        effect_ends_us: None,
        after: Vec::new(),
        predicted,
        reason: need.why.clone(),
        alternatives: Vec::new(),
    })
}

/// Reclaims a number of GPUs from a loan without nodes. Returns what is still missing of `wanted`.
fn from_number(builder: &mut PlanBuilder<'_>, need: &Need, id: &LoanId, loan: &Loan, wanted: u32) -> u32 {
    let state = builder.state;
    let available = loan.gpus - loan.reclaiming_gpus.min(loan.gpus);
    let gpus = wanted.min(available);
    if gpus == 0 {
        return wanted;
    }
    let hold_ms = Millis::from_secs(builder.policy.lend.term_s).0;
    let users: Vec<(&JobId, _)> =
        state.jobs.iter().filter(|(_, job)| job.loan.as_ref() == Some(id)).collect();
    let held: u32 = users.iter().map(|(_, job)| job.held_gpus()).sum();
    let busy = gpus.saturating_sub(loan.gpus.saturating_sub(held));
    let mut options: BTreeMap<&JobId, Vec<VictimOption>> = BTreeMap::new();
    for (job_id, job) in users {
        if busy > 0 && may_disturb(builder, job_id, job) {
            let wanted: BTreeSet<&NodeName> = job.placement.keys().collect();
            let on = |node: &NodeName| job.placement[node];
            options.insert(job_id, victim_options(builder, job_id, job, &wanted, true, hold_ms, on));
        }
    }
    let picked = by_cover(&options, busy);
    let freed: u32 = picked.iter().map(|(_, way)| way.choice.frees).sum();
    let gpus = gpus - busy.saturating_sub(freed);
    if gpus == 0 {
        return wanted;
    }
    let action = reclaim(builder, need, id, loan, gpus, BTreeSet::new());
    let taken: BTreeSet<&JobId> = picked.iter().map(|(id, _)| *id).collect();
    let alternatives = alternatives(&options, &taken);
    for (job_id, way) in picked {
        let benefit = owner_gain(builder, need, way.choice.frees, lasts_ms(builder, loan));
        let why = format!("{} takes back {gpus} GPUs", loan.from);
        let cause = Cause {
            serves: None,
            is_owed: false,
            over_ms: 0,
            benefit,
            after: vec![action.clone()],
            why: &why,
            alternatives: alternatives.clone(),
        };
        disturb(builder, job_id, &state.jobs[job_id], &way, cause);
    }
    wanted - gpus
}
