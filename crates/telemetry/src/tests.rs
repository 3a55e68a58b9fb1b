//! The export against a collector that notes what it is sent, and answers as a test says.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tracing_subscriber::layer::SubscriberExt;

use crate::headers::Headers;
use crate::settings::{Protocol, Settings, Signal};
use crate::{SpanLayer, Telemetry, counts};

/// The export of a process is one: tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request as it came.
struct Got {
    /// First line and headers, in lower case but for their values.
    head: Vec<String>,
    body: Vec<u8>,
}

struct Collector {
    url: String,
    got: Receiver<Got>,
}

impl Collector {
    /// Answers with these statuses in turn, then with 200.
    fn start(statuses: &[u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let statuses = Arc::new(Mutex::new(statuses.iter().copied().collect::<VecDeque<_>>()));
        let (send, got) = channel();
        std::thread::spawn(move || {
            for socket in listener.incoming() {
                let (send, statuses) = (send.clone(), Arc::clone(&statuses));
                std::thread::spawn(move || {
                    let mut socket = BufReader::new(socket.unwrap());
                    while let Some(request) = request(&mut socket) {
                        let status = statuses.lock().unwrap().pop_front().unwrap_or(200);
                        let answer =
                            format!("HTTP/1.1 {status} x\r\nretry-after: 0\r\ncontent-length: 0\r\n\r\n");
                        if send.send(request).is_err()
                            || socket.get_mut().write_all(answer.as_bytes()).is_err()
                        {
                            return;
                        }
                    }
                });
            }
        });
        Self { url, got }
    }

    fn next(&self) -> Got {
        self.got.recv_timeout(Duration::from_secs(20)).expect("a request comes")
    }
}

fn request(socket: &mut BufReader<TcpStream>) -> Option<Got> {
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        if socket.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim() {
            "" => break,
            line => head.push(line.to_owned()),
        }
    }
    let length =
        head.iter().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    socket.read_exact(&mut body).ok()?;
    Some(Got { head, body })
}

fn signal(url: &str, path: &str) -> Signal {
    Signal {
        endpoint: format!("{url}{path}").parse().unwrap(),
        headers: Headers::parse("V", "api-key=s3cret").unwrap(),
        protocol: Protocol::Protobuf,
        timeout: Duration::from_secs(5),
        gzip: false,
        ca: None,
        identity: None,
    }
}

fn settings(traces: Option<Signal>, metrics: Option<Signal>) -> Settings {
    Settings {
        traces,
        metrics,
        resource: [("service.name".to_owned(), "tide".to_owned())].into(),
        sampler: crate::sampler::Sampler::default(),
        queue_spans: 100,
        batch_spans: 10,
        delay: Duration::from_millis(20),
        metrics_every: Duration::from_millis(50),
        query_texts: false,
    }
}

/// Runs with a subscriber of our layer.
fn traced<T>(run: impl FnOnce() -> T) -> T {
    let subscriber = tracing_subscriber::registry().with(SpanLayer::filtered());
    tracing::subscriber::with_default(subscriber, run)
}

fn spans(got: &Got) -> Vec<Span> {
    let request = ExportTraceServiceRequest::decode(&got.body[..]).unwrap();
    let scopes = request.resource_spans.into_iter().flat_map(|of| of.scope_spans);
    scopes.flat_map(|scope| scope.spans).collect()
}

