//! Reasons of waits: `pending`, `fragmentation`, `explain job` and `topology import` on one
//! synthetic day.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tidegate_events::Event;

use crate::case_data::{case, tables_of};
use crate::program::{query, run, succeed, tidegate};

fn explain(data: &Path, arguments: &[&str]) -> std::process::Command {
    let mut command = tidegate();
    command.args(["explain", "job"]).args(arguments).arg("--data").arg(data);
    command
}

#[test]
fn why_jobs_wait_is_told_in_tables_and_in_words() {
    let folder = tempfile::tempdir().unwrap();
    // The history of the case `pending`, which says how the expected rows were found.
    let mut events = case("pending", "test");
    // A job of the same name in another cluster.
    let same_name = |event: &Event| matches!(event, Event::Job(job) if job.job_id == "8");
    events.extend(case("pending", "other").into_iter().filter(same_name));
    let data = tables_of(folder.path(), events);

    let stretches = query(
        &data,
        "SELECT job_id, attempt, layer, constraint, date_part('hour', since) * 60 + date_part('minute', since) AS from_minute, \
         ms_between(since, coalesce(until, as_of)) / 60000 AS minutes, gpu_ms_waited / 60000 AS gpu_minutes \
         FROM pending WHERE cluster = 'test' ORDER BY job_id, since",
    );
    assert_eq!(stretches, EXPECTED, "{stretches}");
    // Nothing of a wait is lost or counted twice.
    let sums = query(
        &data,
        "SELECT (SELECT sum(gpu_ms_waited) FROM pending) = (SELECT sum(gpu_ms_queued) FROM attempts) AS same",
    );
    assert_eq!(sums, "same\ntrue\n");

    let explained = succeed(&mut explain(&data, &["2"]));
    for words in [
        "job 2 of cluster test, team vision, user ann, pool h100, 16 GPUs",
        "why          nodes_unavailable (layer 2, provisioning)",
        "since        2024-03-01 09:00:00 UTC",
        "it requests 16 GPUs, 8 on each of 2 nodes; the pool has 24, 8 of them on nodes where jobs may start; 3 are free",
        "starts when  nodes come back",
        "What helps most: it starts when nodes come back",
        "begin_time (layer 4, workload)",
        "16 GPUs on n2,n3, ended REQUEUED, followed by another run",
    ] {
        assert!(explained.contains(words), "{words:?} is missing in\n{explained}");
    }
    let json: Value = serde_json::from_str(&succeed(&mut explain(&data, &["1", "--json"]))).unwrap();
    assert_eq!(json["state"], "ended");
    assert_eq!(json["waits"][2]["constraint"], "fragmented");

    run(&mut explain(&data, &["8"])).refused(&["several clusters: other, test", "--cluster"]);
    run(&mut explain(&data, &["22"])).refused(&["there is no job 22", "named alike", "2 (cluster test)"]);
    run(&mut explain(&data, &["no-such-job-at-all"])).refused(&["there is no job", "SELECT cluster, job_id"]);

    fragmentation(&data);
    topology(folder.path(), &data);
}

/// At 03:00 jobs 2 (2 nodes of 8), 1 (1 node of 8) and 6 (1 node of 2) wait and could start, and n1
/// has 3 free, n2 7: for the three tasks of 8 all 10 are unusable, for the task of 2 none: 30 / 4
/// tasks = 7.5.
fn fragmentation(data: &Path) {
    let at = "TIMESTAMP '2024-03-01T03:00:00Z'";
    let shown = query(
        data,
        &format!(
            "SELECT free_gpus_milli, tasks, unusable_gpus_milli_tasks, unusable_gpus_milli FROM fragmentation \
             WHERE cluster = 'test' AND pool = 'h100' AND from_time <= {at} AND coalesce(to_time > {at}, true)"
        ),
    );
    assert_eq!(
        shown,
        "free_gpus_milli,tasks,unusable_gpus_milli_tasks,unusable_gpus_milli\n10000,4,30000,7500\n"
    );
}

/// n2 and n3, on which job 2 ran, are at two switches and in one rack.
fn topology(folder: &Path, data: &Path) {
    let file = folder.join("places.csv");
    fs::write(&file, "node,switch,rack\nn1,s1,r1\nn2,s1,r1\nn3,s2,r1\n").unwrap();
    let import = || {
        let mut command = tidegate();
        command.args(["topology", "import"]).arg(&file).args(["--cluster", "test", "--data"]).arg(data);
        command.args(["--since", "2024-03-02T00:00:00Z"]);
        command
    };
    let said = succeed(&mut import());
    assert!(
        said.contains("3 nodes at 2 switches and in 1 racks") && said.contains("events written 3"),
        "{said}"
    );
    assert!(succeed(&mut import()).contains("events written 0, already present 3"));
    let spread = query(
        data,
        "SELECT job_id, node_count, labeled_nodes, switches, racks, steps_known FROM gang_spread",
    );
    assert_eq!(spread, "job_id,node_count,labeled_nodes,switches,racks,steps_known\n2,2,2,2,1,0\n");
    fs::write(&file, "host\nn1\n").unwrap();
    run(&mut import()).refused(&["places.csv", "no column `node`"]);
}

