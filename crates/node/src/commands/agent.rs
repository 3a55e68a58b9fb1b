//! `tidegate agent`.

use clap::Args;

use crate::CommandResult;

/// Collect what this node's GPUs do
#[derive(Debug, Args)]
pub struct AgentArgs {}

pub fn run(_args: AgentArgs) -> CommandResult {
    Err("not built yet".into())
}
