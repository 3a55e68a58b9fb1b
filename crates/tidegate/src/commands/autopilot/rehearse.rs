//! `tidegate autopilot rehearse`: the site's last month again, under a policy, and what would have
//! changed for whom.

use std::process::ExitCode;

use chrono::{DateTime, SecondsFormat, Utc};
use clap::Args;
use serde::Serialize;
use tidegate_autopilot::action::Kind;
use tidegate_autopilot::policy::{Mode, Policy};
use tidegate_evaluation::trace::site::{Provenance, Site, SiteOptions};
use tidegate_evaluation::trace::{autopilot, scheduler};
use tidegate_server::rehearsal::{OwnerChange, Rehearsal as Rehearsed, Spread, WholeChange};
use tidegate_sim::Reports;
use tidegate_sim::backtest::{Interval, Metric, Row, TeamRow, backtest};

use super::named;
use crate::commands::backtest::report::print_log;
use crate::commands::backtest::site::{MONTH_US, SiteArgs};
use crate::commands::{CommandError, CommandResult, seeds};

/// Replay the site's last month under a policy: what would have changed for each owner
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate autopilot rehearse --policy site.toml
  tidegate autopilot rehearse --policy site.toml --act lend --act reclaim --serves inference
  tidegate autopilot rehearse --policy auto --from 2026-10-01 --to 2026-11-01 --reports none --json

The jobs that the log holds run again in the simulator, twice for each seed: as today, first come
first served with backfill, and with the autopilot, which acts as the policy says; --act lets a kind
act that the policy does not let yet. Each owner's 95th percentile of the wait, its work and its
preemptions are compared, with 95 % intervals over seeds; a seed draws what the log lacks (`tidegate
backtest --help` says what). The exit status is 1 if an owner would have waited longer than
--longer-at-most, or online demand would have been unmet that is not today.

The result is kept in the data folder, and shown on the page Autopilot of its servers.

The simulated scheduler is not yours. Compare the wait that the log recorded with the one simulated
as today: where they differ much, the rest is as far off.")]
pub struct RehearseArgs {
    /// Policy: a file, or the name of a shipped one
    #[arg(long, value_name = "FILE|NAME")]
    policy: String,
    /// Kind that acts, whatever the policy says, such as lend; may be given several times
    #[arg(long, value_name = "KIND", value_parser = kind)]
    act: Vec<Kind>,
    /// What the site's jobs report of their steps: none, durations, or all, checkpoints included
    #[arg(long, value_name = "WHAT", default_value = "all", value_parser = crate::commands::backtest::reports)]
    reports: Reports,
    /// Minutes that an owner's 95th percentile of the wait may grow
    #[arg(long, value_name = "MINUTES", default_value_t = 10)]
    longer_at_most: u32,
    /// Range of seeds, B excluded
    #[arg(long, value_name = "A..B", default_value = "0..5", value_parser = seeds)]
    seeds: (u64, u64),
    #[command(flatten)]
    site: SiteArgs,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The result as JSON.
#[derive(Debug, Serialize)]
struct Rehearsal<'a> {
    about: &'a Provenance,
    acts: Vec<&'static str>,
    today: &'a Row,
    rehearsed: &'a Row,
    /// Owners who would have waited longer than is allowed.
    harmed: Vec<&'a str>,
    /// More minutes of unmet demand than today.
    unmet_minutes: f64,
}

