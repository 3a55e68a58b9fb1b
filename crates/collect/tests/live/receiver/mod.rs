//! The receiver over real sockets.

mod client;
mod limits;
#[cfg(feature = "otlp")]
mod otlp;
#[cfg(feature = "otlp")]
mod otlp_memory;
mod owners;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;
use tidegate_collect::receiver::{
    GpuName, HoldEvent, HoldEvents, HoldKind, Receiver, ReceiverError, ReceiverOptions, ReceiverParts,
    StepReports,
};

use crate::support::{PATIENCE, Recorder};

/// A receiver on its own socket, and what it emitted.
struct Setup {
    receiver: Receiver,
    recorded: Arc<Recorder>,
    holds: Arc<Holds>,
    socket: PathBuf,
    _folder: TempDir,
}

#[derive(Default)]
struct Holds(Mutex<Vec<HoldEvent>>);

impl HoldEvents for Holds {
    fn hold_event(&self, event: HoldEvent) -> Result<(), String> {
        if event.job_id == "unknown" {
            return Err("there is no such job".into());
        }
        self.0.lock().unwrap().push(event);
        Ok(())
    }
}

fn setup(change: impl FnOnce(&mut ReceiverOptions)) -> Setup {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let mut options = ReceiverOptions::new("n1");
    options.socket = Some(socket.clone());
    options.tcp = Some("127.0.0.1:0".parse().unwrap());
    // Whose jobs they are is tested in `owners`.
    options.step_reports = StepReports::Any;
    change(&mut options);
    let (recorded, holds) = (Recorder::new(), Arc::<Holds>::default());
    let receiver = Receiver::start(options, parts(&recorded, &holds)).unwrap();
    Setup { receiver, recorded, holds, socket, _folder: folder }
}

