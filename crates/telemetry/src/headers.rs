//! Headers of the requests to a collector. Their values are secrets: most are API keys.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::pairs::pairs;

/// Longest file of headers, bytes.
const FILE_BYTES: u64 = 64 << 10;

/// Names and values. Only names are ever shown.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Headers(Vec<(String, String)>);

impl Headers {
    /// Those of an environment variable.
    ///
    /// # Errors
    /// A sentence without what it says.
    pub fn parse(variable: &str, list: &str) -> Result<Self, String> {
        let malformed = |at| {
            format!(
                "{variable}: entry {at} is not NAME=VALUE with a percent-encoded value, separated by commas"
            )
        };
        Self::checked(pairs(list).map_err(malformed)?).map_err(|why| format!("{variable}: {why}"))
    }

    /// Those of a file: one `NAME: VALUE` or `NAME=VALUE` a line, as they are; lines with `#` are
    /// comments.
    ///
    /// # Errors
    /// A sentence with the number of the line, without what it says.
    pub fn read(file: &Path) -> Result<Self, String> {
        let failed = |why: String| format!("read the headers {}: {why}", file.display());
        let mut text = String::new();
        let opened = File::open(file).map_err(|error| failed(error.to_string()))?;
        let read = opened.take(FILE_BYTES).read_to_string(&mut text);
        read.map_err(|error| failed(error.to_string()))?;
        let mut headers = Vec::new();
        for (at, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let split = line
                .split_once([':', '='])
                .ok_or_else(|| failed(format!("line {} is not NAME: VALUE", at + 1)))?;
            headers.push((split.0.trim().to_owned(), split.1.trim().to_owned()));
        }
        Self::checked(headers).map_err(failed)
    }

    fn checked(headers: Vec<(String, String)>) -> Result<Self, String> {
        for (name, value) in &headers {
            let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            if name.is_empty() || !name.bytes().all(is_token) {
                return Err("a header's name has characters that no header has".into());
            }
            if !value.bytes().all(|byte| byte == b'\t' || (b' '..=b'~').contains(&byte)) {
                return Err(format!("the value of {name} has characters that no header has"));
            }
        }
        Ok(Self(headers))
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// These, and those of `more` in place of ones with their names.
    pub fn with(mut self, more: Self) -> Self {
        let is_new = |name: &str| !more.0.iter().any(|(other, _)| other.eq_ignore_ascii_case(name));
        self.0.retain(|(name, _)| is_new(name));
        self.0.extend(more.0);
        self
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::Headers;

    #[test]
    fn no_message_and_no_debug_output_quotes_a_value() {
        for list in ["api-key=s3cret,x y=1", "api-key=s3cret%0a", "s3cret", "api-key=s3cret%"] {
            let why = Headers::parse("OTEL_EXPORTER_OTLP_HEADERS", list).unwrap_err();
            assert!(why.starts_with("OTEL_EXPORTER_OTLP_HEADERS") && !why.contains("s3cret"), "{why}");
        }
        let headers = Headers::parse("V", "api-key=s3cret").unwrap();
        assert_eq!(format!("{headers:?}"), "[\"api-key\"]");
        assert_eq!(headers.iter().next(), Some(("api-key", "s3cret")));
    }

    #[test]
    fn a_file_holds_headers_as_they_are_and_takes_precedence() {
        let file = std::env::temp_dir().join(format!("tidegate-headers-{}", std::process::id()));
        std::fs::write(&file, "# of the vendor\n\nAPI-Key: s3cret=%20\nx-scope=a:b\n").unwrap();
        let read = Headers::read(&file).unwrap();
        let all = Headers::parse("V", "api-key=old,other=1").unwrap().with(read);
        let found: Vec<_> = all.iter().collect();
        assert_eq!(found, [("other", "1"), ("API-Key", "s3cret=%20"), ("x-scope", "a:b")]);
        std::fs::write(&file, "a: 1\ns3cret\n").unwrap();
        let why = Headers::read(&file).unwrap_err();
        assert!(why.ends_with("line 2 is not NAME: VALUE") && !why.contains("s3cret"), "{why}");
        std::fs::remove_file(&file).unwrap();
    }
}
