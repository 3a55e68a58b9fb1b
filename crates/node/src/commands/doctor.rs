//! `tidegate doctor`.

use clap::Args;

use crate::CommandResult;

/// Say what works on this node and what does not
#[derive(Debug, Args)]
pub struct DoctorArgs {}

pub fn run(_args: DoctorArgs) -> CommandResult {
    Err("not built yet".into())
}