pub fn run(args: &RehearseArgs) -> CommandResult {
    let policy = acting(named(Some(&args.policy))?, &args.act)?;
    let acts: Vec<&str> = acts(&policy).map(Kind::name).collect();
    let name = policy.name.clone();
    let history = args.site.since(MONTH_US)?;
    let options = SiteOptions { serves: history.serves.clone(), ..SiteOptions::default() };
    let site = Site::new(&history.history, &options)?;
    let today = scheduler("backfill", args.reports).expect("the name is known");
    let rehearsed = autopilot(policy, args.reports);
    let (from, to) = args.seeds;
    let rows = backtest(&[today.as_ref(), rehearsed.as_ref()], from..to, &|seed| site.setting(seed))?;
    let [today, rehearsed] = &rows[..] else { return Err("two contenders give two rows".into()) };
    let most_hours = f64::from(args.longer_at_most) / 60.0;
    let harmed = rehearsed.teams.iter().filter(|team| team.longer_hours.low > most_hours);
    let rehearsal = Rehearsal {
        about: site.about(),
        acts,
        today,
        rehearsed,
        harmed: harmed.map(|team| team.team.as_str()).collect(),
        unmet_minutes: value(rehearsed, Metric::UnmetMinutes) - value(today, Metric::UnmetMinutes),
    };
    // What took minutes is shown even where it cannot be kept.
    let file = Rehearsed::file(args.site.folder());
    if let Err(error) = kept(&rehearsal, args, name).save(&file) {
        tracing::warn!(
            "the page will not show this rehearsal: it cannot be saved as {}: {error}",
            file.display()
        );
    }
    match args.json {
        true => say!("{}", serde_json::to_string(&rehearsal)?),
        false => print(&rehearsal, args.longer_at_most),
    }
    let is_harmless = rehearsal.harmed.is_empty() && rehearsal.unmet_minutes <= 0.0;
    Ok(if is_harmless { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What servers of the data folder show.
fn kept(rehearsal: &Rehearsal<'_>, args: &RehearseArgs, policy: String) -> Rehearsed {
    let Rehearsal { about, acts, rehearsed, harmed, unmet_minutes, .. } = rehearsal;
    let time = |at_us: i64| {
        let at = DateTime::from_timestamp_micros(at_us).unwrap_or_default();
        at.to_rfc3339_opts(SecondsFormat::Secs, true)
    };
    let spread = |of: Interval| Spread::new(of.value, of.low, of.high);
    let owner = |row: &TeamRow| OwnerChange {
        owner: row.team.clone(),
        jobs: row.jobs,
        wait_p95_hours: spread(row.queue_p95_hours),
        longer_hours: spread(row.longer_hours),
        more_gpu_hours: spread(row.more_gpu_hours),
        preemptions: row.preemptions,
        more_preemptions: spread(row.more_preemptions),
        harmed: harmed.contains(&row.team.as_str()),
    };
    let (first, end) = args.seeds;
    let reports = match args.reports {
        Reports::None => "none",
        Reports::Durations => "durations",
        Reports::All => "all",
    };
    Rehearsed {
        made: Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
        policy,
        acts: acts.iter().map(|kind| (*kind).to_owned()).collect(),
        cluster: about.cluster.clone(),
        from: time(about.from_us),
        to: time(about.to_us),
        seeds: end - first,
        reports: reports.to_owned(),
        longer_at_most_minutes: args.longer_at_most,
        owners: rehearsed.teams.iter().map(owner).collect(),
        whole: Some(WholeChange { unmet_minutes: *unmet_minutes }),
        ..Rehearsed::default()
    }
}

fn kind(text: &str) -> Result<Kind, String> {
    let names = || Kind::ALL.map(Kind::name).join(", ");
    Kind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| format!("say one of {}", names()))
}

/// The policy with these kinds acting.
fn acting(mut policy: Policy, kinds: &[Kind]) -> Result<Policy, CommandError> {
    kinds.iter().for_each(|kind| {
        policy.modes.insert(*kind, Mode::Act);
    });
    if acts(&policy).next().is_none() {
        let why =
            "lets nothing act, so nothing would change: name kinds to try, such as --act lend --act reclaim";
        return Err(format!("the policy {} {why}", policy.name).into());
    }
    Ok(policy)
}

/// Kinds that act; those that a person approves do in a rehearsal.
fn acts(policy: &Policy) -> impl Iterator<Item = Kind> {
    let does = |kind: &Kind| matches!(policy.modes.get(kind), Some(Mode::Act | Mode::Approve));
    Kind::ALL.into_iter().filter(does)
}

/// Mean over seeds; 0 if it is not known.
fn value(row: &Row, metric: Metric) -> f64 {
    row.values[metric as usize].map_or(0.0, |value| value.value)
}

fn print(rehearsal: &Rehearsal<'_>, longer_at_most: u32) {
    let Rehearsal { about, acts, today, rehearsed, harmed, unmet_minutes } = rehearsal;
    print_log(about);
    say!("simulated as today: {:.2} h in the queue in the mean", value(today, Metric::QueueHours));
    say!("acts: {}", acts.join(", "));
    say!("");
    say!("{:28}{:>14}{:>16}", "", "today", "rehearsed");
    for (name, metric) in [
        ("mean wait, h", Metric::QueueHours),
        ("95 % wait at most, h", Metric::QueueP95Hours),
        ("useful work, GPU-h", Metric::UsefulGpuHours),
        ("lost to preemption, GPU-h", Metric::LostGpuHours),
        ("unmet online demand, min", Metric::UnmetMinutes),
    ] {
        say!("{name:28}{:>14.2}{:>16.2}", value(today, metric), value(rehearsed, metric));
    }
    say!("");
    say!(
        "{:20}{:>7}{:>15}{:>26}{:>26}{:>11}",
        "owner",
        "jobs",
        "95 % wait, h",
        "longer, h",
        "more work, GPU-h",
        "preempted"
    );
    for team in &rehearsed.teams {
        let TeamRow { team: name, jobs, queue_p95_hours, preemptions, .. } = team;
        let (longer, more) = (shown(team.longer_hours), shown(team.more_gpu_hours));
        let wait = queue_p95_hours.value;
        say!("{name:20}{jobs:>7.0}{wait:>15.2}{longer:>26}{more:>26}{preemptions:>11.1}");
    }
    say!("");
    match harmed[..] {
        [] => say!("nobody would have waited longer by more than {longer_at_most} minutes"),
        _ => say!("would have waited longer by more than {longer_at_most} minutes: {}", harmed.join(", ")),
    }
    if *unmet_minutes > 0.0 {
        say!("online demand would have been unmet for {unmet_minutes:.1} minutes more");
    }
}

/// A change with its 95 % interval.
fn shown(change: Interval) -> String {
    format!("{:+.2} [{:+.2} {:+.2}]", change.value, change.low, change.high)
}
