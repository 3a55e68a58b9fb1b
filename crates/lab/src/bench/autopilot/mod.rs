//! Cost of the autopilot: a plan and guard verdicts on a large cluster, and the time from an event
//! to the verified, journaled action.

mod plan;
mod reaction;
mod scene;

use clap::Args;
use serde::Serialize;

use tidegate_workspace::CommandError;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate bench autopilot --json
  tidegate bench autopilot --nodes 1000 --jobs 500 --plans 101 --trials 20
  tidegate bench autopilot --look-every 1 --plan-every 5

planner and guard: one state of a cluster of --nodes and --jobs is planned --plans times; the guard
judges each decision.

bad_node and demand_jump: the executor runs on a simulated cluster with its journal on an embedded,
fsynced log. At a moment drawn by the seed a signal reports a bad node, or a service suddenly needs
all of its nodes, some of which are lent. cluster_ms is the time on the cluster's clock until
everything decided on it is verified: waits for the next observation and plan, and the time that the
cluster takes. work_ms is the real time of append, read, plan and journal, fsyncs included.
latency_ms is the sum. Appends, records and fsyncs are counted per verified action, from the event
to the last verification, lease renewals included.")]
pub struct AutopilotArgs {
    /// Nodes of the planned cluster
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    nodes: u32,
    /// Jobs of the planned cluster
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    jobs: u32,
    /// Number of plans
    #[arg(long, default_value_t = 21, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    plans: u32,
    /// Events of each kind
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    trials: u32,
    /// Nodes of the simulated cluster; half of them serve
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(16..=2_000))]
    acted_nodes: u32,
    /// Seconds between two observations, as in `tidegate autopilot run`
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10))]
    look_every: u32,
    /// Seconds between two plans, as in `tidegate autopilot run`
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=600))]
    plan_every: u32,
    /// Seed of clusters and events
    #[arg(long, default_value_t = 7)]
    seed: u64,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    planner: plan::Planner,
    guard: plan::Guard,
    look_every_s: u32,
    plan_every_s: u32,
    bad_node: reaction::Latency,
    demand_jump: reaction::Latency,
}

pub fn run(args: &AutopilotArgs) -> Result<Report, CommandError> {
    let (planner, guard) = plan::measure(args.nodes as usize, args.jobs as usize, args.plans, args.seed)?;
    let pace = reaction::Pace { look_every_s: args.look_every, plan_every_s: args.plan_every };
    let react = |event| reaction::measure(event, args.trials, args.acted_nodes as usize, pace, args.seed);
    Ok(Report {
        planner,
        guard,
        look_every_s: args.look_every,
        plan_every_s: args.plan_every,
        bad_node: react(reaction::Event::BadNode)?,
        demand_jump: react(reaction::Event::DemandJump)?,
    })
}

/// Distribution of measurements. A quantile is a measured value: the smallest that this share does
/// not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Spread {
    p50: f64,
    p99: f64,
    most: f64,
}

impl Spread {
    /// Needs at least one value.
    fn from_values(values: impl IntoIterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = (share * values.len() as f64).ceil() as usize;
            values.get(place.saturating_sub(1)).copied().unwrap_or(f64::NAN)
        };
        Self { p50: at(0.5), p99: at(0.99), most: at(1.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_occurred() {
        let spread = Spread::from_values((1..=200).rev().map(f64::from));
        assert_eq!(spread, Spread { p50: 100.0, p99: 198.0, most: 200.0 });
        assert_eq!(Spread::from_values([3.0]), Spread { p50: 3.0, p99: 3.0, most: 3.0 });
    }
}
