//! Overdue reclaims: capacity that is being reclaimed but still in use. A reclaim ends no job, and
//! the action that should have freed it may have been refused, late or lost. So its users are asked
//! again in every plan until it is free.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_units::{Micros, Millis};

use super::builder::PlanBuilder;
use super::victims::{Cause, VictimOption, disturb, may_disturb, victim_options};
use crate::action::Kind;
use crate::state::{Job, JobId, Loan, LoanId, NodeName, Object, Writer};

pub(super) fn plan(builder: &mut PlanBuilder<'_>) {
    let state = builder.state;
    for (id, loan) in state.loans.iter().filter(|(_, loan)| loan.reclaiming_gpus > 0) {
        if loan.writer == Writer::Other || !builder.owners.includes(&loan.from) {
            continue;
        }
        if loan.nodes.is_empty() { number(builder, id, loan) } else { nodes(builder, id, loan) }
    }
}

/// Makes every job leave the reclaimed nodes, by shrinking if that frees all of them.
fn nodes(builder: &mut PlanBuilder<'_>, id: &LoanId, loan: &Loan) {
    let state = builder.state;
    let wanted: BTreeSet<&NodeName> = loan.reclaiming_nodes.iter().collect();
    let on: BTreeSet<&JobId> =
        wanted.iter().flat_map(|node| builder.jobs_on.get(*node).into_iter().flatten().copied()).collect();
    for job_id in on {
        let job = &state.jobs[job_id];
        let all = |way: &&VictimOption| {
            job.placement.keys().filter(|node| wanted.contains(node)).all(|node| way.leaves.contains(node))
        };
        let options = options(builder, job_id, job, &wanted);
        let way = options.iter().filter(all).min_by_key(|way| way.choice.cost);
        leave(builder, id, loan, job_id, job, way);
    }
}

/// Makes jobs leave the loan, cheapest first, until the rest fits into what stays lent.
fn number(builder: &mut PlanBuilder<'_>, id: &LoanId, loan: &Loan) {
    let state = builder.state;
    let users = || state.jobs.iter().filter(|(_, job)| job.loan.as_ref() == Some(id));
    let held: u32 = users().map(|(_, job)| job.held_gpus()).sum();
    let mut over = held.saturating_sub(loan.gpus.saturating_sub(loan.reclaiming_gpus));
    let mut found: BTreeMap<(i64, &JobId), VictimOption> = BTreeMap::new();
    for (job_id, job) in users() {
        let wanted: BTreeSet<&NodeName> = job.placement.keys().collect();
        let options = options(builder, job_id, job, &wanted);
        if let Some(way) = options.into_iter().find(|way| way.to_gpus == 0) {
            found.insert((way.choice.cost / i64::from(way.choice.frees.max(1)), job_id), way);
        }
    }
    for ((_, job_id), way) in found {
        if over > 0 {
            over = over.saturating_sub(way.choice.frees);
            leave(builder, id, loan, job_id, &state.jobs[job_id], Some(&way));
        }
    }
}

fn options(
    builder: &PlanBuilder<'_>,
    id: &JobId,
    job: &Job,
    wanted: &BTreeSet<&NodeName>,
) -> Vec<VictimOption> {
    if !may_disturb(builder, id, job) {
        return Vec::new();
    }
    let hold_ms = Millis::from_secs(builder.policy.lend.term_s).0;
    victim_options(builder, id, job, wanted, true, hold_ms, |node| job.placement[node])
}

fn leave(
    builder: &mut PlanBuilder<'_>,
    id: &LoanId,
    loan: &Loan,
    job_id: &JobId,
    job: &Job,
    way: Option<&VictimOption>,
) {
    let Some(way) = way else {
        let reason = format!("loan {id} is being taken back, but job {job_id} may not be disturbed now");
        return builder.noop(Kind::Reclaim, Some(Object::Loan(id.clone())), reason, None, Vec::new());
    };
    let left_ms = Millis::from_secs(builder.policy.lend.term_s).0 as f64;
    let benefit = f64::from(way.choice.frees) * left_ms * builder.missing_ratio();
    let since_s = loan.reclaiming_since_us.map_or(0, |since| Micros(builder.now_us - since).floor_secs());
    let why = format!("{} has been taking loan {id} back for {since_s} s", loan.from);
    disturb(
        builder,
        job_id,
        job,
        way,
        Cause {
            serves: Some(Object::Loan(id.clone())),
            is_owed: false,
            over_ms: 0,
            benefit,
            after: Vec::new(),
            why: &why,
            alternatives: Vec::new(),
        },
    );
}
