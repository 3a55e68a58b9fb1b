use super::*;
use crate::action::{Action, Change};
use crate::executor::{ExecutorState, JournalEntry, JournalEvent};
use crate::intent::{IntentEvent, Stage, Transition};
use crate::planner::{Decision, Predicted};
use crate::policy::{Footprint, Mode, Policy};

const VERIFIED: Series = Series { objective: Objective::Verified, kind: Some(Kind::Lend) };
const CYCLES: Series = Series { objective: Objective::Cycles, kind: None };
/// A whole number of minutes.
const NOW_US: i64 = 20_000 * DAY_US;

fn rules() -> SloRules {
    Policy::auto().slo
}

/// Counts of plans made and missed, by minutes before now.
fn slo_of(cycles: &[(i64, u64, u64)]) -> Slo {
    let mut slo = Slo::default();
    for (minutes, made, missed) in cycles {
        slo.tallies.cycles(Cycles { made: *made, missed: *missed }, NOW_US - minutes * MINUTE_US);
    }
    slo
}

fn burns(slo: &Slo) -> Vec<Burn> {
    slo.due(&rules(), NOW_US).iter().filter(|alert| alert.firing).map(|alert| alert.burn).collect()
}

#[test]
fn the_burn_rate_is_the_share_of_failures_over_that_allowed() {
    // 3 of 1,000 where 1 of 1,000 is allowed.
    assert_eq!(burn_rate_milli(Counts { good: 997, bad: 3 }, 999_000), Some(3_000));
    // 1 of 7 where 1 of 100 is: 14.2857.
    assert_eq!(burn_rate_milli(Counts { good: 6, bad: 1 }, 990_000), Some(14_285));
    assert_eq!(burn_rate_milli(Counts::default(), 999_000), None);
    // Two of 2,000 may fail: one uses half the budget, three overspend it by half.
    assert_eq!(budget_left_ppm(Counts { good: 1_999, bad: 1 }, 999_000), Some(500_000));
    assert_eq!(budget_left_ppm(Counts { good: 1_997, bad: 3 }, 999_000), Some(-500_000));
    assert_eq!(budget_left_ppm(Counts::default(), 999_000), None);
}

#[test]
fn an_alert_takes_both_windows_and_two_failures() {
    // An hour of plans, two missing in the last five minutes: 2 of 62 is 32 times a thousandth;
    // over six hours it is 5.6.
    let long = (5..360).map(|minute| (minute, 1, 0));
    let fast: Vec<_> = long.clone().filter(|(minute, ..)| *minute < 60).chain([(1, 3, 2)]).collect();
    assert_eq!(
        burns(&slo_of(&fast)),
        [Burn::Fast, Burn::Slow, Burn::Leak],
        "nothing was before: all windows hold the same"
    );
    let of_six_hours: Vec<_> = long.clone().chain([(1, 4, 2)]).collect();
    assert_eq!(burns(&slo_of(&of_six_hours)), [Burn::Fast, Burn::Leak], "2 of 361 in six hours is 5.5 times");
    // A single failure raises no alert.
    let one: Vec<_> = long.clone().chain([(1, 4, 1)]).collect();
    assert_eq!(burns(&slo_of(&one)), []);
    // Failures of half an hour ago are over: the short window is quiet.
    let over: Vec<_> = long.filter(|(minute, ..)| *minute < 60).chain([(32, 1, 2)]).collect();
    assert_eq!(burns(&slo_of(&over)), [Burn::Leak]);
    // The short window begins after the fifth minute before now.
    assert_eq!(
        slo_of(&[(5, 1, 2)]).tallies.counts(CYCLES, NOW_US - 5 * MINUTE_US, NOW_US),
        Counts::default()
    );
}

#[test]
fn an_alert_is_told_once_and_ends_with_the_long_window() {
    let mut slo = slo_of(&[(1, 10, 2)]);
    let due = slo.due(&rules(), NOW_US);
    let fast = &due[0];
    assert_eq!((fast.burn, fast.firing, fast.since_us), (Burn::Fast, true, NOW_US));
    // 2 of 12 over a thousandth.
    assert_eq!(fast.burn_rate_milli, 166_666);
    assert_eq!(
        fast.why,
        "2 of 12 plans not made in time in 1 h, 166.7 times what the objective 0.9990 allows"
    );
    due.into_iter().for_each(|alert| slo.fold(alert));
    assert!(slo.due(&rules(), NOW_US).is_empty() && slo.firing().count() == 3);
    // Ten quiet minutes are not enough; an hour is.
    slo.tallies.cycles(Cycles { made: 10, missed: 0 }, NOW_US + 10 * MINUTE_US);
    assert!(slo.due(&rules(), NOW_US + 10 * MINUTE_US).is_empty());
    slo.tallies.cycles(Cycles { made: 50, missed: 0 }, NOW_US + 60 * MINUTE_US);
    let over = slo.due(&rules(), NOW_US + 60 * MINUTE_US);
    assert_eq!(
        over.iter().map(|alert| (alert.burn, alert.firing)).collect::<Vec<_>>(),
        [(Burn::Fast, false)]
    );
    over.into_iter().for_each(|alert| slo.fold(alert));
    assert_eq!(slo.firing().map(|alert| alert.burn).collect::<Vec<_>>(), [Burn::Slow, Burn::Leak]);
    // Without an objective nothing is reported.
    let none = SloRules { cycles: 0.0, ..rules() };
    assert!(slo.due(&none, NOW_US).iter().all(|alert| !alert.firing) && slo.status(&none, NOW_US).is_empty());
}

