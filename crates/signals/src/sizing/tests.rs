//! Advice checked by hand: 20 GPUs in the first half of each day, 4 in the second, in nodes of 8.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_insight::sizing::Sample;

use super::*;

/// Monday, 2026-01-05.
const MONDAY_US: i64 = 20_458 * DAY_US;
const EUR: &str = "EUR";

fn change(pool: &str, more_gpus: i64, at_us: i64) -> DemandChange {
    DemandChange { series: (SeriesKind::Pool.into(), pool.into()), more_milli: more_gpus * 1_000, at_us }
}

fn price(pool: Option<&str>, contract: &str, price: f64, entered_ms: i64) -> v1::CapacityEvent {
    v1::CapacityEvent {
        kind: v1::CapacityEventKind::PriceSet.into(),
        owner: "total".into(),
        pool: pool.map(str::to_owned),
        contract: Some(contract.into()),
        price_micros_per_gpu_hour: Some((price * 1e6) as u64),
        currency: Some(EUR.into()),
        entered_ms: Some(entered_ms),
        ..v1::CapacityEvent::default()
    }
}

fn model_price(contract: &str, of: v1::CapacityEvent) -> v1::CapacityEvent {
    v1::CapacityEvent { gpu_model: Some("h".into()), contract: Some(contract.into()), ..of }
}

/// Nodes of 8 GPUs in pool `p`, on demand at 5, reserved at 1.
fn priced() -> Sizing {
    let mut sizing = Sizing::new("c", i64::MIN);
    sizing.observe_node(&v1::NodeEvent {
        kind: v1::NodeEventKind::NodeRegistered.into(),
        node: "n".into(),
        pool: Some("p".into()),
        gpus_milli: Some(8_000),
        gpu_model: Some("h".into()),
        ..v1::NodeEvent::default()
    });
    sizing.observe_capacity(price(None, "on_demand", 5.0, 1), 0);
    sizing.observe_capacity(price(Some("p"), "reserved", 1.0, 2), 0);
    sizing
}

/// Runs those days up to the midnight of the last one.
fn run(sizing: &mut Sizing, days: std::ops::Range<i64>) -> Vec<v1::SizingAdvice> {
    for day in days.clone() {
        let midnight_us = MONDAY_US + day * DAY_US;
        if day == 0 {
            sizing.observe_demand(change("p", 4, midnight_us));
        }
        sizing.observe_demand(change("p", 16, midnight_us));
        sizing.observe_demand(change("p", -16, midnight_us + DAY_US / 2));
    }
    sizing.advance(MONDAY_US + days.end * DAY_US);
    output(sizing)
}

fn output(sizing: &mut Sizing) -> Vec<v1::SizingAdvice> {
    let events = sizing.take().into_iter().flat_map(|publication| publication.events);
    let advice = events.map(|event| match event {
        Event::Sizing(advice) => advice,
        other => panic!("{other:?}"),
    });
    advice.collect()
}

fn day_of(advice: &v1::SizingAdvice) -> i64 {
    (advice.envelope.as_ref().unwrap().event_time_ms * 1_000 - MONDAY_US) / DAY_US
}

fn of_term<'a>(output: &'a [v1::SizingAdvice], day: i64, term: &str) -> &'a v1::SizingAdvice {
    output.iter().find(|advice| day_of(advice) == day && advice.term == term).unwrap()
}

