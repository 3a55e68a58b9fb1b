//! Lending idle capacity (docs/control.md, 4.4).
//!
//! L = max(0, floor(C - max over h ≤ H+τ of Q_q[D(t+h)] - b)) in whole nodes. q = c / (c + g), with
//! c the cost of a GPU-hour the owner lacks and g = v · (1 - reclaim probability · loss then) the
//! value of one that is lent. That quantile is for what pays over the term. A higher one, over τ
//! alone, keeps the promise that the owner is not left short while a loan comes back.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_units::{GpuMillis, Micros, Millis};

use super::builder::{ActionSpec, PlanBuilder};
use super::loan_growth::{LoanGrowth, best_borrower, candidates};
use super::plan::{Alternative, Decision};
use super::room::Room;
use super::waiting::{WaitingJob, WaitingJobs};
use crate::action::{Change, Kind, Precondition};
use crate::fingerprint::shuffled;
use crate::forecast::Series;
use crate::policy::{Footprint, Mode};
use crate::state::{Job, JobId, JobKind, NodeName, Object, OwnerName, PoolName};

/// Share of the steepest rise that level 1 keeps back on top of it (docs/adr/0628).
const BEYOND_STEEPEST: f64 = 0.25;

/// What an owner could lend.
pub(super) struct Headroom {
    /// GPUs beyond what is kept back, with loans counted as given away. Below 0: too much is lent.
    pub(super) spare: i64,
    /// Quantile level of the demand kept back.
    pub(super) level: f64,
    pub(super) why: String,
}

impl Headroom {
    /// Expected loss from leaving the owner short: with the probability the level leaves, for the
    /// time a reclaim takes.
    pub(super) fn risk(&self, builder: &PlanBuilder<'_>, gpus: u32) -> f64 {
        let within_ms = Millis::from_secs(builder.policy.lend.reclaim_within_s).0 as f64;
        (1.0 - self.level) * f64::from(gpus) * within_ms * builder.missing_ratio()
    }
}

/// Quantile level of demand to keep back. Raised if past bounds held less often than they should.
pub(super) fn level_for(builder: &PlanBuilder<'_>, coverage: Option<f64>) -> f64 {
    let (rules, worth) = (&builder.policy.lend, &builder.policy.worth);
    let missing = worth.missing_micros_per_gpu_hour as f64;
    let lent = worth.useful_micros_per_gpu_hour as f64 * (1.0 - rules.reclaim_chance * rules.lost_per_lent);
    let level = (missing / (missing + lent)).max(rules.least_quantile);
    if coverage.is_some_and(|share| share < rules.least_quantile) { 1.0 - (1.0 - level) / 2.0 } else { level }
}

/// Demand the owner is promised to have GPUs for while a loan comes back: at the policy's promise
/// level, over the measured reclaim time, or `within_ms` if unmeasured.
///
/// Level 1 adds a margin to the past: the bound is 1.25 times the steepest rise of the last week.
/// It always covers the reclaim time that the policy allows, even where reclaims were faster.
pub(super) fn promised(builder: &mut PlanBuilder<'_>, of: Series<'_>, within_ms: i64) -> Option<f64> {
    let share = builder.state.share(of.owner, of.pool);
    let (demand, took_ms) = share.map_or((None, None), |share| (share.demand_gpus, share.reclaim_took_ms));
    let level = builder.policy.lend.promise_to(of.owner);
    if level < 1.0 {
        return builder.highest(of, level, took_ms.unwrap_or(within_ms));
    }
    let highest = builder.highest(of, level, within_ms)?;
    Some(highest + BEYOND_STEEPEST * (highest - f64::from(demand.unwrap_or(0))).max(0.0))
}

/// Text about a service's Erlang C floor, for a reason.
pub(super) fn promise_to_requests(gpus: u32) -> String {
    if gpus == 0 { String::new() } else { format!(" ({gpus} of them for its promise to requests, Erlang C)") }
}

