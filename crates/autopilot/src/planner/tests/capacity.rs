//! Lending, reclaiming and quotas.

use std::collections::BTreeSet;

use super::*;
use crate::action::{Adjustment, Change};
use crate::fixture::{S, cluster, elastic, gang, loan, pending};
use crate::state::{Job, Writer};

fn lends(plan: &Plan) -> Vec<(u32, usize)> {
    let lend = |decision: &&Decision| match &decision.action.change {
        Change::Lend { gpus, nodes, .. } => Some((*gpus, nodes.len())),
        _ => None,
    };
    plan.decisions.iter().filter_map(|decision| lend(&decision)).collect()
}

/// 25 jobs of 8 GPUs wait.
fn many_wait(state: &mut ClusterState) {
    state.jobs.extend((0..25).map(|at| (format!("w{at:02}"), pending(8, 60))));
}

#[test]
fn the_headroom_of_the_forecast_is_lent_in_whole_nodes() {
    let mut state = cluster();
    many_wait(&mut state);
    // 128 - 50 - 8 kept back = 70: 64 in one step, eight nodes.
    let (plan, _) = planned(&state, &FixedForecast::highest(50.0));
    assert_eq!(lends(&plan), [(64, 8)]);
    let decision = &of_kind(&plan, Kind::Lend)[0];
    // 64 GPUs for an hour, less 0.2 x 0.1 of that.
    assert_eq!(decision.predicted.benefit_gpu_ms, 225_792_000);
    // q = 40 / (40 + 1.96) = 0.95329; (1 - q) x 64 GPUs x 900 s x 20.
    assert!(
        (decision.predicted.cost_gpu_ms - 53_811_250).abs() < 10_000,
        "{}",
        decision.predicted.cost_gpu_ms
    );
    assert_eq!(decision.action.effect_ends_us, Some(NOW + 3600 * S));
    assert!(
        matches!(&decision.action.inverse, Some(Change::Reclaim { loan, to_gpus: 0, .. }) if *loan == decision.action.id)
    );
    assert!(decision.action.preconditions.iter().all(|fact| fact.check(&state).is_ok()));
    state.jobs.clear();
    // It has 32 free GPUs of its own: a gang of 32 needs no loan, one of 33 needs all its GPUs in
    // one place.
    state.jobs.insert("w".into(), pending(32, 60));
    assert_eq!(lends(&planned(&state, &FixedForecast::highest(50.0)).0), []);
    state.jobs.insert("w".into(), pending(33, 60));
    assert_eq!(lends(&planned(&state, &FixedForecast::highest(50.0)).0), [(40, 5)]);
    // 70 to spare: a loan for a job of 71 would stand idle.
    state.jobs.insert("w".into(), pending(71, 60));
    let (plan, report) = planned(&state, &FixedForecast::highest(50.0));
    assert_eq!(lends(&plan), []);
    assert!(noops(&report, Kind::Lend)[0].ends_with("more GPUs than there are to spare"));
}

#[test]
fn nothing_is_lent_on_unknown_demand() {
    let mut base = cluster();
    many_wait(&mut base);
    let why = |state: &ClusterState, says: FixedForecast| {
        let (plan, report) = planned(state, &says);
        assert_eq!(lends(&plan), []);
        noops(&report, Kind::Lend)[0].to_owned()
    };
    let fine = || FixedForecast::highest(50.0);
    assert!(why(&base, FixedForecast { highest: None, ..fine() }).contains("does not cover"));
    assert!(why(&base, FixedForecast { coverage: None, ..fine() }).contains("too few forecasts"));
    assert!(why(&base, FixedForecast { coverage: Some(0.8), ..fine() }).contains("requires 0.85"));
    assert!(why(&base, FixedForecast { as_of_us: None, ..fine() }).contains("no forecast"));
    assert!(why(&base, FixedForecast { as_of_us: Some(NOW - 86_400 * S), ..fine() }).contains("86400 s ago"));
    assert!(why(&base, FixedForecast::highest(121.0)).contains("nothing to spare"));
    let mut state = base.clone();
    state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap().demand_gpus = None;
    assert!(why(&state, fine()).contains("demand is unknown"));
    let mut state = base.clone();
    state.jobs.clear();
    assert!(why(&state, fine()).contains("no waiting job"));
    let mut state = base.clone();
    for node in state.nodes.values_mut().filter(|node| node.pool == "serve") {
        node.gpu_model = "L4".into();
    }
    assert!(why(&state, fine()).contains("no waiting job"), "work for H100 does not go to L4");
}

