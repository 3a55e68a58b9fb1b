//! Speed of the simulator: jobs simulated per minute of wall time on one core.

use clap::Args;
use serde::Serialize;
use tidegate_sim::generate::{self, Arrivals};
use tidegate_sim::{Backfill, ClusterSpec, DAY_US, Sim};
use tidegate_workspace::CommandError;

use super::Stopwatch;

/// Name, backfill, nodes of 8 GPUs, and the load as GPUs that arriving work keeps busy.
const CASES: [(&str, Backfill, usize, u32); 5] = [
    ("fifo, 50 nodes, load 75 %", Backfill::Off, 50, 300),
    ("fifo, 1,000 nodes, load 90 %", Backfill::Off, 1_000, 7_200),
    ("easy backfill, 1,000 nodes, load 90 %", Backfill::Easy { depth: 100 }, 1_000, 7_200),
    ("fifo, 50 nodes, load 105 %, queue grows", Backfill::Off, 50, 420),
    ("easy backfill, 50 nodes, load 105 %, queue grows", Backfill::Easy { depth: 100 }, 50, 420),
];

/// Speed of the simulator
///
/// Simulates the same number of jobs on five clusters, with and without backfill, and reports how
/// many jobs a minute of wall time simulates.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate bench simulator --jobs 300000 --json")]
pub struct SimulatorArgs {
    /// Jobs of each case
    #[arg(long, default_value_t = 300_000, value_parser = clap::value_parser!(u32).range(1..))]
    jobs: u32,
    /// Print JSON (the default; the flag is accepted for scripts)
    #[arg(long)]
    json: bool,
}

/// One simulated cluster.
#[derive(Debug, Serialize)]
pub struct Case {
    case: &'static str,
    jobs: usize,
    /// Events that the engine processed.
    ticks: u64,
    simulated_days: f64,
    wall_s: f64,
    cpu_s: f64,
    jobs_per_minute: f64,
}

/// Simulates every case.
///
/// # Errors
/// The clock or the simulator fails.
pub fn run(args: &SimulatorArgs) -> Result<Vec<Case>, CommandError> {
    CASES.into_iter().map(|case| simulate(case, args.jobs as usize)).collect()
}

fn simulate(
    (case, backfill, nodes, load_gpus): (&'static str, Backfill, usize, u32),
    count: usize,
) -> Result<Case, CommandError> {
    let week = Arrivals { load_gpus, ..Arrivals::default() };
    let jobs_a_week = generate::arrivals(&week, 1).len();
    let span_us = DAY_US * 7 * (count / jobs_a_week + 1) as i64;
    let mut jobs = generate::arrivals(&Arrivals { span_us, ..week }, 2);
    jobs.truncate(count);
    let jobs_count = jobs.len();
    let mut spec = ClusterSpec::uniform(&[nodes], 8);
    spec.schedule.backfill = backfill;
    let watch = Stopwatch::start()?;
    let mut sim = Sim::new(spec, jobs, vec![])?;
    sim.run_to_end(i64::MAX / 4);
    let (cpu_s, wall_s) = watch.read()?;
    Ok(Case {
        case,
        jobs: jobs_count,
        ticks: sim.ticks(),
        simulated_days: sim.now_us() as f64 / DAY_US as f64,
        wall_s,
        cpu_s,
        jobs_per_minute: jobs_count as f64 / wall_s * 60.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_simulates_all_its_jobs() {
        for case in CASES {
            let case = simulate(case, 50).unwrap();
            assert_eq!(case.jobs, 50, "{}", case.case);
            assert!(case.ticks >= 100 && case.simulated_days > 0.0, "{case:?}");
        }
    }
}
