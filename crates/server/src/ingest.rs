//! Events over HTTP: agents append here where there is no Kafka.

mod body;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::SystemTime;

use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use tidegate_log::wire::{self, AppendAnswer, LogAnswer, Refusal, TopicAnswer};
use tidegate_log::{EventLog, LogError};
use tokio::sync::Semaphore;
use tracing::Span;
use tracing::field::Empty;

use crate::access::{Action, Forbidden, Principal};
use crate::asked::{belong_to_trace, note_outcome};
use crate::audit::{Actor, Auditor, Deed, NotRecorded, Outcome, Peer};
use body::{Decoded, Memory};

/// Requests appended at a time; others wait, with their body read.
const MAX_AT_ONCE: usize = 32;

/// Appends events received over HTTP to a log.
#[derive(Clone)]
pub struct Ingest {
    log: Arc<dyn EventLog>,
    /// Records who enters prices.
    audit: Option<Auditor>,
    turns: Arc<Semaphore>,
    memory: Memory,
}

impl Ingest {
    /// Who may append what is decided at the door, and by what principals are bound to.
    pub fn new(log: Arc<dyn EventLog>) -> Self {
        Self { log, audit: None, turns: Arc::new(Semaphore::new(MAX_AT_ONCE)), memory: Memory::default() }
    }

    pub(crate) fn router(self, audit: Option<Auditor>) -> Router {
        let ingest = Self { audit, ..self };
        Router::new().route("/v1/events", post(append)).route("/v1/log", get(topics)).with_state(ingest)
    }

    /// Runs work that may wait for the disk or Kafka off the threads that answer requests.
    async fn with_log<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn EventLog) -> Result<T, LogError> + Send + 'static,
    ) -> Result<T, Refused> {
        let log = Arc::clone(&self.log);
        let done = tokio::task::spawn_blocking(move || work(&*log)).await;
        let done = done.map_err(|error| {
            Refused::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", error.to_string())
        })?;
        done.map_err(Refused::from)
    }
}

impl std::fmt::Debug for Ingest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ingest").finish_non_exhaustive()
    }
}

/// Topics, those of people's actions for who may write them alone.
async fn topics(
    State(ingest): State<Ingest>,
    Extension(principal): Extension<Principal>,
) -> Result<Response, Refused> {
    let mut topics = ingest.with_log(|log| log.topics()).await?;
    let audit = Action::AuditRecords;
    topics.retain(|(name, _)| Some(name.as_str()) != audit.topic() || principal.role.may(audit));
    let topic = |(topic, config): (String, tidegate_log::TopicConfig)| TopicAnswer {
        topic,
        partitions: config.partitions,
    };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now_ms = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    Ok(Json(LogAnswer { topics: topics.into_iter().map(topic).collect(), now_ms }).into_response())
}

async fn append(
    State(ingest): State<Ingest>,
    Extension(principal): Extension<Principal>,
    Extension(Peer(peer)): Extension<Peer>,
    request: Request,
) -> Result<Response, Refused> {
    let span = tracing::info_span!(
        target: tidegate_telemetry::TARGET,
        "append",
        otel.kind = "server",
        traceparent = Empty,
        tracestate = Empty,
        tidegate.role = principal.role.name(),
        tidegate.topic = Empty,
        tidegate.records = Empty,
        tidegate.duplicates = Empty,
        tidegate.outcome = Empty,
        tidegate.rows = Empty,
        error.type = Empty,
    );
    belong_to_trace(&span, Some(request.headers()));
    let answered = append_request(ingest, principal, peer, request, &span).await;
    let outcome = match &answered {
        Ok(appended) => Outcome { rows: Some(appended.written), ..Outcome::failed("ok") },
        Err(refused) => Outcome::failed(&refused.refusal.code),
    };
    note_outcome(&span, &outcome);
    answered.map(|appended| Json(appended).into_response())
}

