//! People and autopilots with keys, for tests.

use std::path::{Path, PathBuf};

use ssh_key::private::{Ed25519Keypair, KeypairData};
use ssh_key::{HashAlg, LineEnding, PrivateKey};

use super::{SignedText, Signers};

/// Somebody with a key that is made of one byte.
#[derive(Debug, Clone)]
pub(crate) struct Person {
    pub name: &'static str,
    key: PrivateKey,
}

impl Person {
    pub fn new(name: &'static str, seed: u8) -> Self {
        let pair = KeypairData::Ed25519(Ed25519Keypair::from_seed(&[seed; 32]));
        Self { name, key: PrivateKey::new(pair, "").unwrap() }
    }

    /// As the journal and messages name them.
    pub fn signer(&self) -> String {
        format!("{} {}", self.name, self.key.fingerprint(HashAlg::Sha256))
    }

    /// The line of an `allowed_signers` file.
    pub fn line(&self, namespaces: &str) -> String {
        let public = self.key.public_key().to_openssh().unwrap();
        format!("{} namespaces=\"{namespaces}\" {public}\n", self.name)
    }

    pub fn sign(&self, namespace: &str, text: &str) -> SignedText {
        let signature = self.key.sign(namespace, HashAlg::Sha512, text.as_bytes()).unwrap();
        SignedText { text: text.to_owned(), signature: signature.to_pem(LineEnding::LF).unwrap() }
    }

    /// Writes the private key as ssh-keygen does.
    pub fn key_file(&self, folder: &Path) -> PathBuf {
        let file = folder.join(format!("{}.key", self.name));
        self.key.write_openssh_file(&file, LineEnding::LF).unwrap();
        file
    }
}

/// Anna and Ben, who sign for people, and the key of an autopilot.
pub(crate) fn site(folder: &Path) -> (Person, Person, Person, Signers) {
    let (anna, ben, pilot) =
        (Person::new("anna@example.com", 1), Person::new("ben@example.com", 2), Person::new("pilot", 3));
    let lines = [
        anna.line("tidegate-*"),
        ben.line("tidegate-policy,tidegate-approve,tidegate-switch"),
        pilot.line("tidegate-journal"),
    ];
    let file = folder.join("allowed_signers");
    std::fs::write(&file, lines.concat()).unwrap();
    (anna, ben, pilot, Signers::read(&file).unwrap())
}
