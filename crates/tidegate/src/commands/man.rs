//! `tidegate man`: the help of each command as a manual page.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use clap_mangen::Man;

use super::{CommandError, CommandResult};

/// Write a manual page for each command, as tidegate-COMMAND.1
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate man ~/.local/share/man/man1 && man tidegate-up")]
pub struct ManArgs {
    /// Folder of the pages; made if it is missing
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

pub fn run(args: ManArgs, mut program: clap::Command) -> CommandResult {
    std::fs::create_dir_all(&args.folder).map_err(|e| format!("create {}: {e}", args.folder.display()))?;
    program.build();
    let count = write(&args.folder, program)?;
    say!("{count} pages in {}", args.folder.display());
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command and those of the commands below it; returns how many.
fn write(folder: &Path, command: clap::Command) -> Result<usize, CommandError> {
    let below: Vec<clap::Command> = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set() && sub.get_name() != "help")
        .cloned()
        .collect();
    let name = command.get_display_name().unwrap_or(command.get_name());
    let file = folder.join(format!("{name}.1"));
    let mut page = Vec::new();
    Man::new(command).render(&mut page).map_err(|e| format!("{}: {e}", file.display()))?;
    std::fs::write(&file, page).map_err(|e| format!("write {}: {e}", file.display()))?;
    below.into_iter().try_fold(1, |count, sub| Ok(count + write(folder, sub)?))
}
