//! `tidegate explain job` on the hand-computed pipeline cases.

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tidegate_events::Event;
use tidegate_events::v1::{Envelope, JobEvent, JobEventKind};

use crate::case_data::{case, tables_of};
use crate::program::{run, succeed, tidegate};

fn explain(data: &Path, job: &str, cluster: &str) -> Command {
    let mut command = tidegate();
    command.args(["explain", "job", job, "--cluster", cluster, "--data"]).arg(data);
    command
}

#[track_caller]
fn says(text: &str, words: &[&str]) {
    for words in words {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
}

/// Of a job of which the case tells devices and steps only: that it holds GPUs from 00:00 of the
/// cases' day on, and was seen to for so many minutes.
fn holding(job: &str, cluster: &str, gpus: u64, minutes: i64) -> [Event; 2] {
    [(JobEventKind::Started, job, 0), (JobEventKind::Observed, "", minutes)].map(|(kind, job, minute)| {
        Event::Job(JobEvent {
            envelope: Some(Envelope {
                cluster: cluster.into(),
                event_time_ms: 1_709_251_200_000 + minute * 60_000,
                ..Envelope::default()
            }),
            kind: kind.into(),
            job_id: job.into(),
            attempt_id: (!job.is_empty()).then_some(0),
            gpus_milli: (!job.is_empty()).then_some(gpus * 1000),
            ..JobEvent::default()
        })
    })
}

/// A cluster per case, since their nodes have the same names.
#[test]
fn what_became_of_a_job_is_told_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let cases =
        ["ledger_1m", "goodput", "mfu_1m", "bottleneck_1m", "gang_spread", "job_energy", "memory_growth"];
    let mut events: Vec<Event> = cases.iter().flat_map(|name| case(name, name)).collect();
    events.extend(holding("m1", "mfu_1m", 1, 2));
    events.extend(holding("b4", "bottleneck_1m", 2, 2));
    events.extend(holding("m1", "memory_growth", 1, 60));
    events.extend(holding("e1", "job_energy", 1, 2));
    let data = tables_of(folder.path(), events);
    let explained = |job: &str, cluster: &str| succeed(&mut explain(&data, job, cluster));

    // Two GPU-minutes: 30 s of start, 24 productive, and so on; a second of the second minute costs
    // one and a half.
    says(
        &explained("1", "ledger_1m"),
        &[
            "job 1 of cluster ledger_1m, team ml, user ann, pool train, 1 GPUs",
            "where its GPU time went\n  startup                    0.01 GPU-h   25.0 %          0.03 USD\n  productive",
            "idle_held                  0.01 GPU-h   16.7 %",
            "cost 0.15 USD for 0.03 GPU-h",
            "run 0: 2024-03-01 00:00:00 UTC       0.03 GPU-h  goodput  20.0 %",
            "MFU          not known: no_flops: it tells no operations",
            "What helps most: start faster",
        ],
    );
    let json: Value = serde_json::from_str(&succeed(explain(&data, "1", "ledger_1m").arg("--json"))).unwrap();
    let classes = json["held"]["ledger"].as_array().unwrap();
    let sum = |what: &str| classes.iter().map(|class| class[what].as_i64().unwrap()).sum::<i64>();
    assert_eq!((sum("gpu_ms"), sum("cost_micros")), (120_000, 150_000), "{json}");
    assert_eq!(json["held"]["costs"][0]["cost_micros"], 150_000, "the same cost from both tables: {json}");
    assert_eq!(json["helps"].as_str().map(|helps| helps.starts_with("start faster")), Some(true));

    // As the case says: 150 of 400 GPU-s productive; ETTR 189 / 580; run 0: 100 of 200, and 109 of
    // 200 held and 120 waited.
    says(
        &explained("g1", "goodput"),
        &[
            "run 0: ",
            "goodput  50.0 %, ETTR  34.1 %; starting 22.5 %, redone 0.0 %",
            "goodput  25.0 %, ETTR  30.8 %; starting 22.5 %, redone 30.0 %",
            "all runs: goodput 37.5 %, ETTR 32.6 %",
            "no price is known for 0.11 GPU-h",
        ],
    );
    // 20,000,000 of 79,152,000 GFLOP; of the first minute it is known that no more than 20,777,400
    // of 59,364,000 were done.
    says(&explained("m1", "mfu_1m"), &["MFU          25.3 % (", "no more than 35.0 %"]);
    says(
        &explained("b4", "bottleneck_1m"),
        &["wall         communication", "in 1 of 1 minutes", "tensor cores 30.0 %", "in collectives 40.0 %"],
    );
    says(&explained("b", "gang_spread"), &["spread       2 nodes at 2 switches, in 1 rack\n"]);
    says(
        &explained("c", "gang_spread"),
        &["4 nodes at 2 switches, in 2 racks (of 3 it is known where they stand)"],
    );
    says(&explained("e1", "job_energy"), &["energy       50 J (EXACT), 0.002 J a token"]);
    says(
        &explained("m1", "memory_growth"),
        &[
            "memory       GPU 0 of n1 grows 6000 MiB an hour, full in 5 h 50 m",
            "What helps most: save a checkpoint",
        ],
    );

    run(&mut explain(&data, "b", "nowhere")).refused(&["there is no job b in cluster nowhere"]);
    // m1 is in two of the clusters.
    let mut ambiguous = tidegate();
    ambiguous.args(["explain", "job", "m1", "--data"]).arg(&data);
    run(&mut ambiguous).refused(&["several clusters: memory_growth, mfu_1m", "--cluster"]);
}
