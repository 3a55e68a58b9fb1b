//! Job events: one message per event, a flat table with a column per field.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, BinaryArray, Int32Array, Int64Array, RecordBatch, StringArray},
    error::ArrowError,
};
use prost::Message;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::{Event, FinalState, v1};
use v1::{Envelope, JobEvent, JobEventKind};

use super::formats::{ArrowIpc, Avro, NamedCodecs, Protobuf};

const EVENTS_PER_GROUP: usize = 1_000;
const EVENTS_PER_JOB: usize = 4;

/// The formats. Avro writes many events at once, as an import does: record by record it would
/// measure the cost of batches of one row. So does Arrow IPC, which cannot write single records
/// otherwise.
pub fn codecs() -> Result<NamedCodecs<JobEvent>, ArrowError> {
    let schema = flat(&[])?.schema();
    Ok(vec![
        ("protobuf", Box::new(Protobuf { encode: Message::encode_to_vec, decode })),
        ("avro single-object", Box::new(Avro::new(&schema, EVENTS_PER_GROUP, flat, Ok)?)),
        ("arrow-ipc bare batch", Box::new(ArrowIpc::bare(schema, flat)?)),
    ])
}

fn decode(messages: &[&[u8]]) -> Result<RecordBatch, ArrowError> {
    let events = messages.iter().map(|message| JobEvent::decode(*message)).collect::<Result<Vec<_>, _>>();
    flat(&events.map_err(|e| ArrowError::from_external_error(Box::new(e)))?)
}

/// Slurm accounting in small: jobs with all four events and the fields of sacct.
pub fn generate(seed: u64, group: u64) -> Vec<JobEvent> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(group);
    let first_job = group * (EVENTS_PER_GROUP / EVENTS_PER_JOB) as u64;
    (0..(EVENTS_PER_GROUP / EVENTS_PER_JOB) as u64)
        .flat_map(|job| lifecycle(&mut rng, first_job + job))
        .collect()
}

fn lifecycle(rng: &mut ChaCha8Rng, number: u64) -> [JobEvent; EVENTS_PER_JOB] {
    let submit_ms = 1_735_689_600_000 + number as i64 * 10_000 + rng.random_range(0..10) * 1_000;
    let start_ms = submit_ms + rng.random_range(0..7_200) * 1_000;
    let end_ms = start_ms + rng.random_range(30..86_400) * 1_000;
    let gpus = 1_u64 << rng.random_range(0..6);
    let user = rng.random_range(0..200);
    let node = rng.random_range(1..120);
    let nodes = (0..gpus.div_ceil(8)).map(|i| format!("gpu-{:03}", node + i)).collect::<Vec<_>>().join(",");
    let submitted = JobEvent {
        job_id: (4_000_000 + number).to_string(),
        team: Some(format!("team-{:02}", user % 24)),
        user_name: Some(format!("user{user:03}")),
        pool: Some(["h100", "a100", "debug", "preempt"][rng.random_range(0..4)].into()),
        qos: Some("normal".into()),
        job_name: Some(format!("train-{}", ["resnet", "llama-7b", "bert", "sweep"][rng.random_range(0..4)])),
        gpus_milli: Some(gpus * 1_000),
        time_limit_ms: Some(86_400_000),
        ..Default::default()
    };
    let started = JobEvent {
        attempt_id: Some(start_ms),
        gpu_model: Some("h100".into()),
        node_count: Some(gpus.div_ceil(8) as u32),
        nodes: Some(nodes),
        ..submitted.clone()
    };
    let state = FinalState::ALL[rng.random_range(0..5)];
    let exit_code = i32::from(state == FinalState::Failed);
    let ended = JobEvent {
        final_state: Some(state.to_string()),
        exit_code: Some(exit_code),
        exit_signal: Some(0),
        ..started.clone()
    };
    let seq = number * EVENTS_PER_JOB as u64;
    [
        sealed(submitted.clone(), JobEventKind::Submitted, seq, submit_ms),
        sealed(submitted, JobEventKind::Eligible, seq + 1, submit_ms + 1_000),
        sealed(started, JobEventKind::Started, seq + 2, start_ms),
        sealed(ended, JobEventKind::Ended, seq + 3, end_ms),
    ]
}

