//! Straggler detector and demand forecaster against known truth, beside rivals.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidegate_evaluation::straggler::scene::{Noise, Regime};
use tidegate_evaluation::{forecast, straggler};

use tidegate_workspace::{CommandResult, say, seeds};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate bench stragglers --seeds 0..20
  tidegate bench stragglers --seeds 0..100 --regimes AB --no-rivals --json

Each seed is a job of each regime: A steps of fixed length, B uneven sequences, C uneven machines.
Faults and lookalikes of faults are injected at published rates and sizes; half of the jobs are
clean. Seeds below 100 are for tuning. Seeds from 1000 on are for reports: do not tune on them. The
same seeds give the same report.")]
pub struct StragglerArgs {
    /// Range of seeds, B excluded
    #[arg(long, value_name = "A..B", default_value = "0..20", value_parser = seeds)]
    seeds: (u64, u64),
    /// Regimes, e.g. AB
    #[arg(long, default_value = "ABC", value_parser = regimes)]
    regimes: Regimes,
    /// Length of each job, hours [default: drawn, 2 to 4.6]
    #[arg(long, value_parser = hours)]
    hours: Option<f64>,
    /// Larger slowdowns
    #[arg(long)]
    easy: bool,
    /// Skip the rivals
    #[arg(long)]
    no_rivals: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone)]
struct Regimes(Vec<Regime>);

fn regimes(text: &str) -> Result<Regimes, String> {
    let regime = |letter: char| match letter {
        'A' => Ok(Regime::A),
        'B' => Ok(Regime::B),
        'C' => Ok(Regime::C),
        other => Err(format!("{other} is no regime; there are A, B and C")),
    };
    let regimes = text.chars().map(regime).collect::<Result<Vec<_>, _>>()?;
    if regimes.is_empty() { Err("name at least one of A, B and C".into()) } else { Ok(Regimes(regimes)) }
}

fn hours(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|hours| (0.1..=48.0).contains(hours)).ok_or_else(|| "write 0.1 to 48".into())
}

pub fn stragglers(args: &StragglerArgs) -> CommandResult {
    let report = straggler::run(straggler::Options {
        seeds: args.seeds,
        regimes: args.regimes.0.clone(),
        hours: args.hours,
        noise: if args.easy { Noise::Easy } else { Noise::Hard },
        rivals: !args.no_rivals,
        threads: std::thread::available_parallelism()?.get(),
        ..straggler::Options::default()
    });
    if args.json {
        return super::print(&report);
    }
    say!("{}", report.table().trim_end());
    Ok(ExitCode::SUCCESS)
}

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate bench forecast --traces traces
  tidegate bench forecast --traces traces --sets itp,philly --json

--traces is a folder with the public traces as Parquet: ms_itp_jobs, philly_jobs,
helios_earth_vc_1min, alibaba_openb_pods, servegen_load_10min. Each series is forecast from 24
origins; data after an origin serves only as truth. tests/rivals/forecast.py runs other libraries on
the same series and origins.")]
pub struct ForecastArgs {
    /// Folder of the traces
    #[arg(long, value_name = "DIR")]
    traces: PathBuf,
    /// Sets to run [default: all]
    #[arg(long, value_name = "SET,SET", value_delimiter = ',')]
    sets: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn forecast(args: &ForecastArgs) -> CommandResult {
    let report = forecast::run(&forecast::Options { traces: args.traces.clone(), sets: args.sets.clone() })?;
    if args.json {
        return super::print(&report);
    }
    say!("{}", report.table().trim_end());
    Ok(ExitCode::SUCCESS)
}
