//! The name by which a client's certificate is known, as the token file has it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tidegate_text::shown;
use x509_cert::Certificate;
use x509_cert::der::asn1::{Ia5StringRef, ObjectIdentifier, PrintableStringRef, Utf8StringRef};
use x509_cert::der::{Decode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;
use x509_cert::name::Name;

/// Longest name, bytes, with its kind.
const MAX_BYTES: usize = 512;
/// Kinds of names, in the order in which a certificate's own is chosen. Those before `cn` are ASCII.
const KINDS: [&str; 4] = ["email", "uri", "dns", "cn"];
/// Attribute `commonName` of a subject.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The one name of a certificate: its kind, a colon, and the name itself, as in
/// `email:ann@example.org`.
///
/// It is the first e-mail address among the certificate's subject alternative names, or else the
/// first URI, or else the first DNS name. A certificate without such names has its common name.
/// Names are compared byte for byte, with their kind: an authority that may sign DNS names alone
/// cannot make somebody's e-mail address.
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
        let certificate = Certificate::from_der(der).map_err(|_| Nameless::Unreadable)?;
        let certificate = certificate.tbs_certificate;
        let (kind, name) = match certificate.get::<SubjectAltName>().map_err(|_| Nameless::Unreadable)? {
            Some((_, SubjectAltName(names))) => alternative(&names).ok_or(Nameless::OtherNames)?,
            None => ("cn", common_name(&certificate.subject).ok_or(Nameless::NoCommonName)?),
        };
        let whole = format!("{kind}:{name}");
        match !name.is_empty() && whole.len() <= MAX_BYTES {
            true => Ok(Self(whole)),
            false => Err(Nameless::Length),
        }
    }
}

/// The name that counts of several, with its kind.
fn alternative(names: &[GeneralName]) -> Option<(&'static str, String)> {
    let of_kind = |kind: &&'static str| {
        let named = |name: &GeneralName| {
            text_of(name).filter(|(its, _)| its == kind).map(|(_, text)| text.to_owned())
        };
        names.iter().find_map(named).map(|text| (*kind, text))
    };
    KINDS.iter().find_map(of_kind)
}

/// Kind and text of an alternative name of a kind that counts.
fn text_of(name: &GeneralName) -> Option<(&'static str, &str)> {
    match name {
        GeneralName::Rfc822Name(text) => Some(("email", text.as_str())),
        GeneralName::UniformResourceIdentifier(text) => Some(("uri", text.as_str())),
        GeneralName::DnsName(text) => Some(("dns", text.as_str())),
        _ => None,
    }
}

/// The common name of a subject that has exactly one, in an encoding that is read in one way only.
fn common_name(subject: &Name) -> Option<String> {
    let attributes = subject.0.iter().flat_map(|of| of.0.iter());
    let mut found = attributes.filter(|attribute| attribute.oid == COMMON_NAME);
    let (one, None) = (found.next()?, found.next()) else { return None };
    match one.value.tag() {
        Tag::Utf8String => one.value.decode_as::<Utf8StringRef<'_>>().ok().map(|name| name.to_string()),
        Tag::PrintableString => {
            one.value.decode_as::<PrintableStringRef<'_>>().ok().map(|name| name.to_string())
        }
        Tag::Ia5String => one.value.decode_as::<Ia5StringRef<'_>>().ok().map(|name| name.to_string()),
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
