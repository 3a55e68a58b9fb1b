//! The tokens of a Rust file, without comments and literals.

/// A word, `::`, or any other single character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token(pub String);

impl Token {
    pub fn is(&self, text: &str) -> bool {
        self.0 == text
    }

    /// The token if it is an identifier or a keyword.
    pub fn word(&self) -> Option<&str> {
        self.0.starts_with(|c: char| c.is_alphabetic() || c == '_').then_some(self.0.as_str())
    }
}

pub fn tokens(text: &str) -> Vec<Token> {
    let chars: Vec<char> = text.chars().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        let rest = &chars[at..];
        let begins = |prefix: &str| prefix.chars().enumerate().all(|(n, c)| rest.get(n) == Some(&c));
        let word = rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').count();
        at += match rest[0] {
            c if c.is_whitespace() => 1,
            '/' if begins("//") => rest.iter().take_while(|c| **c != '\n').count(),
            '/' if begins("/*") => block_comment(rest),
            '"' => string(rest),
            '\'' => quote(rest),
            'r' | 'b' | 'c' if literal_prefix(rest) > 0 => literal_prefix(rest),
            ':' if begins("::") => {
                found.push(Token("::".into()));
                2
            }
            _ if word > 0 => {
                found.push(Token(rest[..word].iter().collect()));
                word
            }
            c => {
                found.push(Token(c.into()));
                1
            }
        };
    }
    found
}

/// Length of a comment that may hold others.
fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of `"…"`.
fn string(rest: &[char]) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != '"' {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// Length of a character, or of the mark before a lifetime's name.
fn quote(rest: &[char]) -> usize {
    match rest {
        ['\'', '\\', ..] => 3 + rest[3..].iter().take_while(|c| **c != '\'').count() + 1,
        ['\'', _, '\'', ..] => 3,
        _ => 1,
    }
}

/// Length of `r"…"`, `r#"…"#`, `b"…"`, `br"…"`, `b'…'`, `c"…"`; 0 where none begins.
fn literal_prefix(rest: &[char]) -> usize {
    let letters = rest.iter().take_while(|c| matches!(c, 'r' | 'b' | 'c')).count();
    let hashes = rest[letters..].iter().take_while(|c| **c == '#').count();
    let is_raw = rest[..letters].contains(&'r');
    match rest.get(letters + hashes) {
        Some('"') if is_raw => {
            let end: Vec<char> = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            let begin = letters + hashes + 1;
            let body = rest[begin..].windows(end.len()).position(|window| window == end);
            begin + body.map_or(rest.len() - begin, |body| body + end.len())
        }
        Some('"') if hashes == 0 => letters + string(&rest[letters..]),
        Some('\'') if hashes == 0 && rest[0] == 'b' => letters + quote(&rest[letters..]),
        _ => 0,
    }
}

#[test]
fn comments_and_literals_are_no_tokens() {
    let text = r##"use a::b; // "x" /* y
        /* 'c' /* nested */ */ fn f<'a>(s: &'a str) { g(r#"raw " text"#, "a\"b", '\'', b'x', 'y') }"##;
    let words: Vec<String> = tokens(text).into_iter().filter_map(|t| t.word().map(str::to_owned)).collect();
    assert_eq!(words, ["use", "a", "b", "fn", "f", "a", "s", "a", "str", "g"]);
}
