//! A query at a door: recorded, cut to what its principal sees, and sent to be answered.

use axum::http::HeaderMap;
use tracing::Span;
use tracing::field::Empty;

use crate::access::{Access, Principal, Role};
use crate::answers::{Answer, Answers};
use crate::audit::{self, Actor, Auditor, Begun, Deed, NotRecorded, Outcome, Text};
use crate::error::QueryError;
use crate::query::Overrides;
use crate::question::Question;

/// What answers queries, and what records that they were asked.
#[derive(Clone)]
pub(crate) struct Asked {
    pub answers: Answers,
    pub audit: Option<Auditor>,
}

/// A query that is being answered.
pub(crate) struct Started {
    pub answer: Answer,
    /// Its record, for whoever sees it end.
    pub record: QueryRecord,
}

/// A query was not run.
pub(crate) enum NotStarted {
    NotRecorded(NotRecorded),
    Query(QueryError),
}

/// A query on record: among what people do, and as a span. If it is dropped before it ended, its
/// client has left.
pub(crate) struct QueryRecord {
    begun: Option<Begun>,
    span: QuerySpan,
}

impl QueryRecord {
    /// Notes how it ended.
    pub fn end(self, outcome: &Outcome<'_>) {
        self.span.end(outcome);
        if let Some(begun) = self.begun {
            begun.end(outcome);
        }
    }
}

/// The span of a query. It is one of a trace if the request says so.
struct QuerySpan {
    span: Span,
    has_ended: bool,
}

impl QuerySpan {
    fn begin(actor: &Actor, text: &str, headers: Option<&HeaderMap>) -> Self {
        let span = tracing::info_span!(
            target: tidegate_telemetry::TARGET,
            "query",
            otel.kind = "server",
            traceparent = Empty,
            tracestate = Empty,
            tidegate.door = actor.door,
            tidegate.role = actor.role.map_or("-", |role| role.name()),
            tidegate.outcome = Empty,
            tidegate.rows = Empty,
            tidegate.bytes = Empty,
            error.type = Empty,
            // Left out by the exporter unless it was asked for.
            db.query.text = text,
        );
        belong_to_trace(&span, headers);
        Self { span, has_ended: false }
    }

    fn end(mut self, outcome: &Outcome<'_>) {
        self.note_end(outcome);
    }

    fn note_end(&mut self, outcome: &Outcome<'_>) {
        self.has_ended = true;
        note_outcome(&self.span, outcome);
    }
}

impl Drop for QuerySpan {
    fn drop(&mut self) {
        if !self.has_ended {
            self.note_end(&Outcome::failed("cancelled"));
        }
    }
}

/// Makes a span part of the trace that a request's headers name. Headers that are malformed or too
/// long are left out where spans are exported.
pub(crate) fn belong_to_trace(span: &Span, headers: Option<&HeaderMap>) {
    let Some(headers) = headers.filter(|_| !span.is_disabled()) else { return };
    for name in ["traceparent", "tracestate"] {
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(value) = value.filter(|value| value.len() <= tidegate_telemetry::MAX_CONTEXT_BYTES) {
            span.record(name, value);
        }
    }
}

/// Notes in a span how what it is about ended.
pub(crate) fn note_outcome(span: &Span, outcome: &Outcome<'_>) {
    span.record("tidegate.outcome", outcome.code);
    // A client that leaves is no failure of ours.
    if !matches!(outcome.code, "ok" | "cancelled") {
        span.record("error.type", outcome.code);
    }
    if let Some(rows) = outcome.rows {
        span.record("tidegate.rows", rows);
    }
    if let Some(bytes) = outcome.bytes {
        span.record("tidegate.bytes", bytes);
    }
}

impl Asked {
    /// Records what changed in the token file.
    pub fn note_changes(&self, access: &Access) {
        if let Some(audit) = &self.audit {
            access.take_changes().iter().for_each(|change| audit.note(audit::principal_changed(change)));
        }
    }

    /// Records a query before it is planned. `headers` are those of its request, if it has any.
    ///
    /// # Errors
    /// The log does not take the record.
    pub async fn record(
        &self,
        actor: &Actor,
        text: &str,
        headers: Option<&HeaderMap>,
    ) -> Result<QueryRecord, NotRecorded> {
        let span = QuerySpan::begin(actor, text, headers);
        let text = Text::of(text);
        let begun = match &self.audit {
            // Nobody says who they are there, so there is nobody to hold to it: reading goes on
            // while the log is away.
            Some(audit) if actor.role == Some(Role::Local) => {
                Ok(Some(audit.begin_at_once(Deed::Query, actor, "", text)))
            }
            Some(audit) => audit.begin(Deed::Query, actor, "", text).await.map(Some),
            None => Ok(None),
        };
        match begun {
            Ok(begun) => Ok(QueryRecord { begun, span }),
            Err(error) => {
                span.end(&Outcome::failed("not_recorded"));
                Err(error)
            }
        }
    }

    /// Records a query, and waits until it is being answered. Dropping the future ends it.
    ///
    /// # Errors
    /// It is not recorded, or refused, or fails at once.
    pub async fn start(
        &self,
        principal: &Principal,
        actor: &Actor,
        question: &Question,
        overrides: Overrides,
        headers: Option<&HeaderMap>,
    ) -> Result<Started, NotStarted> {
        let record = self.record(actor, &question.query.sql, headers).await;
        let record = record.map_err(NotStarted::NotRecorded)?;
        let answer = async {
            let answers = self.answers.seen_with(principal.sight())?;
            answers.answer(question, overrides).await
        };
        match answer.await {
            Ok(answer) => Ok(Started { answer, record }),
            Err(error) => {
                record.end(&Outcome::failed(error.code()));
                Err(NotStarted::Query(error))
            }
        }
    }
}
