//! Advice is reported and never carried out.

use super::*;
use crate::fixture::{S, cluster, elastic, gang};
use crate::state::{Job, JobState};

fn advice(policy: &str, state: &ClusterState) -> Vec<(Advised, String, u32, u32)> {
    let policy = Policy::parse(policy).unwrap();
    let (plan, report) = plan(&policy, state, &FixedForecast::highest(128.0), None, NOW, 7);
    assert!(plan.decisions.is_empty(), "{:?}", plan.decisions);
    report.advice.into_iter().map(|a| (a.what, a.object.to_string(), a.now, a.better)).collect()
}

/// A gang with a curve on which each node beyond the first adds `share_ppm` of what it would do
/// alone.
fn curved(nodes: &[&str], share_ppm: u64) -> Job {
    Job { curve: elastic(&[], share_ppm).curve, ..gang(nodes) }
}

#[test]
fn a_gang_whose_last_gpus_do_little_could_ask_for_fewer() {
    let mut state = cluster();
    // Four nodes do 8 x 1.15, one 8 (87 %), two 8 x 1.05 (91 %).
    state.jobs.insert("a".into(), curved(&["t0", "t1", "t2", "t3"], 50_000));
    assert_eq!(advice("", &state), [(Advised::RightSize, "job a".into(), 32, 16)]);
    assert_eq!(advice("[advice]\nkeeps_share = 0.85", &state)[0].3, 8);
    assert_eq!(advice("[advice]\nkeeps_share = 0.95", &state)[0].3, 24);
    assert_eq!(advice("[advice]\nmost = 0", &state), []);
    // One without a curve, one that scales, one that waits.
    state.jobs.insert("a".into(), gang(&["t0", "t1"]));
    state.jobs.insert("b".into(), curved(&["t2"], 50_000));
    state.jobs.insert("c".into(), curved(&["t3", "s00"], 900_000));
    state.jobs.get_mut("c").unwrap().pool = "none".into();
    let mut waits = curved(&[], 50_000);
    (waits.gpus, waits.state) = (8, JobState::Changing { since_us: NOW - S });
    state.jobs.insert("d".into(), waits);
    assert_eq!(advice("", &state), []);
}

#[test]
fn a_gang_on_more_racks_than_it_takes_could_be_closer_together() {
    let mut state = cluster();
    // Racks have four nodes: four nodes fit in one, five in two.
    let four = |nodes: [&str; 4]| Job { pool: "serve".into(), ..gang(&nodes) };
    state.jobs.insert("a".into(), four(["s00", "s04", "s08", "s01"]));
    state.jobs.insert("b".into(), Job { pool: "serve".into(), ..gang(&["s02", "s05"]) });
    let expected =
        [(Advised::Placement, "job a".to_owned(), 3, 1), (Advised::Placement, "job b".to_owned(), 2, 1)];
    assert_eq!(advice("", &state), expected);
    assert_eq!(advice("[advice]\nmost = 1", &state), expected[..1]);
    state.jobs.insert("b".into(), Job { pool: "serve".into(), ..gang(&["s02", "s05", "s06", "s07", "s03"]) });
    state.jobs.remove("a");
    assert_eq!(advice("", &state), []);
    // Unknown racks give no advice.
    state.nodes.get_mut("s09").unwrap().rack = None;
    state.jobs.insert("b".into(), Job { pool: "serve".into(), ..gang(&["s02", "s09"]) });
    assert_eq!(advice("", &state), []);
}
