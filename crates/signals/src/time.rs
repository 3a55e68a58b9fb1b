//! Spans of event time, µs and hours.

use tidegate_events::Micros;

pub const US_PER_S: i64 = Micros::from_secs(1).0;
pub const HOUR_US: i64 = 3_600 * US_PER_S;
pub const DAY_HOURS: usize = 24;
pub const DAY_US: i64 = DAY_HOURS as i64 * HOUR_US;
pub const WEEK_HOURS: usize = 168;
/// 365.25 days.
pub const YEAR_HOURS: usize = 8_766;
