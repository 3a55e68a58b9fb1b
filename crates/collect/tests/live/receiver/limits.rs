//! No client slows the others.

use std::io::{BufReader, Read, Write};
use std::time::{Duration, Instant};

use serde_json::json;

use super::{Setup, answer, connect, line, request, setup};

/// Connections that end without an answer read nothing more.
fn ends(mut stream: impl Read) -> Vec<u8> {
    let mut rest = Vec::new();
    // A reset counts as an end: the server had not read everything.
    stream.read_to_end(&mut rest).ok();
    rest
}

#[test]
fn lines_and_bodies_have_a_maximum_length() {
    let setup = setup(|options| options.limits.body_bytes = 100_000);
    let mut stream = connect(&setup.socket);
    stream.write_all(line(1).as_bytes()).unwrap();
    stream.write_all(&[b'{'; 40_000]).ok();
    let mut reader = BufReader::new(stream);
    assert_eq!(answer(&mut reader), json!({"acked": 1}));
    let refused = answer(&mut reader);
    assert_eq!(refused["error"], "line 2 is longer than 16384 bytes");
    assert_eq!(ends(reader), b"");

    let (status, _) = request(connect(&setup.socket), "POST", "/v1/steps", "", &[b' '; 200_000]);
    assert_eq!(status, 413);
    let long = format!("{{\"job\":\"{}\"}}\n{}", "x".repeat(20_000), line(2));
    let (status, answer) = request(connect(&setup.socket), "POST", "/v1/steps", "", long.as_bytes());
    assert_eq!((status, &answer["accepted"], &answer["rejected"]), (200, &json!(1), &json!(1)));
}

#[test]
fn silent_and_slow_clients_are_dropped_while_others_are_served() {
    let setup = setup(|options| {
        options.limits.patience = Duration::from_millis(400);
        options.limits.idle = Duration::from_secs(60);
    });
    let silent = connect(&setup.socket);
    let mut half_a_line = connect(&setup.socket);
    half_a_line.write_all(b"{\"job\":").unwrap();
    let mut half_a_head = connect(&setup.socket);
    half_a_head.write_all(b"POST /v1/steps HTTP/1.1\r\nHost").unwrap();
    let mut half_a_body = connect(&setup.socket);
    half_a_body
        .write_all(b"POST /v1/steps HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        .unwrap();
    // This client sends many lines and reads no answers, which fill the socket; the server must not
    // wait.
    let mut deaf = connect(&setup.socket);
    deaf.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let wrong = "{}\n".repeat(2_000);
    let deaf_until = Instant::now() + Duration::from_secs(20);
    let mut patient = BufReader::new(connect(&setup.socket));
    for step in 1..=20 {
        patient.get_mut().write_all(line(step).as_bytes()).unwrap();
        assert_eq!(answer(&mut patient), json!({"acked": step}));
    }
    assert_eq!(ends(silent), b"");
    assert_eq!(ends(half_a_line), b"");
    ends(half_a_head);
    assert!(String::from_utf8(ends(half_a_body)).unwrap().starts_with("HTTP/1.1 408"));
    while deaf.write_all(wrong.as_bytes()).is_ok() {
        assert!(Instant::now() < deaf_until, "a client that reads nothing is served for ever");
    }
    // Silence between lines is allowed; it has lasted longer than the timeout by now.
    patient.get_mut().write_all(line(21).as_bytes()).unwrap();
    assert_eq!(answer(&mut patient), json!({"acked": 21}));
    assert!(setup.receiver.counts()["timed_out_connections"].as_u64().unwrap() >= 4);
}

#[test]
fn connections_are_counted() {
    let setup = setup(|options| options.limits.connections_per_peer = 2);
    let mut open: Vec<_> = (0..2).map(|_| BufReader::new(connect(&setup.socket))).collect();
    for reader in &mut open {
        reader.get_mut().write_all(line(1).as_bytes()).unwrap();
        answer(reader);
    }
    assert_eq!(ends(connect(&setup.socket)), b"");
    assert_eq!(setup.receiver.counts()["refused_connections"], 1);
    // TCP is another peer, and a closed connection frees its place.
    let tcp = std::net::TcpStream::connect(setup.receiver.tcp_address().unwrap()).unwrap();
    assert_eq!(request(tcp, "GET", "/v1/status", "", b"").0, 200);
    drop(open);
    let deadline = Instant::now() + crate::support::PATIENCE;
    loop {
        let mut reader = BufReader::new(connect(&setup.socket));
        reader.get_mut().write_all(line(2).as_bytes()).ok();
        let mut read = [0; 1];
        if reader.read(&mut read).is_ok_and(|count| count == 1) {
            break;
        }
        assert!(Instant::now() < deadline, "no place became free");
    }
}

#[test]
fn a_flood_is_slowed_and_loses_nothing() {
    let setup = setup(|options| {
        options.limits.lines_per_second = 200;
        options.limits.lines_at_once = 50;
    });
    let begun = Instant::now();
    let mut reader = BufReader::new(connect(&setup.socket));
    let flood: String = (1..=150).map(line).collect();
    reader.get_mut().write_all(flood.as_bytes()).unwrap();
    for step in 1..=150 {
        assert_eq!(answer(&mut reader), json!({"acked": step}));
    }
    assert!(
        begun.elapsed() >= Duration::from_millis(400),
        "100 lines beyond the first 50 take half a second"
    );
    // A request is accepted whole or not at all. The first exceeds the current allowance, so the
    // second must wait.
    let flood: String = (1..=400).map(line).collect();
    let statuses =
        [(); 2].map(|()| request(connect(&setup.socket), "POST", "/v1/steps", "", flood.as_bytes()).0);
    assert_eq!(statuses, [200, 429]);
    assert_eq!(setup.recorded.steps().len(), 550);
}

#[test]
fn bodies_that_wait_in_memory_are_few() {
    let most = |bytes| setup(move |options| options.limits.bodies_bytes_per_peer = bytes);
    let post = |setup: &Setup| request(connect(&setup.socket), "POST", "/v1/steps", "", &[b' '; 60_000]).0;
    // Nothing tells when the server has read the first body, so it gets more and more time.
    let refused_beside_another = (4..=12).any(|attempt| {
        let setup = most(100_000);
        let mut half = connect(&setup.socket);
        half.write_all(b"POST /v1/steps HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90000\r\n\r\n")
            .unwrap();
        half.write_all(&[b' '; 80_000]).unwrap();
        std::thread::sleep(Duration::from_millis(1 << attempt));
        let status = post(&setup);
        // Lines take no room of bodies.
        let mut reader = BufReader::new(connect(&setup.socket));
        reader.get_mut().write_all(line(1).as_bytes()).unwrap();
        assert_eq!(answer(&mut reader), json!({"acked": 1}));
        half.write_all(&[b' '; 10_000]).unwrap();
        let mut first = [0; 12];
        half.read_exact(&mut first).unwrap();
        // A request that ends frees its room.
        assert_eq!(post(&setup), 200);
        status == 429 && &first == b"HTTP/1.1 200"
    });
    assert!(refused_beside_another, "bodies are kept without a limit");
}
