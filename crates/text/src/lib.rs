//! Text from outside, as a person may read it.
//!
//! Names of jobs, users and nodes come from whoever submits a job or runs a node. A terminal obeys
//! what is in them: it clears lines, hides text, or shows it in another order. So everything that
//! is written for people goes through [`shown`] or [`shown_lines`] where it is written. Formats for
//! programs (JSON, CSV, Arrow) carry such characters as they are.
//!
//! ```
//! use tidegate_text::{LinesOf, shown, shown_lines};
//!
//! assert_eq!(shown("job\u{1b}[2J\n"), "job\\u{1b}[2J\\n");
//! assert_eq!(shown_lines("two\nlines\r"), "two\nlines\\r");
//! let mut out = LinesOf(Vec::new());
//! std::io::Write::write_all(&mut out, b"a line \x9b\n")?;
//! assert_eq!(out.0, b"a line \\x9b\n");
//! # Ok::<(), std::io::Error>(())
//! ```

#![warn(missing_docs)]

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io;

/// The text on one line, with control characters and those that reorder text escaped as in Rust:
/// `\n`, `\u{1b}`.
pub fn shown(text: &str) -> Cow<'_, str> {
    escaped(text, is_obeyed)
}

/// As [`shown`]; line breaks and tabs stay.
pub fn shown_lines(text: &str) -> Cow<'_, str> {
    escaped(text, |c| is_obeyed(c) && !matches!(c, '\n' | '\t'))
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match (is_escaped(c), c) {
            (false, _) => out.push(c),
            (true, '\n' | '\r' | '\t') => out.extend(c.escape_default()),
            (true, _) => out.extend(c.escape_unicode()),
        }
    }
    Cow::Owned(out)
}

/// Whether a terminal obeys the character instead of drawing it: C0, DEL, C1, line separators, and
/// what changes the direction of text.
fn is_obeyed(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        )
}

/// A writer for log lines: escapes what is written to it, but for line breaks. Bytes that are no
/// UTF-8 are escaped as `\xff`.
#[derive(Debug)]
pub struct LinesOf<W>(pub W);

impl<W: io::Write> io::Write for LinesOf<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut out = String::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            // A line break at the end is the log's own.
            let (line, end) = match chunk.valid().strip_suffix('\n') {
                Some(line) => (line, "\n"),
                None => (chunk.valid(), ""),
            };
            out.push_str(&shown(line));
            out.push_str(end);
            for byte in chunk.invalid() {
                write!(out, "\\x{byte:02x}").map_err(io::Error::other)?;
            }
        }
        self.0.write_all(out.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_obeys_is_escaped_and_nothing_else() {
        for obeyed in (0..=0x1f).chain(0x7f..=0x9f).chain(0x202a..=0x202e).chain(0x2066..=0x2069) {
            let c = char::from_u32(obeyed).unwrap_or_default();
            let text = format!("a{c}b");
            assert!(shown(&text).is_ascii() && !shown(&text).contains(c), "{obeyed:x}");
        }
        for plain in ["", "train-7", "Größe 数 🙂", r"C:\n", "e\u{301}"] {
            assert!(matches!(shown(plain), Cow::Borrowed(same) if same == plain), "{plain}");
        }
    }

    #[test]
    fn a_log_line_stays_one_line() {
        let mut out = LinesOf(Vec::new());
        io::Write::write_all(&mut out, "WARN job=\"a\nERROR fake\u{1b}[8m\"\n".as_bytes()).expect("written");
        let line = String::from_utf8(out.0).expect("text");
        assert_eq!(line, "WARN job=\"a\\nERROR fake\\u{1b}[8m\"\n");
    }
}
