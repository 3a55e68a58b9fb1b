use super::super::{DemandForecast, SelectedForecast};
use super::*;
use crate::fixture::{NOW, S, cluster};
use crate::policy::{ForecastRules, ForecastSource, Policy};
use crate::state::ForecastOrigin;

const HOUR: i64 = 3_600 * S;
/// `NOW` is a whole hour.
const ISSUED: i64 = NOW;
const OF: Series<'_> = Series { owner: "serving", pool: "serve" };

fn near(found: Option<f64>, expected: f64) {
    assert!(found.is_some_and(|found| (found - expected).abs() < 1e-3), "{found:?}, not {expected}");
}

/// 10, 20, 29 and 33 GPUs at 0.1, 0.5, 0.95 and 0.99, plus `more`.
fn row(more: u64) -> Vec<(u32, u64)> {
    [(100_000, 10_000), (500_000, 20_000), (950_000, 29_000), (990_000, 33_000)]
        .map(|(level, milli)| (level, milli + 1_000 * more))
        .to_vec()
}

fn standing(drift: Drift, at_us: i64) -> Calibration {
    Calibration { at_us, drift, since_us: at_us, inside80_ppm: 800_000, below95_ppm: 940_000 }
}

/// Hours 1, 2, 3 and 6 of `TEAM serving`, ten GPUs more from the third on; bounds hold.
fn published(into: &mut Published) {
    for (horizon, more) in [(1, 0), (2, 0), (3, 10), (6, 10)] {
        into.record_step(
            SeriesName::Team("serving".into()),
            ISSUED,
            ISSUED + (horizon - 1) * HOUR,
            HOUR,
            row(more),
        );
    }
    into.record_calibration(SeriesName::Team("serving".into()), Reach::Day, standing(Drift::None, ISSUED));
}

fn selected(source: ForecastSource, least_coverage: f64) -> SelectedForecast {
    let mut policy = Policy { forecast: ForecastRules { source, most_age_s: 25_200 }, ..Policy::shipped() };
    policy.lend.least_coverage = least_coverage;
    SelectedForecast::new(&policy, SeriesNames::default())
}

/// Observed at `at_us` with a demand of `gpus`.
fn chosen(source: ForecastSource, at_us: i64, gpus: u32) -> SelectedForecast {
    let mut chosen = selected(source, 0.85);
    published(chosen.published());
    chosen.observe(&state(at_us, gpus));
    chosen
}

fn state(at_us: i64, gpus: u32) -> ClusterState {
    let mut state = cluster();
    state.at_us = at_us;
    let share = state.owners.get_mut("serving").unwrap().shares.get_mut("serve").unwrap();
    share.demand_gpus = Some(gpus);
    state
}

#[test]
fn levels_between_and_beyond_those_published() {
    let step = Step { step_us: HOUR, row: row(0) };
    for (level, gpus) in [(0.0, 10.0), (0.1, 10.0), (0.3, 15.0), (0.5, 20.0), (0.97, 31.0), (0.99, 33.0)] {
        near(Some(step.at(level)), gpus);
    }
    // 4 GPUs from 0.95 to 0.99 are ln 5 of an exponential tail, so ten times rarer is 4 x ln 10 /
    // ln 5 = 5.7227 more.
    near(Some(step.at(0.999)), 38.7227);
    assert!(step.at(1.0).is_finite());
    // A single value answers every level.
    near(Some(Step { step_us: HOUR, row: vec![(500_000, 7_000)] }.at(0.999)), 7.0);
}

