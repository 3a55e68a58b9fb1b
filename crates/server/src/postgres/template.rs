//! Formats of times as Postgres writes them, such as `YYYY-MM-DD HH24:MI:SS.US`, in calls of
//! `to_timestamp`, `to_date` and `to_char` that come by its door: BI tools send them. They become
//! the engine's formats, which have `%` in them; those stay as they are.
//!
//! What the engine would read otherwise than Postgres is refused, such as an hour without its
//! minute, which the engine leaves out of the time without a word.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Ident, ObjectName, Value, VisitMut,
    VisitorMut,
};

use crate::error::QueryError;

/// Patterns in upper case, each before those that it begins with, and what the engine calls them.
const PATTERNS: [(&str, &str); 17] = [
    ("YYYY", "%Y"),
    ("YY", "%y"),
    ("MONTH", "%B"),
    ("MON", "%b"),
    ("MM", "%m"),
    ("MI", "%M"),
    ("MS", "%3f"),
    ("DDD", "%j"),
    ("DD", "%d"),
    ("HH24", "%H"),
    ("HH12", "%I"),
    ("HH", "%I"),
    ("SS", "%S"),
    ("US", "%6f"),
    ("AM", "%p"),
    ("PM", "%p"),
    ("IYYY", "%G"),
];
/// Formats of durations, which are the engine's own words.
const DURATIONS: [&str; 2] = ["pretty", "ISO8601"];

/// A function that takes a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    ReadsTime,
    ReadsDate,
    Writes,
}

/// Puts the engine's formats in place of Postgres'.
///
/// # Errors
/// A format has what is not read here, or not enough to make a time of.
pub(crate) fn translate(statement: &mut Statement) -> Result<(), QueryError> {
    match statement {
        Statement::Statement(statement) => match statement.as_mut().visit(&mut Calls) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(why) => Err(QueryError::Invalid(why)),
        },
        Statement::Explain(explain) => translate(&mut explain.statement),
        _ => Ok(()),
    }
}

struct Calls;

impl VisitorMut for Calls {
    type Break = String;

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<String> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let Some((of, format)) = call_with_format(function) else { return ControlFlow::Continue(()) };
        match translated(format, of) {
            Ok(translated) => *format = translated,
            Err(why) => return ControlFlow::Break(format!("the format {format:?}: {why}")),
        }
        if of == Use::ReadsTime {
            // To the microsecond and in UTC, as Postgres' and as the times in tables.
            function.name = ObjectName::from(vec![Ident::new("to_timestamp_micros")]);
            let timestamp = Box::new(expr.clone());
            let utc = Value::SingleQuotedString("UTC".to_owned());
            *expr = Expr::AtTimeZone { timestamp, time_zone: Box::new(Expr::Value(utc.into())) };
        }
        ControlFlow::Continue(())
    }
}

/// The format in a call of one of these functions with two arguments, unless it is the engine's.
fn call_with_format(function: &mut Function) -> Option<(Use, &mut String)> {
    let name = function.name.0.last()?.as_ident()?.value.to_ascii_lowercase();
    let of = match name.as_str() {
        "to_timestamp" => Use::ReadsTime,
        "to_date" => Use::ReadsDate,
        "to_char" => Use::Writes,
        _ => return None,
    };
    let FunctionArguments::List(list) = &mut function.args else { return None };
    let [_, FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(format)))] = &mut list.args[..] else {
        return None;
    };
    let (Value::SingleQuotedString(format) | Value::EscapedStringLiteral(format)) = &mut format.value else {
        return None;
    };
    let is_own = format.contains('%') || of == Use::Writes && DURATIONS.contains(&format.as_str());
    (!is_own).then_some((of, format))
}

