//! TLS of the listener: certificate and key from files, and the authorities of clients'
//! certificates. All are read again when they change.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::{VerifierBuilderError, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use super::verifier::{ClientVerifier, Refusals};

/// What clients that name protocols in their handshake must name, by door.
pub(crate) const HTTP: &[u8] = b"http/1.1";
pub(crate) const HTTP2: &[u8] = b"h2";
pub(crate) const POSTGRES: &[u8] = b"postgresql";

/// How often the files are looked at, when connections and requests with certificates come.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Longest of the files, bytes: a list of some 400,000 revoked certificates.
const MAX_BYTES: u64 = 16 << 20;

/// Where a listener's certificates are, all as PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// Its certificate, followed by those that lead to its root.
    pub cert: PathBuf,
    /// The key of it.
    pub key: PathBuf,
    /// Whose certificates clients may show, and with which lists of revoked ones; `None` to ask for
    /// no certificates.
    pub clients: Option<ClientFiles>,
}

/// Where it is written which certificates of clients count, as PEM.
#[derive(Debug, Clone)]
pub struct ClientFiles {
    /// Certificates of the authorities.
    pub ca: PathBuf,
    /// Lists of the certificates that were revoked: one of each authority in a chain.
    pub crl: Option<PathBuf>,
}

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &Path> {
        let clients = self.clients.iter().flat_map(|clients| [Some(&clients.ca), clients.crl.as_ref()]);
        [&self.cert, &self.key].into_iter().chain(clients.flatten()).map(PathBuf::as_path)
    }
}

/// Certificates of a listener. Clones share them.
#[derive(Clone)]
pub struct Tls {
    files: Arc<TlsFiles>,
    refusals: Arc<Refusals>,
    kept: Arc<Mutex<Kept>>,
}

struct Kept {
    config: Arc<ServerConfig>,
    clients: Option<Arc<ClientVerifier>>,
    stamps: Stamps,
    looked: Instant,
}

/// When each of the files was written.
type Stamps = Vec<Option<SystemTime>>;

/// A file of certificates cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("TLS with {}: {what}", file.display())]
pub struct TlsError {
    file: PathBuf,
    what: String,
}

impl Tls {
    /// Reads the files.
    ///
    /// # Errors
    /// [`TlsError`] if a file cannot be read or is empty, or the key is not the certificate's.
    pub fn open(files: TlsFiles) -> Result<Self, TlsError> {
        let refusals = Arc::default();
        let kept = Kept::read(&files, &refusals)?;
        Ok(Self { files: Arc::new(files), refusals, kept: Arc::new(Mutex::new(kept)) })
    }

    /// What the next connection is accepted with. A client that names protocols must name this one.
    pub(super) fn acceptor(&self, protocol: &[u8]) -> TlsAcceptor {
        let mut config = self.newest(|kept| ServerConfig::clone(&kept.config));
        config.alpn_protocols = vec![protocol.to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    /// What judges certificates of clients now; `None` if none are asked for.
    pub(super) fn clients(&self) -> Option<Arc<ClientVerifier>> {
        self.newest(|kept| kept.clients.clone())
    }

    /// Looks at the files first, if that is due. Files that changed and are not whole change
    /// nothing: a certificate is often renewed before its key is in place.
    fn newest<T>(&self, of: impl FnOnce(&Kept) -> T) -> T {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.looked.elapsed() >= LOOK_EVERY {
            kept.looked = Instant::now();
            if stamps(&self.files) != kept.stamps {
                match Kept::read(&self.files, &self.refusals) {
                    Ok(read) => {
                        tracing::info!(
                            "read the certificate {} and its like again",
                            self.files.cert.display()
                        );
                        *kept = read;
                    }
                    Err(error) => tracing::error!("{error}; the certificates of before stay in use"),
                }
            }
        }
        of(&kept)
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn stamps(files: &TlsFiles) -> Stamps {
    files.all().map(|file| std::fs::metadata(file).and_then(|of| of.modified()).ok()).collect()
}

impl Kept {
    fn read(files: &TlsFiles, refusals: &Arc<Refusals>) -> Result<Self, TlsError> {
        // Before the files are read: what changes meanwhile is read again.
        let stamps = stamps(files);
        let failed = |what: String| TlsError { file: files.cert.clone(), what };
        let chain: Vec<CertificateDer<'static>> = all_in(&files.cert, "certificate")?;
        let private = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
            .map_err(|e| TlsError { file: files.key.clone(), what: format!("read the key: {e}") })?;
        let clients = files.clients.as_ref().map(|clients| verifier(clients, refusals)).transpose()?;
        let config = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let config = config.map_err(|e| failed(e.to_string()))?;
        let config = match &clients {
            Some(verifier) => config.with_client_cert_verifier(Arc::clone(verifier) as _),
            None => config.with_no_client_auth(),
        };
        let config = config
            .with_single_cert(chain, private)
            .map_err(|e| failed(format!("with the key {}: {e}", files.key.display())))?;
        Ok(Self { config: Arc::new(config), clients, stamps, looked: Instant::now() })
    }
}

/// Takes certificates of these authorities, and clients without any: they need a token. A list of
/// revoked certificates must be there for each authority of a chain, and not be over, so that
/// taking a list away lets nobody in.
fn verifier(files: &ClientFiles, refusals: &Arc<Refusals>) -> Result<Arc<ClientVerifier>, TlsError> {
    let failed = |what: String| TlsError { file: files.ca.clone(), what };
    let mut roots = RootCertStore::empty();
    for authority in all_in(&files.ca, "certificate")? {
        roots.add(authority).map_err(|e| failed(e.to_string()))?;
    }
    let mut builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider());
    if let Some(file) = &files.crl {
        let lists: Vec<CertificateRevocationListDer<'static>> = all_in(file, "revocation list")?;
        builder = builder.with_crls(lists).enforce_revocation_expiration();
    }
    let built = builder.allow_unauthenticated().build();
    let by_authority = built.map_err(|error| match (error, &files.crl) {
        (VerifierBuilderError::InvalidCrl(error), Some(crl)) => {
            let what = format!(
                "a revocation list is damaged or of version 1 ({error:?}); openssl ca writes version 2 where crlnumber is set"
            );
            TlsError { file: crl.clone(), what }
        }
        (error, _) => failed(error.to_string()),
    })?;
    Ok(Arc::new(ClientVerifier { by_authority, refusals: Arc::clone(refusals) }))
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// All items of one kind in a file, of which there must be one at least.
fn all_in<T: PemObject>(file: &Path, kind: &str) -> Result<Vec<T>, TlsError> {
    let failed = |what: String| TlsError { file: file.to_owned(), what };
    let found: Result<Vec<T>, _> = T::pem_slice_iter(&read(file)?).collect();
    let found = found.map_err(|e| failed(format!("read the {kind}: {e}")))?;
    match found.is_empty() {
        true => Err(failed(format!("it holds no {kind} (PEM)"))),
        false => Ok(found),
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |what: String| TlsError { file: file.to_owned(), what };
    let mut bytes = Vec::new();
    let opened = File::open(file).map_err(|e| failed(e.to_string()))?;
    opened.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| failed(e.to_string()))?;
    match bytes.len() as u64 > MAX_BYTES {
        true => Err(failed(format!("it is longer than {MAX_BYTES} bytes"))),
        false => Ok(bytes),
    }
}