#[test]
fn a_bound_is_for_every_instant_of_all_hours_it_touches() {
    let ten_past = ISSUED + 600 * S;
    let bound = |gpus: u32, within_min: i64| {
        chosen(ForecastSource::Log, ten_past, gpus).highest_gpus(OF, 0.9, within_min * 60_000)
    };
    // One hour: at 1 - 0.1 / 2 = 0.95 it is 29, 9 above the median; 20 + 9 x sqrt 3.
    near(bound(15, 15), 35.5885);
    // Two: at 0.975, 31.5.
    near(bound(15, 75), 39.9186);
    // Three, the third ten higher: at 1 - 0.1 / 6 = 0.98333, 32.33333 and 42.33333; 30 + 12.33333 x
    // sqrt 3.
    near(bound(15, 130), 51.3620);
    // 60 are needed now, 20.0814 above this hour's bound, so all other bounds rise by as much.
    near(bound(60, 75), 60.0);
    near(bound(60, 130), 30.0 + 21.3620 + (60.0 - 41.3620));
    // Hours 4 and 5 were not published: the higher of 3 and 6 stands for them. Beyond the sixth
    // nothing is known.
    assert!(bound(15, 5 * 60).is_some());
    assert_eq!(bound(15, 351), None);
}

#[test]
fn a_time_drawn_from_the_hours_ahead() {
    let typical = |level: f64, within_min: i64| {
        chosen(ForecastSource::Log, ISSUED, 15).typical_gpus(OF, level, within_min * 60_000).unwrap()
    };
    assert!((typical(0.5, 60) - 20.0).abs() < 0.2, "{}", typical(0.5, 60));
    // Half of the hours are ten higher: below 20 are half of the lower ones and at most a tenth of
    // the others, which begin there.
    let both = typical(0.5, 4 * 60);
    assert!((22.0..28.0).contains(&both), "{both}");
}

#[test]
fn what_may_not_be_used_is_not_and_it_is_said_why() {
    let why = |chosen: &SelectedForecast| {
        let mut seen = state(NOW, 15);
        chosen.annotate(&mut seen);
        match &seen.forecast_origins["serving"]["serve"] {
            ForecastOrigin::Past { why, .. } | ForecastOrigin::Nobody { why } => why.clone(),
            ForecastOrigin::Published { series, .. } => series.clone(),
        }
    };
    assert_eq!(why(&chosen(ForecastSource::Best, ISSUED + 600 * S, 15)), "TEAM serving");
    let old = chosen(ForecastSource::Best, ISSUED + 25_201 * S, 15);
    assert!(why(&old).contains("older than 25200 s"), "{}", why(&old));
    assert_eq!(old.highest_gpus(OF, 0.9, 60_000), None, "the past is too short");
    assert!(why(&chosen(ForecastSource::Trailing, ISSUED, 15)).contains("policy"));
    // No calibration report any more.
    let mut silent = SelectedForecast::new(&Policy::shipped(), SeriesNames::default());
    published(silent.published());
    silent.published().record_step(
        SeriesName::Team("serving".into()),
        ISSUED + 50 * HOUR,
        ISSUED + 50 * HOUR,
        HOUR,
        row(0),
    );
    silent.observe(&state(ISSUED + 50 * HOUR, 15));
    assert!(why(&silent).contains("nothing was published on whether"), "{}", why(&silent));
    // The owner spans several teams, so the pool's series is needed; there is none.
    let names = SeriesNames {
        teams: [("serving".to_owned(), None)].into(),
        pools: [("serve".to_owned(), "h100".to_owned())].into(),
    };
    let mut several = SelectedForecast::new(&Policy::shipped(), names);
    published(several.published());
    several.observe(&state(ISSUED, 15));
    assert_eq!(why(&several), "no forecast of POOL h100 was published");
}

