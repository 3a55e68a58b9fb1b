//! The agent's local receiver, through its socket: heads and bodies of HTTP, lines, OTLP.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use prost::Message;
use serde_json::json;
use tidegate_collect::receiver::{
    HoldEvent, HoldEvents, Limits, Receiver, ReceiverOptions, ReceiverParts, StepReports,
};
use tidegate_collect::{Reading, Sink};
use tidegate_events::Event;

use super::{Parser, Target, lines};

pub const TARGETS: [Target; 5] = [
    Target { name: "http", start: || sending(<[u8]>::to_vec), seeds: || lines(REQUESTS) },
    Target { name: "step-lines", start: || sending(<[u8]>::to_vec), seeds: || lines(STEPS) },
    Target { name: "hold-lines", start: || sending(<[u8]>::to_vec), seeds: || lines(HOLDS) },
    Target {
        name: "otlp",
        start: || sending(|body| metrics("application/x-protobuf", body)),
        seeds: || {
            let decoded = |text: &&str| serde_json::from_str::<ExportMetricsServiceRequest>(text).unwrap();
            OTLP.iter().map(|text| decoded(text).encode_to_vec()).collect()
        },
    },
    Target {
        name: "otlp-json",
        start: || sending(|body| metrics("application/json", body)),
        seeds: || lines(OTLP),
    },
];

const REQUESTS: &[&str] = &[
    "GET /v1/status HTTP/1.1\r\nHost: a\r\n\r\n",
    "POST /v1/steps HTTP/1.1\r\nHost: a\r\nContent-Length: 63\r\n\r\n{\"job\":\"7\",\"rank\":0,\"step\":1,\"start\":1763712000,\"duration_s\":1}",
    "POST /v1/events HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n2d\r\n{\"event\":\"hold\",\"job_id\":\"7\",\"gpus\":\"0,1\"}\n\n\r\n0\r\n\r\n",
    "OPTIONS /v1/metrics HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",
];
const STEPS: &[&str] = &[
    "{\"job\":\"4711_3\",\"rank\":1,\"step\":12,\"start\":1763712000.1234,\"duration_s\":0.5,\"compute_s\":0.4,\"communication_ms\":80.5,\"data_wait_us\":7,\"checkpoint_s\":0,\"restore_ms\":1.5,\"tokens\":8192,\"model_flops\":1.5e15,\"flops_convention\":\"palm\",\"precision\":\"bf16\",\"loss\":2.3456789,\"world_size\":8,\"gpu\":\"GPU-1\",\"dropped\":3,\"los\":1,\"attempt\":0,\"epoch\":2,\"pipeline_stage\":1,\"pipeline_stages\":4,\"micro_batches\":16,\"expert_group\":0,\"squared_tokens\":33554432}\n",
    "{\"job\":7,\"rank\":0,\"step\":0,\"start_ms\":1763712000000,\"duration_ms\":1,\"loss\":null,\"node\":\"n1\",\"gpu\":3}\n{}\n",
];
const HOLDS: &[&str] = &[
    "{\"event\":\"hold\",\"job_id\":\"7\",\"gpus\":\"0-3,GPU-1\",\"time_ms\":1763712000000,\"restart\":1,\"uid\":1000,\"share_milli\":500,\"step_id\":\"0\",\"source\":\"prolog\"}\n{\"event\":\"release\",\"job_id\":\"7\"}\n",
    "{\"event\":\"hold\",\"job_id\":7,\"gpus\":[0,\"MIG-1\",2],\"uid\":1000}\n",
];
const OTLP: &[&str] = &[
    r#"{"resourceMetrics":[{"resource":{"attributes":[{"key":"tidegate.job","value":{"stringValue":"4711"}},{"key":"tidegate.world_size","value":{"intValue":"2"}}]},"scopeMetrics":[{"metrics":[{"name":"tidegate.step.duration","unit":"ms","gauge":{"dataPoints":[{"attributes":[{"key":"rank","value":{"intValue":"1"}},{"key":"step","value":{"intValue":"12"}},{"key":"start","value":{"doubleValue":1763712000.5}},{"key":"precision","value":{"stringValue":"bf16"}}],"timeUnixNano":"1763712009000000000","asDouble":400.5}]}},{"name":"tidegate.step.compute","unit":"s","histogram":{"aggregationTemporality":1,"dataPoints":[{"attributes":[{"key":"rank","value":{"intValue":"1"}}],"count":"1","sum":0.25,"timeUnixNano":"1","bucketCounts":[],"explicitBounds":[]}]}},{"name":"tidegate.step.tokens","sum":{"aggregationTemporality":1,"isMonotonic":true,"dataPoints":[{"attributes":[{"key":"step","value":{"arrayValue":{"values":[{"boolValue":true}]}}},{"key":"job","value":{"kvlistValue":{"values":[{"key":"a","value":{"bytesValue":"AA=="}}]}}}],"timeUnixNano":"1","asInt":"8192"}]}}]}]}]}"#,
];

/// Takes everything and keeps nothing.
struct Nothing;

impl Sink for Nothing {
    fn reading(&self, _: Reading) {}

    fn event(&self, event: Event) {
        std::hint::black_box(event.encode_to_vec());
    }
}

impl HoldEvents for Nothing {
    fn hold_event(&self, _: HoldEvent) -> Result<(), String> {
        Ok(())
    }
}

/// A receiver, and sends it on a connection of its own what `request` makes of each input.
fn sending(request: fn(&[u8]) -> Vec<u8>) -> Parser {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let limits = Limits {
        // Who is not slowed tries more.
        lines_per_second: u32::MAX,
        lines_at_once: u32::MAX,
        patience: Duration::from_secs(2),
        ..Limits::default()
    };
    let options = ReceiverOptions {
        socket: Some(socket.clone()),
        step_reports: StepReports::Any,
        limits,
        ..ReceiverOptions::new("n1")
    };
    let parts = ReceiverParts {
        sink: Arc::new(Nothing),
        holds: Some(Arc::new(Nothing)),
        jobs: None,
        status: Arc::new(|| json!({})),
    };
    let receiver = Receiver::start(options, parts).unwrap();
    Box::new(move |input| {
        let (_folder, _receiver) = (&folder, &receiver);
        send(&socket, &request(input));
    })
}

fn send(socket: &PathBuf, bytes: &[u8]) {
    let mut stream = UnixStream::connect(socket).unwrap();
    let mut writing = stream.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The receiver may close before it has read all.
            writing.write_all(bytes).and_then(|()| writing.shutdown(Shutdown::Write)).ok();
        });
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).ok();
        // Ends the write, if the receiver left it.
        stream.shutdown(Shutdown::Both).ok();
    });
}

fn metrics(content_type: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST /v1/metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: {content_type}\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}
