//! The certificate that the client of a connection has shown, and whether it still counts.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::{CertificateDer, UnixTime};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;

use super::tls::Tls;
use super::verifier::reason;
use crate::access::{CertificateName, Nameless, Unauthorized};
use crate::metrics::Metrics;

/// The certificate that the client of a connection has shown.
#[derive(Debug)]
pub(crate) struct ClientCertificate {
    /// It, followed by those that lead to its authority.
    chain: Vec<CertificateDer<'static>>,
    name: Result<CertificateName, Nameless>,
    tls: Tls,
}

impl ClientCertificate {
    /// A chain that a handshake took, of a client that has proven its key; `None` if it is empty.
    pub fn new(chain: &[CertificateDer<'_>], tls: Tls) -> Option<Self> {
        let chain: Vec<_> = chain.iter().map(|one| one.clone().into_owned()).collect();
        let name = CertificateName::of(chain.first()?);
        Some(Self { chain, name, tls })
    }

    /// Its name, if it counts now: connections and sessions of TLS outlive handshakes, and so it is
    /// judged at each request, by the authorities and lists as the files have them now.
    ///
    /// # Errors
    /// [`Unauthorized::Certificate`] if it does not count any more, or names nobody.
    pub fn name(&self) -> Result<&CertificateName, Unauthorized> {
        if let (Some(verifier), [certificate, intermediates @ ..]) = (self.tls.clients(), &self.chain[..]) {
            let checked = verifier.check(certificate, intermediates, UnixTime::now());
            checked.map_err(|error| Unauthorized::Certificate(reason(&error)))?;
        }
        self.name.as_ref().map_err(|error| Unauthorized::Certificate(error.to_string()))
    }
}

impl Tls {
    /// A connection once its handshake is done, and the certificate that its client has shown;
    /// `None` if the handshake fails or takes too long, which is the client's affair.
    pub(crate) async fn accept(
        &self,
        socket: TcpStream,
        protocol: &[u8],
        within: Duration,
        metrics: &Metrics,
    ) -> Option<(TlsStream<TcpStream>, Option<Arc<ClientCertificate>>)> {
        match timeout(within, self.acceptor(protocol).accept(socket)).await {
            Ok(Ok(socket)) => {
                let shown = socket.get_ref().1.peer_certificates().unwrap_or_default();
                let client = ClientCertificate::new(shown, self.clone()).map(Arc::new);
                return Some((socket, client));
            }
            Ok(Err(error)) => {
                if refuses_certificate(&error) {
                    metrics.count_refused_certificate();
                }
                tracing::debug!("a TLS handshake failed: {error}");
            }
            Err(_) => tracing::debug!("a TLS handshake took too long"),
        }
        None
    }
}

/// Whether a handshake failed for the client's certificate.
fn refuses_certificate(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    matches!(inner, Some(rustls::Error::InvalidCertificate(_)))
}