/// The engine's format for one of Postgres'.
fn translated(format: &str, of: Use) -> Result<String, String> {
    let (mut made, mut found, mut rest) = (String::new(), Vec::new(), format);
    while let Some(letter) = rest.chars().next() {
        if let Some((pattern, own)) = PATTERNS.iter().find(|(pattern, _)| begins_with(rest, pattern)) {
            check_pattern(&rest[..pattern.len()], pattern, of)?;
            push(&mut made, own, of);
            found.push(*pattern);
            rest = &rest[pattern.len()..];
        } else if letter == '"' {
            let (text, after) = rest[1..].split_once('"').ok_or("a quote has no end")?;
            made.push_str(text);
            rest = after;
        } else if letter.is_alphabetic() || letter == '\\' {
            return Err(unknown(rest));
        } else {
            made.push(letter);
            rest = &rest[letter.len_utf8()..];
        }
    }
    match of {
        Use::Writes => {}
        Use::ReadsDate if found.iter().any(|pattern| !is_of_date(pattern)) => {
            return Err("to_date reads no time of day; to_timestamp does".into());
        }
        Use::ReadsTime | Use::ReadsDate => check_whole(&found)?,
    }
    Ok(made)
}

fn begins_with(text: &str, pattern: &str) -> bool {
    text.as_bytes().get(..pattern.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(pattern.as_bytes()))
}

/// Appends a pattern. A fraction takes over the dot before it, since only `%.f` reads fractions of
/// any length.
fn push(made: &mut String, own: &str, of: Use) {
    match own.strip_prefix('%').filter(|own| own.ends_with('f')) {
        Some(digits) if made.ends_with('.') => {
            made.pop();
            made.push_str("%.");
            made.push_str(if of == Use::Writes { digits } else { "f" });
        }
        _ => made.push_str(own),
    }
}

/// Refuses what Postgres reads or writes in another way than the engine.
fn check_pattern(written: &str, pattern: &str, of: Use) -> Result<(), String> {
    let is_same = match (pattern, of) {
        // A year of weeks is none of months.
        ("IYYY", reads) => reads == Use::Writes,
        // It pads no names, and writes them in one way.
        ("MONTH", Use::Writes) => false,
        ("MON", Use::Writes) => written == "Mon",
        ("AM" | "PM", Use::Writes) => written == pattern,
        _ => true,
    };
    if is_same { Ok(()) } else { Err(unknown(written)) }
}

fn unknown(rest: &str) -> String {
    let shown: String = rest.chars().take(8).collect();
    format!(
        "{shown:?} is not known here. Of Postgres' patterns there are YYYY, YY, MM, Mon, DD, DDD, HH24, HH12, MI, \
         SS, MS, US and AM; other letters stand in double quotes, and formats with % are the engine's"
    )
}

fn is_of_date(pattern: &str) -> bool {
    matches!(pattern, "YYYY" | "YY" | "MONTH" | "MON" | "MM" | "DD" | "DDD")
}

