//! Whole histories: plans are made, checked and carried out repeatedly on a randomly changing
//! cluster.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::fixture::{FixedForecast, elastic, gang, loan, pending};
use crate::planner::plan;
use crate::state::{DrainedBy, Health, Job, Loan, Writer};

/// Applies the action as a target would.
fn apply(state: &mut ClusterState, action: &Action, now_us: i64) {
    match &action.change {
        Change::Lend { extends: Some(loan), expires_us, .. } => {
            if let Some(loan) = state.loans.get_mut(loan) {
                loan.expires_us = *expires_us;
            }
        }
        Change::Lend { from, to, pool, gpus, nodes, expires_us, reclaim_within_ms, .. } => {
            let loan = Loan {
                from: from.clone(),
                to: to.clone(),
                pool: pool.clone(),
                gpus: *gpus,
                nodes: nodes.clone(),
                since_us: now_us,
                expires_us: *expires_us,
                reclaim_within_ms: *reclaim_within_ms,
                reclaiming_since_us: None,
                reclaiming_gpus: 0,
                reclaiming_nodes: [].into(),
                writer: Writer::Autopilot { generation: 1 },
                jobs: [].into(),
            };
            assert!(state.loans.insert(action.id.clone(), loan).is_none());
        }
        Change::Reclaim { loan, to_gpus, nodes, .. } => {
            let found = state.loans.get_mut(loan).unwrap();
            found.gpus = *to_gpus;
            found.nodes.retain(|node| !nodes.contains(node));
            if *to_gpus == 0 {
                state.loans.remove(loan);
            }
        }
        Change::Preempt { job, .. } => {
            state.jobs.remove(job);
        }
        Change::ResizeJob { job, to_gpus, keep_nodes, .. } => {
            let job = state.jobs.get_mut(job).unwrap();
            if *to_gpus < job.held_gpus() {
                job.placement.retain(|node, _| keep_nodes.contains(node));
            }
            job.resized_us = Some(now_us);
        }
        Change::DrainNode { node, reason } => {
            let by = DrainedBy::Autopilot { action: action.id.clone(), generation: 1 };
            let drain = crate::state::Drain { by, since_us: Some(now_us), reason: reason.clone() };
            state.nodes.get_mut(node).unwrap().drain = Some(drain);
        }
        Change::ReturnNode { node, .. } => state.nodes.get_mut(node).unwrap().drain = None,
        Change::AdjustReservation(_) => {}
    }
}

fn weather(rng: &mut ChaCha8Rng, state: &mut ClusterState, at_us: i64, step: usize) {
    state.at_us = at_us;
    state.sources.insert("slurm".into(), crate::state::Source { last_event_us: Some(at_us) });
    let share = state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap();
    let demand = share.demand_gpus.unwrap_or(40) as i64 + rng.random_range(-12..=12);
    share.demand_gpus = Some(demand.clamp(0, 128) as u32);
    let name = format!("s{:02}", rng.random_range(0..16));
    let (bad, fatal) = (rng.random_range(0..1_000_000), rng.random_bool(0.02));
    let health =
        Health { bad_ppm: Some(bad), families: vec!["ecc".into(), "xid".into()], fatal, ..Health::default() };
    state.nodes.get_mut(&name).unwrap().health = Health { checked_good_us: Some(at_us - 900 * S), ..health };
    state.jobs.retain(|_, _| rng.random_bool(0.9));
    let held: std::collections::BTreeSet<String> =
        state.jobs.values().flat_map(|job| job.placement.keys().cloned()).collect();
    let lent: Vec<String> = state.loans.values().flat_map(|loan| loan.nodes.iter().cloned()).collect();
    for node in lent.iter().chain(&["t0".to_owned(), "t1".to_owned()]).filter(|node| !held.contains(*node)) {
        if rng.random_bool(0.5) {
            let job: Job = if rng.random_bool(0.5) { gang(&[node]) } else { elastic(&[node], 700_000) };
            state.jobs.insert(format!("j{step}-{node}"), job);
        }
    }
    state.jobs.insert(format!("w{step}"), pending(rng.random_range(8..100), 60));
}

#[test]
fn no_history_leads_below_a_floor_over_a_budget_or_to_two_effects() {
    let policy = acts(
        "[blast]\nowner_lost_gpu_hours = 20.0\n[budgets.lend]\nper_hour = 2\ngpus_per_hour = 64\ngpus_share_per_hour = 0.0",
    );
    let mut did = 0;
    let mut refused = std::collections::BTreeSet::new();
    for seed in 0..40u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut state = cluster();
        if seed % 2 == 0 {
            loan(&mut state, &["s00", "s01", "s02"]);
        }
        let mut history = on();
        let mut ids = std::collections::BTreeSet::new();
        for step in 0..60usize {
            let now_us = NOW + step as i64 * 180 * S;
            state.loans.retain(|_, loan| loan.expires_us > now_us);
            weather(&mut rng, &mut state, now_us, step);
            let highest = f64::from(state.owners["serving"].shares["serve"].demand_gpus.unwrap()) + 10.0;
            let says = FixedForecast { as_of_us: Some(now_us), ..FixedForecast::highest(highest) };
            let (made, _) = plan(&policy, &state, &says, None, now_us, seed);
            for decision in &made.decisions {
                match verdict(&policy, &state, &history, &decision.action, now_us) {
                    Verdict::Refused(refusal) => drop(refused.insert(refusal.rule)),
                    Verdict::Allowed => {
                        did += 1;
                        assert!(ids.insert(decision.action.id.clone()), "two effects of one id");
                        let mut past = PastAction::begun(
                            &decision.action,
                            &state,
                            decision.predicted.cost_gpu_ms,
                            now_us,
                        );
                        past.outcome =
                            if rng.random_bool(0.1) { failed("chance") } else { ActionStatus::Verified };
                        let lost = past.outcome != ActionStatus::Verified;
                        history.past.push(past);
                        if !lost {
                            apply(&mut state, &decision.action, now_us);
                        }
                    }
                }
                hold(&policy, &state, &history, now_us, seed);
            }
        }
    }
    assert!(did > 300, "{did} actions are too few");
    assert!(refused.len() >= 6, "{refused:?}");
}

/// Invariants after every action.
fn hold(policy: &Policy, state: &ClusterState, history: &History, now_us: i64, seed: u64) {
    for kind in Kind::ALL {
        let budget = policy.budget(kind);
        let counts = |past: &&PastAction| past.counts_as == kind && !past.prolongs();
        let hour: Vec<_> = history.since(now_us, 3_600 * S).filter(counts).collect();
        assert!(hour.len() <= budget.per_hour as usize, "seed {seed}: {kind}");
        assert!(
            hour.iter().map(|past| u64::from(past.gpus)).sum::<u64>() <= budget.most_gpus_per_hour(160),
            "seed {seed}: {kind}"
        );
    }
    let serve = state.nodes.values().filter(|node| node.pool == "serve" && node.takes_jobs());
    assert!(serve.map(|node| node.gpus).sum::<u32>() >= 103, "seed {seed}: eight tenths of 128");
    let racks: std::collections::BTreeSet<_> =
        state.nodes.values().filter(|node| node.drain.is_some()).map(|node| &node.rack).collect();
    assert!(racks.len() <= 1, "seed {seed}: two racks are out");
    assert!(state.lent_gpus("serving", "serve") <= 128, "seed {seed}: more lent than there is");
    assert!(
        state.loans.values().all(|loan| loan.expires_us <= now_us + 3600 * S),
        "seed {seed}: a loan without end"
    );
}
