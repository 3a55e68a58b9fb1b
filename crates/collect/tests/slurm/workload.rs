//! Jobs of many shapes, and what happens to them.

use tidegate_testing::slurm::{Cluster, wait_for};

/// Submits about this many jobs, in the same shapes and shares for every number.
pub fn submit(cluster: &Cluster, jobs: usize) {
    let share = |part: usize| (jobs * part / 200).max(1);
    for n in 0..share(45) {
        let gres = ["--gres=gpu:1", "--gres=gpu:2", "--gres=gpu:h200:4", "--gres=gpu:8"][n % 4];
        let nodes = ["--nodes=1", "--nodes=1", "--nodes=2"][n % 3];
        // The name says what the job holds, and which cases it is not.
        let gpus = [1, 2, 4, 8][n % 4] * [1, 1, 2][n % 3];
        let name = format!("--job-name=pl|ain JobState=FAILED Name=x gpus={gpus}");
        cluster.submit(&[&name, gres, nodes], &format!("sleep {}", 1 + n % 4));
    }
    for _ in 0..share(6) {
        cluster.submit(&["--array=1-10%4", "--gres=gpu:1"], "sleep 1");
    }
    for n in 0..share(15) {
        let gres = ["--gres=gpu:2", "--gres=gpu:h200:1"][n % 2];
        cluster.submit(&["--nodes=2", gres], "srun --nodes=2 sleep 1; srun --nodes=1 --ntasks=1 false; true");
    }
    for _ in 0..share(15) {
        cluster.submit(&["--gres=gpu:3"], "sleep 1; exit 3");
    }
    for _ in 0..share(12) {
        cluster.submit(&["--partition=infer", "--gres=gpu:a100:1"], "sleep 2");
    }
    for _ in 0..share(12) {
        cluster.submit(&[], "sleep 1");
    }
    for _ in 0..share(4) {
        let job = cluster.submit(&["--hold", "--gres=gpu:4"], "sleep 1");
        cluster.run("scancel", &[&job]);
        let array = cluster.submit(&["--hold", "--array=0-2", "--gres=gpu:1"], "sleep 1");
        cluster.run("scancel", &[&array]);
    }
    for _ in 0..share(3) {
        // Two components, each a job of its own.
        let both = ["--gres=gpu:1", ":", "--gres=gpu:2"];
        let script = "--wrap=sleep 2";
        cluster
            .run("sbatch", &[&["--parsable", "--output=/dev/null", "--chdir=/", script], &both[..]].concat());
    }
    for _ in 0..share(4) {
        cluster.submit(&["--gres=gpu:1", "--signal=B:USR1@1", "--time=1"], "sleep 600");
    }
}

/// slurmctld goes away for seconds and comes back, while jobs start and end.
pub fn restart(cluster: &Cluster) {
    cluster.process("stop", "slurmctld");
    std::thread::sleep(std::time::Duration::from_secs(3));
    cluster.process("start", "slurmctld");
    wait_for("slurmctld is back", 60, || cluster.try_run("squeue", &["--noheader"]).is_ok());
}

/// Jobs that are changed while they run. Each waits for what it needs first.
pub fn disturb(cluster: &Cluster, accounting: bool, rounds: usize) {
    for _ in 0..rounds {
        requeue(cluster);
        shrink(cluster, accounting);
        suspend(cluster);
        cancel(cluster);
        if accounting {
            preempt(cluster);
        }
    }
    lose_a_node(cluster);
}

/// Runs long enough to be requeued on a slow machine, and for a while afterwards.
const TO_BE_REQUEUED: &str = r#"[ "$SLURM_RESTART_COUNT" ] && sleep 4 || sleep 900"#;

/// The requeued job may run again at once.
fn again_now(cluster: &Cluster, job: &str) {
    cluster.wait_state(job, &["PD"]);
    cluster.run("scontrol", &["update", &format!("JobId={job}"), "StartTime=now"]);
}

fn requeue(cluster: &Cluster) {
    let job = cluster.submit(&["--requeue", "--gres=gpu:2", "--nice=-100"], TO_BE_REQUEUED);
    cluster.wait_state(&job, &["R"]);
    // Without accounting an attempt is known only if a poll saw it.
    std::thread::sleep(std::time::Duration::from_millis(2100));
    cluster.run("scontrol", &["requeue", &job]);
    again_now(cluster, &job);
}

