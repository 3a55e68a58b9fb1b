//! Delivery to a log behind HTTP: a `tidegate up --ingest`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use prost::Message;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use serde::de::DeserializeOwned;
use tidegate_log::wire::{
    AppendAnswer, AppendRequest, CONTENT_TYPE, LOG_FULL, LOG_UNAVAILABLE, LogAnswer, Refusal, SEQUENCE_GAP,
    STALE_EPOCH, UNKNOWN_TOPIC,
};
use tidegate_log::{Appended, Batch, LogClock, LogError, TopicPartition};
use ureq::http::{Response, StatusCode};
use ureq::tls::{Certificate, ClientCert, PrivateKey, TlsConfig, TlsProvider};
use ureq::{Agent, Body};

use super::LogSink;

const CONNECT: Duration = Duration::from_secs(5);
/// Limit for a whole request with its answer.
const REQUEST: Duration = Duration::from_secs(30);
/// Longest answer; it lists topics or names an error.
const ANSWER_BYTES: u64 = 1 << 20;

/// Delivers to the log of a `tidegate up --ingest`.
pub struct HttpLogSink {
    url: String,
    authorization: Option<String>,
    agent: Agent,
}

/// Certificates that vouch for a server.
#[derive(Clone)]
pub struct Roots(Vec<Certificate<'static>>);

impl Roots {
    /// Those of a file, as PEM.
    ///
    /// # Errors
    /// A sentence if the file cannot be read or holds none.
    pub fn from_file(file: &Path) -> Result<Self, String> {
        let failed = |what: String| format!("read the certificates {}: {what}", file.display());
        let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let found = found.map_err(|error| failed(error.to_string()))?;
        match found.is_empty() {
            true => Err(failed("it holds no certificate".into())),
            false => Ok(Self(found.iter().map(|root| Certificate::from_der(root).to_owned()).collect())),
        }
    }

    /// Those that this system trusts.
    pub fn of_system() -> Self {
        let found = rustls_native_certs::load_native_certs();
        found.errors.iter().for_each(|error| tracing::warn!("the system's certificates: {error}"));
        Self(found.certs.iter().map(|root| Certificate::from_der(root).to_owned()).collect())
    }
}

impl std::fmt::Debug for Roots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Roots").field(&self.0.len()).finish()
    }
}

/// A certificate that this client shows, with its key.
#[derive(Debug, Clone)]
pub struct Identity(ClientCert);

impl Identity {
    /// Of two files, as PEM: the certificate, followed by those that lead to its authority, and its
    /// key.
    ///
    /// # Errors
    /// A sentence if a file cannot be read or holds none.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, String> {
        let Roots(chain) = Roots::from_file(certificate)?;
        let failed = |what: String| format!("read the key {}: {what}", key.display());
        let pem = std::fs::read(key).map_err(|error| failed(error.to_string()))?;
        let key = PrivateKey::from_pem(&pem).map_err(|error| failed(error.to_string()))?;
        Ok(Self(ClientCert::new_with_certs(&chain, key)))
    }
}

impl HttpLogSink {
    /// `url` is the server's address, `http://HOST:PORT`; `token` is its bearer token. Nothing is
    /// sent yet.
    pub fn new(url: &str, token: Option<&str>) -> Self {
        Self::over(url, token, TlsConfig::default())
    }

