//! Runs on a real Slurm the queue that `tests/sim/backfill.rs` of `tidegate-sim` simulates. Both
//! must let the same jobs overtake the head.

use tidegate_testing::slurm::{Cluster, wait_for};

/// Submits a job of one node: GPUs, time limit in minutes, seconds that it takes.
fn submit(cluster: &Cluster, gpus: u32, limit_minutes: u32, takes_s: u32) -> String {
    let (gres, limit) = (format!("--gres=gpu:h200:{gpus}"), format!("--time={limit_minutes}"));
    cluster.submit(&["--nodes=1", &gres, &limit], &format!("sleep {takes_s}"))
}

fn node_of(cluster: &Cluster, job: &str) -> String {
    cluster.run("squeue", &["--noheader", "--format=%N", "--jobs", job]).trim().to_owned()
}

#[test]
fn a_head_of_whole_nodes_is_not_starved_by_scattered_gpus() {
    let Some(cluster) = Cluster::start(&["--nodes=3+1"]) else { return };
    let runs = |job: &str| cluster.state(job) == "R";
    // Five of eight GPUs are taken on each node, on the first for five minutes at most.
    let running = [(5, 40), (60, 600), (60, 600)].map(|(limit, takes)| {
        let job = submit(&cluster, 5, limit, takes);
        wait_for("the job to start", 30, || runs(&job));
        job
    });
    let first = node_of(&cluster, &running[0]);
    let head = submit(&cluster, 8, 60, 600);
    let long = [(); 3].map(|()| submit(&cluster, 3, 60, 600));
    let short = submit(&cluster, 3, 1, 20);
    wait_for("two long jobs and the short one to pass", 30, || {
        runs(&long[0]) && runs(&long[1]) && node_of(&cluster, &short) == first
    });
    wait_for("the head to start", 90, || {
        assert!(!runs(&long[2]), "three GPUs of {first} are free, and promised to the head");
        runs(&head)
    });
    assert_eq!(node_of(&cluster, &head), first);
    assert!([&long[0], &long[1]].iter().all(|job| node_of(&cluster, job) != first));
}
