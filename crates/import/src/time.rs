//! Parses times of a file, in any form that a mapping allows, to ms since the epoch.

use chrono::offset::LocalResult;
use chrono::{DateTime, NaiveDate, Offset, TimeZone};
use chrono_tz::Tz;

use crate::error::{Reject, RejectCode};
use crate::mapping::TimeFormat;
use crate::rows::Cell;

const DAY_MS: i64 = 86_400_000;
/// Valid range, 1900-01-01 to 2200-01-01: a time outside means a wrong unit or base.
const RANGE_MS: std::ops::Range<i64> = -2_208_988_800_000..7_258_118_400_000;
/// Numbers from here on are milliseconds, not seconds: as seconds they would be the year 5138.
const MILLIS_FROM: i64 = 100_000_000_000;
const CACHED_DAYS: usize = 64;

/// Form of the times of a file. The first time fixes it, because mixing forms means mixing zones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Naive,
    Offset,
    Epoch,
}

impl Form {
    fn described(self) -> &'static str {
        match self {
            Self::Naive => "without a zone",
            Self::Offset => "with a UTC offset",
            Self::Epoch => "as numbers",
        }
    }
}

/// Converts cells to times. Remembers the file's form and the zone's offsets.
pub(crate) struct TimeReader {
    zone: Tz,
    base_ms: i64,
    form: Option<Form>,
    /// Days with a single offset in the zone, by day number modulo the length.
    days: [(i64, i64); CACHED_DAYS],
}

impl TimeReader {
    pub(crate) fn new(zone: Tz, base_ms: i64) -> Self {
        Self { zone, base_ms, form: None, days: [(i64::MIN, 0); CACHED_DAYS] }
    }

    /// `None` for an empty cell.
    pub(crate) fn read(&mut self, cell: Cell<'_>, format: TimeFormat) -> Result<Option<i64>, Reject> {
        let time = match cell {
            Cell::Null => return Ok(None),
            Cell::InstantMs(ms) => Some(ms),
            Cell::NaiveMs(ms) => Some(self.in_utc(ms)?),
            Cell::Int(number) => self.number(number as f64, Some(number), format),
            Cell::Float(number) => self.number(number, None, format),
            Cell::Text(text) => return self.text(text.trim(), format).map(Some),
        };
        match time.filter(|ms| RANGE_MS.contains(ms)) {
            Some(ms) => Ok(Some(ms)),
            None => Err(bad_time(&format!("{cell:?}"))),
        }
    }

    fn text(&mut self, text: &str, format: TimeFormat) -> Result<i64, Reject> {
        let bytes = text.as_bytes();
        let (form, ms) = if bytes.get(4) == Some(&b'-') && format == TimeFormat::Auto {
            let (wall_ms, offset_ms) = iso(bytes).ok_or_else(|| bad_time(text))?;
            match offset_ms {
                Some(offset_ms) => (Form::Offset, wall_ms - offset_ms),
                None => (Form::Naive, self.in_utc(wall_ms)?),
            }
        } else {
            let whole = text.parse::<i64>().ok();
            let number =
                whole.map(|n| n as f64).or_else(|| text.parse().ok()).ok_or_else(|| bad_time(text))?;
            (Form::Epoch, self.number(number, whole, format).ok_or_else(|| bad_time(text))?)
        };
        // A format stated by the mapping for a field is unambiguous, whatever form the other fields
        // have.
        let file_form = if format == TimeFormat::Auto { *self.form.get_or_insert(form) } else { form };
        if file_form != form {
            return Err(Reject::new(
                RejectCode::TimeZoneMixed,
                format!(
                    "{text} is written {}, but the first time of the file is {}; write all times in one form",
                    form.described(),
                    file_form.described()
                ),
            ));
        }
        if RANGE_MS.contains(&ms) { Ok(ms) } else { Err(bad_time(text)) }
    }

