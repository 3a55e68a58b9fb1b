//! Lays a user's file over the shipped policy, key by key. Unknown keys and wrong types are refused
//! by full key path.

use toml::{Table, Value};

use super::{Policy, PolicyError, SHIPPED};

/// Tables whose keys are names given by users: pools, owners, sources. Their values are whole
/// numbers.
const OPEN: [&str; 6] = [
    "floors.pools",
    "floors.owners",
    "freshness.sources",
    "reservation.ahead",
    "promise.owner_wait_p95_s",
    "promise.owner_unmet_minutes",
];
/// The same, whose values are quantile levels.
const OPEN_LEVELS: [&str; 1] = ["lend.owner_promise_quantile"];

pub(super) fn over_shipped(text: &str) -> Result<Policy, PolicyError> {
    let syntax = |e: toml::de::Error| PolicyError::Syntax { why: e.to_string().trim().to_owned() };
    let mut whole: Table = SHIPPED.parse().map_err(syntax)?;
    let user: Table = text.parse().map_err(syntax)?;
    lay_over(&mut whole, user, "")?;
    // Plain values have the right type by now. Enum spellings and list entries remain, checked by
    // section.
    for key in ["scopes", "calendar", "services", "modes"] {
        entries(key, &whole)?;
    }
    if let Some(source) = whole.get("forecast").and_then(|forecast| forecast.get("source")) {
        source.clone().try_into::<super::ForecastSource>().map_err(|e| PolicyError::Value {
            key: "forecast.source".to_owned(),
            value: source.to_string(),
            mend: e.message().to_owned(),
        })?;
    }
    let value = |e: toml::de::Error| PolicyError::Value {
        key: "the policy".to_owned(),
        value: "(its values)".to_owned(),
        mend: e.message().to_owned(),
    };
    Policy::deserialize_from(whole).map_err(value)
}

fn lay_over(base: &mut Table, user: Table, path: &str) -> Result<(), PolicyError> {
    for (key, value) in user {
        let full = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        if OPEN.contains(&path) {
            if !value.as_integer().is_some_and(|number| (0..=i64::from(u32::MAX)).contains(&number)) {
                let mend = "write a whole number from 0".to_owned();
                return Err(PolicyError::Value { key: full, value: value.to_string(), mend });
            }
            base.insert(key, value);
            continue;
        }
        if OPEN_LEVELS.contains(&path) {
            let number = value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64));
            let Some(level) = number else {
                let mend = "write a number above 0.0 and at most 1.0".to_owned();
                return Err(PolicyError::Value { key: full, value: value.to_string(), mend });
            };
            base.insert(key, Value::Float(level));
            continue;
        }
        let known = base.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        let Some(shipped) = base.get_mut(&key) else {
            return Err(PolicyError::UnknownKey { key: full, known });
        };
        match (shipped, value) {
            (Value::Table(base), Value::Table(user)) => lay_over(base, user, &full)?,
            (slot @ Value::Float(_), Value::Integer(whole)) => *slot = Value::Float(whole as f64),
            (slot, value) if slot.same_type(&value) => *slot = value,
            (slot, value) => {
                let mend = format!("write {}, e.g. {slot}", article(slot));
                return Err(PolicyError::Value { key: full, value: value.to_string(), mend });
            }
        }
    }
    Ok(())
}

fn article(value: &Value) -> &'static str {
    match value {
        Value::String(_) => "a text in quotes",
        Value::Integer(_) => "a whole number",
        Value::Float(_) => "a number",
        Value::Boolean(_) => "true or false",
        Value::Array(_) => "a list in brackets",
        Value::Table(_) => "a section",
        Value::Datetime(_) => "a time",
    }
}

/// Parses each entry of a section by itself, so that an error can name the entry.
fn entries(key: &str, whole: &Table) -> Result<(), PolicyError> {
    let wrong = |at: String, value: &Value, e: toml::de::Error| PolicyError::Value {
        key: at,
        value: value.to_string(),
        mend: e.message().to_owned(),
    };
    match whole.get(key) {
        Some(Value::Array(list)) => {
            for (i, entry) in list.iter().enumerate() {
                let read = match key {
                    "scopes" => entry.clone().try_into::<super::Scope>().map(drop),
                    "services" => entry.clone().try_into::<super::Service>().map(drop),
                    _ => entry.clone().try_into::<super::Freeze>().map(drop),
                };
                read.map_err(|e| wrong(format!("{key}[{i}]"), entry, e))?;
            }
        }
        Some(Value::Table(modes)) => {
            for (kind, mode) in modes {
                mode.clone()
                    .try_into::<super::Mode>()
                    .map_err(|e| wrong(format!("{key}.{kind}"), mode, e))?;
            }
        }
        _ => {}
    }
    Ok(())
}

impl Policy {
    fn deserialize_from(whole: Table) -> Result<Self, toml::de::Error> {
        Value::Table(whole).try_into()
    }
}
