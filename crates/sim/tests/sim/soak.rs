//! A short soak of the product; and a product that breaks its limits is caught.

use std::collections::BTreeMap;

use tidegate_autopilot::{action::Kind, policy::Policy};
use tidegate_sim::{
    DAY_US,
    soak::{Invariant, Limits, soak},
};

#[test]
fn the_product_keeps_what_it_promised_whatever_goes_wrong() {
    let policy = Policy::auto();
    let soaked = soak(100..112, &policy, &Limits::from_policy(&policy)).unwrap();
    println!("{soaked:?}");
    assert_eq!(soaked.violations, []);
    assert!(
        soaked.simulated_us >= 12 * 3 * DAY_US && soaked.loans > 20 && soaked.effects > 100,
        "{soaked:?}"
    );
    assert!(soaked.fenced > 0 && soaked.plans > 1_000, "{soaked:?}");
    assert_eq!(soaked.faults.len(), 21, "every kind was met");
    assert!(soaked.shadow_plans > 300 && soaked.rolled_back > 0, "{soaked:?}");
}

#[test]
fn the_same_seeds_give_the_same_soak() {
    let policy = Policy::auto();
    let run = || soak(3..5, &policy, &Limits::from_policy(&policy)).unwrap();
    assert_eq!(run(), run());
}

#[test]
fn one_that_does_more_than_was_promised_is_caught() {
    let promised = Limits { budgets: BTreeMap::from([(Kind::Lend, (1, 1))]) };
    let soaked = soak(100..104, &Policy::auto(), &promised).unwrap();
    let kinds: Vec<Invariant> = soaked.violations.iter().map(|v| v.invariant).collect();
    assert!(!kinds.is_empty() && kinds.iter().all(|kind| *kind == Invariant::Budget), "{kinds:?}");
}