    fn number(&self, number: f64, whole: Option<i64>, format: TimeFormat) -> Option<i64> {
        let scale = match format {
            TimeFormat::EpochMs => 1,
            TimeFormat::Days => DAY_MS,
            TimeFormat::Auto if number.abs() >= MILLIS_FROM as f64 => 1,
            TimeFormat::Auto | TimeFormat::EpochS => 1000,
        };
        let ms = match whole {
            Some(whole) => whole.checked_mul(scale)?,
            None if number.is_finite() => (number * scale as f64).round() as i64,
            None => return None,
        };
        self.base_ms.checked_add(ms)
    }

    /// Wall time in the zone, to UTC. A repeated autumn hour is read as its first occurrence.
    fn in_utc(&mut self, wall_ms: i64) -> Result<i64, Reject> {
        if self.zone == Tz::UTC {
            return Ok(wall_ms);
        }
        let day = wall_ms.div_euclid(DAY_MS);
        let slot = day.rem_euclid(CACHED_DAYS as i64) as usize;
        if self.days[slot].0 == day {
            return Ok(wall_ms - self.days[slot].1);
        }
        if let (Some(from), Some(to)) = (self.offset_ms(day * DAY_MS), self.offset_ms((day + 1) * DAY_MS))
            && from == to
        {
            self.days[slot] = (day, from);
            return Ok(wall_ms - from);
        }
        match self.offset_ms(wall_ms) {
            Some(offset) => Ok(wall_ms - offset),
            None => Err(Reject::new(
                RejectCode::BadTime,
                format!(
                    "{} does not exist in {}: the clocks skip it; is the time zone right?",
                    DateTime::from_timestamp_millis(wall_ms).unwrap_or_default().naive_utc(),
                    self.zone
                ),
            )),
        }
    }

    fn offset_ms(&self, wall_ms: i64) -> Option<i64> {
        let wall = DateTime::from_timestamp_millis(wall_ms)?.naive_utc();
        match self.zone.offset_from_local_datetime(&wall) {
            LocalResult::Single(offset) | LocalResult::Ambiguous(offset, _) => {
                Some(i64::from(offset.fix().local_minus_utc()) * 1000)
            }
            LocalResult::None => None,
        }
    }
}

fn bad_time(text: &str) -> Reject {
    Reject::new(
        RejectCode::BadTime,
        format!("{text} is not a time between 1900 and 2200, such as 2024-03-01T12:00:00 or 1709294400"),
    )
}

/// `YYYY-MM-DD`, optionally with `[T ]HH:MM:SS[.fraction][Z|±HH[:]MM]`: wall time in ms, and the
/// offset in ms if given.
fn iso(text: &[u8]) -> Option<(i64, Option<i64>)> {
    let number = |from: usize, to: usize| {
        text.get(from..to)?
            .iter()
            .try_fold(0_u32, |sum, c| c.is_ascii_digit().then(|| sum * 10 + u32::from(c - b'0')))
    };
    let is = |at: usize, allowed: &[u8]| text.get(at).is_some_and(|c| allowed.contains(c));
    let date = NaiveDate::from_ymd_opt(number(0, 4)?.cast_signed(), number(5, 7)?, number(8, 10)?)?;
    if !is(4, b"-") || !is(7, b"-") {
        return None;
    }
    if text.len() == 10 {
        return Some((date.and_hms_opt(0, 0, 0)?.and_utc().timestamp_millis(), None));
    }
    if !is(10, b"T t") || !is(13, b":") || !is(16, b":") {
        return None;
    }
    let wall = date.and_hms_opt(number(11, 13)?, number(14, 16)?, number(17, 19)?)?;
    let mut rest = &text[19..];
    let mut millis = 0;
    if let Some((b'.' | b',', fraction)) = rest.split_first() {
        let digits = fraction.iter().take_while(|c| c.is_ascii_digit()).count();
        let digit = |at: usize| fraction[..digits].get(at).map_or(0, |c| i64::from(c - b'0'));
        millis = digit(0) * 100 + digit(1) * 10 + digit(2);
        rest = fraction.get(digits..).filter(|_| digits > 0)?;
    }
    Some((wall.and_utc().timestamp_millis() + millis, offset_ms(rest)?))
}

