//! Random days against what must never happen: `cargo run --release -p tidegate-sim --example soak
//! -- FROM TO`.
//!
//! Seeds `FROM..TO`, with the product's planner, guard and executor by the policy `auto`.

use tidegate_autopilot::policy::Policy;
use tidegate_sim::{
    DAY_US,
    soak::{Limits, SoakReport, soak},
};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = [args.first(), args.get(1)].map(|a| a.ok_or("usage: FROM TO"));
    let policy = Policy::auto();
    report(&soak(from?.parse::<u64>()?..to?.parse()?, &policy, &Limits::from_policy(&policy))?);
    Ok(())
}

fn report(soaked: &SoakReport) {
    let days = soaked.simulated_us / DAY_US;
    println!(
        "{} seeds, {days} days, {} effects, {} loans ended, {} actuators fenced, {} plans made again",
        soaked.seeds, soaked.deeds, soaked.loans, soaked.fenced, soaked.plans
    );
    println!("faults: {:?}", soaked.faults);
    println!("violations: {}", soaked.violations.len());
    soaked.violations.iter().for_each(|v| println!("  {v:?}"));
}
