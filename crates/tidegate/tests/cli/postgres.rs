//! Postgres' wire protocol over a real loopback socket, byte by byte. tests/clients has real
//! clients.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tidegate_server::access::{Access, Role};
use tidegate_server::{ConnectionLimits, Door, QueryLimits, Tls, TlsFiles};

use crate::access::Site;
use crate::postgres_client::{
    Client, Message, connect, error, fields, first, kinds, message, rows, table, texts,
};
use crate::program::wait_until;
use crate::support::Server;

const ALL: &str = "SELECT * FROM jobs ORDER BY gpu_ms_held NULLS FIRST";
/// Takes far longer than any test waits.
const ENDLESS: &str = "SELECT count(*) FROM generate_series(1, 3000000) a, generate_series(1, 3000000) b WHERE a.value <> b.value + 1";

/// A server with both doors, and the address of Postgres'.
fn server_with(change: impl FnOnce(&mut Door) + Send + 'static) -> (Server, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let server = Server::start_with(QueryLimits { threads: 2, ..QueryLimits::default() }, move |door| {
        door.postgres = Some(tokio::net::TcpListener::from_std(listener).unwrap());
        change(door);
    });
    (server, address)
}

fn session() -> (Server, Client) {
    let (server, address) = server_with(|_| ());
    (server, Client::open(address, None).unwrap())
}

#[test]
fn a_text_is_answered_statement_by_statement() {
    let (_server, mut client) = session();
    let answer = client.query(ALL);
    assert_eq!(kinds(&answer), "TDDDCZ");
    let expected =
        "b,\"c\"|-|-\na|500|2021-03-04 00:00:00.000000+00\n-|9007199254740993|2021-03-04 00:00:00.5+00";
    assert_eq!(table(&answer).replace(".500000", ".5"), expected);
    assert_eq!(texts(&answer, b'C'), ["SELECT 3"]);

    let none = client.query("SELECT job_id FROM jobs WHERE gpu_ms_held = 1");
    assert_eq!((kinds(&none), texts(&none, b'C')), ("TCZ".into(), vec!["SELECT 0".into()]));
    assert_eq!(kinds(&client.query(" -- nothing\n;")), "IZ");
    let two = client.query("SET extra_float_digits = 3; SELECT ';' AS a; SHOW TimeZone");
    assert_eq!((kinds(&two), table(&two)), ("CTDCTDCZ".into(), ";\nUTC".into()));
    assert_eq!(table(&client.query("describe jobs")).lines().count(), 3);
    let settings =
        "SELECT current_setting('server_version_num')::int / 100, current_setting('nothing', true)";
    assert_eq!(table(&client.query(settings)), "1500|-");
}

#[test]
fn failures_have_postgres_codes_and_the_session_goes_on() {
    let (_server, mut client) = session();
    for (sql, code) in [
        ("SELEC 1", "42601"),
        ("SELECT * FROM nothing", "42P01"),
        ("SELECT nothing FROM jobs", "42703"),
        ("SELECT nothing(1)", "42883"),
        ("CREATE TABLE t (a INT)", "25006"),
        ("INSERT INTO jobs VALUES ('a', 1, NULL)", "25006"),
        ("COPY jobs TO '/tmp/x'", "25006"),
        ("SELECT CAST('x' AS BIGINT)", "22000"),
        ("SELECT value FROM generate_series(1, 2000000)", "54000"),
    ] {
        let answer = client.query(sql);
        assert_eq!(error(&answer).0, code, "{sql}: {}", error(&answer).1);
        assert!(kinds(&answer).ends_with("EZ"), "{sql}");
    }
    let answer = client.query("SELECT 1 AS a; SELECT * FROM job; SELECT 2");
    assert_eq!(kinds(&answer), "TDCEZ", "what follows a failure is not run");
    let failed = fields(&answer[3].1);
    assert!(failed[&b'H'].contains("did you mean jobs"), "{failed:?}");
    let misspelt = client.query("SELECT 1 FROM\n  jobs WHERE )");
    assert_eq!(fields(&misspelt[0].1)[&b'P'], "28");
    client.query("SET statement_timeout = '300ms'");
    assert_eq!(error(&client.query(ENDLESS)).0, "57014");
    assert_eq!(table(&client.query("RESET statement_timeout; SELECT 1")), "1");
}