/// The outer option is `None` for an invalid offset, the inner for an absent one.
fn offset_ms(text: &[u8]) -> Option<Option<i64>> {
    let sign = match text {
        [] => return Some(None),
        b"Z" | b"z" | b" UTC" | b"UTC" => return Some(Some(0)),
        [b'+', ..] => 1,
        [b'-', ..] => -1,
        _ => return None,
    };
    let (hours, minutes) = match &text[1..] {
        [a, b] => ([*a, *b], *b"00"),
        [a, b, c, d] | [a, b, b':', c, d] => ([*a, *b], [*c, *d]),
        _ => return None,
    };
    let number = |[tens, ones]: [u8; 2]| std::str::from_utf8(&[tens, ones]).ok()?.parse::<u8>().ok();
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    let valid = hours <= 14 && minutes < 60;
    valid.then(|| Some(sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60) * 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(zone: &str, text: &str) -> Result<Option<i64>, Reject> {
        TimeReader::new(zone.parse().unwrap(), 0).read(Cell::Text(text), TimeFormat::Auto)
    }

    #[test]
    fn texts_agree_with_chrono() {
        for text in [
            "2024-02-29T23:59:59Z",
            "2024-02-29T23:59:59.5Z",
            "2024-02-29T23:59:59.123456789+05:30",
            "1969-12-31T23:59:59-08:00",
        ] {
            let expected = DateTime::parse_from_rfc3339(text).unwrap().timestamp_millis();
            assert_eq!(read("UTC", text), Ok(Some(expected)), "{text}");
        }
        let day = Ok(Some(1_709_164_800_000));
        for text in [
            "2024-02-29",
            "2024-02-29 00:00:00",
            "2024-02-29T00:00:00 UTC",
            "2024-02-29T01:00:00+01",
            "1709164800",
            "1709164800000",
            "1709164800.0",
        ] {
            assert_eq!(read("UTC", text), day, "{text}");
        }
    }

    #[test]
    fn invalid_times_are_rejected() {
        for text in [
            "",
            "2023-02-29",
            "2024-2-29",
            "2024-02-29T",
            "2024-02-29T1:00:00",
            "2024-02-29T00:00:00.",
            "2024-02-29T00:00:00X",
            "2024-02-29T00:00:00+1",
            "inf",
            "1e99",
        ] {
            assert_eq!(read("UTC", text).unwrap_err().code, RejectCode::BadTime, "{text}");
        }
    }

    #[test]
    fn clock_changes_are_handled() {
        let hour_ms = 3_600_000;
        let at = |text| read("Europe/Berlin", text);
        let before = at("2024-03-31T01:59:59").unwrap().unwrap();
        let after = at("2024-03-31T03:00:00").unwrap().unwrap();
        assert_eq!(after - before, 1000);
        assert_eq!(at("2024-03-31T02:30:00").unwrap_err().code, RejectCode::BadTime);
        let first = at("2024-10-27T02:30:00").unwrap().unwrap();
        let later = at("2024-10-27T03:30:00").unwrap().unwrap();
        assert_eq!(later - first, 2 * hour_ms, "the repeated hour is read as its first pass");
    }

    #[test]
    fn a_cached_day_gives_the_same_as_a_fresh_one() {
        let mut reader = TimeReader::new(Tz::America__New_York, 0);
        for hour in (0..24 * 400).step_by(5) {
            let wall = DateTime::from_timestamp(1_700_000_000 + hour * 3600, 0).unwrap();
            let text = wall.format("%Y-%m-%dT%H:%M:%S").to_string();
            assert_eq!(
                reader.read(Cell::Text(&text), TimeFormat::Auto),
                read("America/New_York", &text),
                "{text}"
            );
        }
    }
}
