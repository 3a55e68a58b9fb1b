//! The name by which a client's certificate is known, as the token file has it.

use std::fmt;
use std::str::FromStr;

use der::asn1::AnyRef;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tidegate_text::shown;

use crate::certificate::{ALTERNATIVE_NAMES, COMMON_NAME, Fields, is_at, text_of};

/// Longest name, bytes, with its kind.
const MAX_BYTES: usize = 512;
/// Kinds of names. Those before `cn` are ASCII.
const KINDS: [&str; 4] = ["email", "uri", "dns", "cn"];
/// Subject alternative names that count, in that order, with their tag: `rfc822Name`,
/// `uniformResourceIdentifier` and `dNSName`.
const ALTERNATIVES: [(&str, u8); 3] = [("email", 1), ("uri", 6), ("dns", 2)];

/// The one name of a certificate: its kind, a colon, and the name itself, as in
/// `email:ann@example.org`.
///
/// Subject alternative names come first: the first e-mail address, or else the first URI, or else
/// the first DNS name. The common name counts only if the certificate lacks that extension. Names
/// are compared byte for byte, with their kind: an authority that may sign DNS names alone cannot
/// make somebody's e-mail address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CertificateName(String);

/// A certificate that its authority signed has no name to be known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Nameless {
    /// It cannot be read.
    #[error("the certificate, or its subject alternative names, cannot be read")]
    Unreadable,
    /// Its subject alternative names are of other kinds.
    #[error("the certificate's subject alternative names are neither e-mail, URI nor DNS")]
    OtherNames,
    /// It has no subject alternative names, and not exactly one common name.
    #[error(
        "the certificate has no subject alternative name, and not exactly one common name (as UTF8String, PrintableString \
         or IA5String)"
    )]
    NoCommonName,
    /// Its name is longer than any that the token file may have.
    #[error("the certificate's name is empty or longer than {MAX_BYTES} bytes")]
    Length,
}

impl CertificateName {
    /// The name of a certificate in DER, whose signature was checked before.
    ///
    /// # Errors
    /// [`Nameless`] if it has none.
    pub fn of(der: &[u8]) -> Result<Self, Nameless> {
        let fields = Fields::of(der).ok_or(Nameless::Unreadable)?;
        let (kind, name) = match fields.extension(ALTERNATIVE_NAMES).ok_or(Nameless::Unreadable)? {
            Some(names) => alternative(&names)?,
            None => ("cn", common_name(&fields).ok_or(Nameless::NoCommonName)?),
        };
        let whole = format!("{kind}:{name}");
        match !name.is_empty() && whole.len() <= MAX_BYTES {
            true => Ok(Self(whole)),
            false => Err(Nameless::Length),
        }
    }
}

/// The name that counts of several, with its kind.
fn alternative<'a>(names: &[AnyRef<'a>]) -> Result<(&'static str, &'a str), Nameless> {
    for (kind, tag) in ALTERNATIVES {
        if let Some(name) = names.iter().find(|name| is_at(name, tag)) {
            let text = std::str::from_utf8(name.value()).ok().filter(|text| text.is_ascii());
            return text.map(|text| (kind, text)).ok_or(Nameless::Unreadable);
        }
    }
    Err(Nameless::OtherNames)
}

/// The common name of a subject that has exactly one.
fn common_name<'a>(fields: &Fields<'a>) -> Option<&'a str> {
    let attributes = fields.subject()?;
    let mut found = attributes.into_iter().filter(|(kind, _)| *kind == COMMON_NAME);
    match (found.next(), found.next()) {
        (Some((_, name)), None) => text_of(name),
        _ => None,
    }
}

/// As an administrator writes it. What no certificate of a person should have is refused, so that
/// such a certificate is nobody's.
impl FromStr for CertificateName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let said = |what: &str| Err(format!("the certificate name {:?} {what}", shown(text)));
        let (kind, name) = text.split_once(':').unwrap_or_default();
        if !KINDS.contains(&kind) {
            return said(
                "says no kind; write email:NAME, uri:NAME or dns:NAME for a subject alternative name, cn:NAME for the \
                 common name",
            );
        }
        if name.trim() != name || name.is_empty() || text.len() > MAX_BYTES {
            return said(&format!("is empty, longer than {MAX_BYTES} bytes, or begins or ends with a space"));
        }
        if shown(name) != name || (kind != "cn" && !name.is_ascii()) {
            return said(
                "has control characters, or letters that are not ASCII where certificates have ASCII",
            );
        }
        if name.contains('*') {
            return said("has a *; names are compared whole, so name one certificate");
        }
        Ok(Self(text.to_owned()))
    }
}

/// Escaped, because an authority may sign anything.
impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.0))
    }
}

impl Serialize for CertificateName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for CertificateName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}
