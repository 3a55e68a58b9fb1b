//! Who may do what at the doors: principals with roles, known by their tokens.
//!
//! [`permission`] is the table of roles and actions; [`principal`] adds what each one is bound to;
//! [`token_file`] is how a site writes them down. [`Access`] knows them while the process runs.

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

pub use changes::PrincipalChange;
pub use permission::{Action, Role, permissions_page};
pub use principal::{Bounds, Forbidden, Principal};
pub use token::{Token, TokenHash};
use token_file::TokenHolders;
pub use token_file::{Entry, TokenFile, TokenFileError};

/// How often the token file is looked at: a token that was revoked counts no longer than this.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest token that is hashed, bytes.
const MAX_TOKEN_BYTES: usize = 256;

/// Who may come in. Clones share the token file.
#[derive(Debug, Clone)]
pub enum Access {
    /// Everybody who reaches the address, as [`Role::Local`].
    Open,
    /// Holders of the tokens of a file.
    Tokens(Arc<Tokens>),
}

/// A request shows no token that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unauthorized {
    /// There is none.
    #[error(
        "this address asks for a token: send `Authorization: Bearer TOKEN`; agents take it from --log-token-file"
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
}

impl Access {
    /// Holders of the tokens of a file, which is read again whenever it changes.
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

    /// Who sent a request with these headers.
    ///
    /// # Errors
    /// [`Unauthorized`] if it shows no token that counts.
    pub fn principal(&self, headers: &HeaderMap) -> Result<Principal, Unauthorized> {
        let Self::Tokens(tokens) = self else { return Ok(Principal::local()) };
        let given = headers.get(AUTHORIZATION).ok_or(Unauthorized::Missing)?.as_bytes();
        let token = given.strip_prefix(b"Bearer ").ok_or(Unauthorized::Missing)?.trim_ascii();
        if token.is_empty() || token.len() > MAX_TOKEN_BYTES {
            return Err(Unauthorized::Unknown);
        }
        tokens.holder(TokenHash::of(token))
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

/// The tokens of a file as it was last whole.
#[derive(Debug)]
pub struct Tokens {
    file: PathBuf,
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    known: Arc<TokenHolders>,
    /// What `known` was made of.
    entries: TokenFile,
    stamp: Option<Stamp>,
    looked: Instant,
    broken: Option<String>,
    /// Changes that nobody has asked for yet.
    changes: Vec<PrincipalChange>,
}

impl Tokens {
    fn holder(&self, hash: TokenHash) -> Result<Principal, Unauthorized> {
        let (known, _) = self.newest();
        let (principal, expires) = known.get(&hash).ok_or(Unauthorized::Unknown)?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        match expires.is_some_and(|end| end <= i64::try_from(now.as_secs()).unwrap_or(i64::MAX)) {
            true => Err(Unauthorized::Expired),
            false => Ok(principal.clone()),
        }
    }

    /// The tokens, after a look at the file if one is due. A file that is broken or away changes
    /// nothing: a slip of an editor must not lock everybody out, nor let anybody in.
    fn newest(&self) -> (Arc<TokenHolders>, Option<String>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.looked.elapsed() >= LOOK_EVERY {
            kept.looked = Instant::now();
            let stamp = Stamp::of(&self.file);
            if stamp != kept.stamp {
                kept.stamp = stamp;
                match TokenFile::load(&self.file) {
                    Ok((entries, known)) => {
                        tracing::info!(tokens = known.len(), "read {} again", self.file.display());
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
