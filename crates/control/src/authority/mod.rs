//! Whose signatures on policies and approvals count.
//!
//! A file in OpenSSH's `allowed_signers` format lists people and their keys; signatures are
//! verified as `ssh-keygen -Y verify` does. The cryptography is the crate `ssh-key`'s: ed25519,
//! ECDSA P-256 and ed25519 on a security key.
//!
//! The deployment file names that file (`[authority] signers`), not the policy: otherwise the
//! author of a policy would choose who signs it. The deployment file belongs to the user that runs
//! the process, who could run another program just as well.

mod allowed;
#[cfg(test)]
pub(crate) mod fixture;
mod policies;
mod sign;
mod statement;

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use ssh_key::{HashAlg, SshSig};

pub use policies::{PolicyFile, Signed, Standing};
pub use sign::sign;
pub use statement::{ActsAs, ApprovalStatement, PolicyStatement, SwitchStatement, hash};

use allowed::Allowed;

/// Namespace of signatures of policies: `ssh-keygen -Y sign -n tidegate-policy -f KEY
/// policy.toml.statement`.
pub const POLICY: &str = "tidegate-policy";
/// Namespace of signatures of approvals.
pub const APPROVE: &str = "tidegate-approve";
/// Namespace of signatures of journal entries, by the keys of autopilots. A key must be listed for
/// it by name: a person's `tidegate-*` does not let that person write the journal.
pub const JOURNAL: &str = "tidegate-journal";
/// Namespace of signatures of the switch.
pub const SWITCH: &str = "tidegate-switch";
/// Longest file of signers or signatures, bytes.
const MOST_BYTES: u64 = 1 << 20;

/// A person who signed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signer {
    /// Names of the person, as the file lists them with the key.
    pub principals: Vec<String>,
    /// The key's fingerprint, as `ssh-keygen -l` prints it.
    pub key: String,
}

impl Signer {
    /// Whether the two are different people: no name and no key in common.
    fn differs(&self, other: &Self) -> bool {
        self.key != other.key && !self.principals.iter().any(|name| other.principals.contains(name))
    }
}

impl fmt::Display for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.principals.join(","), self.key)
    }
}

/// The people whose signatures count.
#[derive(Debug, Clone)]
pub struct Signers {
    file: PathBuf,
    allowed: Vec<Allowed>,
    text: String,
}

/// A statement with its signature, armoured as `ssh-keygen -Y sign` writes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedText {
    /// The statement.
    pub text: String,
    /// The signature.
    pub signature: String,
}

impl SignedText {
    /// Signs a statement with a person's key; see [`sign`].
    ///
    /// # Errors
    /// The key cannot be read or used.
    pub fn by_key(key: &Path, namespace: &str, text: String) -> Result<Self, String> {
        let signature = sign(key, namespace, &text)?;
        Ok(Self { text, signature })
    }
}

impl Signers {
    /// Reads an `allowed_signers` file.
    ///
    /// # Errors
    /// The file cannot be read, or a line cannot be used: the message names both and what to write.
    pub fn read(file: &Path) -> Result<Self, String> {
        Self::parse(file, &read_text(file, MOST_BYTES)?)
    }

    /// Parses the text of the file of that name.
    pub(crate) fn parse(file: &Path, text: &str) -> Result<Self, String> {
        let at = file.display();
        let allowed = allowed::parse(text).map_err(|why| format!("{at}: {why}"))?;
        if allowed.is_empty() {
            return Err(format!(
                "{at}: nobody may sign; write a line such as `anna@example.com ssh-ed25519 AAAA...`"
            ));
        }
        Ok(Self { file: file.to_path_buf(), allowed, text: text.to_owned() })
    }

    /// Verifies `signature` (armoured, as `ssh-keygen -Y sign` writes it) of `message` in
    /// `namespace`, and returns its signer.
    ///
    /// # Errors
    /// The signature does not count at `now`: the message names the key and says why.
    pub fn verify(
        &self,
        namespace: &str,
        message: &[u8],
        signature: &str,
        now: DateTime<Utc>,
    ) -> Result<Signer, String> {
        let signature = SshSig::from_pem(signature.trim()).map_err(|e| {
            format!("the signature cannot be read ({e}); keys may be ed25519 or ECDSA P-256, e.g. of ssh-keygen -t ed25519")
        })?;
        let key = signature.public_key().fingerprint(HashAlg::Sha256).to_string();
        let of_key: Vec<&Allowed> =
            self.allowed.iter().filter(|line| line.key.key_data() == signature.public_key()).collect();
        if of_key.is_empty() {
            return Err(format!("key {key} is not in {}", self.file.display()));
        }
        let mut why = String::new();
        for line in of_key {
            match line.may(namespace, now) {
                Ok(()) => {
                    line.key.verify(namespace, message, &signature).map_err(|e| {
                        format!("the signature of {key} is not of this text in namespace {namespace} ({e})")
                    })?;
                    return Ok(Signer { principals: line.principals.clone(), key });
                }
                Err(not) => why = not,
            }
        }
        Err(format!("key {key}: {why}"))
    }

    /// The signer of an approval of `action` in `cluster`, decided by `plan`, as of a time.
    ///
    /// # Errors
    /// Its statement is another one or has expired, or its signature does not count.
    pub fn approval(
        &self,
        signed: &SignedText,
        (cluster, action, plan): (&str, &str, &str),
        now: DateTime<Utc>,
    ) -> Result<(Signer, ApprovalStatement), String> {
        let statement = ApprovalStatement::parse(&signed.text)?;
        for (name, signed, asked) in [
            ("cluster", statement.cluster.as_str(), cluster),
            ("action", &statement.action, action),
            ("plan", &statement.plan, plan),
        ] {
            if signed != asked {
                return Err(format!("it is for {name} {signed} and not {asked}"));
            }
        }
        statement.check_time(now.timestamp_micros())?;
        let signer = self.verify(APPROVE, signed.text.as_bytes(), &signed.signature, now)?;
        Ok((signer, statement))
    }

    /// The signer of a switch that lets the autopilot of `cluster` act.
    ///
    /// # Errors
    /// Its statement is another one, or its signature does not count.
    pub fn switch(
        &self,
        signed: &SignedText,
        cluster: &str,
        now: DateTime<Utc>,
    ) -> Result<(Signer, SwitchStatement), String> {
        let statement = SwitchStatement::parse(&signed.text)?;
        if statement.cluster != cluster {
            return Err(format!("it is for cluster {} and not {cluster}", statement.cluster));
        }
        let signer = self.verify(SWITCH, signed.text.as_bytes(), &signed.signature, now)?;
        Ok((signer, statement))
    }

    /// The text of the file.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The file and its number of keys, for people.
    pub fn describe(&self) -> String {
        format!("{}, {} keys", self.file.display(), self.allowed.len())
    }
}

/// The text of a file of at most `most_bytes`.
fn read_text(file: &Path, most_bytes: u64) -> Result<String, String> {
    let failed = |why: String| format!("read {}: {why}", file.display());
    let opened = fs::File::open(file).map_err(|error| failed(error.to_string()))?;
    let mut text = String::new();
    opened.take(most_bytes + 1).read_to_string(&mut text).map_err(|error| failed(error.to_string()))?;
    match text.len() as u64 > most_bytes {
        true => Err(failed(format!("it is longer than {most_bytes} bytes"))),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests;
