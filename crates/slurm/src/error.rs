//! Errors for text that Slurm did not write, or that this crate cannot read.

use std::fmt;

/// Kind of value that a text was expected to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParseErrorKind {
    /// A job id or a list of array tasks.
    JobId,
    /// A number: a count of GPUs, a time limit, an exit code, a range in a host list.
    Number,
}

/// A value that is not spelled the way Slurm spells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// Kind of value that was expected.
    pub kind: ParseErrorKind,
    /// What is wrong with the text and, where possible, how to mend it.
    pub message: String,
}

impl ParseError {
    pub(crate) fn job_id(message: impl Into<String>) -> Self {
        Self { kind: ParseErrorKind::JobId, message: message.into() }
    }

    pub(crate) fn number(message: impl Into<String>) -> Self {
        Self { kind: ParseErrorKind::Number, message: message.into() }
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ParseError {}
