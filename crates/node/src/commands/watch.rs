//! `tidegate watch`.

use clap::Args;

use crate::CommandResult;

/// Watch a scheduler
#[derive(Debug, Args)]
pub struct WatchArgs {}

pub fn run(_args: WatchArgs) -> CommandResult {
    Err("not built yet".into())
}
