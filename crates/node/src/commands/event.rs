//! `tidegate event`.

use clap::Args;

use crate::CommandResult;

/// Tell the agent on this node what happened, as a prolog does
#[derive(Debug, Args)]
pub struct EventArgs {}

pub fn run(_args: EventArgs) -> CommandResult {
    Err("not built yet".into())
}