#[test]
fn floors_of_owners_are_never_lent() {
    let mut state = cluster();
    many_wait(&mut state);
    state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap().floor_gpus = 100;
    assert_eq!(lends(&planned(&state, &FixedForecast::highest(10.0)).0), [(24, 3)]);
    let policy = Policy::parse("[floors]\nowners = { serving = 112 }").unwrap();
    let (plan, _) = plan(&policy, &state, &FixedForecast::highest(10.0), None, NOW, 7);
    assert_eq!(lends(&plan), [(16, 2)]);
}

const LENT: [&str; 8] = ["s00", "s01", "s02", "s03", "s04", "s05", "s06", "s07"];

/// Eight nodes lent: two free, two with gang a, one with gang b, three with elastic job e.
fn lent() -> ClusterState {
    let mut state = cluster();
    loan(&mut state, &LENT);
    state.jobs.insert("a".into(), gang(&["s02", "s03"]));
    state.jobs.insert("b".into(), gang(&["s04"]));
    state.jobs.insert("e".into(), elastic(&["s05", "s06", "s07"], 500_000));
    state
}

#[test]
fn free_nodes_come_back_first_then_what_loses_least() {
    // The owner has 64 of 128 and will need 100: 36 GPUs, five nodes. Two are free; 20 GPUs are
    // left, three nodes: e can leave two nodes (16) or stop (24), b stop (8), a stop (16). Each
    // node e leaves costs half a node's hour, 14,400, and 20 s of the GPUs that stay: 8 x 20 = 160
    // for two nodes: 28,960 GPU-s. b stopped: 8 x (3,600 + 660) = 34,080; a twice that. e and b
    // together 63,040 for 24 GPUs; e stopped 24 x 660 + 16 nodes' worth (8 + 4 + 4) x 3,600 =
    // 73,440; so e and b are cheapest.
    let state = lent();
    let (plan, _) = planned(&state, &FixedForecast::highest(100.0));
    let reclaims = of_kind(&plan, Kind::Reclaim);
    assert_eq!(reclaims.len(), 1);
    let Change::Reclaim { from_gpus, to_gpus, nodes, .. } = &reclaims[0].action.change else { panic!() };
    assert_eq!((*from_gpus, *to_gpus), (64, 24));
    assert_eq!(nodes.iter().map(String::as_str).collect::<Vec<_>>(), ["s00", "s01", "s04", "s05", "s06"]);
    let shrink = of_kind(&plan, Kind::ResizeJob);
    assert_eq!(shrink[0].predicted.cost_gpu_ms, 28_960_000);
    let Change::ResizeJob { to_gpus, keep_nodes, .. } = &shrink[0].action.change else { panic!() };
    assert_eq!((*to_gpus, keep_nodes.iter().map(String::as_str).collect()), (8, vec!["s07"]));
    let stop = of_kind(&plan, Kind::Preempt);
    assert_eq!(stop[0].action.change, Change::Preempt { job: "b".into(), frees_gpus: 8 });
    assert_eq!(stop[0].predicted.cost_gpu_ms, 34_080_000);
    assert_eq!(stop[0].action.after, [reclaims[0].action.id.clone()]);
}

