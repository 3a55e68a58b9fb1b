//! The same seed gives the same bytes in another process, with other addresses and hash seeds.

use std::process::Command;

use tidegate_autopilot::policy::Policy;
use tidegate_sim::{
    DAY_US, Recording, Sim,
    backtest::play,
    generate::{Arrivals, Load},
    observe::Observer,
    scenario::Scenario,
    schedulers::Lyra,
    soak::{Limits, soak},
};

/// Prints all output of a run: events, an outcome, a soak of the product.
#[test]
#[ignore = "run by the other test, twice"]
fn tells_all_it_does() {
    let arrivals = Arrivals { span_us: DAY_US, load_gpus: 90, max_gpus: 32, ..Arrivals::default() };
    let load = Load { span_us: DAY_US, peak_gpus: 30, ..Load::default() };
    let s = Scenario::synthetic(10, 5, &arrivals, &load, 9);
    println!("<<{:?}>>", play(&s, Lyra::default().into(), 9).unwrap());
    let mut sim = Sim::new(s.spec, s.jobs, s.services).unwrap();
    sim.set_recording(Recording::On);
    sim.run_until(DAY_US);
    let mut events = Observer::new("sim", 1).follow(&mut sim);
    events.iter_mut().for_each(|event| event.seal());
    let bytes: Vec<u8> = events.iter().flat_map(|event| event.encode_to_vec()).collect();
    println!("<<{bytes:?}>>");
    let policy = Policy::auto();
    println!("<<{:?}>>", soak(3..5, &policy, &Limits::default()).unwrap());
}

#[test]
fn two_processes_tell_the_same() {
    let run = || {
        let test = ["processes::tells_all_it_does", "--exact", "--ignored", "--nocapture"];
        let out = Command::new(std::env::current_exe().unwrap()).args(test).output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines().filter(|line| line.starts_with("<<")).collect::<Vec<_>>().join("\n")
    };
    let (one, other) = (run(), run());
    assert!(one.len() > 10_000, "{one}");
    assert!(one == other, "two processes gave different results");
}
