//! What can be wrong with a policy file: syntax, an unknown key, or a value out of range.

/// What is wrong with a policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// It is no TOML.
    #[error("the policy is not TOML: {why}")]
    Syntax {
        /// Where and why, in the parser's words.
        why: String,
    },
    /// A key nobody knows.
    #[error("{key} is not a key of policies; known there: {known}")]
    UnknownKey {
        /// The key, from the top.
        key: String,
        /// Keys that are known there.
        known: String,
    },
    /// A value that cannot be.
    #[error("{key} = {value}: {mend}")]
    Value {
        /// The key, from the top.
        key: String,
        /// What it is set to.
        value: String,
        /// What to write instead.
        mend: String,
    },
}

impl PolicyError {
    /// A value that cannot be, with what to write instead.
    pub(super) fn value(key: &str, value: impl std::fmt::Display, mend: &str) -> Self {
        Self::Value { key: key.to_owned(), value: value.to_string(), mend: mend.to_owned() }
    }
}