#[test]
fn a_reclaim_is_worth_what_its_owner_is_expected_to_use() {
    // 64 of 128 are left. Demand peaks at 60, 68, 76, 84 or 92 with the same probability.
    const PEAKS: Peak = Peak(|level, _| if level > 0.95 { 100.0 } else { 56.0 + 40.0 * level });
    let mut state = lent();
    // In useful GPU-hours; one of the owner counts twenty times.
    let benefit = |state: &ClusterState, forecast: &dyn crate::forecast::DemandForecast| {
        let (plan, _) = plan(&without_margin(""), state, forecast, None, NOW, 7);
        let benefit_gpu_ms = of_kind(&plan, Kind::Reclaim)[0].predicted.benefit_gpu_ms;
        format!("{:.2}", benefit_gpu_ms as f64 / 3.6e6 / 20.0)
    };
    // 36 GPUs are needed; 0, 4, 12, 20 and 28 of them are used, 12.8 in the mean. Five whole nodes
    // come back, 40 minutes before the loan ends: 12.8 / 36 x 40 x 2 / 3.
    assert_eq!(benefit(&state, &PEAKS), "9.48");
    // It lacks 16 now: 16, 16, 16, 20 and 28 are used, 19.2 in the mean.
    state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap().demand_gpus = Some(80);
    assert_eq!(benefit(&state, &PEAKS), "14.22");
    // Without a forecast these 16 come back, and are all used.
    let silent = FixedForecast { highest: None, typical: None, coverage: None, as_of_us: None };
    assert_eq!(benefit(&state, &silent), "10.67");
    // Half of what was predicted has come true so far.
    state.corrections_ppm.insert("reclaim".into(), 500_000);
    assert_eq!(benefit(&state, &PEAKS), "7.11");
}

#[test]
fn between_the_two_bounds_nothing_moves() {
    let mut state = lent();
    many_wait(&mut state);
    // 128 - 64 lent = 64. Lending needs 8 to spare, reclaiming a need above 64.
    for (highest, lend, back) in
        [(48.0, true, false), (56.0, false, false), (64.0, false, false), (65.0, false, true)]
    {
        let (plan, _) = planned(&state, &FixedForecast::highest(highest));
        assert_eq!(!lends(&plan).is_empty(), lend, "{highest}");
        assert_eq!(!of_kind(&plan, Kind::Reclaim).is_empty(), back, "{highest}");
    }
}

#[test]
fn a_current_shortage_reclaims_without_a_forecast() {
    let mut state = lent();
    state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap().demand_gpus = Some(70);
    let silent = FixedForecast { highest: None, typical: None, coverage: None, as_of_us: None };
    let (plan, _) = planned(&state, &silent);
    let Change::Reclaim { nodes, .. } = &of_kind(&plan, Kind::Reclaim)[0].action.change else { panic!() };
    assert_eq!(nodes.len(), 1, "six GPUs are a node");
    assert!(of_kind(&plan, Kind::Preempt).is_empty());
}

#[test]
fn protected_and_foreign_loans_stay() {
    let mut state = lent();
    for job in state.jobs.values_mut() {
        job.do_not_disrupt = true;
    }
    let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
    let Change::Reclaim { nodes, .. } = &of_kind(&plan, Kind::Reclaim)[0].action.change else { panic!() };
    assert_eq!(nodes.len(), 2, "only the free ones");
    assert!(noops(&report, Kind::Reclaim)[0].starts_with("48 more GPUs should come back"));
    let mut state = lent();
    state.loans.get_mut("lend-1").unwrap().writer = Writer::Other;
    let (plan, report) = planned(&state, &FixedForecast::highest(128.0));
    assert!(of_kind(&plan, Kind::Reclaim).is_empty() && of_kind(&plan, Kind::Preempt).is_empty());
    assert!(noops(&report, Kind::Reclaim)[0].contains("someone else"));
}