/// GPUs the owner could lend from the pool, or why none.
pub(super) fn headroom(builder: &mut PlanBuilder<'_>, of: Series<'_>) -> Result<Headroom, String> {
    let rules = builder.policy.lend.clone();
    let share = builder.state.share(of.owner, of.pool).ok_or("it has no share of the pool")?;
    let demand = share.demand_gpus.ok_or("its demand is unknown")?;
    let stale_us = Micros::from_secs(builder.policy.freshness.most_s.max(2 * rules.reclaim_within_s)).0;
    let as_of = builder.as_of(of).ok_or("there is no forecast of its demand")?;
    if builder.now_us - as_of > stale_us {
        return Err(format!(
            "the forecast's data ended {} s ago",
            Micros(builder.now_us - as_of).floor_secs()
        ));
    }
    let coverage = builder.coverage(of).ok_or("too few forecasts have been compared with actual demand")?;
    if coverage < rules.least_coverage {
        return Err(format!(
            "only {coverage:.3} of the forecast bounds held; the policy requires {}",
            rules.least_coverage
        ));
    }
    let level = level_for(builder, Some(coverage));
    let within_ms = Millis::from_secs(rules.term_s + rules.reclaim_within_s).0;
    let far = "the forecast does not cover that period";
    let bound = builder.highest(of, level, within_ms).ok_or(far)?;
    let sudden = promised(builder, of, Millis::from_secs(rules.reclaim_within_s).0).ok_or(far)?;
    let highest = bound.max(sudden).max(f64::from(demand));
    let keep = highest.ceil().clamp(0.0, 4e9) as i64 + i64::from(rules.buffer_gpus);
    let service = builder.policy.service_floor(of.owner, of.pool, highest);
    let floor = i64::from(share.floor_gpus.max(service));
    let lent = i64::from(builder.state.lent_gpus(of.owner, of.pool));
    let away = builder.out_of_service(of);
    let spare = i64::from(share.quota_gpus) - i64::from(away) - keep.max(floor) - lent;
    let why = format!(
        "{} (quota {}) needs at most {bound:.1} GPUs within {} s at quantile {level:.3} (coverage {coverage:.3}) and at most \
         {sudden:.1} before a loan could return; {} are kept back{}, {lent} are lent, {away} are out of service",
        of.owner,
        share.quota_gpus,
        Millis(within_ms).floor_secs(),
        keep.max(floor),
        promise_to_requests(service)
    );
    Ok(Headroom { spare, level, why })
}

pub(super) fn plan(builder: &mut PlanBuilder<'_>) {
    let state = builder.state;
    let mut waiting = builder.waiting.take().unwrap_or_else(|| waiting(builder));
    let growing = if builder.policy.lend.for_growth { candidates(builder) } else { Vec::new() };
    let part = builder.owners;
    for (owner, entry) in state.owners.iter().filter(|(owner, _)| part.includes(owner)) {
        for (pool, share) in entry.shares.iter().filter(|(_, share)| share.lendable) {
            builder.count_considered(Kind::Lend, 1);
            let of = Series { owner, pool };
            let object = Object::Owner(owner.clone());
            let footprint =
                Footprint { owners: vec![owner.clone()], pools: vec![pool.clone()], ..Footprint::default() };
            if share.quota_gpus == 0 || builder.stopped(Kind::Lend, &footprint, object.clone()) {
                continue;
            }
            if let Err(why) = lend(builder, of, &mut waiting, &growing) {
                let net = 0;
                let noop =
                    Alternative { what: "noop".to_owned(), net_gpu_ms: net, why_not: "chosen".to_owned() };
                builder.noop(Kind::Lend, Some(object), format!("{owner} in {pool}: {why}"), None, vec![noop]);
            }
        }
    }
    builder.waiting = Some(waiting);
}

