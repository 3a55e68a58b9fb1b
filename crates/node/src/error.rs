//! Errors of commands, and how they are printed.

use std::error::Error;
use std::process::ExitCode;

/// Any failure of a command; printed once, with its causes.
pub type CommandError = Box<dyn Error + Send + Sync>;
/// Exit status of a command, or its failure.
pub type CommandResult = Result<ExitCode, CommandError>;

/// The error and its causes on one line, without repetitions.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let next = error.to_string();
        if !text.contains(&next) {
            text = format!("{text}: {next}");
        }
        cause = error.source();
    }
    text
}