#[test]
fn nodes_costs_and_regrets_of_a_known_demand() {
    let output = run(&mut priced(), 0..21);
    let week = of_term(&output, 21, "WEEK");
    // Demand is at most 20 GPUs in four of five hours. Two nodes cost 16 x 24 + 5 x 12 x 4 = 624 a
    // day, three cost 24 x 24 = 576.
    let advised = (week.advised_gpus, week.advised_nodes, week.node_gpus, week.quantile_gpus_milli);
    assert_eq!(advised, (Some(24), Some(3), Some(8), Some(20_000)));
    assert_eq!(
        (week.hours, week.known_hours, week.mean_gpus_milli, week.peak_gpus_milli),
        (168, 504, 12_000, 20_000)
    );
    assert_eq!((week.break_even_ppm, week.utilisation_ppm), (Some(200_000), Some(500_000)));
    assert_eq!(week.marginal_utilisation_ppm, Some(500_000));
    let days = |micros: Option<u64>| micros.unwrap() as f64 / 7e6;
    let costs = [
        week.cost_advised_micros,
        week.cost_nothing_micros,
        week.cost_mean_micros,
        week.cost_peak_micros,
        week.cost_best_micros,
    ];
    // Nothing: 5 x (12 x 20 + 12 x 4). The mean, 12, is two nodes.
    assert_eq!(costs.map(days), [576.0, 1_440.0, 624.0, 576.0, 576.0]);
    // Three equal weeks have no trend, and each path is such a week.
    assert_eq!((week.paths, week.expected_micros.map(|it| it / 7)), (200, Some(576_000_000)));
    assert_eq!(
        (week.expected_low_micros, week.expected_high_micros),
        (week.expected_micros, week.expected_micros)
    );
    assert_eq!((week.gpus_low, week.gpus_high), (Some(24), Some(24)));
    assert_eq!(week.expected_nothing_micros.map(|it| it / 7), Some(1_440_000_000));
    // Decisions of days 7 to 14. Unrounded, the best commitment is 20: 480 a day.
    assert_eq!((week.lessons, week.lessons_best_micros), (8, Some(8 * 7 * 480_000_000)));
    let regret = |rule: &str| {
        let at = week.regret_rule.iter().position(|name| name == rule).unwrap();
        week.regret_ppm[at]
    };
    // Nothing: 1440 / 480. The last hour, 4: 96 + 5 x 12 x 16 = 1056. The mean, 12: 288 + 5 x 12 x
    // 8 = 768.
    assert_eq!(
        ["NOTHING", "LAST", "MEAN_672H", "PEAK_672H", "QUANTILE_168H"].map(regret),
        [2_000_000, 1_200_000, 600_000, 0, 0]
    );
    assert_eq!((week.method.as_deref(), week.rule.as_deref()), (Some("BLEND"), Some("QUANTILE_168H")));
    assert_eq!(
        (week.rule_gpus_milli, week.blend_gpus_milli, week.reason.as_ref()),
        (Some(20_000), Some(20_000), None)
    );
    // No month-long decision has ended yet. Its 730 hours never need more than 24 GPUs.
    let month = of_term(&output, 21, "MONTH");
    assert_eq!(
        (month.method.as_deref(), month.lessons, month.blend_gpus_milli),
        (Some("LAST_WEEK"), 0, None)
    );
    assert_eq!(
        (month.hours, month.advised_gpus, month.expected_micros),
        (504, Some(24), Some(24 * 730_000_000))
    );
    let year = of_term(&output, 21, "YEAR");
    assert_eq!((year.method.as_deref(), year.advised_gpus), (Some("PATHS"), Some(24)));
    assert_eq!((year.paths, year.expected_micros), (40, Some(24 * 8_766_000_000)));
    assert_eq!(
        (year.mix_reserved_gpus, year.mix_owned_gpus, year.mix_spot_gpus_milli),
        (Some(24), None, None)
    );
}

#[test]
fn a_new_series_has_advice_daily_for_a_week_then_on_mondays() {
    let output = run(&mut priced(), 0..30);
    let days: std::collections::BTreeSet<i64> = output.iter().map(day_of).collect();
    assert_eq!(days.into_iter().collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6, 7, 14, 21, 28]);
    assert_eq!(output.len(), 30);
    // One day shows part of a week; it does not allow a year's advice.
    let week = of_term(&output, 1, "WEEK");
    assert_eq!((week.hours, week.advised_gpus, week.paths), (24, Some(24), 0));
    assert_eq!((week.expected_micros, week.expected_low_micros), (Some(7 * 576_000_000), None));
    let year = of_term(&output, 1, "YEAR");
    assert_eq!((year.reason.as_deref(), year.advised_gpus), (Some("TOO_LITTLE_HISTORY"), None));
    assert_eq!((year.mean_gpus_milli, year.reserved_micros_per_gpu_hour), (12_000, Some(1_000_000)));
    // Two weeks show no trend: the interval is as wide as the prior on growth.
    let year = of_term(&output, 14, "YEAR");
    assert!(year.expected_low_micros.unwrap() * 10 < year.expected_high_micros.unwrap() * 9, "{year:?}");
}

