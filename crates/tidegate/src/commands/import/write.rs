//! What every import does after its events are in the log.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use tidegate_lake::pipeline::Plan;
use tidegate_lake::runner::Progress;

use super::super::{
    CommandError, DataArgs, EXIT_REJECTS, LogArgs, PaceArgs, Workspace, block_on_one_thread, name_full_disk,
};

/// Where to import to.
#[derive(Debug, Args)]
pub(super) struct WriteArgs {
    #[command(flatten)]
    pub data: DataArgs,
    #[command(flatten)]
    pub log: LogArgs,
    /// Exit with status 0 even if rows were rejected
    #[arg(long)]
    allow_rejects: bool,
    /// Append to the log only; the next command that writes updates the tables
    #[arg(long)]
    no_run: bool,
    #[command(flatten)]
    pace: PaceArgs,
}

impl WriteArgs {
    /// Brings the tables up to date, unless they should be left.
    ///
    /// # Errors
    /// The tables cannot be written.
    pub(super) fn update_tables(
        &self,
        workspace: &Workspace,
        plan: Plan,
    ) -> Result<Option<Progress>, CommandError> {
        if self.no_run {
            return Ok(None);
        }
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} tables: {msg}")?);
        bar.enable_steady_tick(Duration::from_millis(200));
        let progress = block_on_one_thread(async {
            let mut runner = workspace.runner_of(plan, self.pace.pace()).await?;
            let progress = runner.catch_up(&mut |p| bar.set_message(message(p))).await?;
            runner.maintain().await?;
            Ok::<_, CommandError>(progress)
        })?
        .map_err(|e| name_full_disk(e, &self.data.data))?;
        bar.finish_and_clear();
        Ok(Some(progress))
    }

    /// The exit status of an import with so many rejects.
    pub(super) fn exit_code(&self, rejected: u64) -> ExitCode {
        match rejected > 0 && !self.allow_rejects {
            true => ExitCode::from(EXIT_REJECTS),
            false => ExitCode::SUCCESS,
        }
    }
}

fn message(p: &Progress) -> String {
    format!("{} events in, {} to go", HumanCount(p.records), HumanCount(p.behind))
}
