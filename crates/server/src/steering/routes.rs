//! The doors: what waits, the texts to sign, and what people decide.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{DefaultBodyLimit, Extension, FromRequest, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{Instruction, SignedStatement, Steering, SteeringError, ToSign};
use crate::access::{Action, Principal};
use crate::audit::{Actor, Auditor, Deed, Outcome, Peer, Text};
use crate::http::door_of;
use crate::http_error::HttpError;

/// Longest request body, bytes.
const MAX_BYTES: usize = 16 << 10;
/// Longest id of an action, bytes.
const MAX_ACTION_BYTES: usize = 100;
/// Longest reason, bytes.
const MAX_WHY_BYTES: usize = 1 << 10;

#[derive(Clone)]
struct Doors {
    steering: Option<Arc<dyn Steering>>,
    audit: Option<Auditor>,
}

/// The routes under `/v1/autopilot`. Without an autopilot they answer 404 and say so.
pub(crate) fn routes<S>(steering: Option<Arc<dyn Steering>>, audit: Option<Auditor>) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    Router::new()
        .route("/v1/autopilot", get(standing))
        .route("/v1/autopilot/statement", get(statement))
        .route("/v1/autopilot/approve", post(approve))
        .route("/v1/autopilot/reject", post(reject))
        .route("/v1/autopilot/pause", post(pause))
        .route("/v1/autopilot/resume", post(resume))
        .layer(DefaultBodyLimit::max(MAX_BYTES))
        .with_state(Doors { steering, audit })
}

impl Doors {
    fn steering(&self) -> Result<Arc<dyn Steering>, HttpError> {
        self.steering.clone().ok_or_else(|| {
            let message = "no autopilot runs in this process";
            HttpError::new(StatusCode::NOT_FOUND, "no_autopilot", message)
                .with_hint("tidegate up --autopilot FILE, or tidegate autopilot run --listen HOST:PORT")
        })
    }
}