#[test]
fn jobs_on_shared_nodes_are_chosen_by_server_cost() {
    let mut state = cluster();
    loan(&mut state, &["s00", "s01"]);
    let half = |node: &str| Job { gpus: 4, placement: [(node.to_owned(), 4)].into(), ..gang(&[]) };
    let mut dear = half("s00");
    dear.checkpoint.last_us = None;
    state.jobs.insert("a".into(), dear);
    for (id, node) in [("b", "s00"), ("c", "s01"), ("d", "s01")] {
        state.jobs.insert(id.into(), half(node));
    }
    // 112 left, 113 needed: one node. s00 holds two hours of work without a checkpoint.
    let (plan, _) = planned(&state, &FixedForecast::highest(113.0));
    let Change::Reclaim { nodes, .. } = &of_kind(&plan, Kind::Reclaim)[0].action.change else { panic!() };
    assert_eq!(*nodes, BTreeSet::from(["s01".to_owned()]));
    let stopped: Vec<_> = of_kind(&plan, Kind::Preempt).iter().map(|d| d.action.change.object()).collect();
    assert_eq!(stopped, [Object::Job("c".into()), Object::Job("d".into())]);
}

#[test]
fn an_ending_loan_is_extended_or_comes_back_whole() {
    let mut state = lent();
    state.jobs.insert("c".into(), gang(&["s00", "s01"]));
    state.loans.get_mut("lend-1").unwrap().expires_us = NOW + 1_800 * S;
    let (plan, _) = planned(&state, &FixedForecast::highest(50.0));
    let extended = of_kind(&plan, Kind::Lend);
    let Change::Lend { extends, expires_us, gpus, .. } = &extended[0].action.change else { panic!() };
    assert_eq!((extends.as_deref(), *expires_us, *gpus), (Some("lend-1"), NOW + 3600 * S, 64));
    assert_eq!(extended[0].predicted.benefit_gpu_ms, 64 * 3_600_000, "all of it is held");
    // 57 + 8 kept back is one more than 64: one node comes back, then the rest can be renewed.
    let back = |state: &ClusterState| {
        let (plan, _) = planned(state, &FixedForecast::highest(57.0));
        let Change::Reclaim { to_gpus, .. } = &of_kind(&plan, Kind::Reclaim)[0].action.change else {
            panic!()
        };
        (*to_gpus, of_kind(&plan, Kind::Lend).len())
    };
    assert_eq!(back(&state), (56, 0));
    // While that node is on its way nothing more is reclaimed; when time runs out all of it comes
    // back.
    let lent = state.loans.get_mut("lend-1").unwrap();
    (lent.reclaiming_gpus, lent.reclaiming_nodes) = (8, ["s00".to_owned()].into());
    let (plan, _) = planned(&state, &FixedForecast::highest(57.0));
    assert!(of_kind(&plan, Kind::Reclaim).is_empty() && of_kind(&plan, Kind::Lend).is_empty());
    let lent = state.loans.get_mut("lend-1").unwrap();
    (lent.reclaiming_gpus, lent.reclaiming_nodes) = (0, [].into());
    lent.expires_us = NOW + 900 * S;
    assert_eq!(back(&state), (0, 0));
    // An unused loan is not renewed.
    state.loans.get_mut("lend-1").unwrap().expires_us = NOW + 1_800 * S;
    state.jobs.clear();
    assert_eq!(back(&state), (0, 0));
}

