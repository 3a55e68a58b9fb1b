//! Signing with a person's key.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use ssh_key::{HashAlg, LineEnding, PrivateKey};

/// Signs `text` in `namespace` with the key in `file`. For a key with a passphrase, of an agent or
/// on a security key it runs `ssh-keygen`, which asks for it: then `file` may be the public key.
///
/// # Errors
/// The key cannot be read or used.
pub fn sign(file: &Path, namespace: &str, text: &str) -> Result<String, String> {
    let at = file.display();
    let bytes = std::fs::read(file).map_err(|e| format!("read key {at}: {e}"))?;
    match PrivateKey::from_openssh(&bytes) {
        Ok(key) if !key.is_encrypted() && !key.algorithm().is_rsa() => {
            let signature = key.sign(namespace, HashAlg::Sha512, text.as_bytes());
            let armoured = signature.and_then(|signature| signature.to_pem(LineEnding::LF));
            armoured.or_else(|_| by_ssh_keygen(file, namespace, text))
        }
        _ => by_ssh_keygen(file, namespace, text),
    }
}

pub(super) fn by_ssh_keygen(file: &Path, namespace: &str, text: &str) -> Result<String, String> {
    let failed = |why: String| format!("ssh-keygen cannot sign with {}: {why}", file.display());
    // Without a file argument it signs its input, and asks at the terminal.
    let mut child = Command::new("ssh-keygen")
        .args(["-Y", "sign", "-n", namespace, "-f"])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| failed(e.to_string()))?;
    let mut stdin = child.stdin.take().ok_or_else(|| failed("it takes no input".to_owned()))?;
    stdin.write_all(text.as_bytes()).map_err(|e| failed(e.to_string()))?;
    drop(stdin);
    let output = child.wait_with_output().map_err(|e| failed(e.to_string()))?;
    if !output.status.success() {
        return Err(failed(output.status.to_string()));
    }
    String::from_utf8(output.stdout).map_err(|e| failed(e.to_string()))
}