/// `Parse` of the unnamed statement, with object identifiers of types.
fn parse(sql: &str, types: &[u32]) -> Vec<u8> {
    let types: Vec<u8> = types.iter().flat_map(|of| of.to_be_bytes()).collect();
    let count = u16::try_from(types.len() / 4).unwrap();
    message(b'P', &[b"\0", sql.as_bytes(), b"\0", &count.to_be_bytes(), &types].concat())
}

/// `Bind` of the unnamed portal to values in text.
fn bind(values: &[Option<&str>], columns: &[u16]) -> Vec<u8> {
    let mut body = b"\0\0\0\0".to_vec();
    body.extend(u16::try_from(values.len()).unwrap().to_be_bytes());
    for value in values {
        let length = value.map_or(-1, |value| i32::try_from(value.len()).unwrap());
        body.extend(length.to_be_bytes());
        body.extend(value.unwrap_or_default().as_bytes());
    }
    body.extend(u16::try_from(columns.len()).unwrap().to_be_bytes());
    body.extend(columns.iter().flat_map(|code| code.to_be_bytes()));
    message(b'B', &body)
}

fn execute(most: u32) -> Vec<u8> {
    message(b'E', &[b"\0", &most.to_be_bytes()[..]].concat())
}

fn exchange(client: &mut Client, messages: &[Vec<u8>]) -> Vec<Message> {
    client.socket.write_all(&messages.concat()).unwrap();
    client.send(b'S', b"");
    client.until_ready()
}

#[test]
fn statements_are_prepared_bound_and_fetched_in_parts() {
    let (_server, mut client) = session();
    let sql = "SELECT job_id, gpu_ms_held FROM jobs WHERE gpu_ms_held >= $1 OR job_id = $2 ORDER BY 2";
    let described = exchange(&mut client, &[parse(sql, &[]), message(b'D', b"S\0")]);
    assert_eq!(kinds(&described), "1tTZ");
    assert_eq!(
        described[1].1,
        [&2_u16.to_be_bytes()[..], &20_u32.to_be_bytes(), &25_u32.to_be_bytes()].concat()
    );

    let bound = [parse(sql, &[]), bind(&[Some("500"), None], &[0, 1]), message(b'D', b"P\0"), execute(0)];
    let answer = exchange(&mut client, &bound);
    assert_eq!((kinds(&answer), texts(&answer, b'C')), ("12TDDCZ".into(), vec!["SELECT 2".into()]));
    let held = &answer[3].1;
    assert_eq!(held[held.len() - 12..], [&8_u32.to_be_bytes()[..], &500_u64.to_be_bytes()].concat());

    let parts = [parse(ALL, &[]), bind(&[], &[]), execute(2), execute(2), execute(2)];
    assert_eq!(kinds(&exchange(&mut client, &parts)), "12DDsDCCZ");

    // In a block a portal outlives Sync, and a cursor's other rows come later.
    client.query("BEGIN");
    assert_eq!(kinds(&exchange(&mut client, &[parse(ALL, &[]), bind(&[], &[]), execute(1)])), "12DsZ");
    assert_eq!(kinds(&exchange(&mut client, &[execute(0)])), "DDCZ");
    client.query("COMMIT");
    assert_eq!(error(&exchange(&mut client, &[execute(0)])).0, "34000", "the block has ended");
}

#[test]
fn what_follows_a_failure_waits_for_sync() {
    let (_server, mut client) = session();
    let wrong = [parse("SELECT $1 + 1 FROM jobs", &[20]), bind(&[Some("x")], &[]), execute(0), execute(0)];
    let answer = exchange(&mut client, &wrong);
    assert_eq!(kinds(&answer), "12EZ");
    assert!(error(&answer).1.contains("parameter"), "{answer:?}");
    for (messages, code) in [
        (vec![bind(&[], &[])], "26000"),
        (vec![parse("SELECT 1; SELECT 2", &[])], "42601"),
        (vec![parse("SELECT $1", &[]), bind(&[], &[]), execute(0)], "42000"),
        (vec![parse("SELECT 1", &[]), bind(&[], &[0, 1, 1]), execute(0)], "42846"),
        (vec![message(b'P', &[b"long\0", &vec![b' '; 200_000][..], b"\0\0\0"].concat()); 6], "42P05"),
    ] {
        client.query("DEALLOCATE ALL");
        assert_eq!(error(&exchange(&mut client, &messages)).0, code);
    }
    client.query("DISCARD ALL; BEGIN");
    let failed = client.query("SELECT * FROM nothing");
    assert_eq!(failed.last().unwrap().1, b"E");
    assert_eq!(error(&client.query("SELECT 1")).0, "25P02");
    let ended = client.query("COMMIT");
    assert_eq!((texts(&ended, b'C'), &ended.last().unwrap().1[..]), (vec!["ROLLBACK".into()], &b"I"[..]));
}

