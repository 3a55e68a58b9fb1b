//! `tidegate pipeline backfill`: rebuilds every table from the log in a second lake, then swaps it
//! with the lake in use.
//!
//! What the log has dropped cannot be rebuilt from it, so that is refused unless asked for.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use indicatif::{HumanCount, HumanDuration, ProgressBar, ProgressStyle};
use tidegate_lake::engine::Limits;
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::pipeline::Plan;
use tidegate_lake::runner::{Pace, Progress, Runner, topics};
use tidegate_log::{EventLog, Extent, TopicPartition};
use tidegate_server::{QueryLimits, QueryService};

use crate::commands::{
    CommandError, CommandResult, DataArgs, LogArgs, TableCount, Workspace, block_on_one_thread, folder_url,
    name_full_disk, table_counts,
};

pub fn run(data: &DataArgs, log: &LogArgs, from_what_is_left: bool, ratio_step: u32) -> CommandResult {
    let pipelines = data.load_pipelines()?;
    let workspace = Workspace::open_alone(&data.data, log)?;
    if !from_what_is_left && has_tables(&workspace)? {
        refuse_loss(workspace.log.as_ref())?;
    }
    let started = Instant::now();
    let bar = ProgressBar::new_spinner();
    bar.set_style(ProgressStyle::with_template("{spinner} rebuilding: {msg}")?);
    bar.enable_steady_tick(Duration::from_millis(200));
    let (progress, counts) = block_on_one_thread(async {
        let plan = Plan::compile(pipelines).await?.with_ratio_step(ratio_step);
        rebuild(&workspace, plan, &mut |p| {
            bar.set_message(format!("{} events in, {} to go", HumanCount(p.records), HumanCount(p.behind)))
        })
        .await
    })?
    .map_err(|e| name_full_disk(e, &data.data))?;
    bar.finish_and_clear();
    workspace.swap_in_rebuilt_lake()?;
    for table in counts {
        say!("{table}");
    }
    say!("rebuilt from {} events in {}", HumanCount(progress.records), HumanDuration(started.elapsed()));
    Ok(ExitCode::SUCCESS)
}

fn has_tables(workspace: &Workspace) -> Result<bool, CommandError> {
    Ok(std::fs::read_dir(workspace.folder.lake())?.next().is_some())
}

/// Refuses a rebuild if the log begins after its first record: the tables may hold what it dropped.
fn refuse_loss(log: &dyn EventLog) -> Result<(), CommandError> {
    let mut lacking = Vec::new();
    for (topic, config) in log.topics()? {
        if !topics().contains(&topic.as_str()) {
            continue;
        }
        for partition in 0..config.partitions {
            let Extent { start, .. } = log.extent(&TopicPartition { topic: topic.clone(), partition })?;
            if start > 0 {
                lacking.push(format!("{topic}/{partition} before offset {start}"));
            }
        }
    }
    match lacking.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "the log no longer holds all records ({}): retention dropped them, and tables that are rebuilt would lack them. The \
             present tables are as they were. To rebuild from what is left all the same, add --from-what-is-left and keep a copy \
             of the folder `lake`; `--retain-days forever` keeps what comes from now on",
            lacking.join(", ")
        )
        .into()),
    }
}

/// Builds a second lake beside the one in use. Returns once it is complete and committed.
async fn rebuild(
    workspace: &Workspace,
    plan: Plan,
    on_progress: &mut (dyn FnMut(&Progress) + Send),
) -> Result<(Progress, Vec<TableCount>), CommandError> {
    let folder = workspace.rebuilt_lake();
    std::fs::create_dir(&folder).map_err(|e| format!("create {}: {e}", folder.display()))?;
    let lake = Lake::open(&folder_url(&folder)?, plan, Limits::default(), Sharing::Exclusive).await?;
    let pace = Pace { oldest_ms: workspace.oldest_ms(), ..Pace::default() };
    let mut runner = Runner::start_exclusive(workspace.log.clone(), lake, pace).await?;
    let progress = runner.catch_up(on_progress).await?;
    runner.maintain().await?;
    let service = QueryService::new(runner.catalog(), QueryLimits::default())?;
    Ok((progress, table_counts(&service).await?))
}
