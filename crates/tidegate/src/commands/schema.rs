//! `tidegate schema`: lists the event contract and checks changes of it for compatibility.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tidegate_events::SchemaId;
use tidegate_events::contract::{self, DescriptorPool, Effect};

use super::{CommandError, CommandResult};

/// List the schemas of events, and check changes of them
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  tidegate schema list
  tidegate schema check schemas
  tidegate schema check new_schemas --against schemas")]
pub struct SchemaArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show every schema: numbers, topic and key
    #[command(after_help = "Examples:
  tidegate schema list")]
    List,
    /// Check that .proto files are compatible with the contract; status 1 if not
    #[command(after_help = "Examples:
  tidegate schema check schemas
  tidegate schema check new_schemas --against schemas")]
    Check {
        /// Folder with the changed files
        folder: PathBuf,
        /// Folder with the files to compare with [default: the contract of this program]
        #[arg(long, value_name = "DIR")]
        against: Option<PathBuf>,
    },
}

pub fn run(args: SchemaArgs) -> CommandResult {
    match args.command {
        Command::List => {
            list();
            Ok(ExitCode::SUCCESS)
        }
        Command::Check { folder, against } => check(&folder, against.as_deref()),
    }
}

fn list() {
    say!("{:<18} {:>2} {:>7} {:>7}  {:<13} {:<15} FILE", "SCHEMA", "ID", "VERSION", "NUMBER", "TOPIC", "KEY");
    for schema in SchemaId::ALL {
        let (name, id, version, number) = (schema.name(), schema as u16, schema.version(), schema.number());
        let (topic, key) = (schema.topic(), schema.key());
        say!("{name:<18} {id:>2} {version:>7} {number:>7}  {topic:<13} {key:<15} {name}.proto");
    }
}

fn check(folder: &Path, against: Option<&Path>) -> CommandResult {
    let changed = compile(folder)?;
    let changes = match against {
        Some(against) => contract::changes(&compile(against)?, &changed),
        None => contract::changes(contract::built_in(), &changed),
    };
    for change in &changes {
        let label = match change.effect {
            Effect::Breaks => "incompatible",
            Effect::Warns => "warning",
            Effect::Adds => "added",
        };
        say!("{label:<12}  {change}");
    }
    let count = |effect| changes.iter().filter(|change| change.effect == effect).count();
    let (broken, added) = (count(Effect::Breaks), count(Effect::Adds) + count(Effect::Warns));
    if broken > 0 {
        say!(
            "{} is incompatible: {broken} of {} changes break readers or what was written",
            folder.display(),
            changes.len()
        );
        return Ok(ExitCode::FAILURE);
    }
    match added {
        0 => say!("{} is compatible: nothing changed", folder.display()),
        _ => say!("{} is compatible: {added} additions", folder.display()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The files of a folder, without subfolders: the contract has none.
fn compile(folder: &Path) -> Result<DescriptorPool, CommandError> {
    let reading = |error| format!("read schemas folder {}: {error}", folder.display());
    let entries = std::fs::read_dir(folder).map_err(reading)?;
    let mut files =
        entries.map(|entry| Ok(entry.map_err(reading)?.path())).collect::<Result<Vec<_>, String>>()?;
    files.retain(|file| file.extension().is_some_and(|ending| ending == "proto"));
    files.sort();
    if files.is_empty() {
        return Err(format!(
            "{} holds no .proto files; name the folder that holds job_event.proto",
            folder.display()
        )
        .into());
    }
    // The error names the file as the compiler knows it, and the place in it.
    let compiled = protox::compile(&files, [folder])
        .map_err(|error| format!("{} cannot be compiled: {error:?}", folder.display()))?;
    Ok(DescriptorPool::from_file_descriptor_set(compiled)?)
}
