//! Times, durations, GPU-hours, shares and amounts as text.

/// Formats `2024-03-01T09:00:00Z` as `2024-03-01 09:00:00 UTC`.
pub fn time(text: &str) -> String {
    let seconds = text.split('.').next().unwrap_or(text).trim_end_matches('Z');
    format!("{} UTC", seconds.replace('T', " "))
}

/// Formats a duration in its two largest units, e.g. `3 h 12 m`.
pub fn duration(ms: i64) -> String {
    let minutes = ms / 60_000;
    match (minutes / 1440, minutes / 60, minutes) {
        (days @ 1.., hours, _) => format!("{days} d {} h", hours % 24),
        (_, hours @ 1.., minutes) => format!("{hours} h {} m", minutes % 60),
        (_, _, 1..) => format!("{minutes} m {} s", ms / 1000 % 60),
        _ => format!("{} s", ms / 1000),
    }
}

/// Formats GPU-ms as GPU-hours.
pub fn hours(gpu_ms: i64) -> String {
    format!("{:.2}", gpu_ms as f64 / 3_600_000.0)
}

/// Formats thousandths of GPUs as GPUs.
pub fn thousandths(gpus_milli: i64) -> String {
    match gpus_milli % 1000 {
        0 => (gpus_milli / 1000).to_string(),
        _ => format!("{:.3}", gpus_milli as f64 / 1000.0),
    }
}

/// Formats `n` as a percentage of `all`; `?` if `all` is 0.
pub fn percent(n: i64, all: i64) -> String {
    match all {
        0 => "?".to_owned(),
        all => format!("{:.1} %", n as f64 * 100.0 / all as f64),
    }
}

/// Formats millionths of a currency.
pub fn money(micros: i64) -> String {
    format!("{:.2}", micros as f64 / 1_000_000.0)
}
