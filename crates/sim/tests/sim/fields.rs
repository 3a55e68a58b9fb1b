//! Nothing reaches a plan in the simulator that cannot reach it on Slurm, field by field.

use std::collections::BTreeSet;

use serde_json::Value;
use tidegate_autopilot::target::Target;
use tidegate_sim::{
    DAY_US, HOUR_US, MINUTE_US, Reports, Sim,
    generate::{Arrivals, Load},
    scenario::Scenario,
    target::{ControlFaults, SimTarget},
};

/// What Slurm's target and the log can state, written by a test of the crate that reads Slurm.
const ON_SLURM: &str = include_str!("../../../control/tests/fixtures/slurm_fields.txt");
/// Maps whose keys are names of objects.
const NAMED: [&str; 6] = ["nodes", "jobs", "owners", "pools", "reservations", "shares"];

/// Collects `jobs.*.checkpoint.save_ms` and the like of everything that is not null.
fn collect(value: &Value, path: &[&str], into: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let last = path.last().copied().unwrap_or_default();
            for (name, value) in fields {
                let is_named = last == "placement" || (NAMED.contains(&last) && path.len() != 2);
                let name = if is_named { "*" } else { name.as_str() };
                collect(value, &[path, &[name]].concat(), into);
            }
        }
        Value::Null => {}
        _ => {
            into.insert(path.join("."));
        }
    }
}

/// Runs a site for three days, with elastic jobs, slow and failing nodes and a drained one, and
/// collects every field that was known at some time.
fn known(reports: Reports) -> BTreeSet<String> {
    let arrivals = Arrivals { span_us: 3 * DAY_US, load_gpus: 70, max_gpus: 32, ..Arrivals::default() };
    let load = Load { span_us: 3 * DAY_US, peak_gpus: 30, ..Load::default() };
    let setting = Scenario::synthetic(12, 5, &arrivals, &load, 3);
    let sim = Sim::new(setting.spec, setting.jobs, setting.services).unwrap();
    let mut target = SimTarget::new(sim, ControlFaults::default(), 3).with_reports(reports);
    for node in 0..6 {
        target.plan_speed(DAY_US + i64::from(node) * HOUR_US, node, 700_000);
        target.plan_failure(2 * DAY_US + i64::from(node) * HOUR_US, node, HOUR_US);
    }
    target.drain_by_hand(11, true);
    target.reserve_by_hand("theirs", 0, 16, HOUR_US, DAY_US);
    let mut fields = BTreeSet::new();
    for look in 1..=3 * 24 * 6 {
        target.run_until(look * 10 * MINUTE_US);
        let state = serde_json::to_value(target.observe().unwrap()).unwrap();
        for part in NAMED.into_iter().filter(|part| !state[*part].is_null()) {
            collect(&state[part], &[part], &mut fields);
        }
    }
    fields
}

#[test]
fn a_plan_in_the_simulator_knows_nothing_that_slurm_and_the_log_do_not_tell() {
    let on_slurm: BTreeSet<String> = ON_SLURM.lines().map(str::to_owned).collect();
    let all = known(Reports::All);
    let beyond: Vec<&String> = all.difference(&on_slurm).collect();
    assert!(beyond.is_empty(), "only the simulator knows {beyond:?}");
    assert!(all.contains("reservations.*.start_us") && all.contains("reservations.*.writer"));
    let silent = known(Reports::None);
    let durations = known(Reports::Durations);
    let only = |fields: &BTreeSet<String>, less: &BTreeSet<String>| {
        fields.difference(less).cloned().collect::<Vec<_>>()
    };
    // What each kind of report adds, and nothing else.
    assert_eq!(only(&all, &durations), ["jobs.*.checkpoint.last_us", "jobs.*.checkpoint.save_ms"]);
    let of_steps = ["jobs.*.checkpoint.resize_ms", "jobs.*.checkpoint.restart_ms", "jobs.*.curve"];
    let added = only(&durations, &silent);
    assert!(added.contains(&"nodes.*.health.slowdown_ppm".to_owned()), "{added:?}");
    assert!(of_steps.iter().skip(1).all(|field| added.contains(&(*field).to_owned())), "{added:?}");
    assert!(silent.contains("jobs.*.expected_end_us") && silent.contains("nodes.*.rack"));
}