#[test]
fn who_answers_is_chosen_for_each_series() {
    let at = ISSUED + 600 * S;
    let mut best = chosen(ForecastSource::Best, at, 15);
    for minute in 0..60 * 24 * 3 {
        best.past().observe(Series { owner: "research", pool: "train" }, ISSUED + minute * 60 * S, 32.0);
    }
    assert_eq!((best.coverage(OF), best.as_of_us(OF)), (Some(0.94), Some(at)));
    near(best.highest_gpus(Series { owner: "research", pool: "train" }, 0.9, 60_000), 32.0);
    let log = chosen(ForecastSource::Log, at, 15);
    assert_eq!(log.highest_gpus(Series { owner: "research", pool: "train" }, 0.9, 60_000), None);
    // The lower of the next hour's and the day's share, and only dangerous bounds count as
    // drifting.
    best.published().record_calibration(
        SeriesName::Team("serving".into()),
        Reach::Step,
        Calibration { below95_ppm: 910_000, ..standing(Drift::TooWide, at) },
    );
    best.published().record_calibration(
        SeriesName::Team("serving".into()),
        Reach::Week,
        standing(Drift::TooLow, at),
    );
    assert_eq!(best.coverage(OF), Some(0.91));
    let mut seen = state(at, 15);
    best.annotate(&mut seen);
    let ForecastOrigin::Published { issued_us, off, far, .. } = &seen.forecast_origins["serving"]["serve"]
    else {
        panic!()
    };
    assert_eq!((*issued_us, off.len()), (ISSUED, 0));
    assert!(far.as_ref().is_some_and(|why| why.contains("beyond a day")), "{far:?}");
    // An hour ahead the published forecast still answers, at 0.95 as computed above; 24 hours ahead
    // the past does, which is too short.
    near(best.highest_gpus(OF, 0.9, 15 * 60_000), 35.5885);
    assert_eq!(best.highest_gpus(OF, 0.9, 18 * 3_600_000), None);
    assert!(matches!(&seen.forecast_origins["research"]["train"], ForecastOrigin::Past { .. }));
}

#[test]
fn older_issues_and_words_change_nothing() {
    let mut new = Published::new(SeriesNames::default());
    published(&mut new);
    let team = || SeriesName::Team("serving".into());
    let before = format!("{new:?}");
    new.record_step(team(), ISSUED - HOUR, ISSUED, HOUR, row(90));
    new.record_step(team(), ISSUED, ISSUED + 9 * HOUR, 0, row(90));
    new.record_step(team(), ISSUED, ISSUED + 9 * HOUR, HOUR, Vec::new());
    new.record_calibration(team(), Reach::Day, standing(Drift::TooLow, ISSUED - 1));
    assert_eq!(format!("{new:?}"), before);
}

/// A day of past demand of 15 every minute.
fn with_past(source: ForecastSource, at_us: i64) -> SelectedForecast {
    with_past_of(selected(source, 0.85), at_us, 24, |_| 15.0)
}

/// So many hours of past demand, by minute.
fn with_past_of(
    mut chosen: SelectedForecast,
    at_us: i64,
    hours: i64,
    demand: impl Fn(i64) -> f64,
) -> SelectedForecast {
    published(chosen.published());
    for minute in 0..hours * 60 {
        chosen.past().observe(OF, at_us - (hours * 60 - minute) * 60 * S, demand(minute));
    }
    chosen.observe(&state(at_us, 15));
    chosen
}

#[test]
fn how_many_bounds_must_have_held_is_up_to_the_policy() {
    let at = ISSUED + 600 * S;
    // After 18 hours demand rises as it never did: some bounds are too low.
    let rising = |minute: i64| if minute < 18 * 60 { 10.0 } else { 15.0 };
    let by = |least_coverage: f64| {
        let chosen = with_past_of(selected(ForecastSource::Best, least_coverage), at, 24, rising);
        let mut seen = state(at, 15);
        chosen.annotate(&mut seen);
        (chosen.coverage(OF).unwrap(), seen.forecast_origins["serving"]["serve"].clone())
    };
    let (held, origin) = by(0.85);
    assert!(
        (0.85..0.97).contains(&held) && matches!(origin, ForecastOrigin::Past { .. }),
        "{held} {origin:?}"
    );
    let (held, origin) = by(0.97);
    assert!(matches!(origin, ForecastOrigin::Published { .. }), "{held} {origin:?}");
    assert!((held - 0.94).abs() < 1e-9, "what was published on its bounds, not {held}");
}

