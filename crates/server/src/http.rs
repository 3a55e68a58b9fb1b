//! SQL over HTTP. Who may come in is decided at the door (`door/`); events come by `ingest.rs`, and
//! what people tell the autopilot by `steering.rs`.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Extension, State};
use axum::http::header::{ACCEPT, ALLOW, CONTENT_TYPE};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures::stream;
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

use crate::access::{Access, Principal};
use crate::answers::{Answer, Answers};
use crate::asked::{Asked, QueryRecord};
use crate::audit::{Actor, Outcome, Peer};
use crate::door::limits::MAX_BODY_BYTES;
use crate::format::Format;
use crate::http_error::HttpError;
use crate::metrics::Metrics;
use crate::openapi;
use crate::page;
use crate::query::Overrides;
use crate::question::Question;
use crate::readiness::Readiness;
use crate::reference;
use crate::rehearsal;
use crate::steering::{self, Steering};

/// A response is held back up to this size, bytes, so that a query that fails early is answered
/// with the right status. If it fails later, the connection is cut before the end of the body,
/// which every HTTP client reports.
const HELD_BACK_BYTES: usize = 1 << 20;

pub(crate) fn router(
    asked: Asked,
    metrics: Arc<Metrics>,
    access: Access,
    steering: Option<Arc<dyn Steering>>,
    rehearsal: Option<PathBuf>,
) -> Router {
    let readiness = Arc::<Readiness>::default();
    Router::new()
        .route("/", get(front))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move |State(asked)| ready(asked, Arc::clone(&readiness))))
        .route("/v1/status", get(move || async move { Json(status(&metrics, &access)) }))
        .route("/v1/tables", get(tables))
        .route("/v1/openapi.json", get(|| async { Json(openapi::openapi()) }))
        .route("/v1/sql", post(post_sql).get(get_sql))
        .merge(steering::routes(steering, asked.audit.clone()))
        .merge(rehearsal::routes(rehearsal))
        .fallback(|| async {
            HttpError::new(StatusCode::NOT_FOUND, "not_found", "there is no such path; GET / lists them")
        })
        .method_not_allowed_fallback(|| async {
            HttpError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method",
                "this path does not take this method; GET / lists them",
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::map_response(page::guard))
        .with_state(asked)
}

/// The web page for clients that accept HTML; a list of paths for others.
async fn front(headers: HeaderMap) -> Response {
    let accepts = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    match accepts.contains("text/html") {
        true => page::response(),
        false => POINTER.into_response(),
    }
}

