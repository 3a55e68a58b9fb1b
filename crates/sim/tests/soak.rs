//! A short soak with a plain lender, and that a broken one is caught.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use tidegate_autopilot::{action::Kind, policy::Policy};
use tidegate_sim::{
    DAY_US,
    backtest::Setting,
    pilot::{Autopilot, Lender},
    soak::{Invariant, Limits, soak},
};

fn limits() -> Limits {
    // Each life of an actuator counts its own hour; a takeover may double it.
    Limits { budgets: BTreeMap::from([(Kind::Lend, (12, 200))]) }
}

#[test]
fn a_plain_lender_keeps_what_must_hold_whatever_goes_wrong() {
    let soaked = soak(0..25, &|_, life, _| Lender::new(life), &limits()).unwrap();
    println!("{soaked:?}");
    assert_eq!(soaked.violations, []);
    assert!(soaked.simulated_us >= 25 * 3 * DAY_US && soaked.loans > 100 && soaked.fenced > 0, "{soaked:?}");
    assert_eq!(soaked.faults.len(), 19, "every kind was met");
    assert_eq!(
        soak(3..5, &|_, life, _| Lender::new(life), &limits()).unwrap(),
        soak(3..5, &|_, life, _| Lender::new(life), &limits()).unwrap()
    );
}

#[test]
fn the_product_keeps_what_it_promised_whatever_goes_wrong() {
    let policy = Policy::auto();
    let of = |kind: Kind| (kind, (policy.budget(kind).per_hour, policy.budget(kind).per_day));
    let limits = Limits { budgets: Kind::ALL.into_iter().map(of).collect() };
    let make = |setting: &Setting, life: u64, before: Option<&Autopilot>| {
        Autopilot::for_trial(&policy, setting, life, before)
    };
    let soaked = soak(100..112, &make, &limits).unwrap();
    assert_eq!(soaked.violations, []);
    assert!(soaked.loans > 20 && soaked.deeds > 100, "{soaked:?}");
}

#[test]
fn a_lender_without_respect_for_floors_and_budgets_is_caught() {
    let broken = |_: &Setting, life, _: Option<&Lender>| {
        let mut lender = Lender::new(life);
        (lender.ignores_floors, lender.buffer_gpus) = (true, 0);
        lender
    };
    let tight = Limits { budgets: BTreeMap::from([(Kind::Lend, (2, 3))]) };
    let soaked = soak(0..10, &broken, &tight).unwrap();
    let kinds: Vec<Invariant> = soaked.violations.iter().map(|v| v.invariant).collect();
    assert!(kinds.contains(&Invariant::Floor) && kinds.contains(&Invariant::Budget), "{kinds:?}");
}
