//! Why a server does not answer.

/// Why a question has no answer.
#[derive(Debug)]
pub(super) enum Refusal {
    /// It asks for too much at once: less may be answered.
    TooMuch(String),
    /// For good.
    Failed(String),
}
