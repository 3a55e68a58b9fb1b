//! Statements of a text, and those of a session that need no tables.

use std::time::Duration;

use super::failure::Failure;

/// Most statements of one text.
const MAX_STATEMENTS: usize = 100;

/// A statement by what answers it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Statement {
    /// Nothing but blanks and comments.
    Empty,
    /// The tables do.
    Query(String),
    Begin(&'static str),
    /// `COMMIT` or `ROLLBACK`.
    End(&'static str),
    /// The limit of time for what follows, or for all if it is none.
    TimeLimit(Option<Duration>),
    /// The value of a setting, under this name.
    Show(String, String),
    /// Lets go of one prepared statement, or of all.
    Deallocate(Option<String>),
    /// Changes nothing here; the tag that its client waits for.
    Done(&'static str),
}

/// Settings, as clients ask for them and are told at the start. Times are UTC everywhere.
pub(super) const SETTINGS: [(&str, &str); 16] = [
    ("server_version", super::catalog::SERVER_VERSION),
    ("server_encoding", "UTF8"),
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, MDY"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("integer_datetimes", "on"),
    ("standard_conforming_strings", "on"),
    ("is_superuser", "off"),
    ("default_transaction_read_only", "on"),
    ("in_hot_standby", "off"),
    ("transaction_read_only", "on"),
    ("transaction_isolation", "read committed"),
    ("search_path", "public"),
    ("max_identifier_length", "63"),
    ("server_version_num", "150000"),
];
/// So many of the first ones are told at the start.
pub(super) const TOLD: usize = 11;

impl Statement {
    /// What a text of one statement is.
    pub fn of(sql: &str) -> Self {
        let words = Words::of(sql);
        let query = || Self::Query(sql.to_owned());
        let lower: Vec<String> = words.0.iter().map(|word| word.to_ascii_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        match lower[..] {
            [] => Self::Empty,
            ["begin", ..] => Self::Begin("BEGIN"),
            ["start", "transaction", ..] => Self::Begin("START TRANSACTION"),
            ["commit" | "end", ..] => Self::End("COMMIT"),
            ["rollback", "to", ..] | ["rollback", "work" | "transaction", "to", ..] => Self::Done("ROLLBACK"),
            ["rollback" | "abort", ..] => Self::End("ROLLBACK"),
            ["savepoint", ..] => Self::Done("SAVEPOINT"),
            ["release", ..] => Self::Done("RELEASE"),
            ["set", ref rest @ ..] => Self::set(rest),
            ["reset", "statement_timeout" | "all"] => Self::TimeLimit(None),
            ["reset", ..] => Self::Done("RESET"),
            ["show", ref name @ ..] => Self::show(name).unwrap_or_else(query),
            ["discard", ..] => Self::Done("DISCARD"),
            ["deallocate", "prepare", "all"] | ["deallocate", "all"] => Self::Deallocate(None),
            ["deallocate", "prepare", _] | ["deallocate", _] => {
                let name = words.0.last().map(|name| name.trim_matches('"').to_owned());
                Self::Deallocate(name)
            }
            ["close", ..] => Self::Done("CLOSE CURSOR"),
            ["unlisten", ..] => Self::Done("UNLISTEN"),
            _ => query(),
        }
    }

    fn set(words: &[&str]) -> Self {
        let words = match words {
            ["session" | "local", rest @ ..] => rest,
            all => all,
        };
        match words {
            ["statement_timeout", "to" | "=", value @ ..] => {
                let value: String = value.concat();
                match milliseconds(value.trim_matches('\'')) {
                    Some(0) | None => Self::TimeLimit(None),
                    Some(ms) => Self::TimeLimit(Some(Duration::from_millis(ms))),
                }
            }
            _ => Self::Done("SET"),
        }
    }

    fn show(words: &[&str]) -> Option<Self> {
        let name = match words {
            ["transaction", "isolation", "level"] => "transaction_isolation",
            ["time", "zone"] => "timezone",
            [name] => name.trim_matches('"'),
            _ => return None,
        };
        let known = SETTINGS.iter().find(|(known, _)| known.eq_ignore_ascii_case(name))?;
        Some(Self::Show(known.0.to_owned(), known.1.to_owned()))
    }

    /// What the client is told when it is done; queries say how many rows there were.
    pub fn tag(&self) -> &'static str {
        match self {
            Self::Empty | Self::Query(_) => "SELECT",
            Self::Begin(tag) | Self::End(tag) | Self::Done(tag) => tag,
            Self::TimeLimit(_) => "SET",
            Self::Show(..) => "SHOW",
            Self::Deallocate(Some(_)) => "DEALLOCATE",
            Self::Deallocate(None) => "DEALLOCATE ALL",
        }
    }
}

/// `250`, `250ms`, `5s`, `2min` as milliseconds.
fn milliseconds(text: &str) -> Option<u64> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let times = match unit.trim() {
        "" | "ms" => 1,
        "s" => 1000,
        "min" => 60_000,
        _ => return None,
    };
    number.checked_mul(times)
}

/// The first words of a statement, comments left out. Enough of them to tell what it is.
struct Words<'a>(Vec<&'a str>);