#[test]
fn another_connection_cancels_a_query() {
    let (server, address) = server_with(|_| ());
    let _server = server;
    let mut client = Client::open(address, None).unwrap();
    let began = Instant::now();
    client.send(b'Q', format!("{ENDLESS}\0").as_bytes());
    let cancel = |key: &[u8]| {
        let mut socket = connect(address);
        socket.write_all(&first(80_877_102, key)).unwrap();
        assert_eq!(socket.read(&mut [0]).unwrap(), 0, "nobody is told whether it is the right key");
    };
    let mut wrong = client.key.clone();
    wrong[7] ^= 1;
    cancel(&wrong);
    std::thread::sleep(Duration::from_millis(200));
    cancel(&client.key);
    let (code, said) = error(&client.until_ready());
    assert_eq!((code.as_str(), said.contains("cancelled")), ("57014", true), "{said}");
    assert!(began.elapsed() < Duration::from_secs(30));
    cancel(&client.key);
    assert_eq!(table(&client.query("SELECT 1")), "1", "nothing ran when it was cancelled");
}

/// Reads until the server closes the connection.
fn until_closed(mut socket: impl Read) -> Vec<u8> {
    let mut bytes = Vec::new();
    socket.read_to_end(&mut bytes).ok();
    bytes
}

#[test]
fn hostile_bytes_are_refused_in_time() {
    let limits = ConnectionLimits {
        head: Duration::from_millis(400),
        body: Duration::from_millis(400),
        ..ConnectionLimits::of_process()
    };
    let (server, address) = server_with(move |door| door.limits = limits);
    let _server = server;
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        b"\0\0\0\x08\0\0\0\0".to_vec(),
        first(3 << 16, b"user\0ada"),
        first(3 << 16, b"replication\0database\0\0"),
        b"\xff\xff\xff\xff\0\x03\0\0".to_vec(),
    ] {
        let mut socket = connect(address);
        socket.write_all(&bytes).unwrap();
        let said = until_closed(socket);
        assert_eq!(said.first(), Some(&b'E'), "{bytes:?}: {said:?}");
    }
    // A client that says nothing, and one that stops in the middle.
    for bytes in [&b""[..], b"\0\0\0\x40\0\x03"] {
        let mut socket = connect(address);
        socket.write_all(bytes).unwrap();
        assert_eq!(until_closed(socket), b"");
    }
    for (bytes, code) in [
        (b"Q\x7f\xff\xff\xffSELECT".to_vec(), "54000"),
        (b"Q\0\0\0\x02".to_vec(), "54000"),
        (b"Q\0\0\0\x40SELECT".to_vec(), "57014"),
        (message(b'!', b""), "08P01"),
        (message(b'B', b"\0\0\xff\xff"), "08P01"),
    ] {
        let mut client = Client::open(address, None).unwrap();
        client.socket.write_all(&bytes).unwrap();
        let answer = client.until_ready();
        assert_eq!((kinds(&answer).as_str(), error(&answer).0.as_str()), ("E", code), "{bytes:?}");
    }
}

#[test]
fn a_crowd_leaves_room_for_those_who_ask() {
    let limits = ConnectionLimits { connections: 40, ..ConnectionLimits::of_process() };
    let (server, address) = server_with(move |door| door.limits = limits);
    let mut client = Client::open(address, None).unwrap();
    assert_eq!(table(&client.query("SELECT 1")), "1");
    let crowd: Vec<_> = (0..60).map(|_| connect(address)).collect();
    wait_until("room", || {
        server.request("GET /metrics", &[], b"").text().contains("\ntidegate_postgres_connections 10\n")
    });
    assert_eq!(table(&client.query("SELECT 2")), "2", "{} were sent away first", crowd.len());
}

