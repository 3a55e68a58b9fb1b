//! Who may do what at the doors: principals with roles, known by their tokens or certificates.
//!
//! [`permission`] is the table of roles and actions; [`principal`] adds what each one is bound to;
//! [`token_file`] is how a site writes them down. [`Access`] knows them while the process runs.

mod certificate;
mod changes;
mod permission;
mod principal;
mod token;
mod token_file;

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

pub use certificate::{CertificateName, Nameless};
pub use changes::PrincipalChange;
pub use permission::{Action, Role, permissions_page};
pub use principal::{Bounds, Forbidden, Principal};
pub use token::{Token, TokenHash};
pub use token_file::{Entry, TokenFile, TokenFileError};
use token_file::{Holder, Holders};

/// How often the token file is looked at: a token that was revoked counts no longer than this.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest token that is hashed, bytes.
const MAX_TOKEN_BYTES: usize = 256;

/// Who may come in. Clones share the token file.
#[derive(Debug, Clone)]
pub enum Access {
    /// Everybody who reaches the address, as [`Role::Local`].
    Open,
    /// The principals of a token file.
    Tokens(Arc<Tokens>),
}

/// A request shows neither a token nor a certificate that counts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// There is none.
    #[error(
        "this address asks for a token: send `Authorization: Bearer TOKEN`; agents take it from --log-token-file. Where the \
         server has --tls-client-ca, a client certificate does too"
    )]
    Missing,
    /// It is in no entry: mistyped or revoked.
    #[error(
        "this token is not known here, or was revoked; ask an administrator for one (`tidegate token new`)"
    )]
    Unknown,
    /// Its time is over.
    #[error("this token has expired; ask an administrator for a new one (`tidegate token new`)")]
    Expired,
    /// The certificate's name is in no entry, or its entry has expired.
    #[error(
        "the certificate is of {0}, whom the token file does not name, or no longer; ask an administrator (`tidegate token \
         new --certificate NAME`)"
    )]
    UnknownName(CertificateName),
    /// The certificate does not count.
    #[error("the client certificate does not count: {0}")]
    Certificate(String),
    /// Both are valid, and of two principals.
    #[error(
        "the token and the client certificate are not of the same principal, so it is not clear who asks; send one of them"
    )]
    TwoPrincipals,
}

impl Access {
    /// The principals of a file, which is read again whenever it changes.
    ///
    /// # Errors
    /// [`TokenFileError`] if it cannot be read, or an entry is not whole.
    pub fn from_file(file: &Path) -> Result<Self, TokenFileError> {
        let stamp = Stamp::of(file);
        let (entries, known) = TokenFile::load(file)?;
        let known = Arc::new(known);
        let (broken, changes) = Default::default();
        let kept = Kept { known, entries, stamp, looked: Instant::now(), broken, changes };
        Ok(Self::Tokens(Arc::new(Tokens { file: file.to_owned(), kept: Mutex::new(kept) })))
    }

    /// Who sent a request with these headers, on a connection whose client has shown this
    /// certificate. Where both are there they must be of one principal: what a request may do is
    /// never chosen from two, and a token that was carried off does not work beside another's
    /// certificate.
    ///
    /// # Errors
    /// [`Unauthorized`] if either does not count, or there is none.
    pub fn principal(
        &self,
        headers: &HeaderMap,
        certificate: Option<&CertificateName>,
    ) -> Result<Principal, Unauthorized> {
        let Self::Tokens(_) = self else { return Ok(Principal::local()) };
        let token = headers
            .get(AUTHORIZATION)
            .map(|given| given.as_bytes().strip_prefix(b"Bearer ").ok_or(Unauthorized::Missing));
        self.principal_of(token.transpose()?, certificate)
    }

