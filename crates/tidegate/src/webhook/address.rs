//! Where the webhook is. Its address is a secret: whoever has it may write there.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use url::{Host, Url};

/// Longest address, bytes.
const BYTES_MAX: u64 = 4096;
/// The variable that may hold it.
const VARIABLE: &str = "TIDEGATE_WEBHOOK_URL";

/// The address of a webhook: `https`, or `http` on this machine.
pub struct Address(String);

impl Address {
    /// The address in `file`, or in the environment; `None` if there is neither.
    ///
    /// # Errors
    /// It cannot be read, or is not such an address. The message does not quote it.
    pub fn find(file: Option<&Path>) -> Result<Option<Self>, String> {
        match (file, std::env::var(VARIABLE).ok().filter(|text| !text.is_empty())) {
            (Some(file), Some(_)) => {
                Err(format!("both {} and {VARIABLE} hold a webhook: give one", file.display()))
            }
            (Some(file), None) => {
                let read = File::open(file).and_then(|opened| {
                    let mut text = String::new();
                    opened.take(BYTES_MAX).read_to_string(&mut text).map(|_| text)
                });
                let text = read.map_err(|error| format!("read {}: {error}", file.display()))?;
                Self::parse(&text).map(Some).map_err(|why| format!("{}: {why}", file.display()))
            }
            (None, Some(text)) => Self::parse(&text).map(Some).map_err(|why| format!("{VARIABLE}: {why}")),
            (None, None) => Ok(None),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let url = Url::parse(text.trim()).map_err(|_| "this is not an address".to_owned())?;
        let is_here = match url.host() {
            Some(Host::Domain(name)) => name == "localhost",
            Some(Host::Ipv4(address)) => address.is_loopback(),
            Some(Host::Ipv6(address)) => address.is_loopback(),
            None => false,
        };
        match url.scheme() {
            "https" => Ok(Self(url.into())),
            "http" if is_here => Ok(Self(url.into())),
            _ => Err("write an address with https, or with http on a loopback address".to_owned()),
        }
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Address(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::Address;

    #[test]
    fn only_https_leaves_this_machine() {
        for text in
            ["https://hooks.example/T/B/x\n", "http://127.0.0.1:9/x", "http://[::1]:9", "http://localhost/x"]
        {
            assert!(Address::parse(text).is_ok(), "{text}");
        }
        for text in [
            "http://hooks.example/secret",
            "http://localhost.example/secret",
            "ftp://127.0.0.1/secret",
            "secret",
            "",
        ] {
            let why = Address::parse(text).unwrap_err();
            assert!(!why.contains("secret"), "{why}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_file_does_not_quote_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("url");
        std::fs::write(&file, "http://hooks.example/secret").unwrap();
        let why = Address::find(Some(&file)).unwrap_err();
        assert!(why.contains("url: write an address") && !why.contains("secret"), "{why}");
        let address = Address::parse("https://hooks.example/secret").unwrap();
        assert_eq!(format!("{address:?}"), "Address(..)");
    }
}