    /// The same for `https://HOST:PORT`, whose certificate one of these vouches for. An identity is
    /// shown if the server asks for one.
    pub fn over_tls(url: &str, token: Option<&str>, roots: Roots, identity: Option<Identity>) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = TlsConfig::builder()
            .provider(TlsProvider::Rustls)
            .root_certs(roots.0.into())
            .client_cert(identity.map(|Identity(shown)| shown))
            .unversioned_rustls_crypto_provider(provider);
        Self::over(url, token, tls.build())
    }

    fn over(url: &str, token: Option<&str>, tls: TlsConfig) -> Self {
        let config = Agent::config_builder()
            .tls_config(tls)
            .timeout_connect(Some(CONNECT))
            .timeout_global(Some(REQUEST))
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .max_idle_connections(1)
            .build();
        Self {
            url: url.trim_end_matches('/').into(),
            authorization: token.map(|token| format!("Bearer {}", token.trim())),
            agent: Agent::new_with_config(config),
        }
    }

    fn log(&self) -> Result<(LogAnswer, Instant), LogError> {
        let doing = "asking for its topics";
        let mut request = self.agent.get(format!("{}/v1/log", self.url));
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        let response = request.call().map_err(|error| self.unavailable(doing, &error))?;
        let answered = Instant::now();
        let (status, text) = self.read(doing, response)?;
        let answer =
            self.parse(doing, status, &text).map_err(|refusal| self.error(doing, status, &refusal))?;
        Ok((answer, answered))
    }

    fn read(&self, doing: &str, mut response: Response<Body>) -> Result<(StatusCode, String), LogError> {
        let text = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string();
        Ok((response.status(), text.map_err(|error| self.unavailable(doing, &error))?))
    }

    /// Parses a successful answer, or returns the refusal.
    fn parse<T: DeserializeOwned>(&self, doing: &str, status: StatusCode, text: &str) -> Result<T, Refusal> {
        if status.is_success() {
            let what = |error| format!("its answer to {doing} is none of a tidegate: {error}");
            return serde_json::from_str(text)
                .map_err(|e| Refusal { message: what(e), ..Refusal::default() });
        }
        Err(serde_json::from_str(text)
            .unwrap_or_else(|_| Refusal { message: text.chars().take(200).collect(), ..Refusal::default() }))
    }

    fn error(&self, doing: &str, status: StatusCode, refusal: &Refusal) -> LogError {
        let reason = format!("{status}: {}", refusal.message);
        match (refusal.code.as_str(), status) {
            (LOG_UNAVAILABLE, _) | (_, StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT) => {
                self.unavailable(doing, &reason)
            }
            (LOG_FULL, _) => LogError::Full { dir: PathBuf::from(format!("the log of {}", self.url)) },
            ("not_found", _) => self.refused(doing, "it takes no events in; start it with --ingest".into()),
            _ => self.refused(doing, reason),
        }
    }

    fn unavailable(&self, doing: &str, reason: &dyn std::fmt::Display) -> LogError {
        LogError::ServerUnavailable { url: self.url.clone(), doing: doing.into(), reason: reason.to_string() }
    }

    fn refused(&self, doing: &str, reason: String) -> LogError {
        LogError::ServerRefused { url: self.url.clone(), doing: doing.into(), reason }
    }
}

impl LogSink for HttpLogSink {
    fn partitions(&self, topic: &str) -> Result<u32, LogError> {
        let found = self.log()?.0.topics.into_iter().find(|found| found.topic == topic);
        found.map(|found| found.partitions).ok_or_else(|| LogError::UnknownTopic(topic.into()))
    }

    fn append(&self, at: &TopicPartition, batch: Batch) -> Result<Appended, LogError> {
        let (source, epoch, first_seq) =
            (batch.producer.source.clone(), batch.producer.epoch, batch.first_seq);
        let doing = format!("an append to {}/{}", at.topic, at.partition);
        let body = AppendRequest::new(at, batch).encode_to_vec();
        let mut request = self.agent.post(format!("{}/v1/events", self.url)).content_type(CONTENT_TYPE);
        if let Some(authorization) = &self.authorization {
            request = request.header("authorization", authorization);
        }
        if let Some(traceparent) = tidegate_telemetry::current_traceparent() {
            request = request.header("traceparent", traceparent);
        }
        let response = request.send(&body).map_err(|error| self.unavailable(&doing, &error))?;
        let (status, text) = self.read(&doing, response)?;
        let refusal = match self.parse(&doing, status, &text) {
            Ok(AppendAnswer { first_offset, written, duplicates }) => {
                return Ok(Appended { first_offset, written, duplicates });
            }
            Err(refusal) => refusal,
        };
        Err(match (refusal.code.as_str(), refusal.newest, refusal.expected) {
            (STALE_EPOCH, Some(newest), _) => {
                LogError::StaleEpoch { source_name: source, newest, got: epoch }
            }
            (SEQUENCE_GAP, _, Some(expected)) => {
                LogError::SequenceGap { source_name: source, expected, got: first_seq }
            }
            (UNKNOWN_TOPIC, ..) => LogError::UnknownTopic(at.topic.clone()),
            _ => self.error(&doing, status, &refusal),
        })
    }

    /// The server reads its clock at some moment within the request, so half the round trip is the
    /// uncertainty.
    fn clock(&self) -> Result<Option<LogClock>, LogError> {
        // The first request may include connecting; it is not timed.
        self.log()?;
        let sent = Instant::now();
        let (answer, answered) = self.log()?;
        let half_ms = i64::try_from((answered - sent).as_millis() / 2).unwrap_or(i64::MAX);
        let since_ms = half_ms + i64::try_from(answered.elapsed().as_millis()).unwrap_or(0);
        Ok(Some(LogClock { at_ms: answer.now_ms + since_ms, uncertainty_ms: half_ms + 1 }))
    }
}

impl std::fmt::Debug for HttpLogSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HttpLogSink").field("url", &self.url).finish_non_exhaustive()
    }
}
