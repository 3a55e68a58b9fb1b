//! Label matchers as PromQL writes them, for remote read, which takes them apart.

use super::message::{LabelMatcher, MatchType};

/// The matchers between the braces of a selector.
///
/// # Errors
/// What is wrong, and where: at which letter, from 1 on.
pub(in crate::prometheus) fn parse(inside: &str) -> Result<Vec<LabelMatcher>, String> {
    let mut text = Text { all: inside, at: 0 };
    let mut matchers = Vec::new();
    loop {
        text.skip_blanks();
        if text.rest().is_empty() {
            return Ok(matchers);
        }
        let name = match text.rest().starts_with(['"', '\'', '`']) {
            true => text.quoted()?,
            false => text.name()?,
        };
        text.skip_blanks();
        let operators = [
            ("=~", MatchType::Regex),
            ("!~", MatchType::NotRegex),
            ("!=", MatchType::NotEqual),
            ("=", MatchType::Equal),
        ];
        let found = operators.into_iter().find(|(sign, _)| text.rest().starts_with(sign));
        let (sign, kind) = found.ok_or_else(|| text.wrong("=, !=, =~ or !~ is missing"))?;
        text.at += sign.len();
        text.skip_blanks();
        let value = text.quoted()?;
        matchers.push(LabelMatcher { kind: kind.into(), name, value });
        text.skip_blanks();
        match text.rest().chars().next() {
            None => return Ok(matchers),
            Some(',') => text.at += 1,
            Some(_) => return Err(text.wrong("a comma is missing")),
        }
    }
}

struct Text<'a> {
    all: &'a str,
    /// Bytes read.
    at: usize,
}

impl Text<'_> {
    fn rest(&self) -> &str {
        &self.all[self.at..]
    }

    fn wrong(&self, what: &str) -> String {
        format!("{what} at letter {}", self.all[..self.at].chars().count() + 1)
    }

    fn skip_blanks(&mut self) {
        self.at += self.rest().len() - self.rest().trim_start().len();
    }

    fn name(&mut self) -> Result<String, String> {
        let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let end = self.rest().find(|letter| !is_part(letter)).unwrap_or(self.rest().len());
        let name = self.rest()[..end].to_owned();
        if name.is_empty() || name.starts_with(|first: char| first.is_ascii_digit()) {
            return Err(self.wrong("the name of a label is missing"));
        }
        self.at += end;
        Ok(name)
    }

    /// A text in quotation marks, with the escapes of Go.
    fn quoted(&mut self) -> Result<String, String> {
        let quote = self.rest().chars().next().filter(|first| matches!(first, '"' | '\'' | '`'));
        let quote = quote.ok_or_else(|| self.wrong("a text in quotation marks is missing"))?;
        self.at += 1;
        let mut text = Vec::new();
        loop {
            let letter =
                self.rest().chars().next().ok_or_else(|| self.wrong("a quotation mark is missing"))?;
            self.at += letter.len_utf8();
            match letter {
                _ if letter == quote => break,
                '\\' if quote != '`' => self.escape(quote, &mut text)?,
                _ => text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        String::from_utf8(text).map_err(|_| self.wrong("a text that is no UTF-8 ends"))
    }

    /// What comes after a backslash.
    fn escape(&mut self, quote: char, text: &mut Vec<u8>) -> Result<(), String> {
        let letter = self.rest().chars().next().unwrap_or_default();
        let plain = match letter {
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 11,
            '\\' => b'\\',
            _ if letter == quote => quote as u8,
            'x' | 'u' | 'U' | '0'..='7' => return self.code(letter, text),
            _ => return Err(self.wrong("an unknown escape stands")),
        };
        self.at += 1;
        text.push(plain);
        Ok(())
    }

    /// A byte or a letter by its number.
    fn code(&mut self, kind: char, text: &mut Vec<u8>) -> Result<(), String> {
        let (skip, digits, radix) = match kind {
            'x' => (1, 2, 16),
            'u' => (1, 4, 16),
            'U' => (1, 8, 16),
            _ => (0, 3, 8),
        };
        let written = self.rest().get(skip..skip + digits).filter(|digits| !digits.starts_with('+'));
        let number = written.and_then(|digits| u32::from_str_radix(digits, radix).ok());
        let number = number.ok_or_else(|| self.wrong("an unknown escape stands"))?;
        match kind {
            'u' | 'U' => {
                let letter = char::from_u32(number).ok_or_else(|| self.wrong("an unknown letter stands"))?;
                text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
            }
            _ => text.push(u8::try_from(number).map_err(|_| self.wrong("an unknown escape stands"))?),
        }
        self.at += skip + digits;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(kind: MatchType, name: &str, value: &str) -> LabelMatcher {
        LabelMatcher { kind: kind.into(), name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn matchers_are_read_as_promql_writes_them() {
        assert_eq!(parse(""), Ok(Vec::new()));
        assert_eq!(parse(" "), Ok(Vec::new()));
        let text = r#"job = "dcgm", node=~'gpu\\d+',pool!=`a\b`, "rack.no" !~ "\x41\u00e4\101\"", "#;
        let expected = [
            matcher(MatchType::Equal, "job", "dcgm"),
            matcher(MatchType::Regex, "node", r"gpu\d+"),
            matcher(MatchType::NotEqual, "pool", r"a\b"),
            matcher(MatchType::NotRegex, "rack.no", "AäA\""),
        ];
        assert_eq!(parse(text), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, expected) in [
            ("job", "=, !=, =~ or !~ is missing at letter 4"),
            ("job=x", "a text in quotation marks is missing at letter 5"),
            ("job=\"x", "a quotation mark is missing at letter 7"),
            ("job=\"x\" b=\"y\"", "a comma is missing at letter 9"),
            ("ä=\"x\"", "the name of a label is missing at letter 1"),
            ("1a=\"x\"", "the name of a label is missing at letter 1"),
            ("a=\"\\q\"", "an unknown escape stands at letter 5"),
            ("a=\"\\x4\"", "an unknown escape stands at letter 5"),
            ("a=\"\\ud800\"", "an unknown letter stands at letter 5"),
            ("a=\"\\xff\"", "a text that is no UTF-8 ends at letter 9"),
        ] {
            assert_eq!(parse(text), Err(expected.to_owned()), "{text}");
        }
    }
}