fn text<'a>(attributes: &'a [KeyValue], key: &str) -> Option<&'a str> {
    let value = attributes.iter().find(|attribute| attribute.key == key)?.value.as_ref()?;
    match value.value.as_ref()? {
        Value::StringValue(text) => Some(text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn spans_arrive_with_their_parents_and_without_what_nobody_asked_for() {
    let _turn = turn();
    let collector = Collector::start(&[]);
    let telemetry =
        Telemetry::start(settings(Some(signal(&collector.url, "/v1/traces")), None), String::new).unwrap();
    let header = traced(|| {
        let query = tracing::info_span!(
            target: "otlp",
            "query",
            otel.kind = "server",
            traceparent = tracing::field::Empty,
            tracestate = "vendor=1",
            rows = tracing::field::Empty,
            error.type = tracing::field::Empty,
            db.query.text = "SELECT s3cret",
        );
        // As a server does, which looks at headers once it has the span.
        query.record("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        query.record("rows", 3_u64);
        query.record("error.type", "timeout");
        let skipped = tracing::info_span!(target: "otlp", parent: &query, "idle", otlp.skip = true);
        drop(skipped);
        let other = tracing::info_span!(target: "other", "not ours");
        let _in_other = other.enter();
        query.in_scope(crate::current_traceparent)
    });
    telemetry.end();
    let got = collector.next();
    assert_eq!(got.head[0], "POST /v1/traces HTTP/1.1");
    assert!(got.head.iter().any(|line| line == "api-key: s3cret"), "{:?}", got.head);
    assert!(got.head.iter().any(|line| line == "content-type: application/x-protobuf"), "{:?}", got.head);
    let [span] = &spans(&got)[..] else { panic!("{:?}", spans(&got)) };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    assert_eq!((span.name.as_str(), span.kind), ("query", 2));
    assert_eq!(hex(&span.trace_id), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!(hex(&span.parent_span_id), "b7ad6b7169203331");
    assert_eq!((span.flags, span.trace_state.as_str()), (0x301, "vendor=1"));
    assert_eq!(span.status.as_ref().map(|status| status.code), Some(2));
    assert_eq!(text(&span.attributes, "error.type"), Some("timeout"));
    assert!(span.attributes.iter().any(|rows| rows.key == "rows"));
    assert_eq!(text(&span.attributes, "db.query.text"), None);
    assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.start_time_unix_nano > 0);
    let expected = format!("00-0af7651916cd43dd8448eb211c80319c-{}-01", hex(&span.span_id));
    assert_eq!(header, Some(expected));
    let request = ExportTraceServiceRequest::decode(&got.body[..]).unwrap();
    let resource = request.resource_spans[0].resource.as_ref().unwrap();
    assert_eq!(text(&resource.attributes, "service.name"), Some("tide"));
    assert!(text(&resource.attributes, "service.instance.id").is_some_and(|id| id.len() == 32));
    // Once it has ended there is nothing to belong to.
    let after = traced(|| tracing::info_span!(target: "otlp", "late").in_scope(crate::current_traceparent));
    assert_eq!(after, None);
}

#[test]
fn query_texts_are_exported_where_they_are_wanted_and_children_keep_the_trace() {
    let _turn = turn();
    let collector = Collector::start(&[]);
    let wanted = Settings { query_texts: true, ..settings(Some(signal(&collector.url, "/")), None) };
    let telemetry = Telemetry::start(wanted, String::new).unwrap();
    traced(|| {
        let outer = tracing::info_span!(target: "otlp", "outer", db.query.text = "ä".repeat(9_000).as_str());
        outer.in_scope(|| tracing::info_span!(target: "otlp", "inner", otel.name = "named").in_scope(|| ()));
    });
    telemetry.end();
    let all = spans(&collector.next());
    let [inner, outer] = &all[..] else { panic!("{all:?}") };
    assert_eq!((inner.name.as_str(), outer.name.as_str()), ("named", "outer"));
    assert_eq!((&inner.trace_id, &inner.parent_span_id), (&outer.trace_id, &outer.span_id));
    assert!(outer.parent_span_id.is_empty() && outer.status.is_none());
    assert_eq!((outer.flags, outer.kind), (0x101, 1));
    // Cut at a letter.
    assert_eq!(text(&outer.attributes, "db.query.text").map(str::len), Some(8 << 10));
}

#[test]
fn what_a_caller_does_not_sample_is_not_exported_and_told_on() {
    let _turn = turn();
    let collector = Collector::start(&[]);
    let telemetry = Telemetry::start(settings(Some(signal(&collector.url, "/")), None), String::new).unwrap();
    let header = traced(|| {
        let traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00";
        let span = tracing::info_span!(target: "otlp", "query", traceparent = traceparent);
        let header = span.in_scope(crate::current_traceparent);
        drop(span);
        drop(tracing::info_span!(target: "otlp", "kept"));
        header
    });
    telemetry.end();
    assert!(header.unwrap().ends_with("-00"));
    let names: Vec<String> = spans(&collector.next()).into_iter().map(|span| span.name).collect();
    assert_eq!(names, ["kept"]);
}

#[test]
fn a_batch_is_sent_again_while_the_collector_is_busy_and_given_up_where_it_refuses() {
    let _turn = turn();
    let collector = Collector::start(&[503, 429, 200, 400]);
    let before = counts();
    let telemetry = Telemetry::start(settings(Some(signal(&collector.url, "/")), None), String::new).unwrap();
    traced(|| drop(tracing::info_span!(target: "otlp", "first")));
    let bodies: Vec<Vec<u8>> = (0..3).map(|_| collector.next().body).collect();
    assert!(bodies[0] == bodies[1] && bodies[1] == bodies[2]);
    traced(|| drop(tracing::info_span!(target: "otlp", "second")));
    assert_eq!(spans(&collector.next())[0].name, "second");
    telemetry.end();
    assert!(collector.got.try_recv().is_err(), "a refused batch is not sent again");
    let after = counts();
    assert_eq!((after.sent_spans - before.sent_spans, after.lost_spans - before.lost_spans), (1, 1));
}

#[test]
fn a_collector_that_does_not_answer_slows_nobody() {
    let _turn = turn();
    // It accepts and says nothing.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let before = counts();
    let telemetry = Telemetry::start(settings(Some(signal(&url, "/")), None), String::new).unwrap();
    let began = Instant::now();
    traced(|| (0..10_000).for_each(|_| drop(tracing::info_span!(target: "otlp", "query", rows = 1))));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(4), "10000 spans took {took:?}");
    // The queue holds a hundred, and the thread a batch of ten.
    let dropped = counts().dropped_spans - before.dropped_spans;
    assert!((9_800..=9_900).contains(&dropped), "{dropped}");
    let began = Instant::now();
    telemetry.end();
    assert!(began.elapsed() < Duration::from_secs(7), "{:?}", began.elapsed());
    // Once the collector refuses, the thread counts the rest as lost: no span is forgotten, and
    // none is counted while another test runs.
    drop(listener);
    let began = Instant::now();
    while counts().lost_spans - before.lost_spans < 10_000 - dropped {
        assert!(began.elapsed() < Duration::from_secs(30), "{} of the rest", counts().lost_spans);
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(counts().lost_spans - before.lost_spans, 10_000 - dropped);
}

#[test]
fn figures_are_sent_at_the_interval_and_at_the_end() {
    let _turn = turn();
    let collector = Collector::start(&[503]);
    let before = counts().failed_metrics;
    let metrics = Signal { gzip: true, ..signal(&collector.url, "/v1/metrics") };
    let read = Arc::new(Mutex::new(0_u64));
    let page = move || {
        let mut read = read.lock().unwrap();
        *read += 1;
        format!("# HELP n Times read.\n# TYPE n counter\nn_total {read}\n# EOF\n")
    };
    let telemetry = Telemetry::start(settings(None, Some(metrics)), page).unwrap();
    let value = |got: &Got| {
        assert!(got.head.iter().any(|line| line == "content-encoding: gzip"), "{:?}", got.head);
        let mut plain = Vec::new();
        flate2::read::GzDecoder::new(&got.body[..]).read_to_end(&mut plain).unwrap();
        let request = ExportMetricsServiceRequest::decode(&plain[..]).unwrap();
        let metric = &request.resource_metrics[0].scope_metrics[0].metrics[0];
        format!("{} {:?}", metric.name, metric.data)
    };
    let all: Vec<String> = (0..3).map(|_| value(&collector.next())).collect();
    assert!(
        all[0].starts_with("n ") && all[0].contains("AsInt(1)") && all[2].contains("AsInt(3)"),
        "{all:?}"
    );
    telemetry.end();
    assert_eq!(counts().failed_metrics - before, 1);
}