#[test]
fn what_is_not_known_has_a_reason_and_no_number() {
    let cases: [(&str, &[v1::CapacityEvent]); 5] = [
        ("NO_RESERVED_PRICE", &[]),
        ("NO_RESERVED_PRICE", &[price(None, "on_demand", 5.0, 1)]),
        ("NO_ON_DEMAND_PRICE", &[price(None, "reserved", 5.0, 1)]),
        (
            "CURRENCIES_DIFFER",
            &[
                price(None, "on_demand", 5.0, 1),
                v1::CapacityEvent { currency: Some("USD".into()), ..price(Some("p"), "reserved", 1.0, 2) },
            ],
        ),
        (
            "LENDING_TOO_DEAR",
            &[
                price(None, "on_demand", 5.0, 1),
                v1::CapacityEvent {
                    lend_micros_per_gpu_hour: Some(1_000_000),
                    ..price(Some("p"), "owned", 1.0, 2)
                },
            ],
        ),
    ];
    for (reason, prices) in cases {
        let mut sizing = Sizing::new("c", i64::MIN);
        prices.iter().for_each(|price| sizing.observe_capacity(price.clone(), 0));
        let output = run(&mut sizing, 0..7);
        let week = of_term(&output, 7, "WEEK");
        assert_eq!(week.reason.as_deref(), Some(reason));
        assert_eq!((week.advised_gpus, week.expected_micros, week.cost_nothing_micros), (None, None, None));
        assert_eq!((week.mean_gpus_milli, week.peak_gpus_milli), (12_000, 20_000));
    }
    // More GPUs than there are, and fewer than none, as after a repeated end.
    let mut sizing = priced();
    sizing.observe_demand(change("p", 0, MONDAY_US));
    sizing.observe_demand(change("q", -5, MONDAY_US));
    sizing.observe_demand(change("p", i64::MAX / 1_000, MONDAY_US));
    sizing.advance(MONDAY_US + DAY_US);
    let output = output(&mut sizing);
    let of = |pool: &str| output.iter().filter(|advice| advice.name == pool).collect::<Vec<_>>();
    assert!(of("p").iter().all(|advice| advice.reason.as_deref() == Some("DEMAND_TOO_LARGE")), "{output:?}");
    assert!(of("q").iter().all(|advice| advice.mean_gpus_milli == 0), "{output:?}");
}

#[test]
fn prices_that_change_are_answered_at_the_next_midnight_and_late_ones_at_once() {
    let mut sizing = priced();
    run(&mut sizing, 0..21);
    // From Wednesday noon a reserved GPU costs 3: it must be busy three hours in five, and only 4
    // GPUs ever are.
    sizing.observe_capacity(price(Some("p"), "reserved", 3.0, 3), MONDAY_US + 23 * DAY_US + DAY_US / 2);
    let said_then = run(&mut sizing, 21..29);
    let days: std::collections::BTreeSet<i64> = said_then.iter().map(day_of).collect();
    assert_eq!(days.into_iter().collect::<Vec<_>>(), [24, 28]);
    let week = of_term(&said_then, 24, "WEEK");
    assert_eq!((week.break_even_ppm, week.quantile_gpus_milli), (Some(600_000), Some(4_000)));
    // A node costs 8 x 24 x 3 = 576 a day and saves 5 x (12 x 8 + 12 x 4) = 720.
    assert_eq!((week.advised_gpus, week.prices_entered_ms), (Some(8), Some(3)));
    // Decisions are scored at these prices: 4 GPUs reserved and 16 on demand for half a day, 288 +
    // 960.
    assert_eq!(week.lessons_best_micros, Some(11 * 7 * 1_248_000_000));
    // Entered on Tuesday (day 29) for the Sunday before: published at once, for the last midnight.
    sizing.observe_capacity(price(Some("p"), "reserved", 6.0, 4), MONDAY_US + 27 * DAY_US);
    sizing.advance(MONDAY_US + 29 * DAY_US + HOUR_US);
    let again = output(&mut sizing);
    assert_eq!(again.iter().map(day_of).collect::<Vec<_>>(), [29, 29, 29]);
    assert_eq!(
        (again[0].advised_gpus, again[0].prices_entered_ms, again[0].break_even_ppm),
        (Some(0), Some(4), Some(1_000_000))
    );
    assert_eq!(
        (again[0].utilisation_ppm, again[0].cost_advised_micros),
        (None, again[0].cost_nothing_micros)
    );
    // An entry for an earlier time that another entry has replaced changes nothing.
    sizing.observe_capacity(price(Some("p"), "reserved", 9.0, 5), MONDAY_US);
    sizing.advance(MONDAY_US + 29 * DAY_US + 2 * HOUR_US);
    assert_eq!(output(&mut sizing), []);
}

