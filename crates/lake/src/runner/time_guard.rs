//! Time guard: rejects events whose time lies in the future, before the horizon or in no calendar.
//! If absorbed, an event of the future would make windows up to that time be computed, and move its
//! cluster's watermark there; one of a past long before anything else, a window for each day since.

use tidegate_events::Event;

/// How far a clock may be ahead, which also covers a mistaken time zone.
pub(super) const MAX_AHEAD_MS: i64 = 86_400_000;
/// The years 1 to 9999, ms.
const YEARS_MS: std::ops::RangeInclusive<i64> = -62_135_596_800_000..=253_402_300_799_999;

/// Why an event is rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OutOfRange {
    pub code: &'static str,
    pub reason: String,
}

/// Rejects an event that begins before `oldest_ms`, or that ends more than [`MAX_AHEAD_MS`] after
/// it was observed. The observation time is capped at `now_ms`, the clock of this process, which
/// also stands in for a missing one.
pub(super) fn check_time(event: &Event, now_ms: i64, oldest_ms: i64) -> Option<OutOfRange> {
    if let Event::DeadLetter(_) = event {
        return None;
    }
    let (from_ms, to_ms) = span_ms(event);
    if let Some(at_ms) = [from_ms, to_ms].into_iter().find(|at_ms| !YEARS_MS.contains(at_ms)) {
        let reason = format!("{at_ms} ms since 1970 is outside the years 1 to 9999; the event was left out");
        return Some(OutOfRange { code: "TIME_OUT_OF_RANGE", reason });
    }
    if from_ms < oldest_ms {
        let reason = format!(
            "its time is {}, before {}, the oldest that counts; correct the clock of {}, or set --oldest if it is history; the \
             event was left out",
            date(from_ms),
            date(oldest_ms),
            event.envelope().map_or("its source", |envelope| envelope.source.as_str())
        );
        return Some(OutOfRange { code: "TIME_BEFORE_OLDEST", reason });
    }
    let stated_ms = event.envelope().map_or(0, |envelope| envelope.observed_time_ms);
    let observed_ms = if stated_ms > 0 { stated_ms.min(now_ms) } else { now_ms };
    // A price may hold from a future time. What counts is when it was entered.
    let at_ms = match event {
        Event::Capacity(price) => price.entered_ms.unwrap_or(to_ms),
        _ => to_ms,
    };
    let ahead_ms = at_ms.saturating_sub(observed_ms);
    (ahead_ms > MAX_AHEAD_MS).then(|| OutOfRange {
        code: "TIME_AHEAD",
        reason: format!(
            "its time is {} hours after it was observed, and at most {} are accepted; correct the clock of {}; the event was left out",
            ahead_ms / 3_600_000,
            MAX_AHEAD_MS / 3_600_000,
            event.envelope().map_or("its source", |envelope| envelope.source.as_str())
        ),
    })
}

/// The first and the last time that an event speaks for, ms.
fn span_ms(event: &Event) -> (i64, i64) {
    let at_ms = event.event_time_ms();
    let ms = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    match event {
        Event::Step(step) => (at_ms, at_ms.saturating_add(ms(step.duration_us / 1_000))),
        Event::PoolSample(sample) => (at_ms, at_ms.saturating_add(ms(sample.interval_ms))),
        Event::GpuSamples(batch) => {
            let mut tick_ms = batch.first_tick_ms;
            let later = batch.tick_delta_ms.iter().map(|delta| {
                tick_ms = tick_ms.saturating_add(*delta);
                tick_ms
            });
            let ticks = later.chain([batch.first_tick_ms]);
            ticks.fold((at_ms, at_ms), |(from, to), tick| (from.min(tick), to.max(tick)))
        }
        _ => (at_ms, at_ms),
    }
}

fn date(at_ms: i64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(at_ms);
    time.map_or_else(|| format!("{at_ms} ms"), |time| time.format("%Y-%m-%d").to_string())
}

#[cfg(test)]
mod tests {
    use tidegate_events::v1::{CapacityEvent, Envelope, GpuSampleBatch, JobEvent, StepReport};

    use super::*;

    const NOW_MS: i64 = 1_700_000_000_000;
    const DAY_MS: i64 = 86_400_000;
    const OLDEST_MS: i64 = NOW_MS - 3_000 * DAY_MS;

    fn envelope(event_time_ms: i64, observed_time_ms: i64) -> Option<Envelope> {
        Some(Envelope { event_time_ms, observed_time_ms, ..Envelope::default() })
    }

    fn job(event_time_ms: i64, observed_time_ms: i64) -> Event {
        Event::Job(JobEvent { envelope: envelope(event_time_ms, observed_time_ms), ..JobEvent::default() })
    }

    fn code(event: &Event) -> Option<&'static str> {
        check_time(event, NOW_MS, OLDEST_MS).map(|why| why.code)
    }

    #[test]
    fn an_event_may_be_a_day_ahead_of_its_observer() {
        assert_eq!(code(&job(NOW_MS + DAY_MS, NOW_MS)), None);
        assert_eq!(code(&job(NOW_MS + DAY_MS + 1, NOW_MS)), Some("TIME_AHEAD"));
        // History, whenever it was observed; then history of a clock that was wrong at the time.
        assert_eq!(code(&job(NOW_MS - 900 * DAY_MS, NOW_MS)), None);
        assert_eq!(code(&job(NOW_MS - 900 * DAY_MS, NOW_MS - 902 * DAY_MS)), Some("TIME_AHEAD"));
        // An event without an observed time; an event whose observer's clock is as wrong as the
        // event.
        assert_eq!(code(&job(NOW_MS + 2 * DAY_MS, 0)), Some("TIME_AHEAD"));
        assert_eq!(code(&job(NOW_MS + 2 * DAY_MS, NOW_MS + 2 * DAY_MS)), Some("TIME_AHEAD"));
    }

    #[test]
    fn an_event_that_reaches_far_ahead_is_rejected_too() {
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

    #[test]
    fn an_event_before_the_horizon_is_rejected_whatever_its_observer_says() {
        assert_eq!(code(&job(OLDEST_MS, OLDEST_MS)), None);
        assert_eq!(code(&job(OLDEST_MS - 1, OLDEST_MS - 1)), Some("TIME_BEFORE_OLDEST"));
        assert_eq!(code(&job(-62_135_596_800_000, NOW_MS)), Some("TIME_BEFORE_OLDEST"));
        // A batch of now, with a sample of long ago in the middle.
        let batch = |back_ms: i64| {
            Event::GpuSamples(GpuSampleBatch {
                envelope: envelope(NOW_MS, NOW_MS),
                first_tick_ms: NOW_MS,
                tick_delta_ms: vec![-back_ms, back_ms],
                ..GpuSampleBatch::default()
            })
        };
        assert_eq!(code(&batch(DAY_MS)), None);
        assert_eq!(code(&batch(3_001 * DAY_MS)), Some("TIME_BEFORE_OLDEST"));
        let why = check_time(&job(0, NOW_MS), NOW_MS, OLDEST_MS).expect("rejected").reason;
        assert!(why.contains("1970-01-01") && why.contains("--oldest"), "{why}");
    }
}
