//! What the client of a session has prepared.

use std::sync::Arc;

use super::running::Running;
use super::statement::Statement;
use crate::question::Bound;

/// A statement that may be executed many times.
pub(super) struct Prepared {
    pub sql: String,
    pub statement: Statement,
    pub types: Vec<u32>,
}

/// A statement with values.
pub(super) struct Portal {
    pub prepared: Arc<Prepared>,
    pub bound: Bound,
    pub columns: Vec<i16>,
    pub running: Option<Running>,
    /// All its rows were passed on.
    pub is_done: bool,
}
