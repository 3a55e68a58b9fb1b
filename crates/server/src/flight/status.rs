//! Failures as clients of Flight read them.

use tonic::{Code, Status};

use crate::access::{Forbidden, Unauthorized};
use crate::asked::NotStarted;
use crate::error::QueryError;

/// Longest message, bytes: it travels in a header, for which clients have 8 KiB.
const MAX_BYTES: usize = 2 << 10;

/// A status with as much of a message as fits.
fn status(code: Code, message: String) -> Status {
    Status::new(code, &message[..message.floor_char_boundary(MAX_BYTES)])
}

/// A failed query.
pub(super) fn of_query(error: &QueryError) -> Status {
    let code = match error {
        QueryError::NotReadOnly(_) => Code::PermissionDenied,
        QueryError::UnknownTable { .. } | QueryError::UnknownColumn { .. } => Code::NotFound,
        QueryError::NotSupported(_) | QueryError::Encode { .. } => Code::Unimplemented,
        QueryError::RowTooLarge { .. }
        | QueryError::TooManyRows { .. }
        | QueryError::OutOfMemory(_)
        | QueryError::RowsTooWide { .. } => Code::ResourceExhausted,
        QueryError::TooSlow { .. } => Code::DeadlineExceeded,
        QueryError::Busy { .. } => Code::Unavailable,
        QueryError::Storage(_) | QueryError::Died(_) | QueryError::Internal(_) => Code::Internal,
        _ => Code::InvalidArgument,
    };
    if code == Code::Internal {
        tracing::error!(code = error.code(), %error, "query failed");
    }
    let hint = error.hint().map_or_else(String::new, |hint| format!("; {hint}"));
    status(code, format!("{error}{hint}"))
}

/// A query that was not run.
pub(super) fn of_start(error: NotStarted) -> Status {
    match error {
        NotStarted::Query(error) => of_query(&error),
        NotStarted::NotRecorded(error) => status(Code::Unavailable, error.to_string()),
    }
}

/// A client that may not come in.
pub(super) fn of_access(error: &Unauthorized) -> Status {
    let said = match error {
        Unauthorized::Missing => {
            "this address asks for a token: send `authorization: Bearer TOKEN`, or any user with the token as the password"
                .into()
        }
        other => other.to_string(),
    };
    status(Code::Unauthenticated, said)
}

/// A client that may not ask.
pub(super) fn of_role(error: &Forbidden) -> Status {
    status(Code::PermissionDenied, error.to_string())
}
