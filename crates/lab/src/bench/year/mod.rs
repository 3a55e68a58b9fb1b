//! Year: whether a site costs the same on day 365 as on day 1.

mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use self::report::{Day, Report};
use super::Scratch;
use super::site::phases::{self, Lived, Made, Phase, Restarted, State};
use super::site::questions::Asked;
use super::site::{Site, disk};
use tidegate_workspace::{CommandError, CommandResult, say};

const ROUNDS_A_MINUTE: u32 = 6;

/// What a site costs on day 1, 30 and 365
///
/// For each of these days it makes a site with that much history: jobs and nodes of every day, and
/// for the last hours one GPU sample a minute. Then the site runs live, with one sample a second
/// and a commit every ten seconds. Prints CPU time a minute, the times of commits, queries and a
/// restart, memory, and disk use. Minutes and seconds are those of the events, not of the clock.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate bench year --gpus 1000 --jobs-per-day 100 --watched-hours 6
  tidegate bench year --json --data /var/tmp/year
  tidegate bench year --gpus 100 --jobs-per-day 20 --days 1,10,30 --watched-hours 1

With --data the sites are kept, one folder for each day, and the next run continues with them. A day
of samples of 10,000 GPUs is 14 million rows; --watched-hours sets how many hours there are.")]
pub struct YearArgs {
    /// Seed of the generated input
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// GPUs of the site, eight a node
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(8..=1_000_000))]
    gpus: u32,
    /// Jobs that are submitted a day
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    jobs_per_day: u32,
    /// Lengths of the past, in days
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,30,365",
          value_parser = clap::value_parser!(u32).range(1..=400))]
    days: Vec<u32>,
    /// Hours at the end of the past in which agents watched the GPUs
    #[arg(long, default_value_t = 24, value_parser = clap::value_parser!(u32).range(0..=9_600))]
    watched_hours: u32,
    /// Minutes of commits before those that are measured, with samples of one node: they fill the
    /// tables' logs
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u32).range(0..=1_440))]
    uptime_minutes: u32,
    /// Minutes that are measured
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_440))]
    live_minutes: u32,
    /// Repetitions of each question after a first one that does not count
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: u32,
    /// Leave signals out: no time to the first signal
    #[arg(long)]
    no_signals: bool,
    /// Keep the sites here and go on with those that are there; otherwise they are temporary, and
    /// only one is on disk at a time
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Makes and measures the sites; prints the report.
pub fn run(args: &YearArgs) -> CommandResult {
    let mut days = Vec::new();
    for length in &args.days {
        let site = Site {
            seed: args.seed,
            nodes: args.gpus.div_ceil(8),
            jobs_per_day: args.jobs_per_day,
            days: *length,
            watched_hours: args.watched_hours.min(length * 24),
        };
        days.push(match &args.data {
            Some(data) => day(args, &site, &data.join(format!("day-{length}")))?,
            None => day(args, &site, Scratch::new(&format!("year-{length}"))?.path())?,
        });
    }
    let report = Report::new(args, days);
    match args.json {
        true => super::print(&report),
        false => {
            say!("{report}");
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn day(args: &YearArgs, site: &Site, folder: &Path) -> Result<Day, CommandError> {
    let with_signals = !args.no_signals;
    let made: Option<Made> = match State::read(folder)? {
        Some(state) if state.site == *site => None,
        Some(state) => {
            return Err(format!(
                "the site in {} is another one ({} nodes, {} jobs a day, {} days, {} hours watched, seed {}); choose another --data",
                folder.display(),
                state.site.nodes,
                state.site.jobs_per_day,
                state.site.days,
                state.site.watched_hours,
                state.site.seed
            )
            .into());
        }
        None if phases::data(folder).exists() => {
            return Err(format!(
                "the site in {} was not finished; remove the folder, or choose another --data",
                folder.display()
            )
            .into());
        }
        None => {
            tracing::info!(days = site.days, "making a past");
            Some(phases::start(Phase::Make, folder, site, [0; 3], with_signals)?)
        }
    };
    tracing::info!(days = site.days, "going on live");
    let rounds = [args.uptime_minutes, 0, args.live_minutes].map(|minutes| minutes * ROUNDS_A_MINUTE);
    let lived: Lived = phases::start(Phase::Live, folder, site, rounds, with_signals)?;
    let disk = disk::measure(&phases::data(folder))?;
    let asked: Asked = phases::start(Phase::Ask, folder, site, [0, 0, args.repeat], with_signals)?;
    let restarted: Restarted = phases::start(Phase::Restart, folder, site, [0; 3], with_signals)?;
    Ok(Day { day: site.days, made, live: lived, disk, asked, restart: restarted })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tidegate_lake::catalog::committed_catalog;
    use tidegate_lake::engine::Limits;
    use tidegate_lake::pipeline::{Plan, shipped};
    use tidegate_lake::runner::Pace;
    use tidegate_lake::testing::equivalence::{TableContents, read_tables};
    use tidegate_workspace::{LogArgs, Workspace, block_on, block_on_one_thread, folder_url};

    use super::*;
    use crate::bench::site::drive;
    use crate::bench::site::feed::{Feed, Sending};
    use arrow::array::RecordBatch;

    fn contents(data: &Path) -> TableContents {
        let read = async {
            let plan = Plan::compile(shipped()).await?;
            let lake = folder_url(&data.join("lake"))?;
            Ok::<_, CommandError>(
                read_tables(&committed_catalog(&lake, &plan, Limits::default()).await?).await?,
            )
        };
        block_on_one_thread(read).expect("a runtime").expect("tables")
    }

    /// Without the columns that say in which pieces the events were appended.
    fn without_producer(rows: &RecordBatch) -> RecordBatch {
        let schema = rows.schema();
        let names = schema.fields().iter().enumerate();
        let kept: Vec<usize> =
            names.filter(|(_, f)| !["epoch", "seq"].contains(&f.name().as_str())).map(|(at, _)| at).collect();
        rows.project(&kept).expect("columns of the table")
    }

    #[test]
    fn a_past_made_in_bulk_is_what_the_live_path_makes_of_the_same_events() {
        let site = Site { seed: 3, nodes: 2, jobs_per_day: 60, days: 1, watched_hours: 1 };
        let (bulk, live) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        phases::make(bulk.path(), &site, false).expect("a past");
        let data = phases::data(live.path());
        let workspace = Workspace::open(&data, &LogArgs::default()).expect("a folder");
        workspace.create_topics().expect("topics");
        let log = Arc::clone(&workspace.log);
        let (watched, end) = (site.watched_from_ms(), site.past_end_ms());
        let mut feed = Feed::new(&site, log.as_ref(), Sending::Past, 1, (watched, end));
        let lived = block_on(async {
            let mut runner = workspace.runner(shipped(), Pace::default()).await?;
            // Jobs by the hour up to when agents watch, then by messages of ten minutes.
            let mut at_ms = super::super::site::START_MS;
            while at_ms < end {
                let step_ms = if at_ms < watched { 3_600_000 } else { 600_000 };
                feed.append_events(at_ms, at_ms + step_ms)?;
                if at_ms >= watched {
                    feed.append_messages(site.nodes)?;
                }
                for step in drive::STEPS {
                    runner.step(step).await?;
                }
                at_ms += step_ms;
            }
            Ok::<_, CommandError>(())
        });
        lived.expect("a runtime").expect("tables");
        drop(workspace);
        let (bulk, live) = (contents(&phases::data(bulk.path())), contents(&data));
        assert!(bulk["device_ledger_1m"].num_rows() > 900, "the ledger has minutes of GPUs");
        assert!(bulk["jobs"].num_rows() > 40);
        for (table, rows) in &bulk {
            let (rows, live) = (without_producer(rows), without_producer(&live[table]));
            assert_eq!(rows.num_rows(), live.num_rows(), "rows of {table}");
            let differ = (0..rows.num_rows()).find(|row| rows.slice(*row, 1) != live.slice(*row, 1));
            let row = |rows: &RecordBatch| differ.map(|row| rows.slice(row, 1));
            assert_eq!(row(&rows), row(&live), "{table}, row {differ:?}");
        }
    }
}
