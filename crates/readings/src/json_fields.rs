//! Typed access to the fields of a JSON object.

use serde_json::{Map, Value};

/// Longest name of a job, node or convention, bytes.
pub const MAX_NAME_BYTES: usize = 256;
/// Longest accepted duration: a year, µs.
const MAX_US: f64 = 366.0 * 86_400.0 * 1e6;
/// Accepted times: 2001 to 2100, ms since the epoch. Seconds mistaken for milliseconds fall
/// outside, and the reverse.
const TIMES_MS: std::ops::Range<f64> = 978_307_200_000.0..4_102_444_800_000.0;

/// Fields of a line; each can be taken once.
#[derive(Debug)]
pub struct Fields(Map<String, Value>);

impl Fields {
    /// All fields of an object.
    pub fn new(fields: Map<String, Value>) -> Self {
        Self(fields)
    }

    /// Takes a field; null counts as absent.
    pub fn take(&mut self, name: &str) -> Option<Value> {
        self.0.remove(name).filter(|value| !value.is_null())
    }

    /// Names of the first few fields that were not taken.
    pub fn rest(self) -> Vec<String> {
        const SHOWN: usize = 8;
        self.0.into_iter().map(|(name, _)| name).take(SHOWN).collect()
    }

    /// A text.
    ///
    /// # Errors
    /// It is none.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(format!("{name} is {other}; write it as text, in quotes")),
        }
    }

    /// A name; a number is accepted as its digits.
    ///
    /// # Errors
    /// It is none, too long, or holds control characters.
    pub fn name(&mut self, name: &str) -> Result<Option<String>, String> {
        let text = match self.take(name) {
            None => return Ok(None),
            Some(Value::String(text)) => text,
            Some(Value::Number(number)) if number.is_u64() => number.to_string(),
            Some(other) => return Err(format!("{name} is {other}; write it as text, in quotes")),
        };
        if text.len() > MAX_NAME_BYTES {
            return Err(format!("{name} is longer than {MAX_NAME_BYTES} bytes"));
        }
        if text.chars().any(char::is_control) {
            return Err(format!("{name} holds control characters"));
        }
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// A number.
    ///
    /// # Errors
    /// It is none.
    pub fn number(&mut self, name: &str) -> Result<Option<f64>, String> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64()),
            Some(other) => Err(format!("{name} is {other}; write a number")),
        }
    }

    /// A whole number from 0 to `most`. Floats such as 1e15 are accepted if they are whole.
    ///
    /// # Errors
    /// It is not in this range.
    pub fn whole(&mut self, name: &str, most: u64) -> Result<Option<u64>, String> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let Value::Number(number) = &value else { return Err(format!("{name} is {value}; write a number")) };
        let whole = number.as_u64().or_else(|| {
            // 2^63 and above are out of range in any case.
            number
                .as_f64()
                .filter(|float| float.fract() == 0.0 && (0.0..9.2e18).contains(float))
                .map(|float| float as u64)
        });
        match whole {
            Some(whole) if whole <= most => Ok(Some(whole)),
            _ => Err(format!("{name} is {number}; it must be a whole number from 0 to {most}")),
        }
    }

    /// A time, ms since the epoch; `unit_ms` is the number of ms in the unit of the field.
    ///
    /// # Errors
    /// It is not between the years 2001 and 2100.
    pub fn time_ms(&mut self, name: &str, unit_ms: f64) -> Result<Option<i64>, String> {
        let Some(number) = self.number(name)? else { return Ok(None) };
        let ms = (number * unit_ms).round();
        match TIMES_MS.contains(&ms) {
            true => Ok(Some(ms as i64)),
            false => Err(format!(
                "{name} is {number:?}, which is not between the years 2001 and 2100; it is {} since 1970",
                if unit_ms > 1.0 { "seconds" } else { "milliseconds" }
            )),
        }
    }

    /// A duration in µs, from whichever of `NAME_s`, `NAME_ms` and `NAME_us` is present.
    ///
    /// # Errors
    /// It is negative or longer than a year, or given twice.
    pub fn duration_us(&mut self, name: &str) -> Result<Option<u64>, String> {
        let mut found = None;
        for (suffix, unit_us) in [("s", 1e6), ("ms", 1e3), ("us", 1.0)] {
            let field = format!("{name}_{suffix}");
            let Some(number) = self.number(&field)? else { continue };
            if found.is_some() {
                return Err(format!("{name} is given twice, in different units; send one of them"));
            }
            let us = (number * unit_us).round();
            if !(0.0..=MAX_US).contains(&us) {
                return Err(format!("{field} is {number:?}; it must be from 0 to a year"));
            }
            found = Some(us as u64);
        }
        Ok(found)
    }
}
