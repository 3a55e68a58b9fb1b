//! What a small request may cost in memory: the receiver in a process of its own, whose greatest
//! resident size the kernel keeps.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Attribute;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message;

use crate::support::wait_until;

/// Most that one request of at most a MiB may add, KiB. The unit gives the whole agent 128 MiB.
const LIMIT_KIB: u64 = 48 << 10;

struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

impl Process {
    fn start(folder: &Path) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "receiver::client::receiver_process", "--ignored"])
            .env("TIDEGATE_TEST_SOCKET", socket(folder))
            .env("TIDEGATE_TEST_FILE", folder.join("received"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = Self(child);
        wait_until("it listens", || UnixStream::connect(socket(folder)).is_ok());
        process
    }

    /// Greatest resident size so far, KiB.
    fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        line.split_ascii_whitespace().next().unwrap().parse().unwrap()
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("agent.sock")
}

/// Sends the request and returns the status of the answer.
fn post(folder: &Path, content_type: &str, body: &[u8]) -> u16 {
    let mut stream = UnixStream::connect(socket(folder)).unwrap();
    let head = format!(
        "POST /v1/metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    let mut reader = BufReader::new(stream);
    let mut first = String::new();
    reader.read_line(&mut first).unwrap();
    reader.read_to_end(&mut Vec::new()).unwrap();
    first.split(' ').nth(1).unwrap().parse().unwrap()
}

fn attribute(key: &str, value: Attribute) -> KeyValue {
    KeyValue { key: key.into(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}

/// Points with a step each, under a resource whose attributes have so many bytes.
fn steps(points: usize, text_bytes: usize) -> Vec<u8> {
    let text = || Attribute::StringValue("j".repeat(text_bytes));
    let attributes = ["job", "flops_convention", "precision"];
    let mut attributes = attributes.map(|name| attribute(&format!("tidegate.{name}"), text())).to_vec();
    attributes.push(attribute("tidegate.rank", Attribute::IntValue(0)));
    let data_points = (0..points as i64)
        .map(|step| NumberDataPoint {
            attributes: vec![
                attribute("step", Attribute::IntValue(step)),
                attribute("start", Attribute::IntValue(1_763_712_000 + step)),
            ],
            value: Some(Value::AsInt(1)),
            ..NumberDataPoint::default()
        })
        .collect();
    let metric = Metric {
        name: "tidegate.step.duration".into(),
        data: Some(Data::Gauge(Gauge { data_points })),
        ..Metric::default()
    };
    let resource = Resource { attributes, ..Resource::default() };
    let scope = ScopeMetrics { metrics: vec![metric], ..ScopeMetrics::default() };
    let of_resource = ResourceMetrics {
        resource: Some(resource),
        scope_metrics: vec![scope],
        ..ResourceMetrics::default()
    };
    ExportMetricsServiceRequest { resource_metrics: vec![of_resource] }.encode_to_vec()
}

#[test]
fn a_small_request_costs_little_memory() {
    const PROTOBUF: &str = "application/x-protobuf";
    const JSON: &str = "application/json";
    let json = |repeated: &str, count: usize| {
        format!("{{\"resourceMetrics\":[{}]}}", vec![repeated; count].join(",")).into_bytes()
    };
    let attacks: [(&str, &str, Vec<u8>); 8] = [
        // The texts of a resource, once more for each of its points.
        ("long texts for all points", PROTOBUF, steps(3_000, 40_000)),
        ("texts as long as is allowed", PROTOBUF, steps(10_000, 256)),
        ("as many points as fit", PROTOBUF, steps(18_000, 256)),
        ("empty structures", PROTOBUF, [0x0a, 0].repeat(500_000)),
        ("empty objects", JSON, json("{}", 300_000)),
        ("metrics of empty points", JSON, {
            let metric = format!("{{\"gauge\":{{\"dataPoints\":[{}]}}}}", vec!["{}"; 60_000].join(","));
            json(&format!("{{\"scopeMetrics\":[{{\"metrics\":[{metric}]}}]}}"), 1)
        }),
        ("unknown objects in a metric", JSON, {
            let metric = format!("{{\"x\":[{}]}}", vec!["{\"a\":0}"; 65_000].join(","));
            json(&format!("{{\"scopeMetrics\":[{{\"metrics\":[{metric}]}}]}}"), 1)
        }),
        ("unknown numbers in a metric", JSON, {
            let metric = format!("{{\"x\":[{}]}}", vec!["0"; 500_000].join(","));
            json(&format!("{{\"scopeMetrics\":[{{\"metrics\":[{metric}]}}]}}"), 1)
        }),
    ];
    for (name, content_type, body) in attacks {
        assert!(body.len() <= 1 << 20, "{name}: {} bytes", body.len());
        let folder = tempfile::tempdir().unwrap();
        let process = Process::start(folder.path());
        let before = process.peak_kib();
        let status = post(folder.path(), content_type, &body);
        let added = process.peak_kib() - before;
        println!("{name}: {} bytes, status {status}, {added} KiB", body.len());
        assert!(added < LIMIT_KIB, "{name}: {} bytes became {added} KiB", body.len());
    }
}
