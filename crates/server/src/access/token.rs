//! Tokens: 256 random bits that their holder shows, of which the server keeps a hash.

use std::fmt;
use std::hash::{Hash, Hasher};

use rand::TryRngCore;
use rand::rngs::OsRng;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// In front of the random part, so that scanners find tokens that were committed by mistake.
const PREFIX: &str = "tidegate_";
const RANDOM_BYTES: usize = 32;

/// A token as its holder has it. It is shown once and kept nowhere.
pub struct Token(String);

impl Token {
    /// A new token.
    ///
    /// # Errors
    /// If the system gives no random bytes.
    pub fn generate() -> Result<Self, String> {
        let mut random = [0; RANDOM_BYTES];
        OsRng.try_fill_bytes(&mut random).map_err(|e| format!("the system gives no random bytes: {e}"))?;
        Ok(Self(format!("{PREFIX}{}", Hex(&random))))
    }

    /// The text to send as `Authorization: Bearer`.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// What the server keeps.
    pub fn hash(&self) -> TokenHash {
        TokenHash::of(self.0.as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token")
    }
}

/// SHA-256 of a token.
///
/// A slow hash protects what people choose. 256 random bits cannot be tried out at any speed, and
/// the server hashes a token with each request. Tokens are looked up by hash, and hashes are
/// compared in constant time.
#[derive(Clone, Copy, Eq)]
pub struct TokenHash([u8; 32]);

impl PartialEq for TokenHash {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Hash for TokenHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write(&self.0);
    }
}

impl TokenHash {
    /// The hash of a token as it came.
    pub fn of(token: &[u8]) -> Self {
        Self(Sha256::digest(token).into())
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenHash")
    }
}

impl Serialize for TokenHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&Hex(&self.0))
    }
}

impl<'de> Deserialize<'de> for TokenHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digits = text.as_bytes();
        let mut hash = [0; 32];
        let byte = |at: usize| text.get(2 * at..2 * at + 2).and_then(|two| u8::from_str_radix(two, 16).ok());
        if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
            return Err(de::Error::custom("sha256 is not 64 hexadecimal digits"));
        }
        for (at, slot) in hash.iter_mut().enumerate() {
            *slot = byte(at).ok_or_else(|| de::Error::custom("sha256 is not hexadecimal"))?;
        }
        Ok(Self(hash))
    }
}

/// Bytes as hexadecimal digits.
struct Hex<'a>(&'a [u8]);

impl fmt::Display for Hex<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
