//! OpenTelemetry metrics as step reports.

use std::io::{Read, Write};

use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use prost::Message;
use serde_json::{Value, json};

use super::{Setup, connect, setup};

fn post(setup: &Setup, content_type: &str, body: &[u8]) -> (u16, Vec<u8>) {
    let mut stream = connect(&setup.socket);
    let head = format!(
        "POST /v1/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let body = answer.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    let status = String::from_utf8_lossy(&answer[9..12]).parse().unwrap();
    (status, answer.split_off(body))
}

fn attributes(of: Value) -> Value {
    let list: Vec<_> = of
        .as_object()
        .unwrap()
        .iter()
        .map(|(key, value)| {
            let value = match value {
                Value::String(text) => json!({"stringValue": text}),
                // OTLP JSON writes 64-bit integers as text.
                Value::Number(number) if number.is_i64() => json!({"intValue": number.to_string()}),
                other => json!({"doubleValue": other}),
            };
            json!({"key": key, "value": value})
        })
        .collect();
    list.into()
}

fn gauge(name: &str, unit: &str, value: Value, of: Value) -> Value {
    let mut point = json!({"attributes": attributes(of), "timeUnixNano": "1763712009000000000"});
    point.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
    json!({"name": name, "unit": unit, "gauge": {"dataPoints": [point]}})
}

/// A request as an SDK's exporter sends it.
fn request() -> Value {
    let of = || json!({"rank": 1, "step": 12, "start": 1_763_712_000.5, "precision": "bf16"});
    let histogram = |count: u64| {
        json!({"attributes": attributes(of()), "count": count.to_string(), "sum": 0.25, "timeUnixNano": "1",
            "bucketCounts": [], "explicitBounds": []})
    };
    let metrics = json!([
        gauge("tidegate.step.duration", "ms", json!({"asDouble": 400.5}), of()),
        {"name": "tidegate.step.compute", "unit": "s", "histogram": {"aggregationTemporality": 1, "dataPoints": [histogram(1)]}},
        {"name": "tidegate.step.data_wait", "unit": "s", "histogram": {"aggregationTemporality": 1, "dataPoints": [histogram(2)]}},
        gauge("tidegate.step.tokens", "", json!({"asInt": "8192"}), of()),
        gauge("tidegate.step.duration", "s", json!({"asDouble": 0.5}), json!({"rank": "0", "step": 13, "start": 1_763_712_001})),
        gauge("tidegate.step.duration", "s", json!({"asDouble": 0.5}), json!({"rank": 0, "step": 14})),
        gauge("http.server.duration", "s", json!({"asDouble": 0.5}), json!({})),
        gauge("tidegate.step.checkpoint", "fortnights", json!({"asDouble": 0.5}), of()),
    ]);
    let resource =
        json!({"attributes": attributes(json!({"tidegate.job": "4711", "tidegate.world_size": 2}))});
    json!({"resourceMetrics": [{"resource": resource, "scopeMetrics": [{"metrics": metrics}]}]})
}

#[test]
fn points_of_a_step_are_one_report() {
    let setup = setup(|_| {});
    let json = request().to_string();
    let (status, answer) = post(&setup, "application/json; charset=utf-8", json.as_bytes());
    let answer: Value = serde_json::from_slice(&answer).unwrap();
    assert_eq!(status, 200);
    let message = answer["partialSuccess"]["errorMessage"].as_str().unwrap();
    assert!(message.starts_with("step 14 of rank 0: start is missing"), "{answer}");

    let protobuf: ExportMetricsServiceRequest = serde_json::from_str(&json).unwrap();
    let (status, answer) = post(&setup, "application/x-protobuf", &protobuf.encode_to_vec());
    let answer = ExportMetricsServiceResponse::decode(&*answer).unwrap();
    assert_eq!((status, answer.partial_success.unwrap().rejected_data_points), (200, 1));

    let steps = setup.recorded.steps();
    assert_eq!(steps.len(), 4);
    let first = steps.iter().find(|step| step.step == 12).unwrap();
    assert_eq!((first.job_id.as_str(), first.rank, first.world_size), ("4711", 1, Some(2)));
    assert_eq!((first.duration_us, first.compute_us, first.data_wait_us), (400_500, Some(250_000), None));
    assert_eq!((first.tokens, first.precision.as_deref()), (Some(8192), Some("bf16")));
    assert_eq!(first.envelope.as_ref().unwrap().event_time_ms, 1_763_712_000_500);
    // Both encodings of a request give the same reports.
    for step in [12, 13] {
        let same: Vec<_> = steps
            .iter()
            .filter(|report| report.step == step)
            .map(|report| {
                let mut report = report.clone();
                report.envelope.as_mut().unwrap().observed_time_ms = 0;
                report
            })
            .collect();
        assert_eq!(same[0], same[1]);
    }
    let counts = setup.receiver.counts();
    assert_eq!((&counts["steps"], &counts["otlp_points_ignored"]), (&json!(4), &json!(6)));
}

#[test]
fn an_invalid_request_is_refused() {
    let setup = setup(|_| {});
    for (content_type, body) in
        [("application/json", "{"), ("application/x-protobuf", "hello"), ("application/json", "[1]")]
    {
        let (status, answer) = post(&setup, content_type, body.as_bytes());
        assert_eq!(status, 400);
        assert!(String::from_utf8_lossy(&answer).contains("no OTLP metrics request"));
    }
    assert_eq!(post(&setup, "application/x-protobuf", b"").0, 200, "an empty request is one");
    assert_eq!(setup.recorded.steps().len(), 0);
}
