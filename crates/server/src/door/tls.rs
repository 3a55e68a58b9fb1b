//! TLS of the listener: certificate and key from files, read again when they change.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// How often the files are looked at, when connections come.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A certificate and its key. Clones share them.
#[derive(Clone)]
pub struct Tls {
    files: Arc<(PathBuf, PathBuf)>,
    kept: Arc<Mutex<Kept>>,
}

struct Kept {
    config: Arc<ServerConfig>,
    stamps: Stamps,
    looked: Instant,
}

/// When the two files were written.
type Stamps = [Option<SystemTime>; 2];

/// A certificate or key cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("TLS with {} and {}: {what}", cert.display(), key.display())]
pub struct TlsError {
    cert: PathBuf,
    key: PathBuf,
    what: String,
}

impl Tls {
    /// Reads a certificate, followed by those that lead to its root, and its key, both as PEM.
    ///
    /// # Errors
    /// [`TlsError`] if a file cannot be read, or the key is not the certificate's.
    pub fn open(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let stamps = stamps(cert, key);
        let kept = Kept { config: Arc::new(config(cert, key)?), stamps, looked: Instant::now() };
        Ok(Self { files: Arc::new((cert.into(), key.into())), kept: Arc::new(Mutex::new(kept)) })
    }

    /// What the next connection is accepted with. Files that changed and are not whole change
    /// nothing: a certificate is often renewed before its key is in place.
    pub(super) fn acceptor(&self) -> TlsAcceptor {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.looked.elapsed() >= LOOK_EVERY {
            kept.looked = Instant::now();
            let (cert, key) = &*self.files;
            let now = stamps(cert, key);
            if now != kept.stamps {
                match config(cert, key) {
                    Ok(config) => {
                        tracing::info!("read the certificate {} again", cert.display());
                        (kept.config, kept.stamps) = (Arc::new(config), now);
                    }
                    Err(error) => tracing::error!("{error}; the certificate of before stays in use"),
                }
            }
        }
        TlsAcceptor::from(Arc::clone(&kept.config))
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

fn stamps(cert: &Path, key: &Path) -> Stamps {
    [cert, key].map(|file| std::fs::metadata(file).and_then(|of| of.modified()).ok())
}

fn config(cert: &Path, key: &Path) -> Result<ServerConfig, TlsError> {
    let failed = |what: String| TlsError { cert: cert.into(), key: key.into(), what };
    let chain = CertificateDer::pem_file_iter(cert).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let chain = chain.map_err(|e| failed(format!("read the certificate: {e}")))?;
    if chain.is_empty() {
        return Err(failed("the first file holds no certificate".into()));
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(|e| failed(format!("read the key: {e}")))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let config = config.map_err(|e| failed(e.to_string()))?.with_no_client_auth();
    let mut config = config.with_single_cert(chain, private).map_err(|e| failed(e.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
