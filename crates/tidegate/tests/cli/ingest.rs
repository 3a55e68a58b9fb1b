//! Events over HTTP: agents send to `tidegate up --ingest`, which is killed and restarted
//! meanwhile.

use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use tidegate_collect::Sink;
use tidegate_collect::agent::spool::SpoolOptions;
use tidegate_collect::agent::{Agent, AgentOptions, End};
use tidegate_collect::log_sink::{HttpLogSink, LogSink};
use tidegate_events::v1::{Envelope, NodeEvent, NodeEventKind};
use tidegate_events::{Event, SchemaId};
use tidegate_log::wire::{AppendRecord, AppendRequest};
use tidegate_log::{Batch, EmbeddedLog, EventLog, LogError, Producer, Record, TopicPartition};

use crate::program::{address_of, tidegate, wait_until};
use crate::support::{PATIENCE, Response};

const PROTOBUF: &str = "Content-Type: application/x-protobuf";

/// A server that receives events.
pub struct Up {
    child: Child,
    _stdout: BufReader<ChildStdout>,
    pub address: String,
}

impl Up {
    fn start(data: &Path, listen: &str) -> Self {
        let mut command = tidegate();
        command.args(["up", "--ingest", "--listen", listen, "--data"]).arg(data);
        Self::spawn(command)
    }

    /// Runs a command that is or becomes `tidegate up --ingest`.
    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        let (address, stdout) = address_of(&mut child, "events");
        Self { address, child, _stdout: stdout }
    }

    /// What it logs, where its command pipes that.
    pub fn stderr(&mut self) -> ChildStderr {
        self.child.stderr.take().unwrap()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn post(&self, headers: &[&str], body: &[u8]) -> Response {
        let mut socket = TcpStream::connect(&self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
        let head = format!(
            "POST /v1/events HTTP/1.0\r\nHost: localhost\r\nContent-Length: {}\r\n{headers}\r\n",
            body.len()
        );
        socket.write_all(head.as_bytes()).unwrap();
        // A server that refuses by the head stops reading.
        socket.write_all(body).ok();
        Response::read(socket)
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn numbered(number: u64) -> Event {
    Event::Node(NodeEvent {
        envelope: Some(Envelope {
            cluster: "c".into(),
            event_time_ms: 1_700_000_000_000 + number as i64,
            ..Envelope::default()
        }),
        kind: NodeEventKind::DeviceEvent.into(),
        node: "n1".into(),
        count: Some(number),
        ..NodeEvent::default()
    })
}

fn records(numbers: std::ops::Range<u64>) -> Vec<Record> {
    numbers.map(|number| numbered(number).record().unwrap().into()).collect()
}

fn batch(epoch: u64, first_seq: u64, count: u64) -> Batch {
    let producer = Producer { source: "agent/n1@c".into(), epoch };
    Batch { producer, first_seq, records: records(first_seq..first_seq + count) }
}

fn nodes() -> TopicPartition {
    TopicPartition { topic: "nodes".into(), partition: 0 }
}

fn start(url: &str, spool: &Path) -> Agent {
    let spool = SpoolOptions { dir: spool.into(), limit_bytes: 1 << 30, take_over: false };
    let options = AgentOptions { deliver_every: Duration::ZERO, ..AgentOptions::for_node("c", "n1", spool) };
    let url = url.to_owned();
    Agent::start(options, Box::new(move || Ok(Box::new(HttpLogSink::new(&url, None)) as Box<dyn LogSink>)))
        .unwrap()
}

/// Sequence numbers of the events in a closed data folder, in order.
fn stored(data: &Path) -> Vec<u64> {
    let log = EmbeddedLog::open(data.join("log"), Default::default()).unwrap();
    let records = log.read(&nodes(), 0, usize::MAX).unwrap();
    let events =
        records.iter().map(|stored| Event::decode(stored.record.schema, &stored.record.payload).unwrap());
    let numbers = events.filter_map(|event| match event {
        Event::Node(event) if event.kind() == NodeEventKind::DeviceEvent => event.count,
        _ => None,
    });
    numbers.collect()
}

#[test]
fn refusals_of_the_log_come_back_as_what_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), "127.0.0.1:0");
    let log = HttpLogSink::new(&up.url(), None);
    // Of what people do only services are told.
    for schema in SchemaId::ALL.into_iter().filter(|schema| *schema != SchemaId::AuditEvent) {
        assert_eq!(log.partitions(schema.topic()).unwrap(), 1);
    }
    for none in ["nothing", "audit"] {
        assert!(matches!(log.partitions(none), Err(LogError::UnknownTopic(topic)) if topic == none));
    }
    let appended = log.append(&nodes(), batch(5, 0, 3)).unwrap();
    assert_eq!((appended.written, appended.duplicates), (3, 0));
    let again = log.append(&nodes(), batch(5, 1, 4)).unwrap();
    assert_eq!((again.written, again.duplicates), (2, 2));
    let gap = log.append(&nodes(), batch(5, 9, 1)).unwrap_err();
    assert!(matches!(gap, LogError::SequenceGap { expected: 5, got: 9, .. }), "{gap:?}");
    let stale = log.append(&nodes(), batch(4, 0, 1)).unwrap_err();
    assert!(matches!(stale, LogError::StaleEpoch { newest: 5, got: 4, .. }), "{stale:?}");
    let elsewhere = TopicPartition { topic: "jobs".into(), partition: 0 };
    let refused = log.append(&elsewhere, batch(5, 5, 1)).unwrap_err().to_string();
    assert!(refused.contains("belongs to topic nodes"), "{refused}");
    let clock = log.clock().unwrap().unwrap();
    let now_ms =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as i64;
    assert!((now_ms - clock.at_ms).abs() <= clock.uncertainty_ms + 100, "{clock:?} at {now_ms}");

    up.kill();
    let gone = log.append(&nodes(), batch(5, 5, 1)).unwrap_err();
    assert!(gone.is_passing() && gone.to_string().contains("tidegate up --ingest"), "{gone}");
}

