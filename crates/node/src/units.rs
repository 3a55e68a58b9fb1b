//! Parses durations and sizes of the command line.

use std::time::Duration;

/// `500ms`, `10s`, `5m` or `1h`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = split(text);
    let unit_ms = match unit {
        "ms" => Some(1),
        "s" => Some(1_000),
        "m" | "min" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let ms =
        number.and_then(|number| number.checked_mul(unit_ms?)).filter(|ms| (1..=86_400_000).contains(ms));
    ms.map(Duration::from_millis)
        .ok_or_else(|| "write a time with its unit, e.g. 500ms, 10s or 5m, up to 24h".into())
}

/// `512MiB`, `1GiB`, or bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = split(text);
    let shift = match unit {
        "" | "B" => Some(0),
        "KiB" | "K" => Some(10),
        "MiB" | "M" => Some(20),
        "GiB" | "G" => Some(30),
        _ => None,
    };
    let bytes = number.and_then(|number| number.checked_mul(1_u64 << shift?));
    bytes.ok_or_else(|| "write a size with its unit, e.g. 512MiB or 1GiB".into())
}

fn split(text: &str) -> (Option<u64>, &str) {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (text[..digits].parse().ok(), text[digits..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_read() {
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!((size("1GiB"), size("512 MiB"), size("77")), (Ok(1 << 30), Ok(512 << 20), Ok(77)));
        for wrong in ["", "10", "s", "0s", "1d", "-1s", "25h"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
        assert!(size("1TB").is_err() && size("GiB").is_err() && size("99999999999GiB").is_err());
    }
}