fn parts(recorded: &Arc<Recorder>, holds: &Arc<Holds>) -> ReceiverParts {
    ReceiverParts {
        sink: Arc::clone(recorded) as _,
        holds: Some(Arc::clone(holds) as _),
        jobs: None,
        status: Arc::new(|| json!({"node": "n1"})),
    }
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Reads one answer line.
fn answer(reader: &mut impl BufRead) -> Value {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
}

fn line(step: u64) -> String {
    format!("{{\"job\":\"7\",\"rank\":0,\"step\":{step},\"start\":1763712000.5,\"duration_s\":0.25}}\n")
}

/// Sends one request and closes. Returns status and body.
fn request(stream: impl Read + Write, method: &str, path: &str, headers: &str, body: &[u8]) -> (u16, Value) {
    let mut stream = stream;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    // The server may already have refused and closed.
    stream.write_all(body).ok();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{body:?}: {error}")))
}

#[test]
fn each_line_is_answered_and_good_ones_are_accepted() {
    let setup = setup(|_| {});
    let mut stream = connect(&setup.socket);
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    stream.write_all(line(1).as_bytes()).unwrap();
    assert_eq!(answer(&mut reader), json!({"acked": 1}));

    // A line in two pieces, a bad one, one with an unknown field, and NaN as Python writes it.
    let text = line(2);
    stream.write_all(&text.as_bytes()[..20]).unwrap();
    stream.write_all(&text.as_bytes()[20..]).unwrap();
    stream.write_all(b"{\"job\":\"7\"}\n{\"lost\":1,").unwrap();
    stream.write_all(&line(3).as_bytes()[1..]).unwrap();
    stream.write_all(b"{\"job\":\"7\",\"loss\":NaN}\n").unwrap();
    assert_eq!(answer(&mut reader), json!({"acked": 2}));
    let refused = answer(&mut reader);
    assert_eq!(refused["rejected"], 3);
    assert!(refused["error"].as_str().unwrap().starts_with("line 3: start is missing"), "{refused}");
    assert_eq!(answer(&mut reader), json!({"acked": 4, "ignored": ["lost"]}));
    let refused = answer(&mut reader);
    assert!(refused["error"].as_str().unwrap().contains("NaN"), "{refused}");

    let steps = setup.recorded.steps();
    assert_eq!(steps.iter().map(|step| step.step).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((steps[0].duration_us, steps[0].node.as_deref()), (250_000, Some("n1")));
    assert_eq!(setup.receiver.counts()["steps"], 3);
    assert_eq!(setup.receiver.counts()["refused_lines"], 2);
}

#[test]
fn requests_are_accepted_on_both_sockets() {
    let setup = setup(|_| {});
    let tcp = setup.receiver.tcp_address().unwrap();
    let body = format!("{}{{}}\n{}", line(1), line(2));
    for step in 0..2 {
        let (status, answer) = match step {
            0 => request(connect(&setup.socket), "POST", "/v1/steps", "", body.as_bytes()),
            _ => request(TcpStream::connect(tcp).unwrap(), "POST", "/v1/steps", "", body.as_bytes()),
        };
        assert_eq!((status, &answer["accepted"], &answer["rejected"]), (200, &json!(2), &json!(1)));
        assert!(answer["errors"][0].as_str().unwrap().starts_with("line 2: "), "{answer}");
    }
    // The same lines are the same events.
    let ids: Vec<_> = setup
        .recorded
        .steps()
        .into_iter()
        .map(|step| (step.step, step.envelope.unwrap().event_time_ms))
        .collect();
    assert_eq!(ids[..2], ids[2..]);

    let (status, answer) = request(connect(&setup.socket), "POST", "/v1/steps", "", b"[]");
    assert_eq!((status, &answer["rejected"]), (400, &json!(1)));
    let (status, answer) = request(connect(&setup.socket), "GET", "/v1/status", "", b"");
    assert_eq!((status, &answer["node"], &answer["inlet"]["steps"]), (200, &json!("n1"), &json!(4)));
    assert_eq!(request(connect(&setup.socket), "GET", "/v1/steps", "", b"").0, 405);
    assert_eq!(request(connect(&setup.socket), "GET", "/", "", b"").0, 404);
    let (status, _) =
        request(TcpStream::connect(tcp).unwrap(), "GET", "/v1/status", "Origin: http://a.example\r\n", b"");
    assert_eq!(status, 403, "a web page must not reach the agent");
    for (host, status) in [("evil.example:4318", 421), ("127.0.0.1:4318", 200), ("[::1]:4318", 200)] {
        let mut stream = TcpStream::connect(tcp).unwrap();
        write!(stream, "GET /v1/status HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(
            answer.starts_with(&format!("HTTP/1.1 {status}")),
            "nor one whose name points here: {answer}"
        );
    }
}

#[test]
fn holds_are_accepted_from_authorised_users_only() {
    let setup = setup(|_| {});
    let hold = br#"{"event":"hold","job_id":"12_3","gpus":"0,GPU-a","time_ms":1763712000000,"restart":1,"source":"prolog"}"#;
    let (status, answer) = request(connect(&setup.socket), "POST", "/v1/events", "", hold);
    assert_eq!((status, &answer["accepted"]), (200, &json!(1)), "{answer}");
    let mut stream = connect(&setup.socket);
    stream.write_all(b"{\"event\":\"release\",\"job_id\":\"12_3\",\"source\":\"epilog\"}\n{\"event\":\"release\",\"job_id\":\"unknown\"}\n").unwrap();
    let mut reader = BufReader::new(stream);
    assert_eq!(self::answer(&mut reader), json!({"acked": 1}));
    assert_eq!(self::answer(&mut reader)["error"], "there is no such job");
    let holds = setup.holds.0.lock().unwrap();
    assert_eq!(holds[0].gpus, [GpuName::Index(0), GpuName::Uuid("GPU-a".into())]);
    assert_eq!((holds[1].kind, holds[1].source.as_str(), holds.len()), (HoldKind::Release, "epilog", 2));

    // Over TCP the sender is unknown.
    let tcp = TcpStream::connect(setup.receiver.tcp_address().unwrap()).unwrap();
    let (status, answer) = request(tcp, "POST", "/v1/events", "", hold);
    assert_eq!((status, &answer["rejected"]), (400, &json!(1)));
    assert!(answer["errors"][0].as_str().unwrap().contains("Unix socket only"), "{answer}");
}

#[test]
fn a_dead_agents_socket_is_replaced_and_a_running_ones_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("agent.sock");
    let (recorded, holds) = (Recorder::new(), Arc::<Holds>::default());
    let mut options = ReceiverOptions::new("n1");
    options.socket = Some(socket.clone());
    options.mode = 0o660;

    // Dropping a listener leaves its file, as a killed agent does.
    drop(UnixListener::bind(&socket).unwrap());
    let receiver = Receiver::start(options.clone(), parts(&recorded, &holds)).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&socket).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o660);
    let error = Receiver::start(options.clone(), parts(&recorded, &holds)).unwrap_err();
    assert!(matches!(error, ReceiverError::InUse { .. }), "{error}");
    receiver.stop();
    assert!(!socket.exists(), "the socket goes with the agent");

    std::fs::write(&socket, "a file").unwrap();
    let error = Receiver::start(options.clone(), parts(&recorded, &holds)).unwrap_err();
    assert!(matches!(error, ReceiverError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read(&socket).unwrap(), b"a file");

    options.socket = Some(folder.path().join("nowhere/agent.sock"));
    let error = Receiver::start(options.clone(), parts(&recorded, &holds)).unwrap_err();
    assert!(error.to_string().contains("RuntimeDirectory"), "{error}");
    options.socket = None;
    options.tcp = Some("0.0.0.0:0".parse().unwrap());
    let error = Receiver::start(options.clone(), parts(&recorded, &holds)).unwrap_err();
    assert!(matches!(error, ReceiverError::NotLoopback { .. }), "{error}");
    options.tcp = None;
    options.socket = Some(folder.path().join("b.sock"));
    options.group = Some("no-such-group".into());
    let error = Receiver::start(options, parts(&recorded, &holds)).unwrap_err();
    assert!(error.to_string().contains("no such group"), "{error}");
}