async fn append_request(
    ingest: Ingest,
    principal: Principal,
    peer: SocketAddr,
    request: Request,
    span: &Span,
) -> Result<AppendAnswer, Refused> {
    let (head, body) = request.into_parts();
    // A web page may send a form or text to an address that its user reaches, but not this without
    // asking first.
    if head.headers.get(CONTENT_TYPE).is_none_or(|value| value.as_bytes() != wire::CONTENT_TYPE.as_bytes()) {
        let message =
            format!("send an AppendRequest as {}; schemas/README.md describes it", wire::CONTENT_TYPE);
        return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", message));
    }
    // Read before the turn is taken: who sends slowly holds up nobody.
    let sent = ingest.memory.read(body).await?;
    let turn = ingest.turns.acquire().await;
    let Decoded { request, prices, held } = ingest.memory.decode(sent, &principal)?;
    span.record("tidegate.topic", request.topic.as_str());
    span.record("tidegate.records", request.records.len());
    let begun = match (&ingest.audit, prices) {
        (Some(audit), Some(prices)) => {
            let actor = Actor::at_door(&principal, peer, "/v1/events");
            Some(audit.begin(Deed::Prices, &actor, &prices.cluster, prices.text).await?)
        }
        _ => None,
    };
    let appended = ingest.with_log(move |log| {
        let (at, batch) = request.into_batch();
        log.append(&at, batch)
    });
    let appended = appended.await;
    drop((turn, held));
    if let Some(begun) = begun {
        begun.end(&match &appended {
            Ok(appended) => Outcome { code: "ok", rows: Some(appended.written), bytes: None },
            Err(refused) => Outcome::failed(&refused.refusal.code),
        });
    }
    let appended = appended?;
    span.record("tidegate.duplicates", appended.duplicates);
    Ok(AppendAnswer {
        first_offset: appended.first_offset,
        written: appended.written,
        duplicates: appended.duplicates,
    })
}

/// Every refusal and failure as JSON.
struct Refused {
    status: StatusCode,
    refusal: Refusal,
}

impl Refused {
    fn new(status: StatusCode, code: &str, message: impl Into<String>) -> Self {
        let refusal = Refusal { code: code.into(), message: message.into(), ..Refusal::default() };
        Self { status, refusal }
    }

    fn bad(message: String) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", message)
    }
}

impl From<Forbidden> for Refused {
    fn from(error: Forbidden) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", error.to_string())
    }
}

impl From<NotRecorded> for Refused {
    fn from(error: NotRecorded) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, wire::LOG_UNAVAILABLE, error.to_string())
    }
}

impl From<LogError> for Refused {
    fn from(error: LogError) -> Self {
        let (status, code) = match &error {
            LogError::StaleEpoch { .. } => (StatusCode::CONFLICT, wire::STALE_EPOCH),
            LogError::SequenceGap { .. } => (StatusCode::CONFLICT, wire::SEQUENCE_GAP),
            LogError::Full { .. } => (StatusCode::INSUFFICIENT_STORAGE, wire::LOG_FULL),
            LogError::UnknownTopic(_) => (StatusCode::NOT_FOUND, wire::UNKNOWN_TOPIC),
            LogError::UnknownPartition { .. } => (StatusCode::NOT_FOUND, "unknown_partition"),
            error if error.is_passing() => (StatusCode::SERVICE_UNAVAILABLE, wire::LOG_UNAVAILABLE),
            LogError::RecordTooLarge { .. } | LogError::BatchTooLarge { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, "record_too_large")
            }
            LogError::InvalidSource { .. } => (StatusCode::BAD_REQUEST, "bad_request"),
            _ => {
                tracing::error!(%error, "an append failed");
                (StatusCode::INTERNAL_SERVER_ERROR, "log_failed")
            }
        };
        let mut refused = Self::new(status, code, error.to_string());
        match error {
            LogError::StaleEpoch { newest, .. } => refused.refusal.newest = Some(newest),
            LogError::SequenceGap { expected, .. } => refused.refusal.expected = Some(expected),
            _ => {}
        }
        refused
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.status, Json(self.refusal)).into_response()
    }
}
