//! Small spellings: missing values, time limits and exit codes.

use tidegate_events::Millis;

use crate::error::ParseError;

/// Whether the text stands for a missing value.
pub fn is_null(text: &str) -> bool {
    matches!(text, "" | "Unknown" | "None" | "N/A" | "None assigned" | "(null)" | "INVALID")
}

/// The text, unless it stands for a missing value.
pub(crate) fn present(text: Option<String>) -> Option<String> {
    text.filter(|text| !is_null(text))
}

/// Exit code and signal of `1:9`.
///
/// # Errors
/// The text is not such a pair.
pub fn exit_code(text: &str) -> Result<(i32, i32), ParseError> {
    let parts = text.split_once(':').unwrap_or((text, "0"));
    match (parts.0.parse(), parts.1.parse()) {
        (Ok(code), Ok(signal)) => Ok((code, signal)),
        _ => Err(ParseError::number(format!("{text} is not an exit code such as 1:9"))),
    }
}

/// Milliseconds of `1-02:00:00`, `02:00:00`, `30:00`, `30` (minutes) or `1-02`; none for
/// `UNLIMITED` and `Partition_Limit`.
///
/// # Errors
/// The text is not a time limit.
pub fn time_limit_ms(text: &str) -> Result<Option<i64>, ParseError> {
    if text.eq_ignore_ascii_case("unlimited") || text.eq_ignore_ascii_case("partition_limit") {
        return Ok(None);
    }
    let bad = || ParseError::number(format!("{text} is not a time limit such as 1-02:00:00"));
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(days.parse::<u32>().map_err(|_| bad())?), clock),
        None => (None, text),
    };
    let mut parts = [0_i64; 3];
    let mut count = 0;
    for part in clock.split(':') {
        *parts.get_mut(count).ok_or_else(bad)? = part.parse::<u32>().map_err(|_| bad())?.into();
        count += 1;
    }
    // With days the first part is hours. Without, two parts are minutes and seconds, and one is
    // minutes.
    let seconds = match (days, count) {
        (Some(_), _) | (None, 3) => parts[0] * 3600 + parts[1] * 60 + parts[2],
        _ => parts[0] * 60 + parts[1],
    };
    Ok(Some(Millis::from_secs(i64::from(days.unwrap_or(0)) * 86_400 + seconds).0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ParseErrorKind;

    #[test]
    fn time_limits_are_minutes_clocks_or_days() {
        const HOUR_MS: i64 = 3_600_000;
        let cases = [
            ("30", Some(HOUR_MS / 2)),
            ("30:30", Some(1_830_000)),
            ("01:00:00", Some(HOUR_MS)),
            ("1-02:00:00", Some(26 * HOUR_MS)),
            ("2-03", Some(51 * HOUR_MS)),
            ("2-03:30", Some(51 * HOUR_MS + HOUR_MS / 2)),
            ("UNLIMITED", None),
            ("Partition_Limit", None),
        ];
        for (text, limit_ms) in cases {
            assert_eq!(time_limit_ms(text), Ok(limit_ms), "{text}");
        }
        for text in ["", "x", "1:2:3:4", "-5", "1-"] {
            assert_eq!(time_limit_ms(text).unwrap_err().kind, ParseErrorKind::Number, "{text}");
        }
    }
}
