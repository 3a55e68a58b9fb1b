//! `tidegate backtest`: compares schedulers and policies on the same jobs and demand.

pub(super) mod report;
pub(super) mod site;
mod source;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use tidegate_evaluation::trace::{SCHEDULER_NAMES, SchedulerFactory, autopilot, scheduler};
use tidegate_sim::Reports;
use tidegate_sim::backtest::{Contender, backtest};
use tidegate_sim::scenario::Scenario;

use self::report::{Report, bounds, print, print_quotas};
use self::source::Source;
use super::{CommandError, CommandResult, policy, seeds};

/// Compare policies on the same jobs and demand
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate backtest --seeds 0..5
  tidegate backtest --trace philly_multigpu_attempts --policy static --policy autopilot --price 2.5
  tidegate backtest --trace /data/traces --jobs philly --serving dlrm --policy static --policy lyra --policy site.toml --json
  tidegate backtest --trace /data/traces --jobs itp --serving dlrm --days 14 --history 7 --policy static --policy autopilot
  tidegate backtest --trace /data/traces --jobs helios --lend-quotas --days 31
  tidegate backtest --from 2026-10-01 --to 2026-11-01 --serves inference --policy backfill --policy site.toml
  tidegate backtest --from 2026-10-01 --log kafka://kafka:9092 --data tidegate-data --cluster prod --json

The first policy is the baseline. `static` keeps jobs and services apart, first come, first served;
`backfill` adds EASY backfill; `lyra` (EuroSys 2023) and `gfs` (a spot quota) lend; `clairvoyant`
knows the future; `lender` lends whatever is not needed now; `autopilot` is the product's planner,
guard and executor with the policy `auto` (`tidegate policy show auto`), through the interface that
real schedulers have. It knows what a site can know: --reports sets how much jobs report. A FILE is
a policy of your own.

`made-up` draws jobs and demand for each seed, with sizes, lengths and daily cycles as published.
`ms_itp_jobs` and `philly_multigpu_attempts` are traces that come with the program; their demand of
services is made up. A DIR has public traces as Parquet: for jobs ms_itp_jobs, philly_jobs,
helios_earth_vc_1min, or alibaba_openb_pods with alibaba_openb_nodes; for demand
servegen_load_10min or alibaba_dlrm_instances; for the scaling of elastic jobs
sia_scaling_profiles. Each seed takes a window of a trace and draws what the trace lacks: which jobs
are elastic or may run on borrowed nodes, and how often they write checkpoints. Intervals are 95 %
over seeds.

--from uses the site's own log: its nodes, quotas and prices, and the jobs that were submitted, ran
or waited between --from and --to. A job's work is the GPU time that it held; a job that runs at
--from has the rest of its work left. Pools named with --serves are online services, whose demand is
what was held and waited for there; all other pools become one pool for jobs. A job that is still
running at the end of the log gets the length of another job that had run as long, drawn by the
seed. The seed also draws what the log lacks: which jobs are elastic or may run on lent nodes, and
their checkpoints. If the log has no nodes, the backtest assumes nodes of 8 GPUs: as many as were
ever held at once, or --train.")]
pub struct BacktestArgs {
    /// static, backfill, lyra, gfs, clairvoyant, lender, autopilot, or a policy FILE; may be given
    /// several times
    #[arg(long = "policy", value_name = "NAME|FILE", default_values = ["static", "backfill", "lyra", "autopilot", "clairvoyant"])]
    policies: Vec<String>,
    #[command(flatten)]
    source: source::SourceArgs,
    #[command(flatten)]
    site: site::SiteArgs,
    /// Range of seeds, B excluded
    #[arg(long, value_name = "A..B", default_value = "0..5", value_parser = seeds)]
    seeds: (u64, u64),
    /// What the jobs of the autopilot's site report of their steps: none, durations, or all,
    /// checkpoints included
    #[arg(long, value_name = "WHAT", default_value = "all", value_parser = reports)]
    reports: Reports,
    /// Lend idle quota between the teams of a trace with quotas (helios), and report how much
    /// waiting demand is served and how long owners wait; without services
    #[arg(long, conflicts_with_all = ["policies", "from"])]
    lend_quotas: bool,
    /// Minutes within which an owner must have its lent quota back
    #[arg(long, value_name = "MINUTES", default_value_t = 10, requires = "lend_quotas",
          value_parser = clap::value_parser!(u16).range(1..))]
    reclaim_within: u16,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: BacktestArgs) -> CommandResult {
    let (from, to) = args.seeds;
    if args.lend_quotas {
        let report = args.source.quotas(from..to, args.reclaim_within)?;
        match args.json {
            true => say!("{}", serde_json::to_string(&report)?),
            false => print_quotas(&report),
        }
        return Ok(ExitCode::SUCCESS);
    }
    let makers = args.policies.iter().map(|name| maker(name, args.reports)).collect::<Result<Vec<_>, _>>()?;
    let makers: Vec<&dyn Fn(&Scenario) -> Contender> =
        makers.iter().map(|maker| maker.as_ref() as _).collect();
    let source = match args.site.history()? {
        Some(history) => args.source.site(&history)?,
        None => Source::open(&args.source)?,
    };
    let rows = backtest(&makers, from..to, &|seed| source.scenario(seed))?;
    let bound_gpu_hours = bounds(from..to, &|seed| source.scenario(seed));
    let report = Report { about: source.about(), bound_gpu_hours, rows };
    match args.json {
        true => say!("{}", serde_json::to_string(&report)?),
        false => print(&report),
    }
    Ok(ExitCode::SUCCESS)
}

/// What jobs report, by name.
pub(super) fn reports(text: &str) -> Result<Reports, String> {
    match text {
        "none" => Ok(Reports::None),
        "durations" => Ok(Reports::Durations),
        "all" => Ok(Reports::All),
        _ => Err("say none, durations or all".to_owned()),
    }
}

fn maker(name: &str, reports: Reports) -> Result<SchedulerFactory, CommandError> {
    if let Some(known) = scheduler(name, reports) {
        return Ok(known);
    }
    let file = PathBuf::from(name);
    if file.is_file() {
        return Ok(autopilot(policy::read(&file)?, reports));
    }
    let names = SCHEDULER_NAMES.join(", ");
    Err(format!("{name} is no policy and no file: name {names} or a policy's TOML file").into())
}
