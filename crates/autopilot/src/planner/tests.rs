//! Plans worked out by hand.

mod advice;
mod capacity;
mod jobs;
mod loan_growth;
mod nodes;
mod notices;
mod peak_reservation;
mod promises;
mod reserved;
mod services;
mod whole;

use super::*;
use crate::fixture::{FixedForecast, NOW};
use crate::state::Object;

fn planned(state: &ClusterState, forecast: &FixedForecast) -> (Plan, Report) {
    plan(&without_margin(""), state, forecast, None, NOW, 7)
}

/// A policy that takes bounds as the forecast gives them, without the margin of promise level 1.
fn without_margin(rules: &str) -> Policy {
    let mut policy = Policy::parse(rules).unwrap();
    policy.lend.promise_quantile = 0.99;
    policy
}

/// Reasons reported for not acting, by kind.
fn noops(report: &Report, kind: Kind) -> Vec<&str> {
    let of_kind = |considered: &&Considered| considered.kind == kind && considered.action.is_none();
    report.considered.iter().filter(of_kind).map(|considered| considered.reason.as_str()).collect()
}

fn of_kind(plan: &Plan, kind: Kind) -> Vec<&Decision> {
    plan.decisions.iter().filter(|decision| decision.kind == kind).collect()
}