/// Whether a time can be made of these patterns; of some others the engine makes another time than
/// was meant.
fn check_whole(found: &[&str]) -> Result<(), String> {
    let has = |one_of: &[&str]| found.iter().any(|pattern| one_of.contains(pattern));
    let is_date = has(&["YYYY", "YY"]) && (has(&["DDD"]) || has(&["DD"]) && has(&["MM", "MON", "MONTH"]));
    if !is_date {
        return Err("a year with month and day, or day of the year, is needed".into());
    }
    let (half, halves) = (has(&["HH12", "HH"]), has(&["AM", "PM"]));
    let is_hour = if half { halves } else { has(&["HH24"]) && !halves };
    let is_fraction = has(&["MS", "US"]);
    let is_time = is_hour && has(&["MI"]) && (has(&["SS"]) || !is_fraction);
    if found.iter().any(|pattern| !is_of_date(pattern)) && !is_time {
        return Err("a time of day is an hour (HH24, or HH12 with AM) with its minute; \
                    seconds and their fraction follow"
            .into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use datafusion::sql::parser::DFParser;

    use super::*;

    fn rewritten(sql: &str) -> Result<String, String> {
        let mut statement = DFParser::parse_sql(sql).unwrap().pop_front().unwrap();
        translate(&mut statement).map_err(|error| error.to_string())?;
        Ok(statement.to_string())
    }

    #[test]
    fn formats_of_reading_become_the_engines() {
        for (format, own) in [
            ("YYYY-MM-DD HH24:MI:SS.US", "%Y-%m-%d %H:%M:%S%.f"),
            ("yyyy-mm-dd", "%Y-%m-%d"),
            ("YYYYMMDDHH24MI", "%Y%m%d%H%M"),
            ("DD Mon YYYY, HH12:MI:SS am", "%d %b %Y, %I:%M:%S %p"),
            ("YYYY-DDD", "%Y-%j"),
            ("YY-MM-DD", "%y-%m-%d"),
            (r#"YYYY-MM-DD"T"HH24:MI"Uhr é""#, "%Y-%m-%dT%H:%MUhr é"),
            ("YYYY/MM/DD HH24:MI:SS,MS", "%Y/%m/%d %H:%M:%S,%3f"),
        ] {
            assert_eq!(translated(format, Use::ReadsTime).unwrap(), own);
        }
        assert_eq!(translated("DD.MM.YYYY", Use::ReadsDate).unwrap(), "%d.%m.%Y");
    }

    #[test]
    fn formats_of_writing_need_not_be_whole() {
        for (format, own) in
            [("YYYY-MM", "%Y-%m"), ("HH24", "%H"), ("DD Mon YY", "%d %b %y"), ("SS.MS", "%S%.3f")]
        {
            assert_eq!(translated(format, Use::Writes).unwrap(), own);
        }
        for format in ["MON", "Month", "FMDD", "Day", "999G99", "am"] {
            assert!(translated(format, Use::Writes).is_err(), "{format}");
        }
    }

    /// None of these may make a time that was not meant, nor end in anything but a message.
    #[test]
    fn hostile_formats_are_refused() {
        for format in [
            "",
            " ",
            "YYYY",
            "YYYY-MM",
            "MM-DD",
            "YYYY-MM-DD HH24",
            "YYYY-MM-DD MI:SS",
            "YYYY-MM-DD HH24:SS",
            "YYYY-MM-DD HH12:MI",
            "YYYY-MM-DD HH24:MI AM",
            "YYYY-MM-DD HH24:MI.US",
            "IYYY-MM-DD",
            "YYYY-MM-DDTHH24:MI",
            "YYYY-MM-DD \"",
            "YYYY-MM-DD\\",
            "YYYY-MM-DD é",
            "é",
            "YYY\u{0}-MM-DD",
            "J",
            "YYYY-MM-DD TZ",
            "ＹＹＹＹ-MM-DD",
            "Y\u{301}YYY-MM-DD",
        ] {
            assert!(translated(format, Use::ReadsTime).is_err(), "{format:?}");
        }
        assert!(translated("YYYY-MM-DD HH24:MI", Use::ReadsDate).is_err());
        assert!(translated(&"é".repeat(30_000), Use::Writes).unwrap_err().len() < 400);
        let long = "\"x\"".repeat(20_000) + "YYYY-MM-DD";
        assert_eq!(translated(&long, Use::ReadsTime).unwrap().len(), 20_000 + 8);
    }

    #[test]
    fn only_calls_with_postgres_formats_change() {
        let asked = "EXPLAIN SELECT to_char(max(t), 'YYYY') FROM j WHERE t < TO_TIMESTAMP('2024-03-01', 'YYYY-MM-DD')";
        let made = "EXPLAIN SELECT to_char(max(t), '%Y') FROM j WHERE \
                    t < to_timestamp_micros('2024-03-01', '%Y-%m-%d') AT TIME ZONE 'UTC'";
        assert_eq!(rewritten(asked).unwrap(), made);
        for sql in [
            "SELECT to_timestamp('2024-03-01')",
            "SELECT to_timestamp('1', '%s'), to_char(t, '%H'), to_char(d, 'pretty') FROM j",
            "SELECT to_timestamp(a, b), to_char(t, $1) FROM j",
        ] {
            assert_eq!(rewritten(sql).unwrap(), sql);
        }
        let refused = rewritten("SELECT 1 WHERE EXISTS (SELECT to_date('1', 'Q'))").unwrap_err();
        assert!(refused.contains("the format \"Q\"") && refused.contains("YYYY"), "{refused}");
    }
}
