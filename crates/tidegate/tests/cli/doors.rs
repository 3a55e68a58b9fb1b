//! Connections that want to wear the server out, and TLS.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tidegate_collect::log_sink::{HttpLogSink, LogSink, Roots};
use tidegate_server::{ConnectionLimits, QueryLimits, Tls, TlsFiles};

use crate::program::{tidegate, wait_until};
use crate::support::{PATIENCE, Response, Server, request};

/// Half of a request's head.
const HALF: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: local";

fn limits() -> ConnectionLimits {
    ConnectionLimits {
        connections: 40,
        head: Duration::from_secs(2),
        body: Duration::from_secs(2),
        stalled: Duration::from_secs(1),
    }
}

fn server(limits: ConnectionLimits) -> Server {
    Server::start_with(QueryLimits::default(), move |door| door.limits = limits)
}

/// Connections that have each sent half of a request's head.
fn half_sent(address: &str, count: usize) -> Vec<TcpStream> {
    let connect = |_| {
        let mut socket = TcpStream::connect(address).unwrap();
        socket.write_all(HALF).unwrap();
        socket
    };
    (0..count).map(connect).collect()
}

/// Whether the server closes the connection, without an answer, in time.
fn is_closed(mut socket: TcpStream, within: Duration) -> bool {
    socket.set_read_timeout(Some(within)).unwrap();
    match socket.read(&mut [0; 1]) {
        Ok(read) => read == 0,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn clients_that_send_requests_get_through_those_that_do_not() {
    // No deadline helps within this test: room is made at once.
    let server = server(ConnectionLimits { head: PATIENCE, ..limits() });
    let slow = half_sent(&server.address.to_string(), 200);
    let asked = Instant::now();
    for _ in 0..10 {
        assert_eq!(server.request("GET /healthz", &[], b"").status, 200);
    }
    assert!(asked.elapsed() < PATIENCE / 4, "{:?}", asked.elapsed());
    let metrics = server.request("GET /metrics", &[], b"");
    let value = |name: &str| -> usize {
        metrics.text().lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok()).unwrap()
    };
    assert!(value("tidegate_http_connections ") <= 40, "{}", metrics.text());
    assert!(value("tidegate_http_shed_total ") >= 150, "{}", metrics.text());
    drop(slow);
}

#[test]
fn whoever_sends_no_request_in_time_is_cut_off() {
    let server = server(limits());
    let silent = TcpStream::connect(server.address).unwrap();
    assert!(is_closed(silent, PATIENCE), "a connection without a byte");
    let half = half_sent(&server.address.to_string(), 1).remove(0);
    assert!(is_closed(half, PATIENCE), "half a head");
    // A head that never ends, in small pieces.
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n").unwrap();
    let began = Instant::now();
    wait_until("the dripping connection to be cut", || {
        socket.write_all(b"X-More: 1\r\n").is_err() && began.elapsed() >= Duration::from_secs(1)
    });
    // A body that never comes.
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.write_all(b"POST /v1/sql HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nSEL").unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 4") && answer.contains("too long"), "{answer}");
}

/// A client that asks for much and takes nothing must not hold its rows for ever.
#[test]
fn whoever_takes_nothing_of_its_answer_is_cut_off() {
    let server = server(limits());
    let sql = "SELECT repeat('x', 1000) FROM generate_series(1, 200000)";
    let _greedy = server.send("POST /v1/sql", &["Accept: text/csv"], sql.as_bytes());
    wait_until("the connection to be cut", || {
        let metrics = server.request("GET /metrics", &[], b"");
        metrics.text().contains("\ntidegate_http_connections 1\n")
    });
}

/// Attack 6: 1,100 half-sent requests under systemd's limit of 1,024 descriptors ended the process.
#[test]
fn half_sent_requests_under_few_descriptors_end_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = tidegate().get_program().to_owned();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "ulimit -n 1024 && exec \"$0\" up --ingest --listen 127.0.0.1:0 --data \"$1\""]);
    command.arg(program).arg(folder.path().join("data"));
    let mut up = crate::ingest::Up::spawn(command);
    let slow = half_sent(&up.address, 1_100);
    for _ in 0..3 {
        let socket = TcpStream::connect(&up.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let sql = b"SELECT count(*) AS n FROM jobs";
        let answer = Response::read(request(socket, "POST /v1/sql", &["Accept: text/csv"], sql));
        assert_eq!((answer.status, answer.text()), (200, "n\n0\n"));
        std::thread::sleep(Duration::from_millis(700));
    }
    assert!(up.is_running(), "with {} connections open", slow.len());
}

fn certificate(name: &str) -> PathBuf {
    Path::new("tests/cli/tls").join(name)
}

/// What the server answers over TLS, and the certificate that it shows.
fn over_tls(server: &Server) -> (Response, CertificateDer<'static>) {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let mut session = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = TcpStream::connect(server.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    session.complete_io(&mut socket).unwrap();
    let shown = session.peer_certificates().unwrap()[0].clone().into_owned();
    let stream = StreamOwned::new(session, socket);
    (Response::read(request(stream, "POST /v1/sql", &["Accept: text/csv"], b"SELECT 1 AS n")), shown)
}

#[test]
fn certificates_are_read_again_when_they_change() {
    let folder = tempfile::tempdir().unwrap();
    let (cert, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    let install = |name: &str| {
        std::fs::copy(certificate(&format!("{name}.pem")), &cert).unwrap();
        std::fs::copy(certificate(&format!("{name}.key")), &key).unwrap();
    };
    install("first");
    let open =
        |cert: &Path, key: &Path| Tls::open(TlsFiles { cert: cert.into(), key: key.into(), clients: None });
    let tls = open(&cert, &key).unwrap();
    let server = Server::start_with(QueryLimits::default(), move |door| door.tls = Some(tls));
    let (answer, first) = over_tls(&server);
    assert_eq!((answer.status, answer.text()), (200, "n\n1\n"));
    std::fs::write(&key, "half a key").unwrap();
    assert_eq!(over_tls(&server).1, first, "what is not whole changes nothing");
    install("second");
    wait_until("the second certificate", || over_tls(&server).1 != first);
    // A client without TLS, or one that never finishes its handshake, holds nobody up.
    let _plain = half_sent(&server.address.to_string(), 3);
    assert_eq!(over_tls(&server).0.status, 200);

    let wrong = open(&certificate("first.pem"), &certificate("second.key")).unwrap_err().to_string();
    assert!(wrong.contains("first.pem") && wrong.contains("second.key"), "{wrong}");
    let none = open(&certificate("README.md"), &certificate("first.key")).unwrap_err().to_string();
    assert!(none.contains("no certificate"), "{none}");
}

#[test]
fn agents_reach_a_server_over_tls() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tidegate();
    command.args(["up", "--ingest", "--no-insight", "--listen", "127.0.0.1:0", "--tls-cert"]);
    command.arg(certificate("first.pem")).arg("--tls-key").arg(certificate("first.key"));
    command.arg("--data").arg(folder.path().join("data"));
    let up = crate::ingest::Up::spawn(command);
    let url = format!("https://{}", up.address);
    let roots = Roots::from_file(&certificate("ca.pem")).unwrap();
    assert_eq!(HttpLogSink::over_tls(&url, None, roots, None).partitions("nodes").unwrap(), 1);
    let stranger =
        HttpLogSink::over_tls(&url, None, Roots::of_system(), None).partitions("nodes").unwrap_err();
    assert!(stranger.is_passing(), "a server that nobody vouches for is not spoken to: {stranger}");
}
