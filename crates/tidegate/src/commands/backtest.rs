//! `tidegate backtest`: what other policies would have made of the same jobs and demand.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidegate_autopilot::policy::Policy;
use tidegate_sim::backtest::{Contender, Interval, Metric, Row, Setting, backtest};
use tidegate_sim::generate::{Arrivals, Load};
use tidegate_sim::pilot::{Autopilot, Habits};
use tidegate_sim::policy::{Clairvoyant, Gfs, Lyra, Static};
use tidegate_sim::target::Control;
use tidegate_sim::{Backfill, DAY_US, MINUTE_US, Schedule};

use super::{CommandError, CommandResult, policy, seeds};

const GPUS_PER_NODE: u32 = 8;
/// Jobs that may start before the first one in line, where that does not put it off.
const BACKFILL_DEPTH: usize = 100;
/// Work that arrives, and the service's peak, of the nodes they have.
const LOAD: f64 = 1.0;
const PEAK: f64 = 0.85;

/// Runs policies over the same jobs and demand and compares what came of it
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate backtest --seeds 0..5
  tidegate backtest --policy static --policy lyra --policy site.toml --train 32 --serve 16 --days 14 --json

The first policy is what the others are compared with. `static` keeps jobs and services apart, first come, first served; `backfill` lets
short jobs go before; `lyra` (EuroSys 2023) and `gfs` (a spot quota) lend; `clairvoyant` knows the future; `autopilot` is the
product's planner and guard by the policy `auto` (`tidegate policy show auto`), through the interface that real schedulers have. A FILE is a policy
of yours. Jobs and demand are made up: sizes, lengths and tides as published; each seed is another week. Ratios are to the first policy's, with
95 % intervals over seeds.")]
pub struct BacktestArgs {
    /// static, backfill, lyra, gfs, clairvoyant, autopilot, or a policy's FILE; may be given several times
    #[arg(long = "policy", value_name = "NAME|FILE", default_values = ["static", "backfill", "lyra", "autopilot", "clairvoyant"])]
    policies: Vec<String>,
    /// What the jobs are; so far they are made up
    #[arg(long, value_name = "NAME", default_value = "made-up", value_parser = ["made-up"])]
    trace: String,
    /// Seeds, from and to; the last one is left out
    #[arg(long, value_name = "A..B", default_value = "0..5", value_parser = seeds)]
    seeds: (u64, u64),
    /// Nodes of 8 GPUs for jobs
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    train: u16,
    /// Nodes of 8 GPUs for the service
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u16).range(1..=1_000))]
    serve: u16,
    /// Days in which jobs arrive
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=365))]
    days: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: BacktestArgs) -> CommandResult {
    let makers = args.policies.iter().map(|name| maker(name)).collect::<Result<Vec<_>, _>>()?;
    let makers: Vec<&dyn Fn(&Setting) -> Contender> =
        makers.iter().map(|maker| maker.as_ref() as _).collect();
    let (from, to) = args.seeds;
    let rows = backtest(&makers, from..to, &|seed| setting(&args, seed))?;
    if args.json {
        say!("{}", serde_json::to_string(&rows)?);
    } else {
        tell(&rows);
    }
    Ok(ExitCode::SUCCESS)
}

fn setting(args: &BacktestArgs, seed: u64) -> Setting {
    let span_us = i64::from(args.days) * DAY_US;
    let gpus = |nodes: u16, share: f64| (f64::from(u32::from(nodes) * GPUS_PER_NODE) * share) as u32;
    let arrivals = Arrivals { span_us, load_gpus: gpus(args.train, LOAD), ..Arrivals::default() };
    let load = Load { span_us, peak_gpus: gpus(args.serve, PEAK), ..Load::default() };
    Setting::made_up(args.train.into(), args.serve.into(), &arrivals, &load, seed)
}

type Maker = Box<dyn Fn(&Setting) -> Contender>;

fn maker(name: &str) -> Result<Maker, CommandError> {
    Ok(match name {
        "static" => Box::new(|_| Static::default().into()),
        "backfill" => Box::new(|_| Static { backfill: Some(BACKFILL_DEPTH) }.into()),
        "lyra" => Box::new(|_| Lyra::default().into()),
        "gfs" => Box::new(|_| Gfs::default().into()),
        "clairvoyant" => Box::new(|_| Clairvoyant::default().into()),
        "autopilot" => of_policy(Policy::auto()),
        file if PathBuf::from(file).is_file() => of_policy(policy::read(&PathBuf::from(file))?),
        other => {
            let message = format!(
                "{other} is no policy and no file: name static, backfill, lyra, gfs, clairvoyant, autopilot or a policy's TOML file"
            );
            return Err(message.into());
        }
    })
}

fn of_policy(policy: Policy) -> Maker {
    Box::new(move |_| Contender::Pilot {
        decider: Box::new(Autopilot::new(policy.clone(), 1)),
        control: Control::default(),
        habits: Habits::default(),
        schedule: Schedule { backfill: Backfill::Easy { depth: BACKFILL_DEPTH }, ..Schedule::default() },
        every_us: MINUTE_US,
    })
}

/// A table: for each metric and policy the mean over seeds with half its 95 % interval, and the ratio to the first policy's.
fn tell(rows: &[Row]) {
    let shown = |value: Interval, ratio: Option<Interval>| {
        let ratio = ratio.map_or_else(|| "-".into(), |ratio| format!("{:.2}x", ratio.value));
        format!("{:>12.2} {:<7}{ratio:>6}", value.value, format!("±{:.2}", (value.high - value.low) / 2.0))
    };
    let names: String = rows.iter().map(|row| format!("{:>26}", row.policy)).collect();
    say!("{:20}{names}", "");
    for (place, metric) in Metric::ALL.into_iter().enumerate() {
        let name = serde_json::to_value(metric).ok().and_then(|name| name.as_str().map(str::to_owned));
        let cells: String = rows.iter().map(|row| shown(row.values[place], row.ratios[place])).collect();
        say!("{:20}{cells}", name.unwrap_or_default());
    }
}