#[test]
fn what_is_no_append_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), "127.0.0.1:0");
    let (status, code, said) = up.post(&["Content-Type: text/plain"], b"").refusal();
    assert_eq!((status, code.as_str()), (415, "media_type"), "{said}");
    let (status, code, said) = up.post(&[PROTOBUF], b"\xff\xff\xff").refusal();
    assert_eq!((status, code.as_str()), (400, "bad_request"), "{said}");
    let (status, code, _) = up.post(&[PROTOBUF], &vec![0; 10 << 20]).refusal();
    assert_eq!((status, code.as_str()), (413, "body_too_large"));
    let (at, batch) = (nodes(), batch(1, 0, 2));
    let whole = AppendRequest::new(&at, batch);
    let with = |change: &dyn Fn(&mut AppendRecord)| {
        let mut request = whole.clone();
        change(&mut request.records[1]);
        up.post(&[PROTOBUF], &request.encode_to_vec()).refusal()
    };
    for (change, words) in [
        (
            &(|record: &mut AppendRecord| record.payload = "no event".into()) as &dyn Fn(&mut AppendRecord),
            "record 1",
        ),
        (&|record: &mut AppendRecord| record.schema = 99 << 16, "unknown schema 99"),
        (&|record: &mut AppendRecord| record.key = "c/other".into(), "its key is \"c/n1\""),
        (&|record: &mut AppendRecord| record.event_time_ms = 5, "its event time is"),
    ] {
        let (status, _, said) = with(change);
        assert!(status == 400 && said.contains(words), "{said}");
    }
    assert_eq!(
        HttpLogSink::new(&up.url(), None).append(&at, self::batch(1, 0, 2)).unwrap().written,
        2,
        "none before"
    );
}

#[test]
fn without_being_asked_to_it_takes_nothing_in() {
    let server = crate::support::Server::start(tidegate_server::QueryLimits::default());
    let refused =
        HttpLogSink::new(&format!("http://{}", server.address), None).partitions("nodes").unwrap_err();
    assert!(refused.to_string().contains("start it with --ingest"), "{refused}");
}

/// The server is killed repeatedly while an agent sends; its events are in the log once, in order,
/// and in the tables.
#[test]
fn a_server_that_is_killed_gets_everything_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let listen = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let agent = start(&format!("http://{listen}"), &folder.path().join("spool"));
    let sink: Arc<dyn Sink> = agent.sink();
    let mut sent = 0;
    for _ in 0..4 {
        let up = Up::start(&data, &listen);
        let before = agent.stats().delivered;
        wait_until("the agent to get on", || {
            sink.event(numbered(sent));
            sent += 1;
            agent.store().unwrap();
            agent.stats().delivered > before + 20
        });
        up.kill();
        for _ in 0..10 {
            sink.event(numbered(sent));
            sent += 1;
        }
        agent.store().unwrap();
    }
    let up = Up::start(&data, &listen);
    wait_until("all to be delivered", || agent.is_drained());
    assert_eq!(agent.ended(), None::<End>);
    assert!(agent.stop(PATIENCE, "the end"));
    up.kill();
    assert_eq!(stored(&data), (0..sent).collect::<Vec<_>>());
}

/// Most memory that the server has held, MiB.
fn peak_mib(up: &Up) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", up.child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB")).unwrap();
    peak.trim().parse::<u64>().unwrap() / 1024
}

/// The attack: two bytes for each record on the wire became ninety in memory.
#[test]
fn records_are_counted_before_they_are_decoded() {
    let folder = tempfile::tempdir().unwrap();
    let up = Up::start(&folder.path().join("data"), "127.0.0.1:0");
    let before = peak_mib(&up);
    let empty_records = [0x32, 0].repeat((9 << 20) / 2);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (status, code, said) = up.post(&[PROTOBUF], &empty_records).refusal();
                assert_eq!((status, code.as_str()), (400, "bad_request"), "{said}");
                assert!(said.contains("`records` stands more than 65536 times"), "{said}");
            });
        }
    });
    // An event with as many columns.
    let payload = [0x32, 0].repeat((4 << 20) / 2);
    let record = AppendRecord {
        schema: SchemaId::GpuSampleBatch.number(),
        payload: payload.into(),
        ..Default::default()
    };
    let request = AppendRequest { topic: "gpu-samples".into(), records: vec![record], ..Default::default() };
    let (status, _, said) = up.post(&[PROTOBUF], &request.encode_to_vec()).refusal();
    assert!(status == 400 && said.contains("`columns` stands more than 512 times"), "{said}");
    let grown = peak_mib(&up) - before;
    assert!(grown < 128, "{grown} MiB more for four bodies of 9 MiB");
    let log = HttpLogSink::new(&up.url(), None);
    assert_eq!(log.append(&nodes(), batch(1, 0, 2)).unwrap().written, 2, "it goes on");
}
