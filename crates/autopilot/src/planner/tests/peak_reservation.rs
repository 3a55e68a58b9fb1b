//! Scheduler reservations ahead of a peak.

use super::*;
use crate::action::{Adjustment, Change};
use crate::fixture::{S, cluster};
use crate::forecast::{DemandForecast, Series};
use crate::state::{Reservation, Writer};

/// Demand is 40 now and may rise to `high` from 75 minutes on; half of the time it rises to 44.
struct Peak {
    high: f64,
}

impl DemandForecast for Peak {
    fn highest_gpus(&self, _: Series<'_>, level: f64, within_ms: i64) -> Option<f64> {
        let rises = within_ms >= 4_500_000;
        Some(if !rises {
            40.0
        } else if level > 0.9 {
            self.high
        } else {
            self.high.min(44.0)
        })
    }

    fn typical_gpus(&self, _: Series<'_>, _: f64, _: i64) -> Option<f64> {
        None
    }

    fn coverage(&self, _: Series<'_>) -> Option<f64> {
        Some(0.95)
    }

    fn as_of_us(&self, _: Series<'_>) -> Option<i64> {
        Some(NOW)
    }
}

/// GPUs before and after, begin and end of the single change, s from now, and its benefit and cost.
type Made = (u32, u32, i64, i64, i64, i64);

fn made(policy: &str, state: &ClusterState, high: f64) -> (Vec<Made>, Report) {
    let policy = Policy::parse(policy).unwrap();
    let (plan, report) = plan(&policy, state, &Peak { high }, None, NOW, 7);
    let of = |decision: &Decision| match &decision.action.change {
        Change::AdjustReservation(Adjustment::Reservation {
            from_gpus, to_gpus, start_us, end_us, ..
        }) => {
            assert!(decision.action.preconditions.iter().all(|fact| fact.check(state).is_ok()));
            assert_eq!(decision.action.effect_ends_us, Some(*end_us));
            let s = |us: i64| (us - NOW) / S;
            let worth = decision.predicted;
            Some((*from_gpus, *to_gpus, s(*start_us), s(*end_us), worth.benefit_gpu_ms, worth.cost_gpu_ms))
        }
        _ => None,
    };
    (plan.decisions.iter().filter_map(of).collect(), report)
}

const AHEAD: &str = "[reservation]\nahead = { serving = 64 }";

fn reserved(gpus: u32, start_s: i64) -> ClusterState {
    let mut state = cluster();
    let there = Reservation {
        owner: "serving".into(),
        pool: "serve".into(),
        gpus,
        nodes: [].into(),
        start_us: NOW + start_s * S,
        end_us: Some(NOW + 8_100 * S),
        writer: Writer::Autopilot { generation: 3 },
    };
    state.reservations.insert("ahead-serving-serve".into(), there);
    state
}

#[test]
fn nodes_are_reserved_from_before_the_rise_until_after_it() {
    // Two hours are sampled in steps of the 15-minute reclaim time; the fifth, until 75 minutes, is
    // the first with a rise. The level leaves 1.96 / 41.96 = 0.0467. Of 24 GPUs, 20 predicted and 4
    // of them needed half of the time, 0.5 x 4 + 16 x (0.5 + 0.0467) / 2 + 4 x 0.0467 / 2 = 6.467
    // are needed, for two hours; a missing GPU counts 20 times an idle one.
    let (all, _) = made(AHEAD, &cluster(), 60.0);
    assert_eq!(all.iter().map(|m| (m.0, m.1, m.2, m.3)).collect::<Vec<_>>(), [(0, 24, 3_600, 10_800)]);
    assert!((all[0].4 - 931_264_160).abs() < 3_200 && (all[0].5 - 126_236_800).abs() < 3_200, "{all:?}");
    // No more than the policy allows, nothing without owners, without a rise, or with an unknown
    // pool.
    let (all, _) = made("[reservation]\nahead = { serving = 20 }", &cluster(), 60.0);
    assert_eq!((all[0].0, all[0].1), (0, 16));
    assert_eq!(made("", &cluster(), 60.0).0, []);
    let (all, report) = made(AHEAD, &cluster(), 40.0);
    assert_eq!(all, []);
    assert!(
        noops(&report, Kind::AdjustReservation).iter().any(|why| why.ends_with("0 are already reserved"))
    );
}

#[test]
fn it_follows_the_forecast_until_it_begins_and_is_nobody_elses() {
    let sizes = |state: &ClusterState, high: f64| {
        let (all, _) = made(AHEAD, state, high);
        all.iter().map(|m| (m.0, m.1, m.2, m.3)).collect::<Vec<_>>()
    };
    let before = reserved(24, 3_600);
    assert_eq!(sizes(&before, 60.0), []);
    // 28 GPUs between the median and the bound: 0.89 of the eight more are needed.
    assert_eq!(sizes(&before, 72.0), [(24, 32, 3_600, 10_800)]);
    assert_eq!(sizes(&before, 48.0), [(24, 8, 3_600, 8_100)]);
    assert_eq!(sizes(&before, 40.0), [(24, 0, 3_600, 8_100)]);
    assert_eq!(sizes(&reserved(16, 3_600), 48.0), [], "a node too many ends by itself");
    // Once begun it grows but never shrinks.
    let begun = reserved(24, -60);
    assert_eq!(sizes(&begun, 48.0), []);
    assert_eq!(sizes(&begun, 72.0), [(24, 32, -60, 10_800)]);
    let mut theirs = before.clone();
    theirs.reservations.get_mut("ahead-serving-serve").unwrap().writer = Writer::Other;
    assert_eq!(sizes(&theirs, 72.0), []);
    // Nodes of two sizes cannot be counted by GPUs.
    let mut mixed = cluster();
    mixed.nodes.get_mut("s03").unwrap().gpus = 4;
    assert_eq!(sizes(&mixed, 60.0), []);
}