/// Preemptible jobs that neither their pool's free GPUs nor their owner's loans can start. Other
/// jobs do not borrow: what they hold could not be reclaimed.
fn waiting<'a>(builder: &mut PlanBuilder<'a>) -> WaitingJobs<'a> {
    let mut jobs: Vec<(&JobId, &Job, i64)> = Vec::new();
    let served = builder.served();
    for (id, job) in &builder.state.jobs {
        let starts = served.contains(id) || builder.reserved.starts(id);
        let lent = job.preemptible && !job.do_not_disrupt && !starts;
        if let Some(since) = job.pending_since_us().filter(|_| lent) {
            jobs.push((id, job, since));
        }
    }
    jobs.sort_by(|a, b| b.1.priority.cmp(&a.1.priority).then(a.2.cmp(&b.2)).then(a.0.cmp(b.0)));
    let mut free = builder.free_rooms();
    let mut on_loan: BTreeMap<&OwnerName, Room> = BTreeMap::new();
    let mut out = WaitingJobs::new();
    for (id, job, _) in jobs {
        let lent = on_loan.entry(&job.owner).or_insert_with(|| builder.room_on_loans(&job.owner));
        let mut nowhere = Room::default();
        let own = free.get_mut(&job.pool).filter(|_| may_use(builder, &job.owner, &job.pool));
        let own = own.unwrap_or(&mut nowhere);
        if own.take(job.gpus) {
            continue;
        }
        if lent.take(job.gpus) {
            builder.on_loans.insert(id);
            continue;
        }
        let needs = if builder.policy.lend.gangs_span {
            // Its own free GPUs are kept for it, and the loan adds the rest.
            let missing = own.missing_after(job.gpus);
            lent.missing_after(missing)
        } else {
            lent.missing_after(job.gpus)
        };
        if needs == 0 {
            continue;
        }
        let more = match &job.kind {
            JobKind::Elastic { max_gpus, .. } => max_gpus.saturating_sub(job.gpus),
            JobKind::Gang | JobKind::Service { .. } => 0,
        };
        let pools = out.entry(job.owner.clone()).or_default();
        pools.entry(job.pool.clone()).or_default().push(WaitingJob { id, needs, uses: needs + more });
    }
    out
}

/// Whether an owner may use the pool's free GPUs as they are: it is below its limit.
fn may_use(builder: &PlanBuilder<'_>, owner: &OwnerName, pool: &PoolName) -> bool {
    let Some(share) = builder.state.share(owner, pool) else { return true };
    share.limit_gpus.is_none_or(|limit| builder.occupancy.used(owner, pool) < limit)
}

