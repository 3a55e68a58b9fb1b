//! What Slurm's programs print.

use std::hint::black_box;

use tidegate_slurm::{
    GresGpus, HostList, JobId, NodeState, TresGpus, array_tasks, exit_code, sacct, sacctmgr, scontrol, sinfo,
    squeue, submitted_job, time_limit_ms,
};

use super::{Target, lines, of_text};

pub const TARGETS: [Target; 7] = [
    Target { name: "sacct", start: || of_text(attempts), seeds: || lines(SACCT) },
    Target {
        name: "squeue",
        start: || Box::new(|input| drop(black_box(squeue::parse_jobs(input)))),
        seeds: || lines(SQUEUE),
    },
    Target { name: "sinfo", start: || of_text(sinfo::parse_nodes), seeds: || lines(SINFO) },
    Target {
        name: "reservations",
        start: || of_text(scontrol::parse_reservations),
        seeds: || lines(RESERVATIONS),
    },
    Target { name: "config", start: || of_text(scontrol::ClusterConfig::parse), seeds: || lines(CONFIG) },
    Target { name: "associations", start: || of_text(associations), seeds: || lines(ASSOCIATIONS) },
    Target { name: "slurm-words", start: || of_text(words), seeds: || lines(WORDS) },
];

/// Between the two answers of sacct in an input.
const SECOND: &str = "\n====\n";
/// The delimiter of the second answer.
const DELIMITER: &str = "<0f>";

const SACCT: &[&str] = &[
    "JobID\x1fUser\x1fPartition\x1fQOS\x1fSubmit\x1fEligible\x1fStart\x1fEnd\x1fState\x1fExitCode\x1fReqTRES\x1f\
     AllocTRES\x1fNodeList\x1fTimelimit\x1fReason\x1fPriority\n\
     7\x1fann\x1ftrain\x1fnormal\x1f1795628572\x1f1795628572\x1f1795628573\x1f1795628673\x1fCOMPLETED\x1f0:0\x1f\
     cpu=1,gres/gpu=8\x1fcpu=1,gres/gpu:h200=8,gres/gpu=8\x1fn[1-2]\x1f1-00:00:00\x1fNone\x1f4294901760\n\
     7.batch\x1f\x1f\x1f\x1f1795628572\x1f1795628572\x1f1795628573\x1f1795628673\x1fCANCELLED by 1000\x1f0:15\x1f\x1f\
     gres/gpu=8\x1fn1\x1f\x1f\x1f\n\
     8_[1-9%2]\x1fann\x1ftrain\x1fnormal\x1f1795628572\x1fUnknown\x1f1795628573\x1f1795628673\x1fPENDING\x1f0:0\x1f\x1f\x1f\
     n3\x1fUNLIMITED\x1fResources\x1f1\n\
     ====\n\
     7<0f>1795628572<0f>1795628573<0f>a name<0f>ai<0f>\n7.batch<0f>1795628572<0f>1795628573<0f>batch<0f><0f>\n",
];
const SQUEUE: &[&str] = &[
    r#"{"jobs":[{"job_id":7,"job_state":["RUNNING"],"nodes":"n[1-4,7]","tres_alloc_str":"cpu=8,gres/gpu:a100=4","account":"a","partition":"p","start_time":{"set":true,"infinite":false,"number":1767225600},"time_limit":{"set":true,"infinite":false,"number":60},"array_job_id":{"set":true,"infinite":false,"number":7},"array_task_string":"1-9%2"}],"errors":[],"warnings":[]}"#,
    r#"{"jobs":[]}"#,
];
const SINFO: &[&str] = &[
    r#"{"sinfo":[{"node":{"state":["IDLE","DRAIN"]},"nodes":{"nodes":["n1"]},"gres":{"total":"gpu:a100:8(S:0-1)","used":"gpu:a100:0(IDX:N/A)"},"partition":{"name":"p"}}]}"#,
    "n1|idle|gpu:8|p\nn2|down*|gpu:a100:4(S:0)|p\n",
];
const RESERVATIONS: &[&str] = &[
    "ReservationName=r StartTime=2026-01-01T00:00:00 EndTime=2026-02-01T00:00:00 Duration=31-00:00:00\n   Nodes=n[1-4] NodeCnt=4 CoreCnt=16 Users=u Accounts=(null) TRES=cpu=16,gres/gpu=8 State=ACTIVE\n\n",
    "ReservationName=r StartTime=1 EndTime=2 Nodes=n[1-4] Users=u,v Accounts=a TRES=cpu=16,gres/gpu=8 Flags=MAINT,SPEC_NODES State=ACTIVE\n",
    "No reservations in the system\n",
];
const CONFIG: &[&str] = &[
    "Configuration data as of 2026-01-01T00:00:00\nClusterName             = c\nSLURM_VERSION           = 24.05.1\n\
     SlurmUser               = slurm(64030)\nAccountingStorageTRES   = cpu,mem,gres/gpu\n\
     PreemptMode             = REQUEUE\n",
];
const ASSOCIATIONS: &[&str] =
    &["c|a|root|||cpu=9,gres/gpu=64||\nc|b|a|u|p|||\n", "normal|gres/gpu=8|gres/gpu=2|\n"];
const WORDS: &[&str] = &[
    "n[001-128,200],gpu-a[1-2]b[3-4]",
    "4711_12.batch",
    "4711_[1-9,20%4]",
    "cpu=8,mem=64G,gres/gpu:a100=4,gres/gpu=4",
    "gpu:a100:8(S:0-1),gpu:mig-1g.10gb:7(IDX:0-6),shard:32",
    "IDLE+CLOUD+DRAIN*",
    "0:15",
    "1-00:30:00",
    "4711;cluster",
];

/// Both answers of sacct.
fn attempts(input: &str) {
    let (facts, names) = input.split_once(SECOND).unwrap_or((input, ""));
    for tracks_gpus in [false, true] {
        black_box(sacct::parse_attempts(facts, names, DELIMITER, tracks_gpus).ok());
    }
}

fn associations(input: &str) {
    black_box(sacctmgr::parse_associations(input.lines()));
    black_box(sacctmgr::parse_qos(input));
}

/// Values that stand in many answers.
fn words(input: &str) {
    black_box(HostList::parse(input).ok());
    black_box(JobId::parse(input).ok());
    black_box(array_tasks(input).ok());
    black_box(TresGpus::parse(input).ok());
    black_box(GresGpus::parse(input));
    black_box(NodeState::parse(input));
    black_box(exit_code(input).ok());
    black_box(time_limit_ms(input).ok());
    black_box(submitted_job(input));
}
