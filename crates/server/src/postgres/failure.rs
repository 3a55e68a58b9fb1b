//! Failures as Postgres' clients read them.

use super::outbox::Outbox;
use crate::access::{Forbidden, Unauthorized};
use crate::asked::NotStarted;
use crate::audit::NotRecorded;
use crate::error::QueryError;

/// Why a message of a client was refused, or its query failed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failure {
    /// One of Postgres' codes, which drivers act on.
    pub sqlstate: &'static str,
    /// For the record of the query.
    pub code: &'static str,
    message: String,
    hint: Option<String>,
    /// Line and column of the query's text, both from 1.
    place: Option<(u64, u64)>,
    /// The session ends with it.
    pub is_fatal: bool,
}

impl Failure {
    pub fn new(sqlstate: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { sqlstate, code: "invalid", message, hint: None, place: None, is_fatal: false }
    }

    /// The client breaks the protocol: nothing of what follows can be understood.
    pub fn protocol(message: impl Into<String>) -> Self {
        Self::new("08P01", message).fatal()
    }

    /// The client asked for it.
    pub fn cancelled() -> Self {
        let message = "the query was cancelled, as its client asked";
        Self { code: "cancelled", ..Self::new("57014", message) }
    }

    pub fn fatal(self) -> Self {
        Self { is_fatal: true, ..self }
    }

    /// The message for the client. `sql` is the text that it sent.
    pub fn write(&self, out: &mut Outbox, sql: &str) {
        let severity = if self.is_fatal { "FATAL" } else { "ERROR" };
        let position = self.place.and_then(|place| position(sql, place)).map(|at| at.to_string());
        let mut fields =
            vec![(b'S', severity), (b'V', severity), (b'C', self.sqlstate), (b'M', self.message.as_str())];
        fields.extend(self.hint.as_deref().map(|hint| (b'H', hint)));
        fields.extend(position.as_deref().map(|at| (b'P', at)));
        out.error(&fields);
    }
}

/// The place in a text, counted in characters from 1.
fn position(sql: &str, (line, column): (u64, u64)) -> Option<u64> {
    let before: u64 = sql
        .split_inclusive('\n')
        .take(usize::try_from(line).ok()?.checked_sub(1)?)
        .map(|line| line.chars().count() as u64)
        .sum();
    let at = before + column;
    (column > 0 && at <= sql.chars().count() as u64 + 1).then_some(at)
}

impl From<QueryError> for Failure {
    fn from(error: QueryError) -> Self {
        let sqlstate = match &error {
            QueryError::Syntax { .. } | QueryError::Empty | QueryError::SeveralStatements(_) => "42601",
            QueryError::NotReadOnly(_) => "25006",
            QueryError::UnknownTable { .. } => "42P01",
            QueryError::UnknownColumn { .. } => "42703",
            QueryError::UnknownFunction { .. } => "42883",
            QueryError::Invalid(_) => "42000",
            QueryError::NotSupported(_) => "0A000",
            QueryError::Failed(_) => "22000",
            QueryError::Encode { .. } => "42846",
            QueryError::RowTooLarge { .. } | QueryError::TooManyRows { .. } => "54000",
            QueryError::TooSlow { .. } => "57014",
            QueryError::TimeNotAllowed { .. } => "22023",
            QueryError::OutOfMemory(_) | QueryError::RowsTooWide { .. } => "53200",
            QueryError::Busy { .. } => "53300",
            QueryError::Storage(_) => "58030",
            QueryError::Died(_) | QueryError::Internal(_) => "XX000",
        };
        if matches!(sqlstate, "58030" | "XX000") {
            tracing::error!(code = error.code(), %error, "query failed");
        }
        let place = match &error {
            QueryError::Syntax { position, .. } => *position,
            _ => None,
        };
        let (code, message, hint) = (error.code(), error.to_string(), error.hint());
        Self { sqlstate, code, message, hint, place, is_fatal: false }
    }
}

impl From<Unauthorized> for Failure {
    fn from(error: Unauthorized) -> Self {
        let error = match error {
            Unauthorized::Missing => {
                "this address asks for a token: give it as the password; any user name will do".into()
            }
            other => other.to_string(),
        };
        Self { code: "unauthorized", ..Self::new("28P01", error).fatal() }
    }
}

impl From<Forbidden> for Failure {
    fn from(error: Forbidden) -> Self {
        Self { code: "forbidden", ..Self::new("42501", error.to_string()) }
    }
}

impl From<NotStarted> for Failure {
    fn from(error: NotStarted) -> Self {
        match error {
            NotStarted::NotRecorded(error) => error.into(),
            NotStarted::Query(error) => error.into(),
        }
    }
}

impl From<NotRecorded> for Failure {
    fn from(error: NotRecorded) -> Self {
        Self { code: "not_recorded", ..Self::new("58000", error.to_string()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_in_characters() {
        let sql = "SELECT 'é'\nFROM x y z";
        assert_eq!(position(sql, (1, 8)), Some(8));
        assert_eq!(position(sql, (2, 6)), Some(17));
        assert_eq!(position(sql, (9, 900)), None);
        assert_eq!(position(sql, (0, 1)), None);
    }
}
