//! Forecasts of new, short, constant, zero, gappy and nonsense series.
#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use tidegate_insight::forecast::{Config, Forecast, ForecastError, Forecaster, LEVELS, Score};

fn observed(config: Config, values: &[Option<f64>]) -> Forecaster {
    let mut forecaster = Forecaster::new(config).unwrap();
    for value in values {
        forecaster.observe(*value, None);
    }
    forecaster
}

fn small() -> Config {
    Config { horizon: 48, ..Config::default() }
}

fn is_sound(forecast: &Forecast, peak: f64) -> bool {
    forecast
        .quantiles
        .iter()
        .all(|row| row.iter().all(|q| q.is_finite() && (0.0..=3.0 * peak).contains(q)) && row.is_sorted())
}

/// Level 100 with a daily swing of 30 and a deterministic disturbance.
fn daily(t: usize) -> f64 {
    let noise = ((t * 7919) % 101) as f64 / 10.0;
    100.0 + 30.0 * (t as f64 * std::f64::consts::TAU / 24.0).sin() + noise
}

#[test]
fn short_history_is_an_error_and_new_series_are_wide() {
    let empty = observed(small(), &[]).forecast(None);
    assert_eq!(empty, Err(ForecastError::TooShort { known: 0, needed: 2 }));
    let nothing = observed(small(), &[None, Some(f64::NAN), Some(-1.0)]).forecast(None);
    assert_eq!(nothing, Err(ForecastError::TooShort { known: 0, needed: 2 }));
    let new = observed(small(), &[Some(10.0), Some(12.0), Some(11.0)]).forecast(None).unwrap();
    assert!(is_sound(&new, 12.0));
    assert!(new.quantile(24, 0.9).unwrap() - new.quantile(24, 0.1).unwrap() > 5.0);
}

#[test]
fn a_constant_stays_and_zeros_stay_zero() {
    let constant = observed(small(), &[Some(64.0); 400]).forecast(None).unwrap();
    assert!(constant.quantiles.iter().flatten().all(|q| (q - 64.0).abs() < 1e-6));
    let zeros = observed(small(), &[Some(0.0); 400]).forecast(None).unwrap();
    assert!(zeros.quantiles.iter().flatten().all(|q| *q == 0.0));
}

#[test]
fn a_daily_rhythm_is_learned_and_covered() {
    let values: Vec<Option<f64>> = (0..700).map(|t| Some(daily(t))).collect();
    let forecast = observed(small(), &values).forecast(None).unwrap();
    let inside = (1..=48).filter(|h| Score::of(&forecast, *h, daily(699 + h)).unwrap().inside80).count();
    assert!((30..=48).contains(&inside), "{inside}");
    let error: f64 =
        (1..=48).map(|h| (forecast.median(h).unwrap() - daily(699 + h)).abs()).sum::<f64>() / 48.0;
    // The disturbance alone errs 2.5, the last value 20.
    assert!(error < 8.0, "{error}");
}

#[test]
fn an_outage_is_neither_believed_nor_ignored() {
    let mut values: Vec<Option<f64>> = (0..500).map(|t| Some(daily(t))).collect();
    values.extend([Some(0.0); 3]);
    let forecast = observed(small(), &values).forecast(None).unwrap();
    assert_eq!(forecast.quantile(1, 0.1), Some(0.0));
    assert!(forecast.quantile(24, 0.9).unwrap() > 60.0);
    // After the outage forecasts are as before.
    values.extend((503..520).map(|t| Some(daily(t))));
    let after = observed(small(), &values).forecast(None).unwrap();
    assert!(after.quantile(1, 0.1).unwrap() > 40.0);
}

#[test]
fn a_lasting_shift_becomes_the_level() {
    let mut values = vec![Some(100.0); 500];
    values.extend([Some(20.0); 400]);
    let forecast = observed(small(), &values).forecast(None).unwrap();
    assert!((forecast.median(24).unwrap() - 20.0).abs() < 2.0);
}

#[test]
fn an_outlook_that_is_right_is_trusted() {
    // The series shows no sign of its jumps; the outlook knows the next two days.
    let level = |t: usize| if (t / 60).is_multiple_of(2) { 50.0 } else { 150.0 };
    let mut forecaster = Forecaster::new(small()).unwrap();
    let ahead =
        |t: usize, f: &Forecaster| -> Vec<f64> { f.anchors().iter().map(|h| level(t + h - 1)).collect() };
    for t in 0..900 {
        let outlook = ahead(t + 1, &forecaster);
        forecaster.observe(Some(level(t)), Some(&outlook));
    }
    let forecast = forecaster.forecast(Some(&ahead(900, &forecaster))).unwrap();
    for h in [1, 12, 24, 40] {
        let median = forecast.median(h).unwrap();
        assert!((median - level(899 + h)).abs() < 15.0, "{h} {median}");
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    for config in [
        Config { step_s: 0, ..small() },
        Config { step_s: 7000, ..small() },
        Config { horizon: 0, ..small() },
        Config { stride: 0, ..small() },
    ] {
        assert_eq!(Forecaster::new(config).err(), Some(ForecastError::Config));
    }
}

#[test]
fn ten_minutes_and_four_weeks_are_horizons_too() {
    let short: Vec<Option<f64>> = (0..600).map(|t| Some(daily(t / 6))).collect();
    let forecast = observed(Config::short(), &short).forecast(None).unwrap();
    assert_eq!((forecast.horizons.first(), forecast.horizons.last()), (Some(&1), Some(&36)));
    let long: Vec<Option<f64>> = (0..800).map(|t| Some(daily(t))).collect();
    let forecast = observed(Config { stride: 29, ..Config::monthly() }, &long).forecast(None).unwrap();
    assert_eq!(forecast.horizons.last(), Some(&672));
    assert!(is_sound(&forecast, 200.0));
    let width = |h| forecast.quantile(h, 0.9).unwrap() - forecast.quantile(h, 0.1).unwrap();
    assert!(width(672) >= width(1));
    assert_eq!(forecast.quantiles[0].len(), LEVELS.len());
}

fn garbage() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        4 => (0.0..1e4f64).prop_map(Some),
        2 => Just(Some(0.0)),
        1 => Just(None),
        1 => Just(Some(f64::NAN)),
        1 => Just(Some(f64::INFINITY)),
        1 => Just(Some(-5.0)),
        1 => Just(Some(1e300)),
        1 => Just(Some(5e-324)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn garbage_gives_a_bounded_answer_or_a_typed_error_and_the_same_twice(
        values in prop::collection::vec(garbage(), 0..260),
        outlook in prop::option::of(prop_oneof![Just(f64::NAN), Just(1e308), Just(-1.0), Just(10.0)]),
    ) {
        let make = || {
            let mut forecaster = Forecaster::new(small()).unwrap();
            let outlook = outlook.map(|v| vec![v; forecaster.anchors().len()]);
            for value in &values {
                forecaster.observe(*value, outlook.as_deref());
            }
            forecaster.forecast(outlook.as_deref())
        };
        let (first, second) = (make(), make());
        let peak = values.iter().flatten().copied().filter(|v| v.is_finite() && *v >= 0.0).fold(0.0, f64::max);
        match (&first, &second) {
            (Ok(a), Ok(b)) => {
                prop_assert!(is_sound(a, peak));
                let bits = |f: &Forecast| f.quantiles.iter().flatten().map(|q| q.to_bits()).collect::<Vec<_>>();
                prop_assert_eq!(bits(a), bits(b));
            }
            (Err(a), Err(b)) => prop_assert_eq!(a, b),
            _ => prop_assert!(false, "two answers"),
        }
    }
}
