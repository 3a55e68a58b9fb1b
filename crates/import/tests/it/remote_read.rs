//! Imports by remote read from a server that answers as a test says. A real one is in
//! tests/prometheus. The messages are written here byte by byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_import::{ImportError, PrometheusOptions, PrometheusSummary, import_prometheus};
use tidegate_log::TopicConfig;

use crate::support::MemoryLog;

const HOUR_MS: i64 = 3_600_000;
const BEGIN_MS: i64 = 491_112 * HOUR_MS;
const SAMPLED: &str = "application/x-protobuf";
const STREAMED: &str = "application/x-streamed-protobuf; proto=prometheus.ChunkedReadResponse";

/// A status, a content type and a body.
type Answer = (u16, &'static str, Vec<u8>);

/// Names one metric, and answers each remote read by `answer`; records the bodies, decompressed.
fn server(answer: impl Fn() -> Answer + Send + 'static) -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::<Mutex<Vec<Vec<u8>>>>::default();
    let recorded = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let (is_read, body) = request(&mut stream);
            let (status, form, answer) = match is_read {
                false => (
                    200,
                    "application/json",
                    br#"{"status":"success","data":["DCGM_FI_DEV_GPU_UTIL"]}"#.to_vec(),
                ),
                true => {
                    let plain = snap::raw::Decoder::new().decompress_vec(&body).unwrap();
                    recorded.lock().unwrap().push(plain);
                    answer()
                }
            };
            let length = answer.len();
            let head = format!(
                "HTTP/1.1 {status} x\r\nContent-Type: {form}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            let stream = stream.get_mut();
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&answer)).ok();
        }
    });
    (url, asked)
}

/// Whether a request is a remote read, and its body.
fn request(stream: &mut BufReader<TcpStream>) -> (bool, Vec<u8>) {
    let mut head = Vec::new();
    for line in stream.by_ref().lines() {
        match line.unwrap() {
            line if line.is_empty() => break,
            line => head.push(line.to_ascii_lowercase()),
        }
    }
    let is_read = head[0] == "post /api/v1/read http/1.1";
    if is_read {
        for needed in ["content-encoding: snappy", "x-prometheus-remote-read-version: 0.1.0"] {
            assert!(head.iter().any(|line| line == needed), "{needed} of {head:?}");
        }
    }
    let length =
        head.iter().find_map(|line| line.strip_prefix("content-length: ")).map(|length| length.parse());
    let mut body = vec![0; length.unwrap_or(Ok(0)).unwrap()];
    stream.read_exact(&mut body).unwrap();
    (is_read, body)
}

