use super::*;
use crate::policy::Policy;

const HOUR: i64 = 3_600_000;

fn predicted() -> Predicted {
    Predicted {
        benefit_gpu_ms: 10 * HOUR,
        benefit_low_gpu_ms: 7 * HOUR,
        cost_gpu_ms: 2 * HOUR,
        cost_high_gpu_ms: 3 * HOUR,
        ..Predicted::default()
    }
}

pub(super) fn scored(benefit: i64, cost: i64, verified: bool) -> Score {
    let realised = Realised { verified, ..Realised::verified(Some(benefit * HOUR), Some(cost * HOUR)) };
    score("a", Kind::Lend, 0, &predicted(), &realised)
}

#[test]
fn a_score_compares_with_the_prediction_and_with_doing_nothing() {
    // Predicted 10 - 2 = 8, at worst 7 - 3 = 4, so at best 12.
    let fine = scored(8, 3, true);
    assert_eq!((fine.predicted_gpu_ms, fine.realised_gpu_ms), (8 * HOUR, Some(5 * HOUR)));
    assert_eq!((fine.benefit_ratio_ppm, fine.within), (Some(800_000), Some(true)));
    assert_eq!(scored(5, 2, true).within, Some(false));
    assert_eq!(scored(14, 2, true).within, Some(true));
    assert_eq!(scored(15, 2, true).within, Some(false));
    let worse = summary(Kind::Lend, &[fine, scored(1, 4, true)], 10);
    assert_eq!((worse.worse_than_noop, worse.net_gpu_ms), (1, 2 * HOUR));
    let unknown = Realised::verified(None, Some(0));
    let unknown = score("a", Kind::Lend, 0, &predicted(), &unknown);
    assert_eq!((unknown.realised_gpu_ms, unknown.benefit_ratio_ppm, unknown.within), (None, None, None));
}

#[test]
fn a_good_record_earns_the_next_mode_and_a_bad_one_loses_it() {
    let rules = Policy::shipped().record;
    let trusted =
        |scores: &[Score], mode| trust(mode, &summary(Kind::Lend, scores, rules.window), &rules).mode;
    let good = vec![scored(9, 2, true); 50];
    assert_eq!(trusted(&good, Mode::Suggest), Mode::Approve);
    assert_eq!(trusted(&good[..49], Mode::Suggest), Mode::Suggest, "too few");
    assert_eq!(trusted(&good, Mode::Stop), Mode::Stop);
    // One in 25 without effect prevents promotion but does not demote.
    let mut some = good.clone();
    some[0].verified = false;
    some[1].verified = false;
    assert_eq!(trusted(&some, Mode::Approve), Mode::Approve);
    let bad = vec![scored(2, 0, true); 10];
    assert_eq!(trusted(&bad, Mode::Act), Mode::Approve);
    assert_eq!(trusted(&bad[..9], Mode::Act), Mode::Act, "too few to say");
    let costly = vec![scored(9, 10, true); 10];
    assert_eq!(trusted(&costly, Mode::Act), Mode::Approve, "doing nothing was better");
    // Only the newest count: 200 good ones displace the bad ones.
    let mut mended = vec![scored(0, 9, false); 100];
    mended.extend(vec![scored(9, 2, true); 200]);
    assert_eq!(trusted(&mended, Mode::Approve), Mode::Act);
    assert_eq!(trusted(&[], Mode::Act), Mode::Act);
}

/// A drain of which ten GPU-hours less two were predicted, and whose net is between two bounds.
fn between(low: i64, high: i64) -> Score {
    let interval = Some(Interval { low_gpu_ms: low * HOUR, high_gpu_ms: high * HOUR });
    let realised = Realised { interval, ..Realised::verified(None, Some(HOUR)) };
    score("d", Kind::DrainNode, 0, &predicted(), &realised)
}

#[test]
fn losses_that_nobody_knows_cost_no_mode_and_hide_no_benefit() {
    let rules = Policy::shipped().record;
    // Nine of ten came true; stopped jobs lost between nothing and fifty.
    let lent = |lost: Interval| {
        let cost = lost.as_point();
        let net =
            Interval { low_gpu_ms: 9 * HOUR - lost.high_gpu_ms, high_gpu_ms: 9 * HOUR - lost.low_gpu_ms };
        let interval = cost.is_none().then_some(net);
        let realised = Realised { interval, ..Realised::verified(Some(9 * HOUR), cost) };
        score("a", Kind::Lend, 0, &predicted(), &realised)
    };
    let unknown = lent(Interval { low_gpu_ms: 0, high_gpu_ms: 50 * HOUR });
    let known = lent(Interval::point(50 * HOUR));
    let mode = |of: &Score| {
        let summary = summary(Kind::Lend, &vec![of.clone(); 40], rules.window);
        (trust(Mode::Act, &summary, &rules).mode, summary.undecided, summary.calibration_ppm)
    };
    assert_eq!(mode(&unknown), (Mode::Act, 40, Some(900_000)));
    assert_eq!(mode(&known), (Mode::Approve, 0, Some(900_000)));
    // At least twelve were lost, which is a loss whatever else was.
    let much = lent(Interval { low_gpu_ms: 12 * HOUR, high_gpu_ms: 50 * HOUR });
    assert_eq!(mode(&much), (Mode::Approve, 0, Some(900_000)));
    let corrected = |of: Score| correction_ppm(Kind::Lend, &vec![of; 40], 200, 0);
    assert_eq!(corrected(unknown), corrected(known));
}