impl<'a> Words<'a> {
    fn of(sql: &'a str) -> Self {
        const MOST: usize = 8;
        let mut words = Vec::new();
        let mut rest = sql;
        while words.len() < MOST {
            rest = rest.trim_start_matches(|letter: char| letter.is_whitespace() || letter == ';');
            if let Some(length) = comment(rest) {
                rest = &rest[length..];
                continue;
            }
            let Some(first) = rest.chars().next() else { break };
            let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '_' | '"' | '\'' | '.');
            let end = match is_part(first) {
                true => rest.find(|letter| !is_part(letter)).unwrap_or(rest.len()),
                false => first.len_utf8(),
            };
            words.push(&rest[..end]);
            rest = &rest[end..];
        }
        Self(words)
    }
}

/// The statements of a text that is sent at once.
///
/// # Errors
/// There are too many.
pub(super) fn split(text: &str) -> Result<Vec<&str>, Failure> {
    let (mut statements, mut begin, mut at) = (Vec::new(), 0, 0);
    while at < text.len() {
        let rest = &text[at..];
        let skipped = comment(rest).or_else(|| quoted(rest));
        at += match (skipped, rest.chars().next()) {
            (Some(length), _) => length,
            (None, Some(';')) => {
                statements.push(&text[begin..at]);
                begin = at + 1;
                1
            }
            // A quote or dollar within a word, or right after it, begins nothing of its own kind.
            (None, Some(letter)) if is_of_word(letter) => {
                rest.find(|letter| !is_of_word(letter)).unwrap_or(rest.len())
            }
            (None, Some(letter)) => letter.len_utf8(),
            (None, None) => break,
        };
    }
    statements.push(&text[begin..]);
    statements.retain(|statement| Statement::of(statement) != Statement::Empty);
    match statements.len() > MAX_STATEMENTS {
        true => Err(Failure::new("54000", format!("a text may hold {MAX_STATEMENTS} statements"))),
        false => Ok(statements),
    }
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || matches!(letter, '_' | '$')
}

/// Length of a comment that the text begins with. Those of the second kind may hold others.
fn comment(text: &str) -> Option<usize> {
    if text.starts_with("--") {
        return Some(text.find('\n').map_or(text.len(), |end| end + 1));
    }
    if !text.starts_with("/*") {
        return None;
    }
    let (mut depth, mut at) = (0_usize, 0);
    let bytes = text.as_bytes();
    while at < bytes.len() {
        match bytes.get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return Some(at);
        }
    }
    Some(text.len())
}

/// Length of the quoted text or name at the beginning. Without a closing quote it extends to the
/// end.
fn quoted(text: &str) -> Option<usize> {
    let after =
        |from: usize, end: &str| text[from..].find(end).map_or(text.len(), |at| from + at + end.len());
    match text.as_bytes() {
        [quote @ (b'\'' | b'"'), ..] => Some(after(1, char::from(*quote).encode_utf8(&mut [0; 4]))),
        [b'e' | b'E', b'\'', ..] => {
            let mut letters = text.char_indices().skip(2);
            while let Some((at, letter)) = letters.next() {
                match letter {
                    '\\' => letters.next().map_or((), |_| ()),
                    '\'' => return Some(at + 1),
                    _ => {}
                }
            }
            Some(text.len())
        }
        [b'$', ..] => {
            let tag = text[1..].find(|letter: char| !(letter.is_alphanumeric() || letter == '_'))? + 1;
            let is_tag = text.as_bytes()[tag] == b'$' && !text.as_bytes()[1].is_ascii_digit();
            is_tag.then(|| after(tag + 1, &text[..=tag]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_where_statements_end() {
        let whole = [
            "SELECT ';' AS \"a;b\"",
            "SELECT $$;$$, $x$ ; $$ $x$, $1",
            "SELECT 1 /* ; /* ; */ ; */ -- ;",
            "SELECT E'\\';', 'it''s;'",
            "SELECT 'no end ;",
            "SELECT $é$;$é$",
            "SELECT a$b$ FROM t WHERE a LIKE'\\' OR b = ';'",
        ];
        for sql in whole {
            assert_eq!(split(sql).unwrap(), [sql]);
        }
        assert_eq!(split("BEGIN; SELECT 1;; -- done\n;").unwrap(), ["BEGIN", " SELECT 1"]);
        assert_eq!(split(" -- nothing\n ; ").unwrap(), [""; 0]);
        assert!(split(&"SELECT 1;".repeat(101)).is_err());
    }

    #[test]
    fn statements_are_told_apart() {
        let of = Statement::of;
        assert_eq!(of("/* pool */ begin isolation level repeatable read"), Statement::Begin("BEGIN"));
        assert_eq!(of("ROLLBACK TO SAVEPOINT a"), Statement::Done("ROLLBACK"));
        assert_eq!(of("END"), Statement::End("COMMIT"));
        let five = Statement::TimeLimit(Some(Duration::from_secs(5)));
        for sql in [
            "SET statement_timeout = 5000",
            "set local statement_timeout TO '5s'",
            "SET statement_timeout=5000",
        ] {
            assert_eq!(of(sql), five, "{sql}");
        }
        assert_eq!(of("SET statement_timeout = 0"), Statement::TimeLimit(None));
        assert_eq!(of("SET extra_float_digits = 3"), Statement::Done("SET"));
        let level = ("transaction_isolation".into(), "read committed".into());
        assert_eq!(of("SHOW TRANSACTION ISOLATION LEVEL"), Statement::Show(level.0, level.1));
        assert_eq!(of("DEALLOCATE \"s1\""), Statement::Deallocate(Some("s1".into())));
        assert_eq!(of("SHOW TABLES"), Statement::Query("SHOW TABLES".into()));
        assert_eq!(of("select 1"), Statement::Query("select 1".into()));
        assert_eq!(of(" ;;--"), Statement::Empty);
    }
}