#[test]
fn an_ending_loan_gives_back_nodes_that_nobody_needs() {
    let mut state = lent();
    state.loans.get_mut("lend-1").unwrap().expires_us = NOW + 1_800 * S;
    let (plan, _) = planned(&state, &FixedForecast::highest(50.0));
    let Change::Reclaim { to_gpus, nodes, .. } = &of_kind(&plan, Kind::Reclaim)[0].action.change else {
        panic!()
    };
    assert_eq!((*to_gpus, nodes.len()), (48, 2), "s00 and s01 are empty");
    assert!(of_kind(&plan, Kind::Lend).is_empty() && of_kind(&plan, Kind::Preempt).is_empty());
    // Its owner has a job waiting that may use them, once there is more: all of it is renewed, and
    // only what is held now is a gain that can be predicted.
    state.jobs.insert("w".into(), pending(64, 60));
    let (plan, _) = planned(&state, &FixedForecast::highest(50.0));
    assert!(of_kind(&plan, Kind::Reclaim).is_empty());
    let renewed = of_kind(&plan, Kind::Lend);
    let Change::Lend { extends: Some(_), gpus: 64, .. } = renewed[0].action.change else { panic!() };
    assert_eq!(renewed[0].predicted.benefit_gpu_ms, 48 * 3_600_000);
    // A job that may not run on a loan does not count.
    state.jobs.get_mut("w").unwrap().preemptible = false;
    assert_eq!(of_kind(&planned(&state, &FixedForecast::highest(50.0)).0, Kind::Reclaim).len(), 1);
}

/// Answers a level and a horizon in ms with the highest demand.
struct Peak(fn(f64, i64) -> f64);

/// Sudden rises are predicted only at the promised level, and grow with the horizon.
const SUDDEN: Peak =
    Peak(|level, within_ms| if level >= 0.99 { 40.0 + within_ms as f64 / 15_000.0 } else { 40.0 });

impl crate::forecast::DemandForecast for Peak {
    fn highest_gpus(&self, _: crate::forecast::Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        Some((self.0)(level, within_ms))
    }

    fn typical_gpus(&self, _: crate::forecast::Series<'_>, _: f64, _: i64) -> Option<f64> {
        None
    }

    fn coverage(&self, _: crate::forecast::Series<'_>) -> Option<f64> {
        Some(0.95)
    }

    fn as_of_us(&self, _: crate::forecast::Series<'_>) -> Option<i64> {
        Some(NOW)
    }
}

#[test]
fn promised_demand_is_kept_back_over_the_reclaim_time() {
    let mut state = cluster();
    many_wait(&mut state);
    let lent = |state: &ClusterState| lends(&plan(&without_margin(""), state, &SUDDEN, None, NOW, 7).0);
    // 900 s promised: 40 + 60 and 8 are kept of 128, leaving 20, two nodes. In 300 s, as measured:
    // 40 + 20 and 8, leaving 60, seven nodes.
    assert_eq!(lent(&state), [(16, 2)]);
    let share = state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap();
    share.reclaim_took_ms = Some(300_000);
    assert_eq!(lent(&state), [(56, 7)]);
    // Two nodes are down and cannot be lent or kept: 44 are left, five nodes.
    for name in ["s14", "s15"] {
        state.nodes.get_mut(name).unwrap().state = crate::state::NodeState::Down;
    }
    assert_eq!(lent(&state), [(40, 5)]);
    // With five nodes lent 72 are left; 60 are promised. With two more down 56 are left, and one
    // node comes back.
    loan(&mut state, &LENT[..5]);
    let back = |state: &ClusterState| {
        of_kind(&plan(&without_margin(""), state, &SUDDEN, None, NOW, 7).0, Kind::Reclaim).len()
    };
    assert_eq!(back(&state), 0);
    for name in ["s12", "s13"] {
        state.nodes.get_mut(name).unwrap().state = crate::state::NodeState::Down;
    }
    assert_eq!(back(&state), 1);
}

