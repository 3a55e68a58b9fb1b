//! What is fuzzed, with its seeds.

use std::hint::black_box;

use prost::Message;
use tidegate_autopilot::policy::Policy;
use tidegate_control::authority::{ApprovalStatement, PolicyStatement};
use tidegate_events::{Event, SchemaId};
use tidegate_import::{Mapping, topology};
use tidegate_log::wire::{AppendRequest, measure_request};
use tidegate_slurm::{HostList, JobId, TresGpus, array_tasks, exit_code, time_limit_ms};

/// A parser.
pub struct Target {
    pub name: &'static str,
    pub parse: fn(&[u8]),
    pub seeds: fn() -> Vec<Vec<u8>>,
}

pub const TARGETS: [Target; 12] = [
    Target { name: "events", parse: event, seeds: events },
    Target { name: "append", parse: append, seeds: appends },
    Target {
        name: "squeue",
        parse: |input| drop(black_box(tidegate_slurm::squeue::parse_jobs(input))),
        seeds: || lines(SQUEUE),
    },
    Target {
        name: "sinfo",
        parse: |input| text(input, |text| drop(black_box(tidegate_slurm::sinfo::parse_nodes(text)))),
        seeds: || lines(SINFO),
    },
    Target {
        name: "reservations",
        parse: |input| {
            text(input, |text| drop(black_box(tidegate_slurm::scontrol::parse_reservations(text))))
        },
        seeds: || lines(RESERVATIONS),
    },
    Target { name: "associations", parse: associations, seeds: || lines(ASSOCIATIONS) },
    Target { name: "slurm-words", parse: words, seeds: || lines(WORDS) },
    Target {
        name: "mapping",
        parse: |input| text(input, |text| drop(black_box(Mapping::parse(text, "fuzz")))),
        seeds: || files("../../schemas/imports", "toml"),
    },
    Target {
        name: "topology",
        parse: |input| text(input, |text| drop(black_box(topology::read(text)))),
        seeds: || lines(TOPOLOGY),
    },
    Target {
        name: "policy",
        parse: |input| text(input, |text| drop(black_box(Policy::parse(text)))),
        seeds: || files("../autopilot/policies", "toml"),
    },
    Target { name: "statements", parse: statements, seeds: || lines(STATEMENTS) },
    Target {
        name: "xid",
        parse: |input| text(input, |text| drop(black_box(tidegate_collect::xid::parse(text)))),
        seeds: || lines(XIDS),
    },
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
];
const ASSOCIATIONS: &[&str] =
    &["c|a|root|||cpu=9,gres/gpu=64||\nc|b|a|u|p|||\n", "normal|gres/gpu=8|gres/gpu=2|\n"];
const WORDS: &[&str] = &[
    "n[001-128,200],gpu-a[1-2]b[3-4]",
    "4711_12.batch",
    "4711_[1-9,20%4]",
    "cpu=8,mem=64G,gres/gpu:a100=4,gres/gpu=4",
    "0:15",
    "1-00:30:00",
];
const TOPOLOGY: &[&str] =
    &["SwitchName=s1 Nodes=n[1-4]\nSwitchName=top Switches=s[1-2]\n", "node,rack,switch\nn1,r1,s1\n"];
const STATEMENTS: &[&str] = &[
    "tidegate policy\ncluster c\nacts-as policy\nsequence 7\nafter none\nexpires 2026-12-01T00:00:00Z\npolicy 00\n",
    "tidegate approval\ncluster c\naction a\nplan p\nexpires 2026-12-01T00:00:00Z\n",
];
const XIDS: &[&str] = &[
    "NVRM: Xid (PCI:0000:41:00): 79, pid=1234, name=python, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:41:00 GPU-I:05): 94, pid='<unknown>', Contained: SM (0x1)",
];

fn lines(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn files(folder: &str, ending: &str) -> Vec<Vec<u8>> {
    let all = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let mut all: Vec<_> = all.filter(|file| file.extension().is_some_and(|it| it == ending)).collect();
    all.sort();
    all.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

fn text(input: &[u8], parse: impl FnOnce(&str)) {
    parse(&String::from_utf8_lossy(input));
}

/// Events with the number of their schema before them.
fn events() -> Vec<Vec<u8>> {
    let of = |schema: SchemaId| {
        let folder = format!("../../schemas/fixtures/{}", schema.name());
        files(&folder, "bin").into_iter().map(move |payload| [vec![schema as u8], payload].concat())
    };
    SchemaId::ALL.into_iter().flat_map(of).collect()
}

fn event(input: &[u8]) {
    let Some((schema, payload)) = input.split_first() else { return };
    if let Ok(event) = Event::decode((u32::from(*schema) << 16) | 1, payload) {
        black_box((event.key(), event.content_id(), event.encode_to_vec()));
    }
}

fn appends() -> Vec<Vec<u8>> {
    let record = |event: Vec<u8>| tidegate_log::wire::AppendRecord {
        key: "c/j".into(),
        schema: u32::from(event[0]) << 16,
        event_time_ms: 1,
        payload: event[1..].to_vec().into(),
    };
    let request = AppendRequest {
        topic: "jobs".into(),
        source: "agent/n1@c".into(),
        records: events().into_iter().take(4).map(record).collect(),
        ..AppendRequest::default()
    };
    vec![request.encode_to_vec(), vec![0x32, 0]]
}

fn append(input: &[u8]) {
    if measure_request(input).is_ok()
        && let Ok(request) = AppendRequest::decode(input)
    {
        for record in &request.records {
            black_box(Event::decode(record.schema, &record.payload).ok());
        }
    }
}

fn associations(input: &[u8]) {
    text(input, |text| {
        black_box(tidegate_slurm::sacctmgr::parse_associations(text.lines()));
        black_box(tidegate_slurm::sacctmgr::parse_qos(text));
    });
}

fn words(input: &[u8]) {
    text(input, |text| {
        black_box(HostList::parse(text).ok());
        black_box(JobId::parse(text).ok());
        black_box(array_tasks(text).ok());
        black_box(TresGpus::parse(text).ok());
        black_box(exit_code(text).ok());
        black_box(time_limit_ms(text).ok());
    });
}

fn statements(input: &[u8]) {
    text(input, |text| {
        black_box(PolicyStatement::parse(text).ok());
        black_box(ApprovalStatement::parse(text).ok());
    });
}
