//! Host lists: `gpu[01-04,07]-ib,x1`.

use crate::error::ParseError;

/// A host list that names more hosts is refused.
const MAX_HOSTS: u64 = 100_000;
/// A longer name of a host is refused, bytes: what DNS takes is 253. Each bracket adds to a name,
/// so this bounds how deep they go.
const MAX_NAME_BYTES: usize = 255;
/// Longest part of a list that a message shows, characters.
const SHOWN: usize = 120;

/// The hosts of an expanded list, in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostList {
    names: String,
    count: u32,
}

impl HostList {
    /// Expands a list.
    ///
    /// # Errors
    /// As for [`expand_hosts`].
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut names = String::new();
        let count = expand_hosts(text, &mut names)?;
        Ok(Self { names, count })
    }

    /// The names.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.names.split(',')
    }

    /// Number of hosts.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The names, comma separated.
    pub fn as_str(&self) -> &str {
        &self.names
    }

    /// The names, comma separated.
    pub fn into_string(self) -> String {
        self.names
    }
}

/// Expands `gpu[01-04,07]-ib,x1` to `gpu01-ib,gpu02-ib,…,x1`: writes the names, comma separated,
/// to `out` and returns their number.
///
/// # Errors
/// The text is not a host list, names more than 100,000 hosts, or one by more than 255 bytes.
pub fn expand_hosts(text: &str, out: &mut String) -> Result<u32, ParseError> {
    out.clear();
    let (mut count, mut open, mut start) = (0, false, 0);
    for (at, c) in text.char_indices() {
        match c {
            '[' | ']' => open = c == '[',
            ',' if !open => {
                expand("", &text[start..at], out, &mut count)?;
                start = at + 1;
            }
            _ => {}
        }
    }
    expand("", &text[start..], out, &mut count)?;
    Ok(count)
}

/// Appends the names of `prefix` followed by one host expression; each bracket multiplies.
fn expand(prefix: &str, expression: &str, out: &mut String, count: &mut u32) -> Result<(), ParseError> {
    let bad = || {
        let shown: String = expression.chars().take(SHOWN).collect();
        ParseError::number(format!("{shown} is not a host list such as gpu[01-04,07]"))
    };
    let Some((head, rest)) = expression.split_once('[') else {
        *count += 1;
        if u64::from(*count) > MAX_HOSTS || prefix.len() + expression.len() > MAX_NAME_BYTES {
            return Err(bad());
        }
        out.push_str(if out.is_empty() { "" } else { "," });
        out.push_str(prefix);
        out.push_str(expression);
        return Ok(());
    };
    let (ranges, tail) = rest.split_once(']').ok_or_else(bad)?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(low), Ok(high)) = (first.parse::<u64>(), last.parse::<u64>()) else {
            return Err(bad());
        };
        let is_long = prefix.len() + head.len() + first.len().max(last.len()) > MAX_NAME_BYTES;
        if high < low || high - low > MAX_HOSTS || is_long {
            return Err(bad());
        }
        for number in low..=high {
            expand(&format!("{prefix}{head}{number:0width$}", width = first.len()), tail, out, count)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_lists_expand_with_their_width() {
        let cases = [
            ("x1", "x1", 1),
            ("gpu[01-03,07],x1", "gpu01,gpu02,gpu03,gpu07,x1", 5),
            ("r[1-2]n[09-10]-ib", "r1n09-ib,r1n10-ib,r2n09-ib,r2n10-ib", 4),
        ];
        let mut out = String::new();
        for (text, expected, count) in cases {
            assert_eq!(expand_hosts(text, &mut out), Ok(count), "{text}");
            assert_eq!(out, expected);
        }
        for text in ["gpu[1-", "gpu[x]", "gpu[3-1]", "n[0-999999999]", "a[0-9999]b[0-9999]"] {
            assert!(expand_hosts(text, &mut out).is_err(), "{text}");
        }
    }

    #[test]
    fn a_name_is_no_longer_than_names_are() {
        let longest = format!("{}[1-2]", "x".repeat(MAX_NAME_BYTES - 1));
        assert_eq!(HostList::parse(&longest).map(|hosts| hosts.count()), Ok(2));
        for text in [
            // Once a stack overflow, a panic, and gigabytes.
            format!("n{}", "[1-9]".repeat(10_000)),
            format!("n[{}1]", "0".repeat(70_000)),
            format!("{}[0-99999]", "x".repeat(60_000)),
            format!("[0-99999]{}", "x".repeat(60_000)),
            "x".repeat(MAX_NAME_BYTES + 1),
        ] {
            let error = HostList::parse(&text).unwrap_err();
            assert!(error.message.len() < 200, "{}", error.message);
        }
    }
}
