//! Published forecasts of demand, and whether their bounds hold.

use tidegate_autopilot::forecast::{Calibration, Drift, Published, Reach, SeriesName};
use tidegate_events::v1::{CoverageSignal, CoverageState, Forecast, ForecastReach, SeriesKind};
use tidegate_events::{Event, Millis};

/// Adds what an event says of published forecasts; other kinds are ignored.
pub fn record_published(event: &Event, into: &mut Published) {
    let at_us = Millis(event.event_time_ms()).to_micros().0;
    match event {
        Event::Forecast(forecast) => issued(forecast, at_us, into),
        Event::Coverage(signal) => held(signal, at_us, into),
        _ => {}
    }
}

/// Series that are somebody's demand: those of jobs by size are nobody's.
fn named(kind: SeriesKind, name: &str) -> Option<SeriesName> {
    match kind {
        SeriesKind::Total => Some(SeriesName::Total),
        SeriesKind::Pool => Some(SeriesName::Pool(name.to_owned())),
        SeriesKind::Team => Some(SeriesName::Team(name.to_owned())),
        SeriesKind::Class | SeriesKind::Unspecified => None,
    }
}

fn issued(forecast: &Forecast, at_us: i64, into: &mut Published) {
    let Some(of) = named(forecast.kind(), &forecast.name) else { return };
    let row = forecast.level_ppm.iter().copied().zip(forecast.gpus_milli.iter().copied()).collect();
    let step_us = Millis(i64::try_from(forecast.step_ms).unwrap_or(i64::MAX)).to_micros().0;
    into.record_step(of, at_us, Millis(forecast.target_ms).to_micros().0, step_us, row);
}

fn held(signal: &CoverageSignal, at_us: i64, into: &mut Published) {
    let Some(of) = named(signal.kind(), &signal.name) else { return };
    let reach = match signal.reach() {
        ForecastReach::NextStep => Reach::Step,
        ForecastReach::WithinDay => Reach::Day,
        ForecastReach::WithinWeek => Reach::Week,
        ForecastReach::BeyondWeek => Reach::Beyond,
        ForecastReach::Unspecified => return,
    };
    let drift = match signal.state() {
        CoverageState::Holds => Drift::None,
        CoverageState::TooLow => Drift::TooLow,
        CoverageState::TooNarrow => Drift::TooNarrow,
        CoverageState::TooWide => Drift::TooWide,
        CoverageState::Unspecified => return,
    };
    let since_us = Millis(signal.since_ms).to_micros().0;
    let CoverageSignal { inside80_ppm, below95_ppm, .. } = *signal;
    into.record_calibration(of, reach, Calibration { at_us, drift, since_us, inside80_ppm, below95_ppm });
}
