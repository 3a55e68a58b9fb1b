//! Properties on random clusters, and what a dry run of a large one costs.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::*;
use crate::fixture::{elastic, gang, node, pending};

/// A cluster of `nodes` training nodes, three in four of them held, with `waiting` jobs in line.
fn large(nodes: u32, waiting: u32) -> ClusterState {
    let mut state = cluster();
    for at in 0..nodes {
        let name = format!("n{at:05}");
        state.nodes.insert(name.clone(), node("train", &format!("r{}", at / 16)));
        if at % 4 > 0 {
            state.jobs.insert(format!("job-{at}"), elastic(&[&name], 900_000));
        }
    }
    for at in 0..waiting {
        let job = Job { priority: i64::from(at % 7), ..pending(8 * (1 + at % 4), i64::from(at)) };
        state.jobs.insert(format!("wait-{at}"), job);
    }
    state
}

#[test]
fn a_dry_run_looks_at_each_object_a_few_times() {
    let state = large(10_000, 2_000);
    let objects = (state.nodes.len() + state.jobs.len()) as u64;
    let batch: Vec<Action> = (0..16)
        .map(|at| match at % 4 {
            0 => grow(&format!("a{at}"), &state, &format!("job-{}", 4 * at + 1), 16),
            1 => preempt(&format!("a{at}"), &state, &format!("job-{}", 4 * at + 1)),
            2 => drain(&format!("a{at}"), &format!("n{:05}", 4 * at)),
            _ => lend(&format!("a{at}"), &[&format!("s{at:02}")]),
        })
        .collect();
    let candidates: Vec<Candidate<'_>> = batch.iter().map(plain).collect();
    let outcome = run(&state, &candidates);
    assert_eq!(outcome.expected.len(), 16, "{:?}", outcome.refused);
    // Nodes once, jobs twice (what they hold, whether they wait), and what changes.
    assert!(outcome.visited < 4 * objects, "{} visits of {objects} objects", outcome.visited);
    assert!(outcome.visited > objects, "the count counts");
    // A refusal tries the action on the observed cluster, which is copied once more.
    let cut =
        Adjustment::Quota { owner: "serving".into(), pool: "serve".into(), from_gpus: 128, to_gpus: 50 };
    let cut = action("q", Change::AdjustReservation(cut));
    let with_refusal: Vec<Candidate<'_>> = candidates.iter().copied().chain([plain(&cut)]).collect();
    let outcome = run(&state, &with_refusal);
    assert_eq!(outcome.refused.len(), 1);
    assert!(outcome.visited < 6 * objects, "{} visits of {objects} objects", outcome.visited);
}

/// Random batches leave a copy on which no node is over its GPUs, no pool's sums are off, and no
/// job is elsewhere that nobody named and that did not wait.
#[test]
fn no_batch_overfills_a_node_or_disturbs_a_job_that_nobody_names() {
    let mut tried = 0;
    for seed in 0..200 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut state = large(24, 12);
        state.jobs.retain(|_, _| rng.random_bool(0.8));
        let running: Vec<String> =
            state.jobs.iter().filter(|(_, job)| job.held_gpus() > 0).map(|(id, _)| id.clone()).collect();
        let batch: Vec<Action> = (0..8)
            .map(|at| {
                let (id, job) = (format!("a{at}"), &running[rng.random_range(0..running.len())]);
                match rng.random_range(0..4) {
                    0 => grow(&id, &state, job, 8 * rng.random_range(2..5)),
                    1 => preempt(&id, &state, job),
                    2 => drain(&id, &format!("n{:05}", rng.random_range(0..24))),
                    _ => lend(&id, &[&format!("s{:02}", rng.random_range(0..16))]),
                }
            })
            .collect();
        let policy = policy();
        let mut dry = DryRun::new(&policy, &state, &[], NOW);
        let admitted: Vec<&Action> = batch.iter().filter(|it| dry.admit(plain(it)).is_ok()).collect();
        tried += admitted.len();
        rules::settle(&mut dry.copy);
        queue::start_waiting(&mut dry.copy, &BTreeSet::new());
        let mut held: BTreeMap<&str, u32> = BTreeMap::new();
        for (id, job) in &state.jobs {
            let placed = dry.copy.placement(id);
            placed.iter().for_each(|(node, gpus)| *held.entry(node).or_default() += gpus);
            let was: BTreeMap<&str, u32> =
                job.placement.iter().map(|(node, gpus)| (node.as_str(), *gpus)).collect();
            let is_named = admitted.iter().any(|action| action.change.job() == Some(id));
            assert!(placed == was || is_named || was.is_empty(), "seed {seed}: job {id} moved");
        }
        let mut free = 0;
        for (name, node) in &state.nodes {
            let held = held.get(name.as_str()).copied().unwrap_or(0);
            assert!(held <= node.gpus, "seed {seed}: node {name} has {held} of {}", node.gpus);
            let is_drained = admitted
                .iter()
                .any(|action| matches!(&action.change, Change::DrainNode { node, .. } if node == name));
            free += if node.pool == "train" && !is_drained { node.gpus - held } else { 0 };
        }
        assert_eq!(dry.copy.free_gpus("train"), free, "seed {seed}");
    }
    assert!(tried > 800, "{tried} actions went on");
}

#[test]
fn gangs_on_one_node_keep_their_node() {
    let mut state = cluster();
    state.jobs.insert("a".into(), gang(&["t0"]));
    let outcome = run(&state, &[plain(&drain("d", "t0"))]);
    assert!(goes_on(&outcome, "d").jobs.is_empty(), "a drain stops nobody");
    assert_eq!(goes_on(&outcome, "d").free_gpus, [("train".into(), 24)].into());
}