#[test]
fn beyond_what_the_past_reaches_a_published_forecast_answers() {
    let at = ISSUED + 600 * S;
    // A gap every four hours: no span of five hours is known whole.
    let with_gaps = |minute: i64| if minute % 240 < 10 { f64::NAN } else { 15.0 };
    let short = with_past_of(selected(ForecastSource::Best, 0.85), at, 24, with_gaps);
    assert_eq!(short.coverage(OF), Some(1.0), "the past comes first");
    near(short.highest_gpus(OF, 0.9, 15 * 60_000), 15.0);
    let far_ms = 300 * 60_000;
    assert_eq!(short.clone().past().highest_gpus(OF, 0.9, far_ms), None);
    let published = chosen(ForecastSource::Log, at, 15).highest_gpus(OF, 0.9, far_ms);
    assert!(published.is_some() && short.highest_gpus(OF, 0.9, far_ms) == published, "{published:?}");
}

#[test]
fn the_past_comes_first_while_its_bounds_hold() {
    let at = ISSUED + 600 * S;
    let best = with_past(ForecastSource::Best, at);
    // It never rose in a day, and all bounds from it held.
    near(best.highest_gpus(OF, 0.9, 15 * 60_000), 15.0);
    assert_eq!((best.coverage(OF), best.as_of_us(OF)), (Some(1.0), Some(at)));
    let mut seen = state(at, 15);
    best.annotate(&mut seen);
    let by = &seen.forecast_origins["serving"]["serve"];
    assert!(matches!(by, ForecastOrigin::Past { held_ppm: Some(1_000_000), .. }), "{by:?}");
}

#[test]
fn while_published_bounds_drift_the_past_answers() {
    let at = ISSUED + 600 * S;
    let say = |chosen: &mut SelectedForecast, reach: Reach, drift: Drift, at_us: i64| {
        chosen.published().record_calibration(
            SeriesName::Team("serving".into()),
            reach,
            standing(drift, at_us),
        );
    };
    let by = |chosen: &SelectedForecast| {
        let mut seen = state(at, 15);
        chosen.annotate(&mut seen);
        seen.forecast_origins["serving"]["serve"].clone()
    };
    for (reach, drift) in [(Reach::Day, Drift::TooLow), (Reach::Step, Drift::TooNarrow)] {
        // The past is too short for a record.
        let mut best = chosen(ForecastSource::Best, at, 15);
        near(best.highest_gpus(OF, 0.9, 15 * 60_000), 35.5885);
        say(&mut best, reach, drift, at);
        assert_eq!((best.highest_gpus(OF, 0.9, 15 * 60_000), best.coverage(OF)), (None, None));
        let ForecastOrigin::Past { why, held_ppm: None } = by(&best) else { panic!() };
        assert!(why.contains("TEAM serving do not hold within a day"), "{why}");
        // They hold again.
        say(&mut best, reach, Drift::None, at);
        assert!(matches!(by(&best), ForecastOrigin::Published { off, far: None, .. } if off.is_empty()));
        // A policy with published forecasts only keeps them despite the drift.
        let mut log = with_past(ForecastSource::Log, at);
        say(&mut log, reach, drift, at);
        near(log.highest_gpus(OF, 0.9, 15 * 60_000), 35.5885);
        assert!(matches!(by(&log), ForecastOrigin::Published { off, far: None, .. } if off.len() == 1));
    }
    // Bounds that are too wide are safe.
    let mut wide = chosen(ForecastSource::Best, at, 15);
    say(&mut wide, Reach::Day, Drift::TooWide, at);
    assert!(matches!(by(&wide), ForecastOrigin::Published { off, far: None, .. } if off.is_empty()));
}
