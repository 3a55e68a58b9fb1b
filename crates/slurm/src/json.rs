//! Values of Slurm's JSON, whose shapes differ between versions.
//!
//! Up to 22.05 a number is a plain number, and certain large values mean "not set"; later versions
//! write objects `{set, infinite, number}`. Flags and states were strings and became lists of
//! strings.

use serde::Deserialize;
use serde_json::Value;

use crate::client::CommandError;

/// Whether Slurm means "no value": `NO_VAL`, `INFINITE` and their neighbours of 16, 32 and 64 bits.
fn is_no_value(number: u64) -> bool {
    matches!(number, 0xfffe | 0xffff | 0xffff_fffd..=0xffff_ffff) || number >= 0xffff_ffff_ffff_fffd
}

/// A number, if it is set and finite.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number(pub Option<u64>);

impl From<Value> for Number {
    fn from(value: Value) -> Self {
        Self(match &value {
            Value::Number(number) => number.as_u64().filter(|number| !is_no_value(*number)),
            Value::String(text) => text.parse().ok(),
            Value::Object(object) => {
                let flag = |name: &str| object.get(name).and_then(Value::as_bool);
                let finite = flag("set") != Some(false) && flag("infinite") != Some(true);
                object.get("number").and_then(Value::as_u64).filter(|_| finite)
            }
            _ => None,
        })
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Value::deserialize(from).map(Self::from)
    }
}

impl Number {
    /// The number, where 0 means none: a time or an id.
    pub(crate) fn positive(self) -> Option<u64> {
        self.0.filter(|number| *number > 0)
    }

    /// Seconds since 1970 as ms; 0 is none.
    pub(crate) fn time_ms(self) -> Option<i64> {
        self.positive().and_then(|seconds| i64::try_from(seconds).ok()?.checked_mul(1000))
    }
}

/// One string or several.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Texts(pub Vec<String>);

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Ok(Self(match Value::deserialize(from)? {
            Value::String(text) => vec![text],
            Value::Array(items) => {
                items.into_iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
            }
            _ => Vec::new(),
        }))
    }
}

/// Exit code and signal: a wait status up to 22.05, an object later.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(pub Option<(i32, i32)>);

impl<'de> Deserialize<'de> for Exit {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(from)?;
        let number = |value: Option<&Value>| value.cloned().map(Number::from).and_then(|number| number.0);
        if let Value::Object(object) = &value {
            let code = number(object.get("return_code"));
            let signal = object.get("signal");
            let signal = number(signal.and_then(|signal| signal.get("id").or(signal.get("signal_id"))));
            let small = |number: u64| i32::try_from(number).ok();
            return Ok(Self(code.and_then(small).map(|code| (code, signal.and_then(small).unwrap_or(0)))));
        }
        let status = Number::from(value).0.and_then(|status| i32::try_from(status).ok());
        Ok(Self(status.map(|status| (status >> 8 & 0xff, status & 0x7f))))
    }
}

/// The first error that an answer names. Slurm's programs may end with status 0 and an empty list
/// when slurmctld does not answer: only `errors` shows it.
pub(crate) fn check_errors(program: &str, errors: &[Value]) -> Result<(), CommandError> {
    let Some(error) = errors.first() else { return Ok(()) };
    let text = |name: &str| error.get(name).and_then(Value::as_str).map(str::to_owned);
    let what = text("description").or_else(|| text("error")).unwrap_or_else(|| error.to_string());
    Err(CommandError::unusable(program, format!("it holds an error: {what}")))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_str, json};

    use super::*;

    #[test]
    fn numbers_of_all_versions() {
        let cases = [
            (json!(5), Some(5)),
            (json!(0), Some(0)),
            (json!(4_294_967_294_u64), None),
            (json!(null), None),
            (json!({"set": true, "infinite": false, "number": 7}), Some(7)),
            (json!({"set": false, "infinite": false, "number": 0}), None),
            (json!({"set": true, "infinite": true, "number": 0}), None),
        ];
        for (value, expected) in cases {
            assert_eq!(Number::from(value.clone()).0, expected, "{value}");
        }
        assert_eq!(Number(Some(1_795_296_175)).time_ms(), Some(1_795_296_175_000));
        assert_eq!(Number(Some(0)).time_ms(), None);
    }

    #[test]
    fn exits_of_all_versions() {
        let exit = |text: &str| from_str::<Exit>(text).unwrap().0;
        assert_eq!(exit("256"), Some((1, 0)));
        assert_eq!(exit("15"), Some((0, 15)));
        let object = r#"{"status": ["SIGNALED"], "return_code": {"set": true, "infinite": false, "number": 0},
            "signal": {"id": {"set": true, "infinite": false, "number": 9}, "name": "KILL"}}"#;
        assert_eq!(exit(object), Some((0, 9)));
        assert_eq!(exit("null"), None);
    }

    #[test]
    fn texts_of_all_versions() {
        assert_eq!(from_str::<Texts>(r#""RUNNING""#).unwrap().0, ["RUNNING"]);
        assert_eq!(from_str::<Texts>(r#"["RUNNING", "COMPLETING"]"#).unwrap().0, ["RUNNING", "COMPLETING"]);
        assert!(from_str::<Texts>("null").unwrap().0.is_empty());
    }
}
