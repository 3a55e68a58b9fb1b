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
    let realised =
        Realised { verified, benefit_gpu_ms: Some(benefit * HOUR), cost_gpu_ms: Some(cost * HOUR) };
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
    let unknown = Realised { verified: true, benefit_gpu_ms: None, cost_gpu_ms: Some(0) };
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