fn varint(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

/// A field that has a length.
fn field(number: u8, inside: &[u8]) -> Vec<u8> {
    [&[number << 3 | 2][..], &varint(inside.len() as u64), inside].concat()
}

fn labels(all: &[(&str, &str)]) -> Vec<u8> {
    let label = |(name, value): &(&str, &str)| {
        field(1, &[field(1, name.as_bytes()), field(2, value.as_bytes())].concat())
    };
    all.iter().flat_map(label).collect()
}

const OF_GPU: [(&str, &str); 5] = [
    ("__name__", "DCGM_FI_DEV_GPU_UTIL"),
    ("Hostname", "n1"),
    ("UUID", "GPU-1"),
    ("gpu", "0"),
    ("modelName", "H100"),
];

/// A sampled answer of one series.
fn sampled(samples: &[(i64, f64)]) -> Vec<u8> {
    let sample = |(at_ms, value): &(i64, f64)| {
        let inside = [&[0x09][..], &value.to_le_bytes(), &[0x10], &varint(at_ms.cast_unsigned())].concat();
        field(2, &inside)
    };
    let series = [labels(&OF_GPU), samples.iter().flat_map(sample).collect()].concat();
    snap::raw::Encoder::new().compress_vec(&field(1, &field(1, &series))).unwrap()
}

fn options(url: &str) -> PrometheusOptions {
    PrometheusOptions {
        url: url.to_owned(),
        credentials: None,
        from_ms: BEGIN_MS,
        to_ms: BEGIN_MS + HOUR_MS,
        step_ms: 60_000,
        matcher: Some(r#"{job=~"dcgm.*"}"#.to_owned()),
        remote_read: true,
        node_label: None,
        cluster: "prod".to_owned(),
        patience: Duration::from_secs(10),
        allow_partial: false,
        topics: TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None },
    }
}

fn run(options: &PrometheusOptions) -> (MemoryLog, Result<PrometheusSummary, ImportError>) {
    let log = MemoryLog::default();
    let summary = import_prometheus(options, &log, &mut |_| {});
    (log, summary)
}

#[test]
fn a_sampled_answer_gives_the_last_sample_of_each_step() {
    let samples = [(-70_000, 9.0), (-30_000, 1.0), (10_000, 2.0), (50_000, 3.0), (120_000, f64::NAN)];
    let answer = sampled(&samples.map(|(at_ms, value)| (BEGIN_MS + at_ms, value)));
    let (url, asked) = server(move || (200, SAMPLED, answer.clone()));
    let (_, summary) = run(&options(&url));
    let summary = summary.unwrap();
    // 9 in the step before the hour, from which counters grow; then 1, 3 and NaN, which is a sample
    // without a value.
    assert_eq!((summary.values, summary.samples), (4, 3));
    assert_eq!(summary.samples_ms, Some((BEGIN_MS, BEGIN_MS + 120_000)));
    let asked = &asked.lock().unwrap()[0];
    let matcher = |kind: &[u8], name: &str, value: &str| {
        field(3, &[kind, &field(2, name.as_bytes()), &field(3, value.as_bytes())].concat())
    };
    let of = |at_ms: i64| varint((BEGIN_MS + at_ms).cast_unsigned());
    let query = [
        vec![0x08],
        of(-119_999),
        vec![0x10],
        of(HOUR_MS - 60_000),
        matcher(&[], "__name__", "DCGM_FI_DEV_GPU_UTIL"),
        matcher(&[0x08, 2], "job", "dcgm.*"),
    ];
    // Streamed chunks, else samples.
    assert_eq!(*asked, [field(1, &query.concat()), field(2, &[1, 0])].concat());
}

#[test]
fn answers_that_are_none_end_the_import_and_say_why() {
    let long = snap::raw::Encoder::new().compress_vec(&vec![0; 65 << 20]).unwrap();
    let chunk = |encoding: u8, data: &[u8]| {
        let chunk = [&[0x18, encoding][..], &field(4, data)].concat();
        let frame = field(1, &[labels(&OF_GPU), field(2, &chunk)].concat());
        [varint(frame.len() as u64), crc32c(&frame).to_be_bytes().to_vec(), frame].concat()
    };
    let damaged = [&chunk(1, &[0, 0])[..6], &[7][..]].concat();
    let cases: Vec<(Answer, &str)> = vec![
        (
            (404, "text/plain", b"404 page not found\n".to_vec()),
            "404: 404 page not found; if it has no remote read",
        ),
        ((400, "text/plain", b"unsupported path".to_vec()), "unsupported path; if it has no remote read"),
        ((401, "text/plain", Vec::new()), "--bearer-token-file"),
        ((200, "text/html", b"<html>".to_vec()), "\"text/html\" and none of remote read"),
        ((200, SAMPLED, b"\xff\xff\xff\xff\xff".to_vec()), "the answer is damaged"),
        ((200, SAMPLED, long), "longer than 64 MiB; ask for less"),
        ((200, STREAMED, vec![5, 1, 2]), "cut or damaged"),
        ((200, STREAMED, damaged), "cut or damaged"),
        ((200, STREAMED, chunk(2, &[0, 0])), "has encoding 2"),
        ((200, STREAMED, chunk(1, &[0])), "a chunk of the answer is damaged"),
    ];
    for (answer, expected) in cases {
        let (url, _) = server(move || answer.clone());
        let (log, summary) = run(&options(&url));
        let error = summary.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&url), "{expected}: {error}");
        assert_eq!(log.events("gpu-samples").len(), 0);
    }
    let wrong = PrometheusOptions { matcher: Some("{job}".to_owned()), ..options("http://127.0.0.1:9") };
    let error = run(&wrong).1.unwrap_err().to_string();
    assert!(error.contains("--matcher: =, !=, =~ or !~ is missing at letter 4"), "{error}");
}

/// Bit by bit, as RFC 3720 defines it.
fn crc32c(bytes: &[u8]) -> u32 {
    let bit = |crc: u32, _: i32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit))
}
