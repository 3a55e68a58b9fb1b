//! What Prometheus scrapes: how this process is, and beside it the cluster's figures, which cost
//! queries.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::answers::Answers;
use crate::figures::{CLUSTER, Figures, GPUS};
use crate::metrics::{Metrics, as_plain_text};

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(crate) fn router(metrics: Arc<Metrics>, answers: Answers) -> Router {
    let cluster = Arc::new(Figures::new(answers.clone(), &CLUSTER));
    let gpus = Arc::new(Figures::new(answers, &GPUS));
    let own = move |headers: HeaderMap| async move { written(&headers, metrics.text()) };
    let of_cluster = move |headers: HeaderMap| async move { written(&headers, cluster.text().await) };
    let of_gpus = move |headers: HeaderMap| async move { written(&headers, gpus.text().await) };
    Router::new()
        .route("/metrics", get(own))
        .route("/metrics/cluster", get(of_cluster))
        .route("/metrics/gpus", get(of_gpus))
}

/// A page in the format that its reader asks for.
fn written(headers: &HeaderMap, open_metrics: String) -> Response {
    let is_asked = |accept: &HeaderValue| accept.to_str().is_ok_and(|a| a.contains("openmetrics"));
    match headers.get(ACCEPT).is_some_and(is_asked) {
        true => ([(CONTENT_TYPE, OPEN_METRICS)], open_metrics).into_response(),
        false => ([(CONTENT_TYPE, PLAIN_TEXT)], as_plain_text(&open_metrics)).into_response(),
    }
}