fn lend<'a>(
    builder: &mut PlanBuilder<'a>,
    of: Series<'_>,
    waiting: &mut WaitingJobs<'a>,
    growing: &[(&JobId, &Job)],
) -> Result<(), String> {
    if let Some(why) = builder.promises.against_taking(of.owner) {
        return Err(why);
    }
    let rules = builder.policy.lend.clone();
    let loans = || builder.state.loans.values().filter(|loan| loan.from == of.owner && loan.pool == of.pool);
    if loans().any(|loan| loan.reclaiming_gpus > 0) || reclaims_now(builder, of) {
        return Err("it is taking GPUs back".to_owned());
    }
    let newest = loans().map(|loan| loan.since_us).max();
    if let Some(since) =
        newest.filter(|since| builder.now_us - since < Micros::from_secs(rules.step_every_s).0)
    {
        return Err(format!(
            "it last lent {} s ago; the policy requires {} s between loans",
            Micros(builder.now_us - since).floor_secs(),
            rules.step_every_s
        ));
    }
    let room = headroom(builder, of)?;
    if room.spare <= 0 {
        return Err(format!("nothing to spare: {}", room.why));
    }
    let owner_floor = builder.policy.floors.owners.get(of.owner).copied().unwrap_or(0);
    let total: u32 = builder
        .state
        .owners
        .get(of.owner)
        .map_or(0, |owner| owner.shares.values().map(|s| s.quota_gpus).sum());
    let lent: u32 =
        builder.state.loans.values().filter(|loan| loan.from == of.owner).map(|loan| loan.gpus).sum();
    let most = i64::from(total) - i64::from(owner_floor) - i64::from(lent);
    let quota = builder.state.share(of.owner, of.pool).map_or(0, |share| share.quota_gpus);
    // A share of a u32, rounded down.
    let step = rules.step_gpus.max((f64::from(quota) * rules.step_share) as u32);
    let most = room.spare.min(most).min(i64::from(step));
    let most =
        u32::try_from(most).map_err(|_| format!("its floor of {owner_floor} GPUs leaves nothing to lend"))?;
    let most_ever = u32::try_from(room.spare).unwrap_or(0);
    let found = borrower(builder, of, waiting, most_ever);
    let growers = if found.is_err() { grows_on_loan(builder, of, most, growing) } else { None };
    let (to, wanted) = match &growers {
        Some(growers) => (growers.owner.clone(), growers.gpus()),
        None => found?,
    };
    let (gpus, nodes) = choose(builder, of, most, wanted)?;
    let term_ms = Millis::from_secs(rules.term_s).0;
    let lost = rules.reclaim_chance * rules.lost_per_lent;
    let used = match &growers {
        Some(growers) => growers.gains(gpus),
        None => f64::from(gpus.min(wanted)) * term_ms as f64,
    };
    let effect = (used * (1.0 - lost), room.risk(builder, gpus));
    let predicted = builder.predict_corrected(Kind::Lend, effect, room.level, term_ms);
    if !builder.worth_it(&predicted) {
        return Err(format!(
            "lending {gpus} GPUs would not be worth it: net {} GPU-s at worst",
            GpuMillis(predicted.net_low_gpu_ms()).trunc_gpu_secs()
        ));
    }
    let expires_us = builder.now_us + Millis(term_ms).to_micros().0;
    let lent_of_pool = builder.state.lent_gpus(of.owner, of.pool);
    let mut preconditions = vec![
        Precondition::LentIs { owner: of.owner.to_owned(), pool: of.pool.to_owned(), gpus: lent_of_pool },
        Precondition::DemandAtMost {
            owner: of.owner.to_owned(),
            pool: of.pool.to_owned(),
            gpus: builder
                .state
                .share(of.owner, of.pool)
                .map_or(0, |share| share.quota_gpus)
                .saturating_sub(lent_of_pool + gpus),
        },
    ];
    if !nodes.is_empty() {
        preconditions.push(Precondition::NodesFree { nodes: nodes.clone() });
    }
    let what = if growers.is_some() { "would grow by" } else { "waits for" };
    let reason = format!("{}; {to} {what} {wanted} GPUs", room.why);
    let change = Change::Lend {
        from: of.owner.to_owned(),
        to: to.clone(),
        pool: of.pool.to_owned(),
        gpus,
        nodes,
        extends: None,
        expires_us,
        reclaim_within_ms: Millis::from_secs(rules.reclaim_within_s).0,
    };
    let noop = Alternative {
        what: "noop".to_owned(),
        net_gpu_ms: 0,
        why_not: "lending gains more, even in the worst case".to_owned(),
    };
    builder.decide(ActionSpec {
        change,
        inverse: None,
        preconditions,
        effect_ends_us: Some(expires_us),
        after: Vec::new(),
        predicted,
        reason,
        alternatives: vec![noop],
    });
    let is_expected = is_expected(builder, of, &to);
    let mut left = gpus;
    for waits in waiting.get_mut(&to).into_iter().flat_map(BTreeMap::values_mut) {
        waits.retain(|job| {
            let starts = job.needs <= left;
            if starts {
                left -= job.uses.min(left);
            }
            if starts && is_expected {
                builder.on_loans.insert(job.id);
            }
            !starts
        });
    }
    Ok(())
}

/// Whether the loan just decided on is likely to be made.
///
/// It is not if it needs approval, or if the parent plan asked for a loan to the same borrower and
/// that loan was never made, for example because a person rejected it.
fn is_expected(builder: &PlanBuilder<'_>, of: Series<'_>, to: &OwnerName) -> bool {
    let is_left_over = |decision: &Decision| match &decision.action.change {
        Change::Lend { to: before, pool, extends: None, .. } => {
            before == to && pool == of.pool && !builder.state.loans.contains_key(&decision.action.id)
        }
        _ => false,
    };
    let acts = builder.decisions().last().is_some_and(|decision| decision.mode == Mode::Act);
    acts && !builder.decided_before(Kind::Lend, Object::Owner(of.owner.to_owned())).any(is_left_over)
}

/// Whether this plan reclaims from the same lender.
fn reclaims_now(builder: &PlanBuilder<'_>, of: Series<'_>) -> bool {
    builder.decisions().iter().any(|decision| match &decision.action.change {
        Change::Reclaim { loan, .. } => {
            builder.state.loans.get(loan).is_some_and(|loan| loan.from == of.owner && loan.pool == of.pool)
        }
        _ => false,
    })
}