fn sealed(mut job: JobEvent, kind: JobEventKind, seq: u64, event_time_ms: i64) -> JobEvent {
    job.kind = kind.into();
    job.envelope = Some(Envelope {
        cluster: "prod-h100".into(),
        source: "import:sacct-2025.txt".into(),
        epoch: 1_763_712_000_000,
        seq,
        event_time_ms,
        observed_time_ms: 1_763_712_000_000,
        ..Default::default()
    });
    let id = Event::Job(job.clone()).content_id();
    job.envelope.get_or_insert_default().event_id = id.to_vec();
    job
}

/// One column per field.
pub fn flat(events: &[JobEvent]) -> Result<RecordBatch, ArrowError> {
    static NO_ENVELOPE: Envelope = Envelope {
        event_id: Vec::new(),
        cluster: String::new(),
        source: String::new(),
        epoch: 0,
        seq: 0,
        event_time_ms: 0,
        observed_time_ms: 0,
    };
    let envelopes = || events.iter().map(|event| event.envelope.as_ref().unwrap_or(&NO_ENVELOPE));
    let text = |field: fn(&JobEvent) -> &Option<String>| -> ArrayRef {
        Arc::new(StringArray::from_iter(events.iter().map(|event| field(event).as_deref())))
    };
    let long = |field: fn(&JobEvent) -> Option<i64>| -> ArrayRef {
        Arc::new(Int64Array::from_iter(events.iter().map(field)))
    };
    let of_envelope = |field: fn(&Envelope) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(envelopes().map(field)))
    };
    let required: [(&str, ArrayRef); 9] = [
        ("event_id", Arc::new(BinaryArray::from_iter_values(envelopes().map(|e| &e.event_id)))),
        ("cluster", Arc::new(StringArray::from_iter_values(envelopes().map(|e| &e.cluster)))),
        ("source", Arc::new(StringArray::from_iter_values(envelopes().map(|e| &e.source)))),
        ("epoch", of_envelope(|e| e.epoch as i64)),
        ("seq", of_envelope(|e| e.seq as i64)),
        ("event_time_ms", of_envelope(|e| e.event_time_ms)),
        ("observed_time_ms", of_envelope(|e| e.observed_time_ms)),
        ("kind", Arc::new(Int32Array::from_iter_values(events.iter().map(|event| event.kind)))),
        ("job_id", Arc::new(StringArray::from_iter_values(events.iter().map(|event| &event.job_id)))),
    ];
    let optional = [
        ("attempt_id", long(|e| e.attempt_id)),
        ("step_id", text(|e| &e.step_id)),
        ("array_job_id", text(|e| &e.array_job_id)),
        ("array_task_id", long(|e| e.array_task_id)),
        ("team", text(|e| &e.team)),
        ("user_name", text(|e| &e.user_name)),
        ("pool", text(|e| &e.pool)),
        ("qos", text(|e| &e.qos)),
        ("job_name", text(|e| &e.job_name)),
        ("gpus_milli", long(|e| e.gpus_milli.map(|v| v as i64))),
        ("gpu_model", text(|e| &e.gpu_model)),
        ("nodes", text(|e| &e.nodes)),
        ("node_count", long(|e| e.node_count.map(i64::from))),
        ("time_limit_ms", long(|e| e.time_limit_ms.map(|v| v as i64))),
        ("reason", text(|e| &e.reason)),
        ("final_state", text(|e| &e.final_state)),
        ("cancelled_by", text(|e| &e.cancelled_by)),
        ("exit_code", long(|e| e.exit_code.map(i64::from))),
        ("exit_signal", long(|e| e.exit_signal.map(i64::from))),
        ("priority", long(|e| e.priority)),
    ];
    let required = required.into_iter().map(|(name, column)| (name, column, false));
    let optional = optional.into_iter().map(|(name, column)| (name, column, true));
    RecordBatch::try_from_iter_with_nullable(required.chain(optional))
}
