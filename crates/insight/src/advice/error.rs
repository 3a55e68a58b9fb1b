//! Errors of advice: each states what is wrong, where, and how to fix it.

use thiserror::Error;

/// Input that advice cannot use.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum AdviceError {
    /// A number is out of its range or not a number.
    #[error("{what} is {value}: it must be {range}")]
    Parameter {
        /// Which number.
        what: &'static str,
        /// What was given.
        value: f64,
        /// The allowed range.
        range: &'static str,
    },
    /// Nothing was given.
    #[error("{what} is empty: give at least one")]
    Empty {
        /// Which argument.
        what: &'static str,
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
    /// The optimiser gave up.
    #[error("no optimum found for {what}: {reason}")]
    Optimiser {
        /// What was fitted.
        what: &'static str,
        /// The optimiser's message.
        reason: String,
    },
}

/// Rejects a number outside what `holds` accepts; NaN never passes.
pub(super) fn parameter(
    what: &'static str,
    value: f64,
    range: &'static str,
    holds: impl Fn(f64) -> bool,
) -> Result<f64, AdviceError> {
    if value.is_finite() && holds(value) {
        Ok(value)
    } else {
        Err(AdviceError::Parameter { what, value, range })
    }
}
