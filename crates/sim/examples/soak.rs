//! Random days against what must never happen: `cargo run --release -p tidegate-sim --example soak -- FROM TO [lender]`.
//!
//! Seeds `FROM..TO`, with the product's planner and guard, or with the plain lender.

use std::collections::BTreeMap;

use tidegate_autopilot::{action::Kind, policy::Policy};
use tidegate_sim::{
    DAY_US,
    pilot::{Autopilot, Lender},
    soak::{Limits, Soaked, soak},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = [args.first(), args.get(1)].map(|a| a.ok_or("usage: FROM TO [lender]"));
    let seeds = from?.parse::<u64>()?..to?.parse()?;
    let soaked = if args.get(2).is_some_and(|who| who == "lender") {
        soak(
            seeds,
            &|_, life, _| Lender::new(life),
            &Limits { budgets: BTreeMap::from([(Kind::Lend, (6, 144))]) },
        )?
    } else {
        let policy = Policy::auto();
        let of = |kind: Kind| (kind, (policy.budget(kind).per_hour, policy.budget(kind).per_day));
        let limits = Limits { budgets: Kind::ALL.into_iter().map(of).collect() };
        soak(seeds, &|setting, life, before| Autopilot::for_trial(&policy, setting, life, before), &limits)?
    };
    report(&soaked);
    Ok(())
}

fn report(soaked: &Soaked) {
    let days = soaked.simulated_us / DAY_US;
    println!(
        "{} seeds, {days} days, {} effects, {} loans ended, {} actuators fenced",
        soaked.seeds, soaked.deeds, soaked.loans, soaked.fenced
    );
    println!("faults: {:?}", soaked.faults);
    println!("violations: {}", soaked.violations.len());
    soaked.violations.iter().for_each(|v| println!("  {v:?}"));
}
