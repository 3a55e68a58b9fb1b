//! Events of a time that has not come, or that no calendar has: taken in, each would make windows
//! up to then be computed, and its cluster be known up to then.

use tidegate_events::Event;

/// So much may a clock be ahead, or a time zone be taken for another.
pub(super) const MOST_AHEAD_MS: i64 = 86_400_000;
/// The years 1 to 9999, ms.
const YEARS_MS: std::ops::RangeInclusive<i64> = -62_135_596_800_000..=253_402_300_799_999;

/// Why an event is not taken in.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Outside {
    pub code: &'static str,
    pub reason: String,
}

/// Whether an event reaches further than [`MOST_AHEAD_MS`] beyond when it was observed. Where its
/// observer's clock is ahead as well, or its observer tells no time, `now_ms` counts, the clock of
/// who takes it in.
pub(super) fn outside(event: &Event, now_ms: i64) -> Option<Outside> {
    if let Event::DeadLetter(_) = event {
        return None;
    }
    let (from_ms, to_ms) = (event.event_time_ms(), reach_ms(event));
    if let Some(at_ms) = [from_ms, to_ms].into_iter().find(|at_ms| !YEARS_MS.contains(at_ms)) {
        let reason = format!("{at_ms} ms since 1970 is outside the years 1 to 9999; the event was left out");
        return Some(Outside { code: "TIME_OUT_OF_RANGE", reason });
    }
    let told_ms = event.envelope().map_or(0, |envelope| envelope.observed_time_ms);
    let observed_ms = if told_ms > 0 { told_ms.min(now_ms) } else { now_ms };
    // A price is entered for times to come; what counts is when.
    let at_ms = match event {
        Event::Capacity(price) => price.entered_ms.unwrap_or(to_ms),
        _ => to_ms,
    };
    let ahead_ms = at_ms.saturating_sub(observed_ms);
    (ahead_ms > MOST_AHEAD_MS).then(|| Outside {
        code: "TIME_AHEAD",
        reason: format!(
            "it is of a time {} hours after it was observed, and more than {} are not believed; correct the clock of {}; the event \
             was left out",
            ahead_ms / 3_600_000,
            MOST_AHEAD_MS / 3_600_000,
            event.envelope().map_or("its source", |envelope| envelope.source.as_str())
        ),
    })
}

/// Until when an event speaks of things, ms.
fn reach_ms(event: &Event) -> i64 {
    let from_ms = event.event_time_ms();
    let ms = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    match event {
        Event::Step(step) => from_ms.saturating_add(ms(step.duration_us / 1_000)),
        Event::PoolSample(sample) => from_ms.saturating_add(ms(sample.interval_ms)),
        Event::GpuSamples(batch) => {
            let mut tick_ms = batch.first_tick_ms;
            let later = batch.tick_delta_ms.iter().map(|delta| {
                tick_ms = tick_ms.saturating_add(*delta);
                tick_ms
            });
            later.chain([from_ms, batch.first_tick_ms]).max().unwrap_or(from_ms)
        }
        _ => from_ms,
    }
}

#[cfg(test)]
mod tests {
    use tidegate_events::v1::{CapacityEvent, Envelope, JobEvent, StepReport};

    use super::*;

    const NOW_MS: i64 = 1_700_000_000_000;
    const DAY_MS: i64 = 86_400_000;

    fn envelope(event_time_ms: i64, observed_time_ms: i64) -> Option<Envelope> {
        Some(Envelope { event_time_ms, observed_time_ms, ..Envelope::default() })
    }

    fn job(event_time_ms: i64, observed_time_ms: i64) -> Event {
        Event::Job(JobEvent { envelope: envelope(event_time_ms, observed_time_ms), ..JobEvent::default() })
    }

    fn code(event: &Event) -> Option<&'static str> {
        outside(event, NOW_MS).map(|why| why.code)
    }

    #[test]
    fn an_event_may_be_a_day_ahead_of_its_observer() {
        assert_eq!(code(&job(NOW_MS + DAY_MS, NOW_MS)), None);
        assert_eq!(code(&job(NOW_MS + DAY_MS + 1, NOW_MS)), Some("TIME_AHEAD"));
        // History, whoever observed it and whenever; and history of a clock that was wrong then.
        assert_eq!(code(&job(NOW_MS - 900 * DAY_MS, NOW_MS)), None);
        assert_eq!(code(&job(NOW_MS - 900 * DAY_MS, NOW_MS - 902 * DAY_MS)), Some("TIME_AHEAD"));
        // Nobody says when it was observed; the observer's clock is as wrong as the event.
        assert_eq!(code(&job(NOW_MS + 2 * DAY_MS, 0)), Some("TIME_AHEAD"));
        assert_eq!(code(&job(NOW_MS + 2 * DAY_MS, NOW_MS + 2 * DAY_MS)), Some("TIME_AHEAD"));
    }

    #[test]
    fn what_reaches_far_is_ahead_too() {
        let step = |duration_us| {
            Event::Step(StepReport {
                envelope: envelope(NOW_MS, NOW_MS),
                duration_us,
                ..StepReport::default()
            })
        };
        assert_eq!(code(&step(3_600_000_000)), None);
        assert_eq!(code(&step(3 * 86_400_000_000)), Some("TIME_AHEAD"));
        assert_eq!(code(&step(u64::MAX)), Some("TIME_OUT_OF_RANGE"));
        assert_eq!(code(&job(i64::MIN, NOW_MS)), Some("TIME_OUT_OF_RANGE"));
        assert_eq!(code(&job(i64::MAX, NOW_MS)), Some("TIME_OUT_OF_RANGE"));
    }

    #[test]
    fn a_price_may_be_entered_for_years_to_come() {
        let price = |entered_ms| {
            let envelope = envelope(NOW_MS + 3_000 * DAY_MS, NOW_MS);
            Event::Capacity(CapacityEvent { envelope, entered_ms, ..CapacityEvent::default() })
        };
        assert_eq!(code(&price(Some(NOW_MS))), None);
        assert_eq!(code(&price(Some(NOW_MS + 2 * DAY_MS))), Some("TIME_AHEAD"));
        assert_eq!(code(&price(None)), Some("TIME_AHEAD"));
    }
}
