//! `tidegate sim`: soak tests of the autopilot on simulated clusters.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use tidegate_autopilot::policy::Policy;
use tidegate_sim::DAY_US;
use tidegate_sim::soak::{FaultKind, Invariant, Limits, SoakReport, soak};

use super::{CommandResult, policy, seeds};

/// Test the autopilot on simulated clusters
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate sim soak --seeds 0..20")]
pub struct SimArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the autopilot on random clusters with random faults, and count violated invariants
    #[command(after_help = "Examples:
  tidegate sim soak --seeds 0..20
  tidegate sim soak --seeds 0..1000 --policy site.toml --json

Each seed draws a cluster, its jobs and demand, and a choice of faults: late or lost telemetry; a
scheduler that refuses, is slow or lies; executors that die at a write or hang while another acts; a
kill switch that is off; people who change the cluster at the same time. The command fails if an
invariant is violated.")]
    Soak(SoakArgs),
}

#[derive(Debug, Args)]
struct SoakArgs {
    /// Range of seeds, B excluded
    #[arg(long, value_name = "A..B", default_value = "0..20", value_parser = seeds)]
    seeds: (u64, u64),
    /// Policy to act by [default: `auto`, by which every reversible kind acts]
    #[arg(long, value_name = "FILE")]
    policy: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Report {
    seeds: u64,
    /// Simulated days.
    days: i64,
    /// Faults that were injected, by kind.
    faults: BTreeMap<FaultKind, u64>,
    /// Effects on clusters, ended loans, times an executor found within a step that it had lost its
    /// lease, and plans replayed from the journal.
    effects: u64,
    loans_ended: u64,
    fenced: u64,
    plans_made_again: u64,
    violations: BTreeMap<Invariant, u64>,
    examples: Vec<String>,
}

/// Number of violations shown.
const SHOWN: usize = 20;

pub fn run(args: SimArgs) -> CommandResult {
    let Command::Soak(args) = args.command;
    let policy = match &args.policy {
        Some(file) => policy::read(file)?,
        None => Policy::auto(),
    };
    let (from, to) = args.seeds;
    let report = soak(from..to, &policy, &Limits::from_policy(&policy))?;
    let report = Report::new(&report);
    if args.json {
        say!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Report {
    fn new(report: &SoakReport) -> Self {
        let mut violations = BTreeMap::new();
        for violation in &report.violations {
            *violations.entry(violation.invariant).or_insert(0) += 1;
        }
        Self {
            seeds: report.seeds,
            days: report.simulated_us / DAY_US,
            faults: report.faults.clone(),
            effects: report.effects,
            loans_ended: report.loans,
            fenced: report.fenced,
            plans_made_again: report.plans,
            violations,
            examples: report
                .violations
                .iter()
                .take(SHOWN)
                .map(|violation| format!("{violation:?}"))
                .collect(),
        }
    }
}

fn print(report: &Report) {
    let Report { seeds, days, effects, loans_ended, fenced, plans_made_again, .. } = report;
    say!(
        "{seeds} seeds, {days} simulated days: {effects} effects, {loans_ended} loans ended, {fenced} times fenced, \
         {plans_made_again} plans made again"
    );
    for (kind, times) in &report.faults {
        say!("  {kind:?} {times}");
    }
    say!("violations: {}", report.violations.values().sum::<u64>());
    report.violations.iter().for_each(|(invariant, times)| say!("  {invariant:?} {times}"));
    report.examples.iter().for_each(|example| say!("  {example}"));
}
