//! The certificate that the client of a connection has shown, and whether it still counts.

use rustls::pki_types::{CertificateDer, UnixTime};

use super::tls::Tls;
use super::verifier::reason;
use crate::access::{CertificateName, Nameless, Unauthorized};

/// The certificate that the client of a connection has shown.
#[derive(Debug)]
pub(super) struct ClientCertificate {
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