fn shrink(cluster: &Cluster, accounting: bool) {
    let job = cluster.submit(&["--nodes=3", "--gres=gpu:1", "--nice=-100"], "sleep 15");
    cluster.wait_state(&job, &["R"]);
    let list = cluster.run("squeue", &["--noheader", "--format=%N", "--jobs", &job]);
    let nodes = cluster.run("scontrol", &["show", "hostnames", &list]);
    let nodes: Vec<&str> = nodes.lines().collect();
    // Without accounting Slurm shrinks a job once only.
    for left in [2, 1].into_iter().take(if accounting { 2 } else { 1 }) {
        let update = format!("NodeList={}", nodes[..left].join(","));
        let update = ["update".to_owned(), format!("JobId={job}"), update];
        let update: Vec<&str> = update.iter().map(String::as_str).collect();
        // Each part lasts for more than a second, or it would be no attempt of its own.
        std::thread::sleep(std::time::Duration::from_millis(2100));
        wait_for("shrinking", 60, || {
            cluster.try_run("scontrol", &update).is_ok() || cluster.state(&job) != "R"
        });
    }
}

fn suspend(cluster: &Cluster) {
    let job = cluster.submit(&["--gres=gpu:2", "--nice=-100"], "sleep 15");
    cluster.wait_state(&job, &["R"]);
    cluster.run("scontrol", &["suspend", &job]);
    cluster.wait_state(&job, &["S"]);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    cluster.run("scontrol", &["resume", &job]);
}

fn cancel(cluster: &Cluster) {
    let job = cluster.submit(&["--gres=gpu:2", "--nice=-100"], "sleep 60");
    cluster.wait_state(&job, &["R"]);
    cluster.run("scancel", &[&job]);
}

fn preempt(cluster: &Cluster) {
    let victim = cluster.submit(&["--qos=loan", "--nodes=4", "--gres=gpu:8", "--nice=-100"], TO_BE_REQUEUED);
    cluster.wait_state(&victim, &["R"]);
    // Ahead of every waiting job: behind one that needs the victim's nodes too, it would wait.
    cluster.submit(&["--qos=urgent", "--gres=gpu:8", "--nice=-200"], "sleep 1");
    again_now(cluster, &victim);
}

fn lose_a_node(cluster: &Cluster) {
    let fails = cluster.submit(&["--nodelist=n4", "--no-requeue", "--gres=gpu:1", "--nice=-100"], "sleep 60");
    let comes_back =
        cluster.submit(&["--nodelist=n4", "--requeue", "--gres=gpu:2", "--nice=-100"], TO_BE_REQUEUED);
    cluster.wait_state(&fails, &["R"]);
    cluster.wait_state(&comes_back, &["R"]);
    std::thread::sleep(std::time::Duration::from_millis(2100));
    cluster.run("scontrol", &["update", "NodeName=n4", "State=DOWN", "Reason=row remap failure = 1"]);
    cluster.wait_state(&comes_back, &["PD"]);
    // A job that starts where its processes still are drains the node. The node may have come back
    // by itself.
    std::thread::sleep(std::time::Duration::from_secs(6));
    cluster.try_run("scontrol", &["update", "NodeName=n4", "State=RESUME"]).ok();
    again_now(cluster, &comes_back);
}

/// Waits until no job runs or waits. A node that was away together with slurmctld may take long to
/// release a job.
pub fn drain(cluster: &Cluster, seconds: u64) {
    let mut left = String::new();
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait_for("the queue is empty", seconds, || {
            let open = ["--noheader", "--states=PENDING,RUNNING,SUSPENDED,CONFIGURING", "--long"];
            left = cluster.try_run("squeue", &open).unwrap_or_else(|error| error);
            if left.contains("requeued held") {
                // On a slow machine it may still be held; nothing else will release it.
                cluster.try_run("scancel", &["--state=PENDING", "--me"]).ok();
            }
            left.is_empty()
        });
    }));
    assert!(waited.is_ok(), "still in the queue:\n{left}\n{}", cluster.run("sinfo", &["-N", "-l"]));
}
