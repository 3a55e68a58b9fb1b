//! Proof of a journal entry: a signature of its writer over the entry, its place, and the entry
//! before it.
//!
//! The proof stands at the end of the entry's JSON, as a last member that readers of older versions
//! pass over. What is signed is the text in front of it, byte by byte, so that a version with more
//! members still verifies it.

use std::borrow::Cow;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use ssh_key::{HashAlg, LineEnding, PrivateKey};

use crate::authority::{JOURNAL, hash};

/// Where the proof begins in the text of an entry. Within a string the quotes would be escaped.
const MARK: &str = ",\"proof\":";

/// Which entry it is: who wrote it as which of which generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place<'a> {
    pub cluster: &'a str,
    pub source: &'a str,
    pub generation: u64,
    pub seq: u64,
}

/// A writer's proof of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Proof {
    /// Hash of the statement of the entry before it: of the same writer, or for the first of a
    /// generation of the last that it read.
    pub previous: String,
    /// Signature of the statement, armoured.
    pub signature: String,
}

/// What a writer signs. Its hash names the entry.
pub(super) fn statement(place: Place<'_>, previous: &str, entry: &str) -> String {
    let Place { cluster, source, generation, seq } = place;
    let entry = hash(entry.as_bytes());
    format!(
        "tidegate journal\ncluster {cluster}\nsource {source}\ngeneration {generation}\nsequence {seq}\nafter {previous}\nentry {entry}\n"
    )
}

/// The text of an entry with its proof.
pub(super) fn attach(entry: &str, proof: &Proof) -> Result<String, serde_json::Error> {
    let open = entry.strip_suffix('}').unwrap_or(entry);
    Ok(format!("{open}{MARK}{}}}", serde_json::to_string(proof)?))
}

/// The text of an entry as it was signed, and its proof if it has one.
pub(super) fn detach(body: &str) -> (Cow<'_, str>, Option<Proof>) {
    let parts = body.rfind(MARK).and_then(|at| {
        let proof = body[at + MARK.len()..].strip_suffix('}')?;
        Some((&body[..at], serde_json::from_str(proof).ok()?))
    });
    match parts {
        Some((open, proof)) => (Cow::Owned(format!("{open}}}")), Some(proof)),
        None => (Cow::Borrowed(body), None),
    }
}

/// The key with which a process proves its entries.
#[derive(Clone)]
pub struct JournalKey(PrivateKey);

impl std::fmt::Debug for JournalKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("JournalKey").field(&self.fingerprint()).finish()
    }
}

impl JournalKey {
    /// Reads an OpenSSH private key that is not encrypted: no person is there to ask.
    ///
    /// # Errors
    /// The file cannot be read or used, or others may read it; the message says how to mend it.
    pub fn read(file: &Path) -> Result<Self, String> {
        let failed = |why: String| format!("the key of the journal, {}: {why}", file.display());
        let metadata = std::fs::metadata(file).map_err(|error| failed(error.to_string()))?;
        if metadata.mode() & 0o077 != 0 {
            return Err(failed("others may read it; chmod 600".to_owned()));
        }
        let make = "make one with ssh-keygen -t ed25519 -N \"\" -f FILE";
        let key = PrivateKey::read_openssh_file(file).map_err(|e| failed(format!("{e}; {make}")))?;
        if key.is_encrypted() {
            return Err(failed(format!("it has a passphrase, which nobody is there to type; {make}")));
        }
        if key.algorithm().is_rsa() {
            return Err(failed(format!("RSA keys are not used; {make}")));
        }
        Ok(Self(key))
    }

    /// The key's fingerprint, as `ssh-keygen -l` prints it.
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint(HashAlg::Sha256).to_string()
    }

    /// Proves an entry that follows on `previous`.
    pub(super) fn prove(&self, statement: &str, previous: &str) -> Result<Proof, ssh_key::Error> {
        let signature = self.0.sign(JOURNAL, HashAlg::Sha512, statement.as_bytes())?;
        Ok(Proof { previous: previous.to_owned(), signature: signature.to_pem(LineEnding::LF)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_leaves_the_entry_as_it_was_signed() {
        let entry = r#"{"at_us":1,"what":{"why":"a \",\"proof\":{} in a string"}}"#;
        let proof = Proof { previous: "none".to_owned(), signature: "-----BEGIN\nA\n".to_owned() };
        let body = attach(entry, &proof).unwrap();
        assert_eq!(detach(&body), (entry.into(), Some(proof)));
        let read: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(read["at_us"], 1, "a reader that knows no proofs reads the entry");
        for plain in [entry, "", "}", r#"{"a":1,"proof":{"previous":"none"}}"#, r#"{"a":1,"proof":"#] {
            assert_eq!(detach(plain), (plain.into(), None));
        }
    }
}
