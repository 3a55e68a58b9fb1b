//! Planner and guard on a large cluster.

use serde::Serialize;
use tidegate_autopilot::guard::{History, KillSwitch, Verdict, verdict};
use tidegate_autopilot::planner::plan;
use tidegate_autopilot::policy::Policy;

use super::Spread;
use super::scene::{NOW, Steady, cluster};
use crate::bench::Stopwatch;
use tidegate_workspace::CommandError;

/// Cost of planning.
#[derive(Debug, Serialize)]
pub struct Planner {
    nodes: usize,
    jobs: usize,
    plans: u32,
    /// Of one plan.
    decisions: usize,
    considered: usize,
    cpu_ms: Spread,
    wall_ms: Spread,
}

/// Cost of guard verdicts on a plan's decisions.
#[derive(Debug, Serialize)]
pub struct Guard {
    verdicts: usize,
    allowed: usize,
    /// Per verdict; CPU time is the total, divided.
    cpu_us: f64,
    wall_us: Spread,
}

/// Plans one state `plans` times with different seeds, and has the guard judge the last plan.
pub fn measure(nodes: usize, jobs: usize, plans: u32, seed: u64) -> Result<(Planner, Guard), CommandError> {
    let (policy, state) = (Policy::auto(), cluster(nodes, jobs));
    let (mut cpu_ms, mut wall_ms) = (Vec::new(), Vec::new());
    let (mut decisions, mut considered) = (Vec::new(), 0);
    for round in 0..u64::from(plans) {
        let watch = Stopwatch::start()?;
        let (made, report) = plan(&policy, &state, &Steady, None, NOW, seed + round);
        let (cpu, wall) = watch.read()?;
        cpu_ms.push(cpu * 1e3);
        wall_ms.push(wall * 1e3);
        (decisions, considered) = (made.decisions, report.considered.len());
    }
    let planner = Planner {
        nodes,
        jobs,
        plans,
        decisions: decisions.len(),
        considered,
        cpu_ms: Spread::from_values(cpu_ms),
        wall_ms: Spread::from_values(wall_ms),
    };
    let history = History { switch: KillSwitch::On, ..History::default() };
    let (mut allowed, mut wall_us) = (0, Vec::new());
    let all = Stopwatch::start()?;
    for decision in &decisions {
        let watch = std::time::Instant::now();
        allowed += usize::from(verdict(&policy, &state, &history, &decision.action, NOW) == Verdict::Allowed);
        wall_us.push(watch.elapsed().as_secs_f64() * 1e6);
    }
    let (cpu, _) = all.read()?;
    if decisions.is_empty() {
        return Err("the plan decides nothing on this cluster; choose more --nodes or --jobs".into());
    }
    let cpu_us = cpu * 1e6 / decisions.len() as f64;
    Ok((planner, Guard { verdicts: decisions.len(), allowed, cpu_us, wall_us: Spread::from_values(wall_us) }))
}
