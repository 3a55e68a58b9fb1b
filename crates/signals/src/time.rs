//! Units of event time.

pub const US_PER_MS: i64 = 1_000;
pub const US_PER_S: i64 = 1_000_000;
pub const HOUR_US: i64 = 3_600 * US_PER_S;
pub const DAY_HOURS: usize = 24;
pub const DAY_US: i64 = DAY_HOURS as i64 * HOUR_US;
pub const WEEK_HOURS: usize = 168;
/// 365.25 days.
pub const YEAR_HOURS: usize = 8_766;

/// Milliseconds as microseconds, saturating.
pub fn us(ms: i64) -> i64 {
    ms.saturating_mul(US_PER_MS)
}