const POINTER: &str = "Tidegate

  POST /v1/sql      a query as the body, or {\"sql\": …, \"format\"?, \"max_rows\"?, \"timeout_ms\"?} as application/json
                    Accept: application/json, application/jsonl, text/csv, application/vnd.apache.arrow.stream,
                            application/vnd.apache.parquet, text/plain
  GET  /v1/tables   tables, columns and functions with their meaning
  GET  /v1/changes  server-sent events: tables that were committed anew
  GET  /v1/openapi.json  this door as OpenAPI
  GET  /healthz     200 while the process lives
  GET  /readyz      200 when queries can be answered
  GET  /v1/status   lag, watermark, records, rebalances, as JSON
  GET  /metrics     lag, watermark, records, rebalances, for Prometheus
  GET  /metrics/cluster  figures of the cluster, by pool, team and class; asks the tables
  GET  /metrics/gpus     GPUs, by the names of dcgm-exporter; asks the tables
  GET  /v1/autopilot            its switch, and what waits for people; with an autopilot in this process
  GET  /v1/autopilot/rehearsal  the last rehearsal: what a policy would have changed for each owner
  GET  /v1/autopilot/statement  ?approve=ACTION or ?switch=on: the text to sign
  POST /v1/autopilot/approve    or reject, pause, resume: {\"action\", \"why\"?, \"statement\"?, \"signature\"?}
  POST /v1/events   appends events, as agents do; with `tidegate up --ingest` (GET /v1/log: topics)

  curl -H 'Accept: text/csv' --data 'select * from usage_1d limit 10' http://localhost:PORT/v1/sql
";

async fn ready(asked: Asked, readiness: Arc<Readiness>) -> Response {
    match readiness.tables(&asked.answers).await {
        Ok(tables) => Json(json!({"ready": true, "tables": tables})).into_response(),
        Err(why) => HttpError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", why).into_response(),
    }
}

/// Progress, and whether the token file counts as it is.
fn status(metrics: &Metrics, access: &Access) -> serde_json::Value {
    let mut status = metrics.status();
    status["token_file_error"] = access.broken().into();
    status
}

async fn tables(
    State(asked): State<Asked>,
    Extension(principal): Extension<Principal>,
) -> Result<Response, HttpError> {
    let catalog = asked.answers.seen_with(principal.sight())?.catalog()?;
    Ok(Json(json!({"tables": reference::tables(&catalog), "functions": reference::functions()}))
        .into_response())
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct SqlRequest {
    sql: String,
    format: Option<String>,
    max_rows: Option<u64>,
    timeout_ms: Option<u64>,
}

/// A query is work, and browsers send GET for any page that names an address.
async fn get_sql() -> Response {
    let refused = HttpError::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "method",
        "queries are sent by POST, with the SQL as the body",
    );
    let refused = refused.with_hint("curl --data 'SELECT 1' http://HOST:PORT/v1/sql");
    ([(ALLOW, "POST")], refused).into_response()
}

async fn post_sql(
    State(asked): State<Asked>,
    Extension(principal): Extension<Principal>,
    Extension(Peer(peer)): Extension<Peer>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, HttpError> {
    let body = body.map_err(|e| match e.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let message = format!("the body is larger than {MAX_BODY_BYTES} bytes");
            HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
        }
        _ => HttpError::bad_request(e.body_text()),
    })?;
    let content_type = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let request = if content_type.to_ascii_lowercase().starts_with("application/json") {
        serde_json::from_slice(&body)
            .map_err(|e| HttpError::bad_request(format!("the JSON body does not fit: {e}")))?
    } else {
        let sql = std::str::from_utf8(&body)
            .map_err(|e| HttpError::bad_request(format!("the body is not UTF-8: {e}")))?;
        SqlRequest { sql: sql.to_owned(), ..SqlRequest::default() }
    };
    let actor = Actor::at_door(&principal, peer, door_of(&headers, "/v1/sql"));
    let record = asked.record(&actor, &request.sql, Some(&headers)).await?;
    let answered = async {
        let answers = asked.answers.seen_with(principal.sight())?;
        respond(&answers, request, &headers).await
    };
    match answered.await {
        Ok(Responding::Whole(response, outcome)) => {
            record.end(&outcome);
            Ok(response)
        }
        Ok(Responding::Begun(head, rest, format)) => {
            Ok(([(CONTENT_TYPE, format.media_type())], streamed(head, rest, record)).into_response())
        }
        Err(error) => {
            record.end(&Outcome::failed(error.code));
            Err(error)
        }
    }
}

/// Browsers say of the page's requests that they come from a page of this server.
pub(crate) fn door_of(headers: &HeaderMap, otherwise: &'static str) -> &'static str {
    match headers.get("sec-fetch-site").is_some_and(|site| site.as_bytes() == b"same-origin") {
        true => "page",
        false => otherwise,
    }
}

/// A response, or what is there of it while the query still runs.
enum Responding {
    Whole(Response, Outcome<'static>),
    Begun(Vec<u8>, Answer, Format),
}

/// A format in the request takes precedence over its `Accept` header.
fn chosen_format(request: &SqlRequest, headers: &HeaderMap) -> Result<Format, HttpError> {
    if let Some(name) = &request.format {
        return name.parse().map_err(HttpError::bad_request);
    }
    let Some(accept) = headers.get(ACCEPT) else { return Ok(Format::Json) };
    accept.to_str().ok().and_then(Format::from_accept).ok_or_else(|| {
        let known = Format::ALL.map(Format::media_type).join(", ");
        HttpError::new(
            StatusCode::NOT_ACCEPTABLE,
            "not_acceptable",
            format!("results are written as one of: {known}"),
        )
    })
}

async fn respond(
    service: &Answers,
    request: SqlRequest,
    headers: &HeaderMap,
) -> Result<Responding, HttpError> {
    let format = chosen_format(&request, headers)?;
    let overrides =
        Overrides { rows_max: request.max_rows, time_max: request.timeout_ms.map(Duration::from_millis) };
    let question = Question::plain(request.sql, format);
    let mut encoded = service.answer(&question, overrides).await?;
    let mut head = Vec::new();
    let whole = loop {
        match encoded.next().await? {
            None => break true,
            Some(piece) => head.extend(piece),
        }
        if head.len() >= HELD_BACK_BYTES {
            break false;
        }
    };
    if !whole {
        return Ok(Responding::Begun(head, encoded, format));
    }
    let outcome = Outcome { code: "ok", rows: encoded.rows(), bytes: Some(head.len() as u64) };
    Ok(Responding::Whole(([(CONTENT_TYPE, format.media_type())], head).into_response(), outcome))
}

/// The response from its first bytes on. A separate task writes it and ends in time: a client that
/// stalls holds the pieces in flight, not the query's rows.
fn streamed(head: Vec<u8>, encoded: Answer, record: QueryRecord) -> Body {
    let (sender, receiver) = mpsc::channel(1);
    let bytes = head.len() as u64;
    tokio::spawn(async move {
        let outcome = write(encoded, bytes, sender).await;
        record.end(&outcome);
    });
    let rest = stream::try_unfold(receiver, |mut receiver| async move {
        match receiver.recv().await {
            Some(Part::Piece(piece)) => Ok(Some((Bytes::from(piece), receiver))),
            Some(Part::End) => Ok(None),
            None => Err(io::Error::other("the query ended before its last row")),
        }
    });
    Body::from_stream(futures::StreamExt::chain(stream::iter([Ok(Bytes::from(head))]), rest))
}

/// Part of a streamed response. A response without [`Part::End`] was cut.
enum Part {
    Piece(Vec<u8>),
    End,
}

/// Writes the rest of an answer of which so many bytes are written; returns how it ended.
async fn write(mut encoded: Answer, mut bytes: u64, sender: mpsc::Sender<Part>) -> Outcome<'static> {
    let error = loop {
        let piece = tokio::select! {
            piece = encoded.next() => piece,
            () = sender.closed() => break None,
        };
        let part = match piece {
            Ok(Some(piece)) => {
                bytes += piece.len() as u64;
                Part::Piece(piece)
            }
            Ok(None) => Part::End,
            Err(error) => break Some(error),
        };
        let last = matches!(part, Part::End);
        match encoded.in_time(sender.send(part)).await {
            Ok(Ok(())) if !last => {}
            Ok(Ok(())) => return Outcome { code: "ok", rows: encoded.rows(), bytes: Some(bytes) },
            Ok(Err(_client_left)) => break None,
            Err(error) => break Some(error),
        }
    };
    let code = match error {
        None => "cancelled",
        Some(error) => {
            let code = error.code();
            tracing::warn!(code, %error, "query failed after its response had begun; connection cut");
            code
        }
    };
    Outcome { code, rows: None, bytes: Some(bytes) }
}
