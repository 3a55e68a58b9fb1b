//! Who may do what: tokens, what their principals are bound to, and the whole table of permissions
//! through the HTTP door.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use prost::Message;
use tidegate_events::v1::{
    AutopilotEventKind, CapacityEventKind, Envelope, JobEventKind, NodeEvent, NodeEventKind,
};
use tidegate_events::{Event, SchemaId};
use tidegate_log::wire::AppendRequest;
use tidegate_log::{Batch, Producer, TopicPartition};
use tidegate_server::access::{Action, Role};

use crate::ingest::Up;
use crate::program::{run, succeed, tidegate, wait_until};
use crate::support::{PATIENCE, Response, request};

/// A server, its token file, and tokens by id.
pub struct Site {
    folder: tempfile::TempDir,
    tokens: BTreeMap<String, String>,
    running: Option<Up>,
}

impl Site {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self { folder, tokens: BTreeMap::new(), running: None }
    }

    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    pub fn file(&self) -> PathBuf {
        self.folder.path().join("tokens.toml")
    }

    pub fn token(&mut self, id: &str, arguments: &[&str]) {
        let mut command = tidegate();
        command.args(["token", "new", "--id", id]).args(arguments).arg("--tokens").arg(self.file());
        let token = succeed(&mut command).trim().to_owned();
        assert!(token.starts_with("tidegate_") && token.len() == 73, "{token}");
        self.tokens.insert(id.into(), token);
    }

    /// The command of a server; with tokens if there are any.
    pub fn command(&self) -> Command {
        let mut command = tidegate();
        command.args(["up", "--ingest", "--no-insight", "--listen", "127.0.0.1:0", "--data"]);
        command.arg(self.data());
        if !self.tokens.is_empty() {
            command.arg("--tokens").arg(self.file());
        }
        command
    }

    pub fn start(&mut self) {
        self.start_by(self.command());
    }

    pub fn start_by(&mut self, command: Command) {
        self.running = Some(Up::spawn(command));
    }

    pub fn running(&mut self) -> &mut Up {
        self.running.as_mut().unwrap()
    }

    /// Ends the server as `kill -9` does.
    pub fn stop(&mut self) {
        self.running = None;
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.running.as_ref().unwrap().address)
    }

    pub fn token_of(&self, id: &str) -> &str {
        &self.tokens[id]
    }

    /// A request as the holder of a token; `""` shows none.
    pub fn ask(&self, id: &str, line: &str, headers: &[&str], body: &[u8]) -> Response {
        Response::read(self.send(id, line, headers, body))
    }

    /// The same, before its answer is read.
    pub fn send(&self, id: &str, line: &str, headers: &[&str], body: &[u8]) -> TcpStream {
        let shown = self.tokens.get(id).map(|token| format!("Authorization: Bearer {token}"));
        let headers: Vec<&str> = headers.iter().copied().chain(shown.as_deref()).collect();
        let socket = TcpStream::connect(&self.running.as_ref().unwrap().address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        request(socket, line, &headers, body)
    }

    pub fn get(&self, id: &str, path: &str) -> Response {
        self.ask(id, &format!("GET {path}"), &[], b"")
    }

    pub fn sql(&self, id: &str, sql: &str) -> Response {
        self.ask(id, "POST /v1/sql", &["Accept: text/csv"], sql.as_bytes())
    }

    pub fn append(&self, id: &str, producer: &str, epoch: u64, mut event: Event) -> Response {
        event.seal();
        let topic = event.schema().topic().to_owned();
        let at = TopicPartition { topic, partition: 0 };
        let producer = Producer { source: producer.into(), epoch };
        let records = vec![event.record().unwrap().into()];
        let body = AppendRequest::new(&at, Batch { producer, first_seq: 0, records }).encode_to_vec();
        self.ask(id, "POST /v1/events", &["Content-Type: application/x-protobuf"], &body)
    }
}

fn node_event(source: &str, node: &str) -> Event {
    Event::Node(NodeEvent {
        envelope: Some(Envelope {
            cluster: "c".into(),
            source: source.into(),
            event_time_ms: 1_700_000_000_000,
            ..Envelope::default()
        }),
        kind: NodeEventKind::DeviceEvent.into(),
        node: node.into(),
        ..NodeEvent::default()
    })
}

