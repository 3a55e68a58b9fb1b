//! Properties of whole plans.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::action::Change;
use crate::fixture::{S, cluster, elastic, gang, loan, pending};
use crate::forecast::RecordedForecast;
use crate::state::Health;

/// A random cluster.
pub(super) fn random(seed: u64) -> (ClusterState, FixedForecast) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut state = cluster();
    let mut names: Vec<String> = state.nodes.keys().cloned().collect();
    if rng.random_bool(0.5) {
        loan(&mut state, &["s00", "s01", "s02", "s03", "s04"]);
        let lent = state.loans.get_mut("lend-1").unwrap();
        lent.expires_us = NOW + rng.random_range(60..4000) * S;
    }
    for node in state.nodes.values_mut() {
        if rng.random_bool(0.9) {
            continue;
        }
        let families =
            if rng.random_bool(0.5) { vec!["ecc".into(), "xid".into()] } else { vec!["xid".into()] };
        let bad_ppm = rng.random_bool(0.8).then(|| rng.random_range(0..1_000_000));
        node.health = Health { bad_ppm, families, fatal: rng.random_bool(0.1), ..Health::default() };
    }
    for at in 0..rng.random_range(0..12) {
        let count = rng.random_range(1..4).min(names.len());
        let taken: Vec<String> =
            (0..count).map(|_| names.swap_remove(rng.random_range(0..names.len()))).collect();
        let on: Vec<&str> = taken.iter().map(String::as_str).collect();
        let mut job =
            if rng.random_bool(0.5) { gang(&on) } else { elastic(&on, rng.random_range(0..1_000_000)) };
        job.priority = rng.random_range(0..3);
        job.preemptible = rng.random_bool(0.6);
        job.do_not_disrupt = rng.random_bool(0.2);
        job.opt_in = rng.random_bool(0.8);
        job.checkpoint.on_notice = rng.random_bool(0.5);
        state.jobs.insert(format!("j{at}"), job);
        if names.is_empty() {
            break;
        }
    }
    for at in 0..rng.random_range(0..5) {
        let mut job = pending(rng.random_range(1..65), rng.random_range(0..10_000));
        job.preemptible = rng.random_bool(0.5);
        job.priority = rng.random_range(0..5);
        state.jobs.insert(format!("w{at}"), job);
    }
    let share = state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap();
    share.floor_gpus = rng.random_range(0..100);
    share.demand_gpus = rng.random_bool(0.9).then(|| rng.random_range(0..140));
    let highest = rng.random_bool(0.9).then(|| rng.random_range(0.0..150.0));
    let coverage = rng.random_bool(0.9).then(|| rng.random_range(0.8..1.0));
    let typical = rng.random_bool(0.5).then(|| rng.random_range(0.0..150.0));
    (state, FixedForecast { highest, typical, coverage, as_of_us: Some(NOW) })
}

#[test]
fn nothing_to_do_says_so_for_every_kind() {
    let (plan, report) = planned(&ClusterState::default(), &FixedForecast::highest(1.0));
    assert!(plan.decisions.is_empty());
    for kind in Kind::ALL {
        assert!(!noops(&report, kind).is_empty(), "{kind}");
    }
}

#[test]
fn the_same_arguments_give_the_same_bytes_and_the_log_alone_the_same_plan() {
    let policy = Policy::shipped();
    let mut made = 0;
    for seed in 0..200 {
        let (state, says) = random(seed);
        let bytes = |(plan, report): &(Plan, Report)| {
            (serde_json::to_string(plan).unwrap(), serde_json::to_string(report).unwrap())
        };
        let first = plan(&policy, &state, &says, None, NOW, seed);
        assert_eq!(bytes(&first), bytes(&plan(&policy, &state, &says, None, NOW, seed)));
        // From the record: state and answers, read back from JSON.
        let state: ClusterState = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        let report: Report = serde_json::from_str(&bytes(&first).1).unwrap();
        let recorded = RecordedForecast { answers: report.answers };
        assert_eq!(bytes(&first), bytes(&plan(&policy, &state, &recorded, None, NOW, seed)));
        made += first.0.decisions.len();
    }
    assert!(made > 200, "{made} decisions are too few to mean anything");
}

#[test]
fn a_plan_after_a_plan_keeps_the_ids_of_what_it_decides_again() {
    let policy = Policy::shipped();
    let (mut kept, mut all) = (0, 0);
    for seed in 0..100 {
        let (state, says) = random(seed);
        let (first, _) = plan(&policy, &state, &says, None, NOW, seed);
        let (second, _) = plan(&policy, &state, &says, Some(&first), NOW + 10 * S, seed);
        let ids = |plan: &Plan| plan.decisions.iter().map(|d| d.action.id.clone()).collect::<Vec<_>>();
        kept += ids(&second).iter().filter(|id| ids(&first).contains(id)).count();
        all += first.decisions.len();
        let (third, _) = plan(&policy, &state, &says, Some(&first), NOW + 5000 * S, seed);
        assert!(ids(&third).iter().all(|id| !ids(&first).contains(id)), "expired ones are new decisions");
    }
    assert!(kept * 10 > all * 9, "{kept} of {all} kept");
}

/// On any state floors are kept, protected objects are left alone, preconditions hold, and no job
/// is disturbed twice.
#[test]
fn plans_keep_floors_and_promises_on_any_state() {
    let policy = Policy::shipped();
    for seed in 0..500 {
        let (state, says) = random(seed);
        let (plan, report) = plan(&policy, &state, &says, None, NOW, seed);
        let share = &state.owners["serving"].shares["serve"];
        let mut lent = state.lent_gpus("serving", "serve");
        let mut out = 0;
        let mut jobs = Vec::new();
        for decision in &plan.decisions {
            for fact in &decision.action.preconditions {
                fact.check(&state).unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
            }
            match &decision.action.change {
                Change::Lend { from, gpus, nodes, extends: None, .. } if from == "serving" => {
                    lent += gpus;
                    assert_eq!(nodes.len() as u32 * 8, *gpus);
                    assert!(share.quota_gpus - lent >= share.floor_gpus, "seed {seed}: below the floor");
                    let keep = says.highest.unwrap().max(f64::from(share.demand_gpus.unwrap()));
                    assert!(f64::from(share.quota_gpus - lent) >= keep + 8.0, "seed {seed}: above the bound");
                }
                Change::DrainNode { node, .. } => {
                    out += u32::from(state.nodes[node].pool == "serve") * 8;
                    assert!(128 - out >= 103, "seed {seed}: eight tenths of 128 stay");
                }
                change => {
                    if let Some(id) = change.job() {
                        let job = &state.jobs[id];
                        assert!(!job.do_not_disrupt, "seed {seed}: {id} is marked");
                        assert!(job.opt_in || state.on_loan(job), "seed {seed}: {id} has not opted in");
                        assert!(!jobs.contains(id), "seed {seed}: {id} twice");
                        jobs.push(id.clone());
                    }
                }
            }
            let reported = report.considered.iter().any(|c| c.action.as_ref() == Some(&decision.action.id));
            assert!(reported, "seed {seed}: a decision without a word");
        }
    }
}