    /// The same for a token that came otherwise.
    ///
    /// # Errors
    /// [`Unauthorized`] if either does not count, or there is none.
    pub(crate) fn principal_of(
        &self,
        token: Option<&[u8]>,
        certificate: Option<&CertificateName>,
    ) -> Result<Principal, Unauthorized> {
        let Self::Tokens(tokens) = self else { return Ok(Principal::local()) };
        let (known, _) = tokens.newest();
        let by_token = token.map(|token| known.of_token(token)).transpose()?;
        let by_certificate = certificate.map(|name| known.of_certificate(name)).transpose()?;
        match (by_token, by_certificate) {
            (None, None) => Err(Unauthorized::Missing),
            (Some(one), Some(other)) if one.id != other.id => Err(Unauthorized::TwoPrincipals),
            (Some(one), _) | (None, Some(one)) => Ok(one.clone()),
        }
    }

    /// What changed in the token file since the last call, as far as it was read again.
    pub(crate) fn take_changes(&self) -> Vec<PrincipalChange> {
        let Self::Tokens(tokens) = self else { return Vec::new() };
        let mut kept = tokens.kept.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut kept.changes)
    }

    /// Why the token file does not count as it is now, if an older state of it is in use.
    pub fn broken(&self) -> Option<String> {
        let Self::Tokens(tokens) = self else { return None };
        tokens.newest().1
    }
}

/// The principals of a file as it was last whole.
#[derive(Debug)]
pub struct Tokens {
    file: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    known: Arc<Holders>,
    /// What `known` was made of.
    entries: TokenFile,
    stamp: Option<Stamp>,
    looked: Instant,
    broken: Option<String>,
    /// Changes that nobody has asked for yet.
    changes: Vec<PrincipalChange>,
}

impl Holders {
    /// Whose token this is.
    fn of_token(&self, token: &[u8]) -> Result<&Principal, Unauthorized> {
        let token = token.trim_ascii();
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(Unauthorized::Unknown);
        }
        let holder = self.tokens.get(&TokenHash::of(token)).ok_or(Unauthorized::Unknown)?;
        holder.now().ok_or(Unauthorized::Expired)
    }

    /// Whose certificate has this name.
    fn of_certificate(&self, name: &CertificateName) -> Result<&Principal, Unauthorized> {
        let holder = self.certificates.get(name).and_then(|holder| holder.now());
        holder.ok_or_else(|| Unauthorized::UnknownName(name.clone()))
    }
}

impl Holder {
    /// The principal, unless its time is over.
    fn now(&self) -> Option<&Principal> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let is_over = |end: i64| end <= i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        (!self.expires.is_some_and(is_over)).then_some(&self.principal)
    }
}

impl Tokens {
    /// The principals, after a look at the file if one is due. A file that is broken or away
    /// changes nothing: a slip of an editor must not lock everybody out, nor let anybody in.
    fn newest(&self) -> (Arc<Holders>, Option<String>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.looked.elapsed() >= LOOK_EVERY {
            kept.looked = Instant::now();
            let stamp = Stamp::of(&self.file);
            if stamp != kept.stamp {
                kept.stamp = stamp;
                match TokenFile::load(&self.file) {
                    Ok((entries, known)) => {
                        let (tokens, certificates) = (known.tokens.len(), known.certificates.len());
                        tracing::info!(tokens, certificates, "read {} again", self.file.display());
                        let changes = changes::between(&kept.entries, &entries);
                        kept.changes.extend(changes);
                        kept.entries = entries;
                        (kept.known, kept.broken) = (Arc::new(known), None);
                    }
                    Err(error) => {
                        tracing::error!("{error}; the tokens of before go on to count");
                        kept.broken = Some(error.to_string());
                    }
                }
            }
        }
        (Arc::clone(&kept.known), kept.broken.clone())
    }
}

/// What changes when a file is written or replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    bytes: u64,
    changed_s: i64,
    changed_ns: i64,
}

impl Stamp {
    /// `None` if there is no such file.
    fn of(file: &Path) -> Option<Self> {
        let of = |of: Metadata| Self {
            device: of.dev(),
            inode: of.ino(),
            bytes: of.size(),
            changed_s: of.ctime(),
            changed_ns: of.ctime_nsec(),
        };
        std::fs::metadata(file).ok().map(of)
    }
}
