//! Errors in a policy file: syntax, an unknown key, or a value out of range.

/// An error in a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// Not valid TOML.
    #[error("the policy is not TOML: {why}")]
    Syntax {
        /// Position and reason from the parser.
        why: String,
    },
    /// An unknown key.
    #[error("{key} is not a key of policies; known keys: {known}")]
    UnknownKey {
        /// Full key path.
        key: String,
        /// Keys known at that place.
        known: String,
    },
    /// A value that is not allowed.
    #[error("{key} = {value}: {mend}")]
    Value {
        /// Full key path.
        key: String,
        /// Value it is set to.
        value: String,
        /// What to write instead.
        mend: String,
    },
}

impl PolicyError {
    /// Builds the error for a value that is not allowed.
    pub(super) fn value(key: &str, value: impl std::fmt::Display, mend: &str) -> Self {
        Self::Value { key: key.to_owned(), value: value.to_string(), mend: mend.to_owned() }
    }
}