/// An event of the contract's newest fixture, as this collector would send it.
fn fixture(schema: SchemaId, source: &str) -> Event {
    let file = format!("../../schemas/fixtures/{}/v{}.bin", schema.name(), schema.version());
    let bytes = std::fs::read(Path::new(&file)).unwrap();
    let mut event = Event::decode(schema.number(), &bytes).unwrap();
    let envelope = event.envelope_mut();
    (envelope.cluster, envelope.source) = ("c".into(), source.into());
    event
}

/// An event that this action appends.
fn event_for(action: Action, source: &str) -> Option<Event> {
    let node = || Some("n1".to_owned());
    let schema = match action {
        Action::Query | Action::Status | Action::Topics | Action::Audit => return None,
        Action::Autopilot | Action::Rehearsal => return None,
        Action::Decide | Action::Pause | Action::Resume => return None,
        Action::Samples => SchemaId::GpuSampleBatch,
        Action::Steps => SchemaId::StepReport,
        Action::Nodes => return Some(node_event(source, "n1")),
        Action::Holds | Action::Jobs => SchemaId::JobEvent,
        Action::Capacity | Action::Prices => SchemaId::CapacityEvent,
        Action::DeadLetters => SchemaId::DeadLetter,
        Action::Signals => SchemaId::NodeSignal,
        Action::Forecasts => SchemaId::Forecast,
        Action::Journal => SchemaId::AutopilotEvent,
        Action::AuditRecords => SchemaId::AuditEvent,
    };
    let mut event = fixture(schema, source);
    match &mut event {
        Event::GpuSamples(batch) => batch.node = "n1".into(),
        Event::Step(report) => report.node = node(),
        Event::DeadLetter(letter) => letter.origin = source.into(),
        Event::Job(job) => {
            let kinds = (JobEventKind::DeviceHeld, JobEventKind::Submitted);
            (job.kind, job.node) = (if action == Action::Holds { kinds.0 } else { kinds.1 }.into(), node());
        }
        Event::Capacity(capacity) => {
            let kinds = (CapacityEventKind::PriceSet, CapacityEventKind::QuotaSet);
            capacity.kind = if action == Action::Prices { kinds.0 } else { kinds.1 }.into();
        }
        _ => {}
    }
    assert_eq!(Action::appending(&event), action);
    Some(event)
}

