//! What the page asks over HTTP beside queries: its files, and what changed.

use axum::Router;
use axum::extract::{Extension, Path, State};
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::access::Principal;
use crate::answers::Answers;
use crate::changes::{self, NotStreamed, Places};
use crate::http_error::HttpError;
use crate::lasting::{Admission, Stopping};
use crate::page;

/// Seconds after which a client that found no place for a stream may ask again.
const PLACE_AGAIN_S: &str = "15";

#[derive(Clone)]
struct PageState {
    answers: Answers,
    places: Places,
}

pub(crate) fn router(answers: Answers) -> Router {
    Router::new()
        .route("/page/{version}/{*name}", get(file))
        .route("/v1/changes", get(stream))
        .layer(middleware::map_response(page::guard))
        .with_state(PageState { answers, places: Places::default() })
}

/// A file of the page.
async fn file(
    Path((version, name)): Path<(String, String)>,
    headers: HeaderMap,
) -> Result<Response, HttpError> {
    let file = page::file(&version, &name, &headers);
    file.map_err(|error| HttpError::new(StatusCode::NOT_FOUND, "not_found", error.to_string()))
}

/// Tells which tables changed, as long as the client stays.
async fn stream(
    State(PageState { answers, places }): State<PageState>,
    Extension(principal): Extension<Principal>,
    Extension(admission): Extension<Admission>,
    Extension(stopping): Extension<Stopping>,
) -> Result<Response, Response> {
    changes::stream(answers, principal, admission, stopping, places).map_err(|error| match error {
        NotStreamed::Query(error) => HttpError::from(error).into_response(),
        NotStreamed::TooMany => {
            let refused =
                HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_streams", error.to_string());
            ([(RETRY_AFTER, HeaderValue::from_static(PLACE_AGAIN_S))], refused).into_response()
        }
    })
}