/// Minutes since midnight. How each was found stands in the case's `case.toml`.
const EXPECTED: &str = "\
job_id,attempt,layer,constraint,from_minute,minutes,gpu_minutes
1,0,3,capacity_taken,60,60,480
1,0,3,not_gpus,120,30,240
1,0,3,fragmented,150,90,720
2,0,3,gang,120,30,480
2,0,3,capacity_taken,150,150,2400
2,0,3,gang,300,60,960
2,0,3,priority,360,30,480
2,,4,begin_time,480,10,160
2,,3,gang,490,50,800
2,,2,nodes_unavailable,540,60,960
3,,2,not_provisioned,60,60,3840
4,,,,60,30,60
5,,3,behind_others,60,1,2
5,,1,team_limit,61,59,118
6,0,1,quota,60,120,240
6,0,3,priority,180,30,60
8,,3,resources,60,10,20
9,,3,capacity_taken,60,60,600
9,,3,resources,120,10,100
";

/// Two nodes of 8 GPUs. From 09:00 job 1 holds all of gpu1 and job 2 half of gpu2, until 11:00.
const ACCOUNTING: &str = "\
JobID|Account|User|Partition|Submit|Eligible|Start|End|State|ReqTRES|AllocTRES|NodeList|Reason|Priority
1|ml|ann|a100|2024-03-01T09:00:00|2024-03-01T09:00:00|2024-03-01T09:00:00|2024-03-01T12:00:00|COMPLETED|gres/gpu=8|gres/gpu=8|gpu1|None|10
2|ml|ann|a100|2024-03-01T09:00:00|2024-03-01T09:00:00|2024-03-01T09:00:00|2024-03-01T11:00:00|COMPLETED|gres/gpu=4|gres/gpu=4|gpu2|None|10
3|ml|ann|a100|2024-03-01T09:30:00|2024-03-01T09:30:00|2024-03-01T11:00:00|2024-03-01T12:00:00|COMPLETED|gres/gpu=8|gres/gpu=8|gpu2|None|10
4|ml|ann|a100|2024-03-01T09:40:00|2024-03-01T09:40:00|2024-03-01T10:40:00|2024-03-01T11:00:00|COMPLETED|gres/gpu=2|gres/gpu=2|gpu2|AssocGrpGRES|10
5|ml|ann|a100|2024-03-01T09:50:00|2024-03-01T09:50:00|2024-03-01T10:10:00|2024-03-01T10:30:00|COMPLETED|gres/gpu=1|gres/gpu=1|gpu2|None|10
6|ml|ann|a100|2024-03-01T09:00:00|2024-03-01T09:55:00|2024-03-01T10:00:00|2024-03-01T10:30:00|COMPLETED|gres/gpu=1|gres/gpu=1|gpu2|Dependency|99
";

#[test]
fn accounting_with_declared_nodes_says_which_wait_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("jobs.txt"));
    fs::write(&file, ACCOUNTING).unwrap();
    let import = |nodes: &str| {
        let mut command = tidegate();
        command
            .args(["import", "sacct"])
            .arg(&file)
            .args(["--cluster", "prod", "--nodes", nodes, "--data"])
            .arg(&data);
        command
    };
    run(&mut import("gpu[1-2]")).refused(&[
        "--nodes gpu[1-2]",
        "GPUs of a node is missing",
        "nor is it a file",
    ]);
    run(&mut import("other/gpu1:8")).refused(&["declared for cluster other", "the history has prod"]);
    succeed(&mut import("gpu[1-2]:8:a100"));
    let waits = query(
        &data,
        "SELECT job_id, constraint, reason, date_part('hour', since) * 60 + date_part('minute', since) AS from_minute, \
         ms_between(since, until) / 60000 AS minutes, free_gpus_milli FROM pending ORDER BY job_id, since",
    );
    // Job 6 became eligible at 09:55 and is before all others by its priority; 4 does not stand in
    // line.
    let expected = "\
job_id,constraint,reason,from_minute,minutes,free_gpus_milli
3,capacity_taken,,570,90,2000
4,team_limit,AssocGrpGRES,580,60,
5,behind_others,,590,20,3000
6,dependency,Dependency,540,55,
6,,,595,5,4000
";
    assert_eq!(waits, expected, "{waits}");
}