#[test]
fn a_promise_at_level_1_is_of_more_than_the_steepest_rise() {
    let mut state = cluster();
    many_wait(&mut state);
    let policy = |level: f64| {
        let text = format!("[lend]\nreclaim_within_s = 600\npromise_quantile = {level:?}");
        Policy::parse(&text).unwrap()
    };
    let lent = |state: &ClusterState, level| lends(&plan(&policy(level), state, &SUDDEN, None, NOW, 7).0);
    // Demand is 40 and rises by 40 in 600 s. 80 and 8 are kept of 128, leaving five nodes; at level
    // 1 another 10 are, leaving 30, three nodes.
    assert_eq!(lent(&state, 0.99), [(40, 5)]);
    assert_eq!(lent(&state, 1.0), [(24, 3)]);
    // The level of one owner comes before that of all.
    let mut single = policy(1.0);
    single.lend.owner_promise_quantile = [("serving".to_owned(), 0.99), ("other".to_owned(), 1.0)].into();
    assert_eq!(lends(&plan(&single, &state, &SUDDEN, None, NOW, 7).0), [(40, 5)]);
    // It lasts as long as the policy allows, however fast reclaims were.
    let share = state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap();
    share.reclaim_took_ms = Some(300_000);
    assert_eq!(lent(&state, 0.99), [(56, 7)]);
    assert_eq!(lent(&state, 1.0), [(24, 3)]);
    // With five nodes lent 88 are left. That loan returns within 900 s, so 100 and 15 are promised.
    loan(&mut state, &LENT[..5]);
    let back = |level| of_kind(&plan(&policy(level), &state, &SUDDEN, None, NOW, 7).0, Kind::Reclaim).len();
    assert_eq!((back(0.99), back(1.0)), (0, 1));
}

#[test]
fn a_loan_brings_a_preemptible_gang_what_it_lacks() {
    let mut state = cluster();
    state.jobs.insert("g".into(), gang(&["t0", "t1"]));
    state.jobs.insert("w".into(), pending(40, 60));
    let span = Policy::parse("[lend]\ngangs_span = true").unwrap();
    // Two nodes of its own are free: three are missing if a gang may span, otherwise five.
    assert_eq!(lends(&plan(&span, &state, &FixedForecast::highest(50.0), None, NOW, 7).0), [(24, 3)]);
    assert_eq!(lends(&planned(&state, &FixedForecast::highest(50.0)).0), [(40, 5)]);
    // Half a node free twice is not a node.
    state.jobs.insert("w".into(), pending(8, 60));
    for (id, node) in [("h", "t2"), ("i", "t3")] {
        state.jobs.insert(id.into(), Job { gpus: 4, placement: [(node.to_owned(), 4)].into(), ..gang(&[]) });
    }
    assert_eq!(lends(&planned(&state, &FixedForecast::highest(50.0)).0), [(8, 1)]);
    state.jobs.get_mut("w").unwrap().preemptible = false;
    assert_eq!(
        lends(&planned(&state, &FixedForecast::highest(50.0)).0),
        [],
        "what it held could not be taken back"
    );
}

#[test]
fn shared_quotas_are_lent_by_number_and_reclaimed_by_job() {
    let mut state = cluster();
    let other = state.owners["research"].clone();
    state.owners.insert("vision".into(), other);
    let share = state.owners.get_mut("vision").unwrap().shares.get_mut("train").unwrap();
    (share.lendable, share.demand_gpus) = (true, Some(0));
    for (id, node) in [("a", "t0"), ("b", "t1"), ("c", "t2"), ("d", "t3")] {
        state.jobs.insert(id.into(), gang(&[node]));
    }
    many_wait(&mut state);
    let (plan, _) = planned(&state, &FixedForecast::highest(0.0));
    let vision = |plan: &Plan| {
        plan.decisions.iter().find_map(|d| match &d.action.change {
            Change::Lend { from, gpus, nodes, .. } if from == "vision" => Some((*gpus, nodes.len())),
            _ => None,
        })
    };
    // 32 - 0 - 8 kept back.
    assert_eq!(vision(&plan), Some((24, 0)));
    loan(&mut state, &[]);
    let lent = state.loans.get_mut("lend-1").unwrap();
    (lent.from, lent.pool, lent.gpus) = ("vision".into(), "train".into(), 24);
    for id in ["a", "b"] {
        state.jobs.get_mut(id).unwrap().loan = Some("lend-1".into());
    }
    state.jobs.get_mut("a").unwrap().checkpoint.last_us = Some(NOW - 60 * S);
    // It has 8 and needs 20: 12 more. 8 of the loan are idle, 4 must be freed: job a, whose
    // checkpoint is fresh.
    let (plan, _) = planned(&state, &FixedForecast::highest(20.0));
    let Change::Reclaim { to_gpus, .. } = &of_kind(&plan, Kind::Reclaim)[0].action.change else { panic!() };
    assert_eq!(*to_gpus, 12);
    assert_eq!(of_kind(&plan, Kind::Preempt)[0].action.change.object(), Object::Job("a".into()));
}

