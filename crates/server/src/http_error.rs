//! Refusals and failures over HTTP.

use axum::Json;
use axum::http::header::WWW_AUTHENTICATE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde_json::json;

use crate::access::Forbidden;
use crate::audit::NotRecorded;
use crate::error::QueryError;

/// Every refusal and failure as JSON: `{"code", "message", "hint"}`.
#[derive(Debug)]
pub(crate) struct HttpError {
    status: StatusCode,
    pub(crate) code: &'static str,
    message: String,
    hint: Option<String>,
}

impl HttpError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: None }
    }

    /// The same with advice.
    pub(crate) fn with_hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }
}

impl From<Forbidden> for HttpError {
    fn from(error: Forbidden) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", error.to_string())
    }
}

impl From<NotRecorded> for HttpError {
    fn from(error: NotRecorded) -> Self {
        let mut refused = Self::new(StatusCode::SERVICE_UNAVAILABLE, "not_recorded", error.to_string());
        refused.hint =
            Some("ask again when the log takes records; the server's log says what it lacks".into());
        refused
    }
}

impl From<QueryError> for HttpError {
    fn from(error: QueryError) -> Self {
        let status = match error {
            QueryError::TooManyRows { .. } | QueryError::RowTooLarge { .. } => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            QueryError::Encode { .. } => StatusCode::NOT_ACCEPTABLE,
            // Not 408: clients and proxies take that as leave to send the same request again.
            QueryError::TooSlow { .. } => StatusCode::GATEWAY_TIMEOUT,
            QueryError::OutOfMemory(_) | QueryError::RowsTooWide { .. } | QueryError::Busy { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            QueryError::Storage(_) | QueryError::Internal(_) | QueryError::Died(_) => {
                StatusCode::INTERNAL_SERVER_ERROR
            }
            _ => StatusCode::BAD_REQUEST,
        };
        if status == StatusCode::INTERNAL_SERVER_ERROR {
            tracing::error!(code = error.code(), %error, "query failed");
        }
        Self { status, code: error.code(), message: error.to_string(), hint: error.hint() }
    }
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let mut body = json!({"code": self.code, "message": self.message});
        if let Some(hint) = self.hint {
            body["hint"] = hint.into();
        }
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