#[test]
fn an_interval_counts_by_its_end_nearest_to_the_prediction_or_not_at_all() {
    // Predicted 8, at worst 4, at best 12.
    let known = |low, high| between(low, high).known_net_gpu_ms().map(|net| net / HOUR);
    assert_eq!([known(-3, 8), known(8, 20), known(-3, 20)], [None; 3]);
    assert_eq!([known(-3, -1), known(-3, 7), known(9, 20)], [Some(-1), Some(7), Some(9)]);
    let within = |low, high| between(low, high).within;
    assert_eq!(
        [within(5, 11), within(-3, 3), within(13, 20), within(0, 20)],
        [Some(true), Some(false), Some(false), None]
    );
    // An estimate corrects no prediction.
    let point = Realised {
        interval: Some(Interval { low_gpu_ms: 0, high_gpu_ms: 4 * HOUR }),
        is_estimate: true,
        ..Realised::verified(Some(3 * HOUR), Some(HOUR))
    };
    let point = score("d", Kind::DrainNode, 0, &predicted(), &point);
    assert_eq!((point.realised_gpu_ms, point.realised_benefit_gpu_ms), (Some(2 * HOUR), None));
    assert_eq!(correction_ppm(Kind::DrainNode, &[point], 10, 0), None);
}

#[test]
fn a_correction_forgets_by_half_a_day_after_day() {
    // Ten loans that came to nothing, of which the prior says ten GPU-hours each.
    let loan =
        |decided_us| score("l", Kind::Lend, decided_us, &predicted(), &Realised::verified(Some(0), Some(0)));
    let day_us = 24 * 3_600_000_000;
    let after = |days: i64| {
        let scores: Vec<Score> = (0..10).map(|_| loan(0)).collect();
        correction_ppm(Kind::Lend, &scores, 200, days * day_us).unwrap()
    };
    // (5 prior) / (10 · 2^-days + 5).
    assert_eq!([after(0), after(1), after(2), after(30)], [333_333, 500_000, 666_667, 1_000_000]);
    assert_eq!(correction_ppm(Kind::Lend, &[loan(day_us)], 200, 0), Some(833_333), "a clock that went back");
}

#[test]
fn only_what_is_certain_moves_a_kind() {
    let rules = Policy::shipped().record;
    let of = |scores: &[Score]| summary(Kind::DrainNode, scores, rules.window);
    let moved = |scores: &[Score]| trust(Mode::Approve, &of(scores), &rules).mode;
    // Bounds that include the prediction speak neither for it nor against it, however many.
    assert_eq!(moved(&vec![between(-9, 9); 200]), Mode::Approve);
    // Ten that cannot have gained lose the mode, also among undecided ones; nine do not.
    let mut bad = vec![between(-9, -1); 10];
    bad.extend(vec![between(-9, 9); 100]);
    assert_eq!(moved(&bad), Mode::Suggest);
    assert_eq!(moved(&bad[1..]), Mode::Approve);
    let summed = of(&bad[9..11]);
    assert_eq!((summed.decisions, summed.scored, summed.undecided), (2, 1, 1));
    assert_eq!(summed.net_bounds, Some(Interval { low_gpu_ms: -18 * HOUR, high_gpu_ms: 8 * HOUR }));
    // Fifty that certainly gained more than was predicted earn the next one.
    assert_eq!(moved(&vec![between(9, 12); 50]), Mode::Act);
    // What is not known at all stays as it is.
    let unknown = score("d", Kind::DrainNode, 0, &predicted(), &Realised::verified(None, None));
    assert_eq!(moved(&vec![unknown; 200]), Mode::Approve);
}

#[test]
fn scores_of_older_versions_are_read() {
    let old = r#"{"action":"lend-1","kind":"lend","decided_us":5,"verified":true,"predicted_gpu_ms":8,
        "realised_gpu_ms":6,"benefit_ratio_ppm":800000,"within":true}"#;
    let read: Score = serde_json::from_str(old).unwrap();
    assert_eq!((read.known_net_gpu_ms(), read.bounds_gpu_ms()), (Some(6), Some(Interval::point(6))));
    assert_eq!(read.without, None);
}

#[test]
fn a_few_known_results_take_no_mode() {
    let rules = Policy::shipped().record;
    let verdict = |scores: &[Score]| judge(&summary(Kind::Lend, scores, rules.window), &rules).0;
    let unknown = score("a", Kind::Lend, 0, &predicted(), &Realised::verified(None, None));
    let mut scores = vec![unknown; 30];
    // Nearly nothing came true of five, and all together they lost.
    scores.extend(vec![scored(1, 3, true); 5]);
    assert_eq!(verdict(&scores), Verdict::Stays);
    scores.extend(vec![scored(1, 3, true); 5]);
    assert_eq!(verdict(&scores), Verdict::Down);
    // The median of nine is 0.1, but may as well be 1: of 95 % intervals the upper end is the
    // eighth.
    let few = |bad: usize, good: usize| {
        let mut scores = vec![scored(1, 0, true); bad];
        scores.extend(vec![scored(10, 0, true); good]);
        summary(Kind::Lend, &scores, rules.window)
    };
    let median = |of: &Summary| (of.median_ratio_ppm, of.median_high_ppm);
    assert_eq!(median(&few(5, 4)), (Some(100_000), Some(1_000_000)));
    assert_eq!(median(&few(8, 1)), (Some(100_000), Some(100_000)));
    assert_eq!(median(&few(5, 0)), (Some(100_000), None));
}
