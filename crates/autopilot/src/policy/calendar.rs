//! Freezes: calendar windows in which the autopilot begins nothing.

use serde::{Deserialize, Serialize};

use super::Footprint;
use crate::action::Kind;
use crate::names::{OwnerName, PoolName};

/// A day of the week.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Day {
    Mon,
    Tue,
    Wed,
    Thu,
    Fri,
    Sat,
    Sun,
}

/// 1 January 1970 was a Thursday.
const DAYS: [Day; 7] = [Day::Thu, Day::Fri, Day::Sat, Day::Sun, Day::Mon, Day::Tue, Day::Wed];

const MINUTE_US: i64 = 60_000_000;
const DAY_MINUTES: i64 = 24 * 60;

/// A window in which nothing is begun. Empty lists match everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Freeze {
    /// Name, shown in refusals.
    pub name: String,
    /// Days on which the window begins.
    #[serde(default)]
    pub days: Vec<Day>,
    /// Start, `HH:MM`.
    pub from: String,
    /// End, `HH:MM`. Not after `from`: it ends on the next day.
    pub to: String,
    /// Kinds it applies to.
    #[serde(default)]
    pub kinds: Vec<Kind>,
    /// Owners it applies to.
    #[serde(default)]
    pub owners: Vec<OwnerName>,
    /// Pools it applies to.
    #[serde(default)]
    pub pools: Vec<PoolName>,
}

impl Freeze {
    /// Whether the window applies to such an action.
    pub(super) fn fits(&self, kind: Kind, footprint: &Footprint) -> bool {
        let among = |named: &[String], touched: &[String]| {
            named.is_empty() || touched.iter().any(|name| named.contains(name))
        };
        (self.kinds.is_empty() || self.kinds.contains(&kind))
            && among(&self.owners, &footprint.owners)
            && among(&self.pools, &footprint.pools)
    }

    /// Whether the window is open at `now_us`, with local time `offset` minutes east of UTC. An
    /// unreadable time counts as always open; validation rejects such policies.
    pub(super) fn holds(&self, now_us: i64, offset: i32) -> bool {
        let (Some(from), Some(to)) = (minute_of_day(&self.from), minute_of_day(&self.to)) else {
            return true;
        };
        let minutes = now_us.div_euclid(MINUTE_US) + i64::from(offset);
        let (day, minute) = (minutes.div_euclid(DAY_MINUTES), minutes.rem_euclid(DAY_MINUTES));
        let begins_on = |day: i64| self.days.is_empty() || self.days.contains(&day_of_week(day));
        if from < to {
            return begins_on(day) && (from..to).contains(&minute);
        }
        (begins_on(day) && minute >= from) || (begins_on(day - 1) && minute < to)
    }
}

/// Minute of the day of `HH:MM`. `None`: not a time.
pub(super) fn minute_of_day(text: &str) -> Option<i64> {
    let (hour, minute) = text.split_once(':')?;
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let two = |text: &str| digits(text).then(|| text.parse::<u8>().ok()).flatten();
    let (hour, minute) = (two(hour)?, two(minute)?);
    (hour < 24 && minute < 60).then(|| i64::from(hour) * 60 + i64::from(minute))
}

fn day_of_week(days_since_1970: i64) -> Day {
    // Less than 7 and not negative.
    DAYS[days_since_1970.rem_euclid(7) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_US: i64 = 60 * MINUTE_US;

    fn freeze(days: &[Day], from: &str, to: &str) -> Freeze {
        let none = Vec::new;
        let (from, to) = (from.to_owned(), to.to_owned());
        Freeze {
            name: "f".into(),
            days: days.to_vec(),
            from,
            to,
            kinds: vec![],
            owners: none(),
            pools: none(),
        }
    }

    #[test]
    fn a_day_begins_and_ends_at_its_local_minutes() {
        // 2026-11-22 is a Sunday: 20,779 days after 1970.
        let sunday = 20_779 * 24 * HOUR_US;
        assert_eq!(day_of_week(20_779), Day::Sun);
        let office = freeze(&[Day::Mon], "09:00", "17:00");
        let at = |hour: i64| office.holds(sunday + hour * HOUR_US, 0);
        assert_eq!([32, 33, 40, 41].map(at), [false, true, true, false]);
        // Two hours east of UTC, nine o'clock is 07:00 UTC.
        assert!(office.holds(sunday + 31 * HOUR_US, 120) && !office.holds(sunday + 39 * HOUR_US, 120));
    }

    #[test]
    fn over_midnight_it_belongs_to_the_day_it_begins_on() {
        let sunday = 20_779 * 24 * HOUR_US;
        let night = freeze(&[Day::Sun], "22:00", "06:00");
        let at = |hour: i64| night.holds(sunday + hour * HOUR_US, 0);
        assert_eq!([5, 21, 22, 29, 30, 46].map(at), [false, false, true, true, false, false]);
        assert!(freeze(&[], "00:00", "00:00").holds(sunday, 0), "a whole day");
    }

    #[test]
    fn only_times_are_times() {
        assert_eq!(minute_of_day("23:59"), Some(1439));
        for wrong in ["24:00", "9:00", "09:60", "0900", "", "ab:cd", "+9:00"] {
            assert_eq!(minute_of_day(wrong), None, "{wrong}");
        }
    }
}
