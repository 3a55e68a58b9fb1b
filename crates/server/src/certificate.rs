//! The few fields of an X.509 certificate that rustls judges by, but does not give out: its subject
//! and extensions.
//!
//! Nothing here says whether a certificate counts. Where that matters webpki has read it before,
//! and checked its signature. Elements are told apart by the crate `der`.

use std::fmt::Write as _;

use der::asn1::{AnyRef, ObjectIdentifier};
use der::{Decode, Reader, SliceReader, Tag, TagNumber, Tagged};

/// Attribute `commonName` of a subject.
pub(crate) const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");
/// Extension `subjectAltName`.
pub(crate) const ALTERNATIVE_NAMES: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.17");
/// Extension `extKeyUsage`.
const EXTENDED_KEY_USAGE: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.29.37");
/// Usage `id-kp-clientAuth`.
const CLIENT_AUTH: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.7.3.2");
/// Context tag of the version in a certificate, and that of its extensions.
const VERSION: u8 = 0;
const EXTENSIONS: u8 = 3;
/// Elements between version and subject: serial number, algorithm, issuer, validity.
const BEFORE_SUBJECT: usize = 4;
/// As much of a subject is read as text, characters.
const MAX_SUBJECT: usize = 200;

/// Subject and extensions of a certificate.
pub(crate) struct Fields<'a> {
    subject: AnyRef<'a>,
    /// Extensions by their kind, each as it stands in its octet string.
    extensions: Vec<(ObjectIdentifier, &'a [u8])>,
}

impl<'a> Fields<'a> {
    /// Of a certificate in DER; `None` if it cannot be read.
    pub fn of(certificate: &'a [u8]) -> Option<Self> {
        let signed = sequence(certificate)?;
        let fields = items(signed.first()?.value())?;
        let has_version = is_at(fields.first()?, VERSION);
        let subject = *fields.get(BEFORE_SUBJECT + usize::from(has_version))?;
        let mut extensions = Vec::new();
        for listed in fields.iter().filter(|field| is_at(field, EXTENSIONS)) {
            for extension in sequence(listed.value())? {
                let parts = items(extension.value())?;
                // Whether it is critical may stand between the two.
                let (kind, value) = (parts.first()?, parts.last()?);
                let kind = kind.decode_as::<ObjectIdentifier>().ok()?;
                extensions.push((kind, (value.tag() == Tag::OctetString).then(|| value.value())?));
            }
        }
        Some(Self { subject, extensions })
    }

    /// Attributes of the subject, in order; `None` if they cannot be read.
    pub fn subject(&self) -> Option<Vec<(ObjectIdentifier, AnyRef<'a>)>> {
        let mut found = Vec::new();
        for set in items(self.subject.value())? {
            for attribute in items(set.value())? {
                let parts = items(attribute.value())?;
                found.push((parts.first()?.decode_as().ok()?, *parts.get(1)?));
            }
        }
        Some(found)
    }

    /// What an extension, which is a sequence, has; `Some(None)` if it is not there, `None` if it
    /// cannot be read or is there twice.
    pub fn extension(&self, kind: ObjectIdentifier) -> Option<Option<Vec<AnyRef<'a>>>> {
        let mut of_kind = self.extensions.iter().filter(|(its, _)| *its == kind);
        match (of_kind.next(), of_kind.next()) {
            (None, _) => Some(None),
            (Some((_, value)), None) => sequence(value).map(Some),
            (Some(_), Some(_)) => None,
        }
    }

    /// Whether it says that it is for clients.
    pub fn is_for_clients(&self) -> bool {
        let usages = self.extension(EXTENDED_KEY_USAGE).flatten().unwrap_or_default();
        usages.iter().any(|usage| usage.decode_as() == Ok(CLIENT_AUTH))
    }
}

/// The subject of a certificate as text, cut to some length. Anybody may have made it: escape it
/// where people read it.
pub(crate) fn subject_text(certificate: &[u8]) -> String {
    let attributes = Fields::of(certificate).and_then(|fields| fields.subject());
    let Some(attributes) = attributes else { return "unreadable".into() };
    let mut whole = String::new();
    for (kind, value) in attributes {
        let between = if whole.is_empty() { "" } else { ", " };
        let value = text_of(value).unwrap_or("?");
        // Writing to a string does not fail.
        match kind == COMMON_NAME {
            true => write!(whole, "{between}CN={value}").ok(),
            false => write!(whole, "{between}{kind}={value}").ok(),
        };
    }
    whole.chars().take(MAX_SUBJECT).collect()
}

/// The text of a string, in an encoding that is read in one way only.
pub(crate) fn text_of(string: AnyRef<'_>) -> Option<&str> {
    match string.tag() {
        Tag::Utf8String | Tag::PrintableString | Tag::Ia5String => std::str::from_utf8(string.value()).ok(),
        _ => None,
    }
}

/// Whether an element has this tag of its context.
pub(crate) fn is_at(element: &AnyRef<'_>, number: u8) -> bool {
    element.tag().is_context_specific() && element.tag().number() == TagNumber::new(number)
}

/// The elements of the one sequence that these bytes are.
fn sequence(bytes: &[u8]) -> Option<Vec<AnyRef<'_>>> {
    let whole = AnyRef::from_der(bytes).ok()?;
    (whole.tag() == Tag::Sequence).then(|| items(whole.value()))?
}

/// Elements that follow each other.
fn items(bytes: &[u8]) -> Option<Vec<AnyRef<'_>>> {
    let mut reader = SliceReader::new(bytes).ok()?;
    let mut found = Vec::new();
    while !reader.is_finished() {
        found.push(AnyRef::decode(&mut reader).ok()?);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;

    use super::*;
    use crate::access::CertificateName;

    #[test]
    fn no_bytes_end_it() {
        let whole = CertificateDer::from_pem_file("../tidegate/tests/cli/tls/first.pem").unwrap();
        assert_eq!(CertificateName::of(&whole).unwrap().to_string(), "dns:localhost");
        assert!(!Fields::of(&whole).unwrap().is_for_clients());
        let mut read = 0;
        for at in 0..whole.len() {
            for wrong in [0, 1, 0x30, 0x7f, 0x80, 0x81, 0x84, 0xa3, 0xff] {
                let mut bytes = whole.to_vec();
                bytes[at] = wrong;
                read += usize::from(Fields::of(&bytes).is_some_and(|fields| fields.is_for_clients()));
                read += usize::from(CertificateName::of(&bytes).is_ok() && !subject_text(&bytes).is_empty());
            }
            assert!(Fields::of(&whole[..at]).is_none(), "{at} bytes of it");
        }
        assert!(read > 1_000, "most bytes are of keys and signatures: {read}");
    }
}