#[test]
fn quotas_follow_demand_a_step_at_a_time_and_purchases_are_proposals() {
    let mut state = cluster();
    state.pools.get_mut("serve").unwrap().price_micros_per_gpu_hour = Some(2_000_000);
    let says = FixedForecast { typical: Some(60.0), ..FixedForecast::highest(128.0) };
    let (plan, _) = planned(&state, &says);
    let changes: Vec<_> = of_kind(&plan, Kind::AdjustReservation).iter().map(|d| &d.action.change).collect();
    let quota = |owner: &str, pool: &str, from_gpus, to_gpus| {
        Change::AdjustReservation(Adjustment::Quota {
            owner: owner.into(),
            pool: pool.into(),
            from_gpus,
            to_gpus,
        })
    };
    // Research wants 60 of 32, but the pool has no more; serving goes down by 8 of 128, and the
    // proposal is to buy 60 instead of 128.
    let bought = Change::AdjustReservation(Adjustment::Commitment {
        pool: "serve".into(),
        from_gpus: 128,
        to_gpus: 60,
        term_days: 365,
    });
    assert_eq!(changes, [&quota("serving", "serve", 128, 120), &bought]);
    assert!(bought.needs_person());
}

#[test]
fn jobs_on_reclaimed_capacity_are_asked_again() {
    let mut state = lent();
    let taken = state.loans.get_mut("lend-1").unwrap();
    taken.reclaiming_since_us = Some(NOW - 300 * S);
    taken.reclaiming_gpus = 24;
    taken.reclaiming_nodes = ["s04", "s05", "s06"].map(str::to_owned).into();
    // 128 - 64 + 24 on their way: 80 are enough, but b is still on s04 and e on the other two.
    let (plan, _) = planned(&state, &FixedForecast::highest(80.0));
    assert!(of_kind(&plan, Kind::Reclaim).is_empty());
    assert_eq!(of_kind(&plan, Kind::Preempt)[0].action.change.object(), Object::Job("b".into()));
    assert_eq!(of_kind(&plan, Kind::Preempt)[0].serves, Some(Object::Loan("lend-1".into())));
    let Change::ResizeJob { to_gpus, keep_nodes, .. } = &of_kind(&plan, Kind::ResizeJob)[0].action.change
    else {
        panic!()
    };
    assert_eq!((*to_gpus, keep_nodes.contains("s07")), (8, true));
    assert_eq!(plan.decisions.len(), 2);
    // Of a loan by number, as many as are in excess: 24 held, 8 stay lent.
    let taken = state.loans.get_mut("lend-1").unwrap();
    (taken.nodes, taken.reclaiming_nodes) = (BTreeSet::new(), BTreeSet::new());
    (taken.gpus, taken.reclaiming_gpus) = (24, 16);
    for id in ["a", "b"] {
        state.jobs.get_mut(id).unwrap().loan = Some("lend-1".into());
    }
    state.jobs.get_mut("a").unwrap().checkpoint.last_us = Some(NOW - 60 * S);
    let (plan, _) = planned(&state, &FixedForecast::highest(80.0));
    let stopped: Vec<_> = of_kind(&plan, Kind::Preempt).iter().map(|d| d.action.change.object()).collect();
    assert_eq!(stopped, [Object::Job("a".into())], "16 GPUs, and its checkpoint is fresher");
}