#[test]
fn the_mix_of_all_that_can_be_bought() {
    let mut sizing = priced();
    let spot = v1::CapacityEvent {
        interruptions_ppm_per_gpu_hour: Some(100_000),
        lost_ms_per_interruption: Some(3_600_000),
        spot_share_ppm: Some(500_000),
        ..price(None, "", 2.0, 3)
    };
    sizing.observe_capacity(model_price("spot", spot), 0);
    let output = run(&mut sizing, 0..21);
    let year = of_term(&output, 21, "YEAR");
    // A kept hour on spot costs 2 / (1 - 0.1). Half of the demand above the commitment goes there:
    // 1.1111 + 2.5 = 3.6111. The third node is needed for 4 GPUs in half of the hours, 2 in the
    // mean: 7.22 instead of 8. So two nodes are reserved. A year has 365 days and 6 hours.
    assert_eq!((year.mix_reserved_gpus, year.mix_hours), (Some(16), Some(8_766)));
    let above = 4.0 * (365.0 * 12.0 + 6.0) / 8_766.0;
    let rounded = |value: f64| Some(value.round() as u64);
    assert_eq!(year.mix_spot_gpus_milli, rounded(above * 500.0));
    assert_eq!(year.mix_on_demand_gpus_milli, rounded(above * 500.0));
    assert_eq!(year.mix_micros_per_hour, rounded(16e6 + above * (2e6 / 0.9 * 0.5 + 2.5e6)));
    assert_eq!(year.spot_micros_per_gpu_hour, Some(2_000_000));
    // Owned for three years at a lower price, so three years are simulated. It replaces the
    // reserved nodes, and the third node pays too: 0.9 x 8 is less than 7.22.
    let owned = v1::CapacityEvent { depreciation_months: Some(36), ..price(Some("p"), "", 0.9, 4) };
    sizing.observe_capacity(model_price("owned", owned), 0);
    sizing.advance(MONDAY_US + 21 * DAY_US + HOUR_US);
    let again = self::output(&mut sizing);
    let year = of_term(&again, 21, "YEAR");
    assert_eq!(
        (year.mix_owned_gpus, year.mix_reserved_gpus, year.mix_hours),
        (Some(24), Some(0), Some(26_298))
    );
    assert_eq!(year.mix_micros_per_hour, Some(21_600_000));
}

#[test]
fn the_interval_of_a_year_holds_the_year_that_comes() {
    const CASES: u64 = 30;
    let prices = Prices::new(2.0, 4.0, 0.0).unwrap();
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let (mut costs, mut sizes) = (0, 0);
    for case in 0..CASES {
        let (growth, mut level) = (random.random_range(-0.25..0.35_f64), 0.0);
        let hours: Vec<f64> = (0..(40 + 53) * WEEK_HOURS)
            .map(|hour| {
                if hour % WEEK_HOURS == 0 {
                    level = 0.7 * level + random.random_range(-0.08..0.08);
                }
                let day = 1.0 + 0.4 * (hour as f64 * std::f64::consts::TAU / 24.0).sin();
                let noise = 1.0 + random.random_range(-0.1..0.1);
                200.0 * day * noise * (level + growth * hour as f64 / YEAR_HOURS as f64).exp()
            })
            .collect();
        let (known, to_come) = hours.split_at(40 * WEEK_HOURS);
        let truth = &to_come[..YEAR_HOURS];
        let mut advice = v1::SizingAdvice { term_hours: YEAR_HOURS as u32, ..v1::SizingAdvice::default() };
        advice::describe(&mut advice, known);
        let basis = Basis { hours: known, prices: &prices, node_gpus: 8, seed: case };
        let reason = advice::by_paths(&mut advice, basis, &PricesInForce::default()).unwrap();
        assert_eq!(reason, None);
        let cost = prices.total(advice.advised_gpus.unwrap() as f64, truth);
        let range = advice.expected_low_micros.unwrap() as f64..=advice.expected_high_micros.unwrap() as f64;
        costs += u32::from(range.contains(&cost));
        let best = u64::from(Sample::new(truth.to_vec()).unwrap().cheapest(&prices, 8, None));
        sizes += u32::from((advice.gpus_low.unwrap()..=advice.gpus_high.unwrap()).contains(&best));
    }
    // Intervals of 80 %: 24 of 30, give or take two standard deviations of 2.2. Of 200 such years
    // they held 144 costs and 158 sizes.
    assert!((20..=28).contains(&costs) && (20..=28).contains(&sizes), "{costs} and {sizes} of {CASES}");
}

#[test]
fn a_long_silence_ends_the_advice_and_the_hours() {
    let mut sizing = priced();
    run(&mut sizing, 0..10);
    sizing.advance(MONDAY_US + 2_000 * DAY_US);
    let days: Vec<i64> = output(&mut sizing).iter().map(day_of).collect();
    // The last change is at 9.5 days. The midnight of day 69 is less than 60 days later; the Monday
    // before it is day 63.
    assert_eq!(days.last(), Some(&63));
    sizing.observe_demand(change("p", 1, MONDAY_US + 2_000 * DAY_US));
    sizing.advance(MONDAY_US + 2_001 * DAY_US);
    let week = output(&mut sizing).swap_remove(0);
    assert_eq!((week.known_hours, week.mean_gpus_milli), (24, 5_000));
    // Decisions before a time are not published, but their hours count: the output equals that of
    // an earlier run.
    let mut later = Sizing { publish_from_us: MONDAY_US + 20 * DAY_US, ..priced() };
    let output = run(&mut later, 0..21);
    assert_eq!((output.len(), output[0].known_hours), (3, 504));
    assert_eq!(output[..], run(&mut priced(), 0..21)[24..]);
}