/// A server with a token file, and the address of its Postgres door.
fn site() -> (Site, SocketAddr) {
    let mut site = Site::new();
    for role in ["service", "viewer", "operator", "administrator"] {
        site.token(role, &["--role", role]);
    }
    site.token("agent", &["--role", "agent", "--cluster", "c", "--node", "n1"]);
    site.token("watcher", &["--role", "watcher", "--cluster", "c"]);
    site.token("team", &["--role", "viewer", "--team", "vision"]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut command = site.command();
    command.arg("--postgres").arg(free.to_string());
    site.start_by(command);
    (site, free)
}

#[test]
fn passwords_are_tokens_with_the_roles_of_http() {
    let (site, address) = site();
    for role in Role::ALL.into_iter().filter(|role| *role != Role::Local) {
        let opened = Client::open(address, Some(site.token_of(role.name())));
        match role.may(tidegate_server::access::Action::Query) {
            true => assert_eq!(table(&opened.unwrap().query("SELECT 1")), "1", "{role}"),
            false => assert_eq!(opened.err().unwrap()[&b'C'], "42501", "{role}"),
        }
    }
    let wrong = Client::open(address, Some("tidegate_no")).err().unwrap();
    assert_eq!(wrong[&b'C'], "28P01", "{wrong:?}");
    let mut administrator = Client::open(address, Some(site.token_of("administrator"))).unwrap();
    let mut viewer = Client::open(address, Some(site.token_of("viewer"))).unwrap();
    let mut team = Client::open(address, Some(site.token_of("team"))).unwrap();
    let seen = "SELECT count(*) > 0 FROM audit WHERE door = 'postgres' AND principal = 'viewer'";
    assert_eq!(error(&viewer.query(seen)).0, "42P01", "only administrators see it");
    wait_until("the record", || table(&administrator.query(seen)) == "t");
    assert_eq!(error(&team.query("SELECT * FROM gpu_samples")).0, "42P01", "it names no team");

    crate::program::succeed(
        crate::program::tidegate().args(["token", "revoke", "viewer", "--tokens"]).arg(site.file()),
    );
    wait_until("the token to count no more", || {
        let answer = viewer.query("SELECT 1");
        !answer.iter().any(|(kind, _)| *kind == b'D')
    });
    assert!(viewer.read().is_none(), "its session has ended");
}

#[test]
fn tls_is_asked_for_where_there_is_a_certificate() {
    let file = |name: &str| Path::new("tests/cli/tls").join(name);
    let tls = Tls::open(TlsFiles { cert: file("first.pem"), key: file("first.key"), clients: None }).unwrap();
    let tokens = tempfile::tempdir().unwrap();
    let tokens = tokens.path().join("tokens.toml");
    std::fs::create_dir_all(tokens.parent().unwrap()).unwrap();
    let mut new = crate::program::tidegate();
    new.args(["token", "new", "--id", "ada", "--role", "viewer", "--tokens"]).arg(&tokens);
    let token = crate::program::succeed(&mut new).trim().to_owned();
    let access = Access::from_file(&tokens).unwrap();
    let (server, address) = server_with(move |door| (door.tls, door.access) = (Some(tls), access));
    let _server = server;
    assert_eq!(Client::open(address, Some(&token)).err().unwrap()[&b'C'], "28000");

    for alpn in [&[][..], &[b"postgresql".to_vec()]] {
        let mut socket = connect(address);
        socket.write_all(&first(80_877_103, b"")).unwrap();
        let mut answer = [0];
        socket.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"S");
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(file("ca.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config = config.unwrap().with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = alpn.to_vec();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket);
        let mut client = Client::over(stream, Some(&token)).unwrap();
        assert_eq!(table(&client.query("SELECT 1")), "1");
    }
}

#[test]
fn the_catalogue_is_the_same_in_every_session() {
    let (server, address) = server_with(|_| ());
    let _server = server;
    let ask = |sql: &str| Client::open(address, None).unwrap().query(sql);
    let class = "SELECT c.oid, n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n \
                 ON n.oid = c.relnamespace WHERE c.relname = 'jobs'";
    let found = rows(&ask(class));
    let oid = found[0][0].clone().unwrap();
    assert_eq!(found[0][1].as_deref(), Some("public"));
    assert_eq!(rows(&ask(class)), found);
    let columns = format!(
        "SELECT a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod) FROM pg_catalog.pg_attribute a \
         WHERE a.attrelid = '{oid}' AND a.attnum > 0 ORDER BY a.attnum"
    );
    assert_eq!(table(&ask(&columns)), "job_id|text\ngpu_ms_held|bigint\nstart_time|timestamp with time zone");
    assert!(table(&ask("SELECT version()")).starts_with("PostgreSQL 15"));
    let listed = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'";
    assert_eq!(table(&ask(listed)), "jobs");
    assert_eq!(table(&ask("SELECT current_database(), current_schema()")), "tidegate|public");
}