#[test]
fn every_cell_of_the_table_of_permissions_holds() {
    let mut site = Site::new();
    site.token("agent", &["--role", "agent", "--cluster", "c", "--node", "n1"]);
    site.token("watcher", &["--role", "watcher", "--cluster", "c"]);
    for role in ["service", "viewer", "operator", "administrator"] {
        site.token(role, &["--role", role]);
    }
    site.start();
    let mut open = Site::new();
    open.start();
    let mut wrong = Vec::new();
    for role in Role::ALL {
        let source = match role {
            Role::Agent => "agent/n1",
            Role::Watcher => "watch/slurm/c",
            _ => "another",
        };
        let (at, id) = if role == Role::Local { (&open, "") } else { (&site, role.name()) };
        for (number, action) in Action::ALL.into_iter().enumerate() {
            let answers = match event_for(action, source) {
                Some(event) => vec![at.append(id, &format!("{source}@c"), number as u64 + 1, event)],
                None if action == Action::Query => vec![at.sql(id, "SELECT 1"), at.get(id, "/v1/tables")],
                None if action == Action::Audit => vec![at.sql(id, "SELECT count(*) FROM audit")],
                None if action.is_steering() => action
                    .door()
                    .split(", ")
                    .map(|path| at.ask(id, &format!("POST {path}"), &[], b"{}"))
                    .collect(),
                None => action.door().split(", ").map(|path| at.get(id, path)).collect(),
            };
            for answer in answers {
                let is_of_autopilot = action == Action::Autopilot || action.is_steering();
                let expected = match (role.may(action), action) {
                    // None runs here.
                    (true, _) if is_of_autopilot => 404,
                    (true, _) => 200,
                    // Who may ask otherwise finds no such table.
                    (false, Action::Audit) if role.may(Action::Query) => 400,
                    (false, _) => 403,
                };
                if answer.status != expected {
                    wrong.push(format!("{role} {}: {} {}", action.name(), answer.status, answer.text()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let metrics = site.get("administrator", "/metrics");
    assert!(metrics.text().contains("tidegate_http_refused_total{status=\"403\"}"), "{}", metrics.text());
}

/// Attack 2: the token of one node wrote journals, prices and the epochs of other nodes.
#[test]
fn the_token_of_a_node_writes_nothing_but_what_that_node_tells() {
    let mut site = Site::new();
    site.token("n1", &["--role", "agent", "--cluster", "c", "--node", "n1"]);
    site.token("n2", &["--role", "agent", "--cluster", "c", "--node", "n2"]);
    site.start();
    let refused = |answer: Response, word: &str| {
        let (status, code, said) = answer.refusal();
        assert!(
            (status, code.as_str()) == (403, "forbidden") && said.contains(word),
            "{status} {code} {said}"
        );
    };
    let mut approval = event_for(Action::Journal, "autopilot").unwrap();
    if let Event::Autopilot(entry) = &mut approval {
        entry.kind = AutopilotEventKind::Approved.into();
    }
    refused(site.append("n1", "autopilot", 1, approval), "journal");
    // Epoch 2⁶⁴−1 of another node's agent would stop that agent for good.
    refused(site.append("n1", "agent/n2@c", u64::MAX, node_event("agent/n2", "n1")), "agent/n2");
    refused(site.append("n1", "agent/n1@c", 1, node_event("agent/n1", "n2")), "node \"n2\"");
    let empty = AppendRequest {
        topic: "nodes".into(),
        source: "agent/n2@c".into(),
        epoch: u64::MAX,
        ..AppendRequest::default()
    };
    let empty =
        site.ask("n1", "POST /v1/events", &["Content-Type: application/x-protobuf"], &empty.encode_to_vec());
    assert_eq!(empty.status, 400, "an append without records claims an epoch too");
    assert_eq!(site.append("n2", "agent/n2@c", 1, node_event("agent/n2", "n2")).status, 200);
    assert_eq!(site.append("n1", "agent/n1@c", 1, node_event("agent/n1", "n1")).status, 200);
}

#[test]
fn a_token_counts_until_it_is_revoked_or_over() {
    let mut site = Site::new();
    site.token("ann", &["--role", "viewer"]);
    site.token("old", &["--role", "viewer", "--expires", "1s"]);
    site.start();
    assert_eq!(site.sql("ann", "SELECT 1 AS n").text(), "n\n1\n");
    let (status, code, said) = site.sql("", "SELECT 1").refusal();
    assert_eq!((status, code.as_str()), (401, "unauthorized"), "{said}");
    assert!(site.sql("", "SELECT 1").head.contains("www-authenticate: bearer"));
    assert_eq!(site.get("", "/healthz").status, 200);
    wait_until("the token to expire", || site.sql("old", "SELECT 1").status == 401);
    assert!(site.sql("old", "SELECT 1").refusal().2.contains("expired"));

    let whole = std::fs::read_to_string(site.file()).unwrap();
    assert!(!whole.contains(&site.tokens["ann"]), "the file has hashes alone");
    std::fs::write(site.file(), "[[token]]\nid = 7").unwrap();
    wait_until("the broken file to show", || {
        let status = site.get("ann", "/v1/status");
        assert_eq!(status.status, 200, "what was read before goes on to count");
        status.json()["token_file_error"].as_str().is_some_and(|error| error.contains("tokens.toml"))
    });
    std::fs::write(site.file(), whole).unwrap();
    succeed(tidegate().args(["token", "revoke", "ann", "--tokens"]).arg(site.file()));
    wait_until("the token to be revoked", || site.sql("ann", "SELECT 1").status == 401);
    let listed = succeed(tidegate().args(["token", "list", "--tokens"]).arg(site.file()));
    assert!(listed.contains("old") && !listed.contains("ann"), "{listed}");
}

#[test]
fn commands_say_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    let (data, file) = (folder.path().join("data"), folder.path().join("tokens.toml"));
    run(tidegate().args(["up", "--listen", "0.0.0.0:0", "--data"]).arg(&data)).refused(&[
        "other machines",
        "tidegate token new",
        "--tokens",
    ]);
    run(tidegate().args(["up", "--ingest", "--ingest-token-file", "x", "--data"]).arg(&data))
        .refused(&["--role agent", "--tokens"]);
    run(tidegate().args(["up", "--tokens"]).arg(&file).arg("--data").arg(&data)).refused(&["tokens.toml"]);
    assert!(!data.exists());
    for (arguments, word) in [
        (vec!["new", "--role", "agent", "--cluster", "c", "--id", "a"], "needs nodes"),
        (vec!["new", "--role", "viewer"], "--id"),
        (vec!["new", "--role", "watcher", "--id", "w", "--cluster", "a/b"], "cluster"),
        (vec!["revoke", "nobody"], "nothing is revoked"),
    ] {
        run(tidegate().arg("token").args(arguments).arg("--tokens").arg(&file)).refused(&[word]);
    }
    assert!(!file.exists());
}