/// The owner whose running jobs gain most from the loan. Each owner gets one loan per plan, until
/// its jobs have grown.
fn grows_on_loan(
    builder: &PlanBuilder<'_>,
    of: Series<'_>,
    most: u32,
    growing: &[(&JobId, &Job)],
) -> Option<LoanGrowth> {
    let lent_now = |to: &OwnerName| {
        builder.decisions().iter().any(|decision| match &decision.action.change {
            Change::Lend { to: other, extends: None, .. } => other == to,
            _ => false,
        })
    };
    let model = model_of(builder, of.pool);
    let fits = |pool: &PoolName| builder.policy.lend.across_models || model == model_of(builder, pool);
    best_borrower(builder, of, most, growing, fits).filter(|growers| !lent_now(&growers.owner))
}

/// The owner with the most waiting GPUs on the same model, and how many. Jobs that could not start
/// even with all the lender could spare do not count: a loan to them would stand idle.
fn borrower(
    builder: &PlanBuilder<'_>,
    of: Series<'_>,
    waiting: &WaitingJobs<'_>,
    most: u32,
) -> Result<(OwnerName, u32), &'static str> {
    let model = model_of(builder, of.pool);
    let fits = |pool: &PoolName| builder.policy.lend.across_models || model == model_of(builder, pool);
    let mut best: Option<(u32, &OwnerName)> = None;
    let mut too_large = false;
    for (owner, pools) in waiting.iter().filter(|(owner, _)| *owner != of.owner) {
        let jobs = pools.iter().filter(|(pool, _)| fits(pool)).flat_map(|(_, jobs)| jobs);
        let (small, large): (Vec<&WaitingJob<'_>>, Vec<&WaitingJob<'_>>) =
            jobs.partition(|job| job.needs <= most);
        too_large |= !large.is_empty();
        let gpus = small.iter().fold(0u32, |sum, job| sum.saturating_add(job.uses));
        if gpus > 0 && best.is_none_or(|(most, _)| gpus > most) {
            best = Some((gpus, owner));
        }
    }
    match best {
        Some((gpus, owner)) => Ok((owner.clone(), gpus)),
        None if too_large => Err("each waiting job needs more GPUs than there are to spare"),
        None => Err("no waiting job could use a loan"),
    }
}

/// GPU model of a pool. `None`: the state has no node of it.
fn model_of<'a>(builder: &PlanBuilder<'a>, pool: &str) -> Option<&'a str> {
    builder.state.nodes.values().find(|node| node.pool == pool).map(|node| node.gpu_model.as_str())
}

/// Chooses what to lend: whole free nodes of a pool that is the owner's alone, a number of GPUs of
/// a shared pool.
fn choose(
    builder: &mut PlanBuilder<'_>,
    of: Series<'_>,
    most: u32,
    wanted: u32,
) -> Result<(u32, BTreeSet<NodeName>), String> {
    let state = builder.state;
    let sharers = state
        .owners
        .values()
        .filter(|owner| owner.shares.get(of.pool).is_some_and(|share| share.quota_gpus > 0));
    let has_nodes = state.nodes.values().any(|node| node.pool == of.pool);
    if sharers.count() > 1 || !has_nodes {
        let gpus = most.min(wanted);
        return if gpus > 0 { Ok((gpus, BTreeSet::new())) } else { Err("less than one GPU".to_owned()) };
    }
    let free = |(name, node): &(&NodeName, &crate::state::Node)| {
        node.pool == of.pool
            && node.takes_jobs()
            && !node.do_not_disrupt
            && node.gpus > 0
            && !builder.jobs_on.contains_key(*name)
            && !builder.loan_of.contains_key(*name)
            && !builder.reserved.keeps(name)
    };
    let mut nodes: Vec<_> = state.nodes.iter().filter(free).collect();
    nodes.sort_by_key(|(name, _)| (shuffled(builder.seed, name), *name));
    let (mut gpus, mut chosen) = (0, BTreeSet::new());
    for (name, node) in nodes {
        if gpus < wanted && gpus + node.gpus <= most {
            gpus += node.gpus;
            chosen.insert(name.clone());
        }
    }
    if chosen.is_empty() {
        return Err(format!("no free node has at most {most} GPUs"));
    }
    if let Some(left) = builder.free.get_mut(&of.pool.to_owned()) {
        *left = left.saturating_sub(gpus);
    }
    Ok((gpus, chosen))
}