#[test]
fn status_reports_attainment_and_remaining_budget() {
    let slo = slo_of(&[(29 * 24 * 60, 0, 9), (1_000, 1_980, 0), (2, 19, 1)]);
    let status = &slo.status(&rules(), NOW_US)[0];
    // Events older than 28 days do not count: 1 of 2,000 failed where 2 may.
    assert_eq!(status.counts, Counts { good: 1_999, bad: 1 });
    assert_eq!((status.attained_ppm, status.budget_left_ppm), (Some(999_500), Some(500_000)));
    // 1 of 20 in the last hour.
    assert_eq!((status.objective_ppm, status.burn_rate_milli), (999_000, Some(50_000)));
}

#[test]
fn plans_are_missing_where_more_than_half_an_interval_passed() {
    let missing = |seconds: i64| Cycles::missing(seconds * 1_000_000, 60_000);
    assert_eq!([0, 60, 89, 90, 149, 150, 600].map(missing), [0, 0, 0, 1, 1, 2, 9]);
}

fn reclaim() -> Decision {
    let (loan, nodes) = ("lend-1".to_owned(), ["s00".to_owned()].into());
    let change = Change::Reclaim { loan, from_gpus: 8, to_gpus: 0, nodes };
    let action = Action {
        id: "reclaim-1".into(),
        generation: 0,
        change,
        preconditions: Vec::new(),
        inverse: None,
        expires_us: NOW_US + HOUR_US,
        effect_ends_us: None,
        notice_ms: 0,
        after: Vec::new(),
    };
    Decision {
        action,
        kind: Kind::Reclaim,
        mode: Mode::Act,
        footprint: Footprint::default(),
        gpus: 8,
        predicted: Predicted::default(),
        reason: "demand".into(),
        canary: None,
        serves: None,
        is_owed: false,
    }
}

#[test]
fn promises_run_from_the_approval_until_the_gpus_are_free() {
    let reclaim = reclaim();
    let within_ms = 900_000;
    let series = Series { objective: Objective::Promises, kind: None };
    let event = |transition: Transition, seconds: i64| IntentEvent {
        action: reclaim.action.id.clone(),
        at_us: NOW_US + seconds * 1_000_000,
        generation: 1,
        transition,
    };
    let applying = Stage::Applying { since_us: NOW_US, applied_us: None };
    let outcome = |what: Transition, seconds: i64, expired: Option<i64>| {
        let mut tallies = Tallies::default();
        tallies.record(&event(Transition::approved_by_policy(), 0), &Stage::Proposed, &reclaim, within_ms);
        if let Some(expired) = expired {
            tallies.expire(NOW_US + expired * 1_000_000);
        }
        tallies.record(&event(what, seconds), &applying, &reclaim, within_ms);
        let counts = tallies.counts(series, NOW_US - DAY_US, NOW_US + DAY_US);
        (counts.good, counts.bad)
    };
    assert_eq!(outcome(Transition::Verified, 900, None), (1, 0));
    assert_eq!(outcome(Transition::Verified, 901, None), (0, 1));
    assert_eq!(outcome(Transition::Failed { why: "no".into(), applied: true }, 10, None), (0, 1));
    assert_eq!(outcome(Transition::Dropped { refusal: None }, 10, None), (0, 0), "the next decision counts");
    assert_eq!(outcome(Transition::Rejected { by: "anna".into(), why: None }, 10, None), (0, 0));
    // Still open when its time is up: broken at once, and not again when it is finally free.
    assert_eq!(outcome(Transition::Applying, 0, Some(900)), (0, 0));
    assert_eq!(outcome(Transition::Applying, 0, Some(901)), (0, 1));
    assert_eq!(outcome(Transition::Verified, 2_000, Some(901)), (0, 1));
}

#[test]
fn a_fast_burn_takes_a_kind_one_mode_down_until_it_is_over() {
    let policy = Policy::auto();
    let mut state = ExecutorState::default();
    let alert = |series: Series, burn: Burn, firing: bool| Alert {
        series,
        burn,
        firing,
        since_us: NOW_US,
        burn_rate_milli: 20_000,
        why: "2 of 10".into(),
    };
    let tell = |state: &mut ExecutorState, alert: Alert| {
        state.fold(JournalEntry {
            at_us: NOW_US,
            generation: 0,
            event: JournalEvent::Alert(Box::new(alert)),
        });
    };
    assert!(state.earned(&policy).is_empty());
    tell(&mut state, alert(VERIFIED, Burn::Slow, true));
    assert!(state.earned(&policy).is_empty(), "a slow one pages and takes nothing away");
    tell(&mut state, alert(VERIFIED, Burn::Fast, true));
    assert_eq!(state.earned(&policy), [(Kind::Lend, Mode::Approve)].into());
    let shipped = state.earned(&Policy::shipped());
    assert_eq!(shipped, [(Kind::Lend, Mode::Observe)].into(), "from what the policy says, one down");
    let stays = Policy { slo: SloRules { step_down: false, ..rules() }, ..policy.clone() };
    assert!(state.earned(&stays).is_empty());
    tell(&mut state, alert(VERIFIED, Burn::Fast, false));
    assert!(state.earned(&policy).is_empty());
    // A broken promise stops lending but never reclaiming; late plans stop nothing.
    tell(&mut state, alert(Series { objective: Objective::Promises, kind: None }, Burn::Fast, true));
    tell(&mut state, alert(CYCLES, Burn::Fast, true));
    assert_eq!(state.earned(&policy), [(Kind::Lend, Mode::Approve)].into());
}