async fn standing(
    State(doors): State<Doors>,
    Extension(principal): Extension<Principal>,
) -> Result<Response, HttpError> {
    let steering = doors.steering()?;
    let may = |action| principal.check_steering(action, steering.is_simulated()).is_ok();
    let may = json!({
        "approve": may(Action::Decide),
        "reject": may(Action::Decide),
        "pause": may(Action::Pause),
        "resume": may(Action::Resume),
    });
    let standing = off_thread(move || steering.standing()).await?;
    let mut answer = json!(standing);
    answer["may"] = may;
    Ok(Json(answer).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatementQuery {
    approve: Option<String>,
    switch: Option<String>,
}

async fn statement(
    State(doors): State<Doors>,
    query: Result<Query<StatementQuery>, QueryRejection>,
) -> Result<String, HttpError> {
    let steering = doors.steering()?;
    let of = match query.map(|Query(query)| (query.approve, query.switch)) {
        Ok((Some(action), None)) => ToSign::Approval(checked_action(action)?),
        Ok((None, Some(switch))) if switch == "on" => ToSign::Switch,
        Ok(_) => return Err(HttpError::bad_request("ask for ?approve=ACTION or for ?switch=on")),
        Err(error) => return Err(HttpError::bad_request(error.body_text())),
    };
    off_thread(move || steering.statement(&of)).await
}

/// What a person sends, and who that is.
struct Sent<T> {
    principal: Principal,
    actor: Actor,
    request: T,
}

impl<T: DeserializeOwned> FromRequest<Doors> for Sent<T> {
    type Rejection = HttpError;

    /// Reads the JSON of the body. It must be called JSON: a web page may send a form or text to an
    /// address that its user reaches with a certificate, but not this without asking first.
    async fn from_request(request: Request, doors: &Doors) -> Result<Self, HttpError> {
        doors.steering()?;
        let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        if !kind.unwrap_or_default().to_ascii_lowercase().starts_with("application/json") {
            let message = "send a JSON object as application/json";
            return Err(HttpError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "media_type", message));
        }
        let extensions = request.extensions();
        let (Some(principal), Some(Peer(peer))) = (extensions.get::<Principal>(), extensions.get::<Peer>())
        else {
            return Err(internal("a request came in by no door".to_owned()));
        };
        let actor = Actor::at_door(principal, *peer, door_of(request.headers(), "/v1/autopilot"));
        let principal = principal.clone();
        let body = Bytes::from_request(request, doors).await.map_err(|error| match error.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                let message = format!("the body is larger than {MAX_BYTES} bytes");
                HttpError::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
            }
            _ => HttpError::bad_request(error.body_text()),
        })?;
        let request = serde_json::from_slice(&body)
            .map_err(|error| HttpError::bad_request(format!("the JSON body does not fit: {error}")))?;
        Ok(Self { principal, actor, request })
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ApproveRequest {
    action: String,
    why: Option<String>,
    statement: Option<String>,
    signature: Option<String>,
}

async fn approve(State(doors): State<Doors>, sent: Sent<ApproveRequest>) -> Result<Response, HttpError> {
    let Sent { principal, actor, request } = sent;
    let ApproveRequest { action, why, statement, signature } = request;
    let (action, why) = (checked_action(action)?, checked_why(why)?);
    let instruction = Instruction::Approve { action, signed: checked_signature(statement, signature)? };
    pass_on(doors, (principal, actor), instruction, why).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RejectRequest {
    action: String,
    why: Option<String>,
}

async fn reject(State(doors): State<Doors>, sent: Sent<RejectRequest>) -> Result<Response, HttpError> {
    let Sent { principal, actor, request: RejectRequest { action, why } } = sent;
    let (action, why) = (checked_action(action)?, checked_why(why)?);
    let instruction = Instruction::Reject { action, why: why.clone() };
    pass_on(doors, (principal, actor), instruction, why).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PauseRequest {
    why: Option<String>,
}

async fn pause(State(doors): State<Doors>, sent: Sent<PauseRequest>) -> Result<Response, HttpError> {
    let Sent { principal, actor, request: PauseRequest { why } } = sent;
    let why = checked_why(why)?;
    pass_on(doors, (principal, actor), Instruction::Pause { why: why.clone() }, why).await
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResumeRequest {
    why: Option<String>,
    statement: Option<String>,
    signature: Option<String>,
}

async fn resume(State(doors): State<Doors>, sent: Sent<ResumeRequest>) -> Result<Response, HttpError> {
    let Sent { principal, actor, request } = sent;
    let ResumeRequest { why, statement, signature } = request;
    let why = checked_why(why)?;
    let instruction = Instruction::Resume { signed: checked_signature(statement, signature)? };
    pass_on(doors, (principal, actor), instruction, why).await
}

fn checked_action(action: String) -> Result<String, HttpError> {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    match !action.is_empty() && action.len() <= MAX_ACTION_BYTES && action.chars().all(plain) {
        true => Ok(action),
        false => {
            Err(HttpError::bad_request("that is no id of an action, such as drain_node-1b491e8c244329c8"))
        }
    }
}

fn checked_why(why: Option<String>) -> Result<Option<String>, HttpError> {
    match &why {
        Some(text) if text.len() > MAX_WHY_BYTES => {
            Err(HttpError::bad_request(format!("\"why\" is longer than {MAX_WHY_BYTES} bytes")))
        }
        _ => Ok(why),
    }
}

fn checked_signature(
    statement: Option<String>,
    signature: Option<String>,
) -> Result<Option<SignedStatement>, HttpError> {
    match (statement, signature) {
        (None, None) => Ok(None),
        (Some(statement), Some(signature)) => Ok(Some(SignedStatement { statement, signature })),
        _ => Err(HttpError::bad_request("send \"statement\" and \"signature\" together, or neither")),
    }
}

/// Records an instruction, passes it on, and records how that ended. It goes on when the client
/// leaves: what was done is then not recorded as cancelled.
async fn pass_on(
    doors: Doors,
    (principal, actor): (Principal, Actor),
    instruction: Instruction,
    why: Option<String>,
) -> Result<Response, HttpError> {
    let steering = doors.steering()?;
    let passed = tokio::spawn(async move {
        let begun = match &doors.audit {
            Some(audit) => {
                let about = (steering.cluster(), instruction.action());
                Some(audit.begin_about(instruction.deed(), &actor, about, instruction.text(why)).await?)
            }
            None => None,
        };
        let by = format!("{} over HTTP", principal.id);
        let status = instruction.accepted();
        let mut answer = json!({"action": instruction.action(), "by": by});
        let taken = off_thread(move || steering.take(&instruction, &by)).await;
        if let Some(begun) = begun {
            begun.end(&match &taken {
                Ok(_) => Outcome { code: "ok", rows: None, bytes: None },
                Err(refused) => Outcome::failed(refused.code),
            });
        }
        answer["message"] = taken?.into();
        Ok((status, Json(answer)).into_response())
    });
    passed.await.unwrap_or_else(|error| Err(internal(error.to_string())))
}

impl Instruction {
    fn deed(&self) -> Deed {
        match self {
            Self::Approve { .. } => Deed::Approve,
            Self::Reject { .. } => Deed::Reject,
            Self::Pause { .. } => Deed::Pause,
            Self::Resume { .. } => Deed::Resume,
        }
    }

    /// The action that it is about.
    fn action(&self) -> Option<&str> {
        match self {
            Self::Approve { action, .. } | Self::Reject { action, .. } => Some(action),
            Self::Pause { .. } | Self::Resume { .. } => None,
        }
    }

    /// For the audit table: the reason, and what was signed.
    fn text(&self, why: Option<String>) -> Text {
        let mut text = Text::of(&why.unwrap_or_default());
        if let Self::Approve { signed: Some(signed), .. } | Self::Resume { signed: Some(signed) } = self {
            if !text.is_empty() {
                text.push("\n");
            }
            text.push(&signed.statement);
        }
        text
    }

    /// Approvals and rejections are taken up at the autopilot's next step; the switch counts at
    /// once.
    fn accepted(&self) -> StatusCode {
        match self {
            Self::Approve { .. } | Self::Reject { .. } => StatusCode::ACCEPTED,
            Self::Pause { .. } | Self::Resume { .. } => StatusCode::OK,
        }
    }
}

/// Runs work that waits for the disk off the threads that answer requests.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SteeringError> + Send + 'static,
) -> Result<T, HttpError> {
    let done = tokio::task::spawn_blocking(work).await.map_err(|error| internal(error.to_string()))?;
    done.map_err(HttpError::from)
}

fn internal(message: String) -> HttpError {
    HttpError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

impl From<SteeringError> for HttpError {
    fn from(error: SteeringError) -> Self {
        let status = match error {
            SteeringError::UnknownAction(_) => StatusCode::NOT_FOUND,
            SteeringError::NotWaiting(_) | SteeringError::Standby { .. } => StatusCode::CONFLICT,
            SteeringError::NotReady => StatusCode::SERVICE_UNAVAILABLE,
            SteeringError::Unsigned { .. } | SteeringError::Signature(_) => StatusCode::UNPROCESSABLE_ENTITY,
            SteeringError::Folder(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let refused = Self::new(status, error.code(), error.to_string());
        match error.hint() {
            Some(hint) => refused.with_hint(hint),
            None => refused,
        }
    }
}
