//! Units of time and of GPU time. Times are microseconds since the simulation began; GPU time is an
//! integer of GPU-µs.

/// One second in µs.
pub const SECOND_US: i64 = 1_000_000;
/// One minute in µs.
pub const MINUTE_US: i64 = 60 * SECOND_US;
/// One hour in µs.
pub const HOUR_US: i64 = 60 * MINUTE_US;
/// One day in µs.
pub const DAY_US: i64 = 24 * HOUR_US;
/// The whole, in parts per million.
pub const PPM: u32 = 1_000_000;

/// GPU-µs as GPU-hours, for reports only.
pub fn gpu_hours(gpu_us: i128) -> f64 {
    gpu_us as f64 / HOUR_US as f64
}
