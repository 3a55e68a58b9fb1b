//! HTTP answers, shared by step reports, holds and OTLP.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::batch::{Batch, Outcome};
use super::limits::Peer;
use super::{Counts, Shared};

pub(super) type Answer = Response<Full<Bytes>>;

/// Delivers a batch, unless the peer exceeds its rate.
pub(super) async fn deliver(shared: &Arc<Shared>, peer: &Peer, batch: Batch) -> Result<Vec<Outcome>, Answer> {
    if let Err(wait) = peer.try_spend(batch.cost()) {
        Counts::add(&shared.counts.slowed, 1);
        let mut answer =
            refuse(StatusCode::TOO_MANY_REQUESTS, "too many lines; nothing of this request was taken");
        answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
        return Err(answer);
    }
    batch.deliver(shared).await.ok_or_else(|| {
        refuse(StatusCode::SERVICE_UNAVAILABLE, "the records could not be made safe; send them again")
    })
}

pub(super) fn answer(status: StatusCode, value: &Value) -> Answer {
    let mut response = Response::new(Full::from(format!("{value}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

pub(super) fn refuse(status: StatusCode, what: &str) -> Answer {
    answer(status, &json!({"error": what}))
}
