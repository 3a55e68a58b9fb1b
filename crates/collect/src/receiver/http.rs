//! HTTP/1.1 on either socket.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::body::Incoming;
#[cfg(feature = "otlp")]
use hyper::header::CONTENT_TYPE;
use hyper::header::{ALLOW, HOST, HeaderMap, HeaderValue, ORIGIN, RETRY_AFTER};
use hyper::http::uri::Authority;
use hyper::service::service_fn;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::json;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;

use super::answers::{Answer, answer, deliver, refuse};
use super::batch::{Batch, LISTED_REFUSALS, Outcome};
use super::connection::READ_BYTES;
use super::limits::{BodyBytes, Peer};
use super::{Counts, Shared};

/// A body over the limit is read and discarded up to this many times the limit.
const DRAINED: usize = 8;

/// Serves one connection.
pub(super) async fn serve<S>(shared: Arc<Shared>, peer: Peer, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let limits = shared.peers.limits;
    let peer = &peer;
    let service = service_fn(|request| {
        let shared = Arc::clone(&shared);
        async move { Ok::<_, Infallible>(respond(&shared, peer, request).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.patience)
        .max_buf_size(READ_BYTES.max(8 << 10))
        .serve_connection(TokioIo::new(stream), service);
    // The client left, was too slow, or did not speak HTTP; hyper has answered where possible.
    if let Err(error) = timeout(limits.idle, connection).await.unwrap_or(Ok(())) {
        if error.is_timeout() {
            Counts::add(&shared.counts.timed_out, 1);
        }
        tracing::debug!(%error, "a connection ended");
    }
}

async fn respond(shared: &Arc<Shared>, peer: &Peer, request: Request<Incoming>) -> Answer {
    // Browsers send it, and local programs never do: web pages must not reach the agent.
    if request.headers().contains_key(ORIGIN) {
        return refuse(StatusCode::FORBIDDEN, "requests of web pages are not taken");
    }
    // Browsers leave it out of a page's requests to its own name, which may point here. No browser
    // reaches the Unix socket.
    if peer.id.is_none() && !asks_for_this_machine(request.headers()) {
        let what = "ask for localhost or an address: another name may be a web page's that points here";
        return refuse(StatusCode::MISDIRECTED_REQUEST, what);
    }
    let path = request.uri().path().to_owned();
    let known = matches!(path.as_str(), "/v1/steps" | "/v1/events" | "/v1/metrics" | "/v1/status");
    match (request.method(), path.as_str()) {
        (&Method::GET, "/v1/status") => answer(StatusCode::OK, &shared.status()),
        (&Method::POST, "/v1/steps" | "/v1/events") => match body(shared, peer, request).await {
            Ok(body) => take(shared, peer, lines(shared, peer, &body.bytes)).await,
            Err(refused) => refused,
        },
        #[cfg(feature = "otlp")]
        (&Method::POST, "/v1/metrics") => {
            let content_type = content_type(request.headers());
            match body(shared, peer, request).await {
                Ok(body) => super::otlp::respond(shared, peer, &content_type, &body.bytes).await,
                Err(refused) => refused,
            }
        }
        #[cfg(not(feature = "otlp"))]
        (&Method::POST, "/v1/metrics") => refuse(
            StatusCode::NOT_IMPLEMENTED,
            "this agent was built without OTLP; send step reports to /v1/steps",
        ),
        _ if known => {
            let mut answer = refuse(StatusCode::METHOD_NOT_ALLOWED, "GET /v1/status; POST the others");
            let allowed = if path == "/v1/status" { "GET" } else { "POST" };
            answer.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
            answer
        }
        _ => refuse(
            StatusCode::NOT_FOUND,
            "there is POST /v1/steps, POST /v1/events, POST /v1/metrics and GET /v1/status",
        ),
    }
}

/// Whether the request is for a name that nobody can point elsewhere.
fn asks_for_this_machine(headers: &HeaderMap) -> bool {
    let asked = headers.get(HOST).map(|host| host.to_str().unwrap_or_default());
    let is_ours = |host: &str| match host.parse::<Authority>() {
        Ok(host) => {
            let name = host.host().trim_matches(['[', ']']);
            name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
        }
        Err(_) => false,
    };
    asked.is_none_or(is_ours)
}

fn lines(shared: &Shared, peer: &Peer, body: &[u8]) -> Batch {
    match body.trim_ascii_end() {
        [] => Batch::default(),
        text => Batch::of_lines(shared, peer, text, 0),
    }
}

/// The body of a request, which counts towards the peer's memory while it is kept.
struct Body<'a> {
    bytes: Vec<u8>,
    _counted: BodyBytes<'a>,
}

/// Why a body was not read.
enum Unread {
    TooLong,
    /// Too many others are in memory.
    TooMany,
    Broken(hyper::Error),
}

/// Reads the body, within the limits of size and time.
async fn body<'a>(shared: &Shared, peer: &'a Peer, request: Request<Incoming>) -> Result<Body<'a>, Answer> {
    let limits = shared.peers.limits;
    let mut counted = BodyBytes::none(peer);
    let unread =
        match timeout(limits.patience, collect(request.into_body(), limits.body_bytes, &mut counted)).await {
            Ok(Ok(bytes)) => return Ok(Body { bytes, _counted: counted }),
            Ok(Err(unread)) => unread,
            Err(_) => {
                Counts::add(&shared.counts.timed_out, 1);
                return Err(refuse(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time"));
            }
        };
    Err(match unread {
        Unread::TooLong => refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("the body is longer than {} bytes; send it in parts", limits.body_bytes),
        ),
        Unread::TooMany => {
            Counts::add(&shared.counts.slowed, 1);
            let what = "too many bodies arrive at once; nothing of this one was taken";
            let mut answer = refuse(StatusCode::TOO_MANY_REQUESTS, what);
            answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
            answer
        }
        Unread::Broken(error) => {
            refuse(StatusCode::BAD_REQUEST, &format!("the body cannot be read: {error}"))
        }
    })
}

#[cfg(feature = "otlp")]
fn content_type(headers: &hyper::HeaderMap) -> String {
    headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

/// Reads a body of at most `limit` bytes. Of a longer one it reads on a little and discards that: a
/// client that is still sending would not see the answer.
async fn collect(mut body: Incoming, limit: usize, counted: &mut BodyBytes<'_>) -> Result<Vec<u8>, Unread> {
    let (mut collected, mut length, mut unread) = (Vec::new(), 0, None);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Unread::Broken)?.into_data() else { continue };
        length += data.len();
        if unread.is_none() {
            unread = match () {
                () if length > limit => Some(Unread::TooLong),
                () if !counted.grow(data.len()) => Some(Unread::TooMany),
                () => None,
            };
        }
        match unread {
            None => collected.extend_from_slice(&data),
            Some(_) if length <= DRAINED * limit => {
                collected = Vec::new();
                counted.free();
            }
            Some(unread) => return Err(unread),
        }
    }
    unread.map_or(Ok(collected), Err)
}

/// Delivers a batch and reports the outcome: 200 if any line was accepted or none was sent, else
/// 400.
async fn take(shared: &Arc<Shared>, peer: &Peer, batch: Batch) -> Answer {
    let outcomes = match deliver(shared, peer, batch).await {
        Ok(outcomes) => outcomes,
        Err(refused) => return refused,
    };
    let (mut accepted, mut errors, mut ignored) = (0, Vec::new(), Vec::new());
    for outcome in outcomes {
        match outcome {
            Outcome::Taken { ignored: names } => {
                accepted += 1;
                ignored.extend(names);
            }
            Outcome::Refused(what) => errors.push(what),
        }
    }
    ignored.sort_unstable();
    ignored.dedup();
    let rejected = errors.len();
    errors.truncate(LISTED_REFUSALS);
    let status = if accepted == 0 && rejected > 0 { StatusCode::BAD_REQUEST } else { StatusCode::OK };
    answer(status, &json!({"accepted": accepted, "rejected": rejected, "errors": errors, "ignored": ignored}))
}
