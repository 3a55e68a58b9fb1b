//! Requests to a collector: OTLP over HTTP.

use std::io::Write as _;
use std::sync::Arc;
use std::time::Duration;

use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use ureq::Agent;
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig, TlsProvider};

use crate::settings::{Protocol, Signal};

/// Longest answer that is read, bytes: it says how much was rejected, and why.
const ANSWER_BYTES: u64 = 64 << 10;

/// Sends the requests of one kind.
pub(crate) struct Client {
    signal: Signal,
    agent: Agent,
}

/// A request was not taken.
#[derive(Debug)]
pub(crate) struct NotTaken {
    /// Without anything secret.
    pub why: String,
    /// The same request may be taken later.
    pub is_passing: bool,
    /// How long the collector asks to wait.
    pub wait: Option<Duration>,
}

impl Client {
    /// A client of one collector. Nothing is sent yet.
    ///
    /// # Errors
    /// A sentence if a certificate or key cannot be read.
    pub fn new(signal: Signal) -> Result<Self, String> {
        let mut config = Agent::config_builder()
            .timeout_global(Some(signal.timeout))
            .http_status_as_error(false)
            // A redirect would take the headers to an address that nobody named.
            .max_redirects(0)
            .user_agent(concat!("tidegate/", env!("CARGO_PKG_VERSION")))
            .max_idle_connections(1);
        if signal.endpoint.scheme() == "https" {
            config = config.tls_config(tls(&signal)?);
        }
        Ok(Self { agent: Agent::new_with_config(config.build()), signal })
    }

    /// Sends a request; returns the answer's bytes.
    ///
    /// # Errors
    /// [`NotTaken`].
    pub fn send<T: Message + serde::Serialize>(&self, request: &T) -> Result<Vec<u8>, NotTaken> {
        let lasting = |why: String| NotTaken { why, is_passing: false, wait: None };
        let (body, content_type) = match self.signal.protocol {
            Protocol::Protobuf => (request.encode_to_vec(), "application/x-protobuf"),
            Protocol::Json => {
                let body = serde_json::to_vec(request).map_err(|error| lasting(error.to_string()))?;
                (body, "application/json")
            }
        };
        let mut post = self.agent.post(self.signal.endpoint.as_str());
        for (name, value) in self.signal.headers.iter() {
            post = post.header(name, value);
        }
        post = post.header("content-type", content_type);
        let body = match self.signal.gzip {
            true => {
                post = post.header("content-encoding", "gzip");
                zipped(&body).map_err(|error| lasting(error.to_string()))?
            }
            false => body,
        };
        let mut answer = post.send(&body).map_err(|error| NotTaken {
            why: format!("{} {}", self.signal.place(), said(&error)),
            is_passing: true,
            wait: None,
        })?;
        let status = answer.status().as_u16();
        if answer.status().is_success() {
            return Ok(answer.body_mut().with_config().limit(ANSWER_BYTES).read_to_vec().unwrap_or_default());
        }
        let wait = answer.headers().get("retry-after").and_then(|wait| wait.to_str().ok()?.parse().ok());
        Err(NotTaken {
            why: format!("{} answers with status {status}{}", self.signal.place(), hint(status)),
            is_passing: matches!(status, 429 | 502 | 503 | 504),
            wait: wait.map(Duration::from_secs),
        })
    }

    /// What the signal asks for.
    pub fn protocol(&self) -> Protocol {
        self.signal.protocol
    }
}

/// What the most likely cause is.
fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => ": check OTEL_EXPORTER_OTLP_HEADERS",
        404 | 405 => ": is this the address of OTLP over HTTP, most often of port 4318?",
        415 => ": it does not take this protocol; set OTEL_EXPORTER_OTLP_PROTOCOL",
        _ => "",
    }
}

/// An error of the transport in a few words. Its own text may quote the address.
fn said(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "does not answer in time".to_owned(),
        ureq::Error::Io(error) => format!("cannot be reached: {}", error.kind()),
        ureq::Error::HostNotFound => "cannot be reached: its name is unknown".to_owned(),
        ureq::Error::ConnectionFailed => "cannot be reached".to_owned(),
        ureq::Error::Rustls(error) => format!("fails in TLS: {error}"),
        ureq::Error::Protocol(_) => {
            "does not speak HTTP/1.1: port 4317 is most often of gRPC, 4318 of HTTP".to_owned()
        }
        _ => "cannot be reached".to_owned(),
    }
}

fn zipped(body: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body)?;
    encoder.finish()
}

/// Certificates of files, or of the system.
fn tls(signal: &Signal) -> Result<TlsConfig, String> {
    let read = |file: &std::path::Path| {
        let failed = |why: String| format!("read the certificates {}: {why}", file.display());
        let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let found = found.map_err(|error| failed(error.to_string()))?;
        match found.is_empty() {
            true => Err(failed("it holds no certificate".to_owned())),
            false => Ok(found),
        }
    };
    let owned = |found: &[CertificateDer<'_>]| {
        found.iter().map(|one| Certificate::from_der(one).to_owned()).collect::<Vec<_>>()
    };
    let roots = match &signal.ca {
        Some(file) => owned(&read(file)?),
        None => owned(&rustls_native_certs::load_native_certs().certs),
    };
    let shown = match &signal.identity {
        None => None,
        Some((certificate, key)) => {
            let failed = |why: String| format!("read the key {}: {why}", key.display());
            let pem = std::fs::read(key).map_err(|error| failed(error.to_string()))?;
            let key = PrivateKey::from_pem(&pem).map_err(|error| failed(error.to_string()))?;
            Some(ClientCert::new_with_certs(&owned(&read(certificate)?), key))
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = TlsConfig::builder()
        .provider(TlsProvider::Rustls)
        .root_certs(RootCerts::from(roots))
        .client_cert(shown)
        .unversioned_rustls_crypto_provider(provider);
    Ok(config.build())
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("signal", &self.signal).finish_non_exhaustive()
    }
}
