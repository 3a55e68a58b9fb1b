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
mod sign;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::Serialize;
use ssh_key::{HashAlg, SshSig};
use tidegate_autopilot::policy::{Policy, PolicyChange, changes, signers_needed};

pub use sign::sign;

use super::control_folder::Approval;
use allowed::Allowed;

/// Namespace of signatures of policy files: `ssh-keygen -Y sign -n tidegate-policy -f KEY
/// policy.toml`.
pub const POLICY: &str = "tidegate-policy";
/// Namespace of signatures of approvals.
pub const APPROVE: &str = "tidegate-approve";

const BEGIN: &str = "-----BEGIN SSH SIGNATURE-----";
const END: &str = "-----END SSH SIGNATURE-----";

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
}

/// A policy file whose signatures suffice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signed {
    /// The signers: different people.
    pub by: Vec<Signer>,
    /// What the policy changes compared with the one before it.
    pub changes: Vec<PolicyChange>,
}

impl Signers {
    /// Reads an `allowed_signers` file.
    ///
    /// # Errors
    /// The file cannot be read, or a line cannot be used: the message names both and what to write.
    pub fn read(file: &Path) -> Result<Self, String> {
        let at = file.display();
        let text = fs::read_to_string(file).map_err(|e| format!("read signers {at}: {e}"))?;
        let allowed = allowed::parse(&text).map_err(|why| format!("{at}: {why}"))?;
        if allowed.is_empty() {
            return Err(format!(
                "{at}: nobody may sign; write a line such as `anna@example.com ssh-ed25519 AAAA...`"
            ));
        }
        Ok(Self { file: file.to_path_buf(), allowed })
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

    /// The signers of the policy `file` with the bytes `text`, by the signatures in FILE.sig and
    /// FILE.NAME.sig beside it.
    ///
    /// # Errors
    /// One of the signatures does not count.
    fn policy_signers(&self, file: &Path, text: &[u8], now: DateTime<Utc>) -> Result<Vec<Signer>, String> {
        let mut signers: Vec<Signer> = Vec::new();
        for beside in signature_files(file) {
            let at = beside.display();
            let armoured = fs::read_to_string(&beside).map_err(|e| format!("read {at}: {e}"))?;
            for signature in signatures(&armoured) {
                let signer =
                    self.verify(POLICY, text, signature, now).map_err(|why| format!("{at}: {why}"))?;
                if signers.iter().all(|other| signer.differs(other)) {
                    signers.push(signer);
                }
            }
        }
        Ok(signers)
    }

    /// Admits `policy`, read from `file` as `text`, as the successor of `before`. A change that
    /// lets the autopilot do more needs signatures of two people, any other of one.
    ///
    /// # Errors
    /// Signatures are missing: the message says for which keys of the policy, and how to sign.
    pub fn admit(
        &self,
        file: &Path,
        text: &[u8],
        policy: &Policy,
        before: &Policy,
        now: DateTime<Utc>,
    ) -> Result<Signed, String> {
        let by = self.policy_signers(file, text, now)?;
        let changes = changes(before, policy);
        let needed = signers_needed(before, policy);
        if by.len() >= needed {
            return Ok(Signed { by, changes });
        }
        let at = file.display();
        let who = match by.is_empty() {
            true => "nobody whose signature counts".to_owned(),
            false => by.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and "),
        };
        let wider: Vec<String> =
            changes.iter().filter(|changed| changed.widens).map(describe_change).collect();
        let because = match needed {
            1 => String::new(),
            _ => format!(
                ", as it lets the autopilot do more than policy {:?}: {}",
                before.name,
                wider.join("; ")
            ),
        };
        let people = if needed == 1 { "one person" } else { "two people" };
        Err(format!(
            "{at} needs the signature of {people}{because}. It is signed by {who}. To sign: ssh-keygen -Y sign -n {POLICY} -f KEY {at}, \
             which writes {at}.sig; the second one as {at}.NAME.sig beside it"
        ))
    }
}

impl Signers {
    /// The signer of an approval of an action that `plan` decided in `cluster`.
    ///
    /// # Errors
    /// The approval is not signed, or its signature does not count.
    pub fn approval(
        &self,
        approval: &Approval,
        cluster: &str,
        plan: &str,
        now: DateTime<Utc>,
    ) -> Result<Signer, String> {
        let Some(signature) = &approval.signature else {
            return Err("it is not signed; approve with --key KEY".to_owned());
        };
        let text = approval_text(cluster, &approval.action, plan);
        self.verify(APPROVE, text.as_bytes(), signature, now)
    }

    /// The file and its number of keys, for people.
    pub fn describe(&self) -> String {
        format!("{}, {} keys", self.file.display(), self.allowed.len())
    }
}

/// A change of a policy key, in words.
fn describe_change(changed: &PolicyChange) -> String {
    let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "nothing".to_owned());
    format!("{} from {} to {}", changed.key, value(&changed.before), value(&changed.after))
}

/// The text that an approval signs: cluster, action, and the plan that decided it. The plan's id is
/// a hash of everything it was made from.
pub fn approval_text(cluster: &str, action: &str, plan: &str) -> String {
    format!("tidegate approve\ncluster {cluster}\naction {action}\nplan {plan}\n")
}

/// FILE.sig and FILE.NAME.sig, sorted by name.
fn signature_files(file: &Path) -> Vec<PathBuf> {
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let beside = |entry: &str| {
        let between = entry.strip_prefix(name).and_then(|rest| rest.strip_suffix(".sig"));
        between.is_some_and(|between| between.is_empty() || between.starts_with('.'))
    };
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().and_then(|name| name.to_str()).is_some_and(beside))
        .collect();
    found.sort();
    found
}

/// The armoured signatures of a text, which may hold several.
fn signatures(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices(BEGIN).map(|(from, _)| {
        let rest = &text[from..];
        rest.find(END).map_or(rest, |to| &rest[..to + END.len()])
    })
}

#[cfg(test)]
mod tests;
