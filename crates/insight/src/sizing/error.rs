//! Errors of sizing: each states what is wrong, where, and how to fix it.

use thiserror::Error;

/// Input that sizing cannot use.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum SizingError {
    /// No hours, no paths, no candidates.
    #[error("{what} is empty: give at least one")]
    Empty {
        /// Which argument.
        what: &'static str,
    },
    /// A demand is negative or not a number.
    #[error(
        "{what}[{at}] is {value}: demand must be a finite number of GPUs, zero or more; leave out hours without data"
    )]
    Demand {
        /// Which argument.
        what: &'static str,
        /// Position in it.
        at: usize,
        /// The value.
        value: f64,
    },
    /// A price, a share or another parameter is out of its range.
    #[error("{what} is {value}: it must be {range}")]
    Parameter {
        /// Which parameter.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The allowed range.
        range: &'static str,
    },
    /// Quantile levels do not rise inside (0, 1), or a row of quantiles differs in length or falls.
    #[error("quantiles of hour {hour}: {problem}")]
    Quantiles {
        /// Hour of the forecast, from 0.
        hour: usize,
        /// What is wrong and how to fix it.
        problem: &'static str,
    },
    /// Two arguments that belong together differ in length.
    #[error("{what} has {got} entries where {expected} belong")]
    Length {
        /// Which argument.
        what: &'static str,
        /// Its length.
        got: usize,
        /// The length it should have.
        expected: usize,
    },
    /// Too little history for scenario paths.
    #[error("{hours} hours of demand are too few for scenario paths: give at least {needed}")]
    History {
        /// Hours given.
        hours: usize,
        /// Hours needed.
        needed: usize,
    },
}

/// Rejects a parameter outside what `holds` accepts; NaN never passes.
pub(super) fn parameter(
    what: &'static str,
    value: f64,
    range: &'static str,
    holds: impl Fn(f64) -> bool,
) -> Result<f64, SizingError> {
    if value.is_finite() && holds(value) {
        Ok(value)
    } else {
        Err(SizingError::Parameter { what, value, range })
    }
}

/// Rejects demand that is empty, negative or not a number.
pub(super) fn demand(what: &'static str, values: &[f64]) -> Result<(), SizingError> {
    if values.is_empty() {
        return Err(SizingError::Empty { what });
    }
    match values.iter().position(|value| !value.is_finite() || *value < 0.0) {
        Some(at) => Err(SizingError::Demand { what, at, value: values[at] }),
        None => Ok(()),
    }
}
