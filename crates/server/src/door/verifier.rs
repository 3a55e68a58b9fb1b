//! Which certificates of clients are taken.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};

use crate::certificate::{Fields, subject_text};

/// Refused certificates are logged this often at most.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Judges certificates by the authorities and revocation lists of the site.
///
/// rustls reads no handshake message above 64 KiB, and so no longer chain; webpki checks at most
/// 100 signatures for one.
#[derive(Debug)]
pub(super) struct ClientVerifier {
    /// Chain, times, revocation and proof of the key.
    pub by_authority: Arc<dyn ClientCertVerifier>,
    pub refusals: Arc<Refusals>,
}

impl ClientVerifier {
    /// Whether the certificate counts at this time. webpki takes one without any usage for one of
    /// every usage; who shows one of a server, or of no stated use, is not taken for a person.
    pub fn check(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.by_authority.verify_client_cert(certificate, intermediates, now)?;
        match Fields::of(certificate).is_some_and(|fields| fields.is_for_clients()) {
            true => Ok(verified),
            false => Err(Error::InvalidCertificate(CertificateError::InvalidPurpose)),
        }
    }
}

/// Everything else is as `by_authority` has it.
impl ClientCertVerifier for ClientVerifier {
    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        self.check(certificate, intermediates, now)
            .inspect_err(|error| self.refusals.note(certificate, error))
    }

    fn offer_client_auth(&self) -> bool {
        self.by_authority.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.by_authority.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.by_authority.root_hint_subjects()
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}

/// Log of refused certificates, at a bounded rate.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<Option<Instant>>);

impl Refusals {
    fn note(&self, certificate: &[u8], error: &Error) {
        let mut logged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if logged.is_none_or(|at| at.elapsed() >= LOG_EVERY) {
            *logged = Some(Instant::now());
            let (subject, why) = (subject_text(certificate), reason(error));
            // As a field it is quoted and escaped.
            tracing::warn!(
                subject,
                "refused a client certificate: {why}; tidegate_http_certificates_refused counts others like it"
            );
        }
    }
}

/// Why a certificate is refused, for those who made it.
pub(super) fn reason(error: &Error) -> String {
    use CertificateError as Is;
    let Error::InvalidCertificate(what) = error else { return error.to_string() };
    let known = match what {
        Is::Expired | Is::ExpiredContext { .. } => "it has expired",
        Is::NotValidYet | Is::NotValidYetContext { .. } => "it is not valid yet",
        Is::Revoked => "its authority has revoked it",
        Is::UnknownIssuer => "no authority of --tls-client-ca has signed it",
        Is::InvalidPurpose | Is::InvalidPurposeContext { .. } => {
            "it is not for clients: its extended key usage lacks clientAuth"
        }
        Is::UnknownRevocationStatus => "--tls-client-crl has no list of an authority in its chain",
        Is::ExpiredRevocationList | Is::ExpiredRevocationListContext { .. } => {
            "the list of --tls-client-crl has expired; get a newer one from the authority"
        }
        _ => return error.to_string(),
    };
    known.into()
}
