//! People who prove who they are by a client's certificate, made by openssl and shown by curl and
//! by rustls.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tidegate_testing::needs;

use crate::ingest::Up;
use crate::program::{run, succeed, tidegate, wait_until};
use crate::support::{PATIENCE, request};

/// Extensions of a certificate for clients.
const FOR_CLIENTS: &str = "extendedKeyUsage=clientAuth\n";
const CLEAR_SCREEN: &str = "\u{1b}[2J";

/// An authority with openssl's files, a server that takes its certificates, and what it logs.
struct Site {
    folder: tempfile::TempDir,
    up: Option<Up>,
    log: Arc<Mutex<String>>,
}

impl Site {
    /// With the authorities `ca`, which the server will take, and `foreign`; `None` where openssl
    /// or curl is not installed.
    fn new() -> Option<Self> {
        for program in ["openssl", "curl"] {
            if Command::new(program).arg("--version").output().is_err() {
                needs::skip(&format!("{program} is not there: install it"));
                return None;
            }
        }
        let site = Self { folder: tempfile::tempdir().unwrap(), up: None, log: Arc::default() };
        for authority in ["ca", "foreign"] {
            let subject = format!("/CN=Authority {authority}");
            site.openssl(&[
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-noenc",
                "-days",
                "30",
                "-subj",
                &subject,
                "-keyout",
                &format!("{authority}.key"),
                "-out",
                &format!("{authority}.pem"),
            ]);
        }
        std::fs::write(site.file("index.txt"), "").unwrap();
        std::fs::write(site.file("crlnumber"), "01").unwrap();
        std::fs::write(site.file("ca.conf"), CA_CONF).unwrap();
        Some(site)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn openssl(&self, arguments: &[&str]) {
        let mut command = Command::new("openssl");
        let ended = command.args(arguments).current_dir(self.folder.path()).output().unwrap();
        assert!(ended.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ended.stderr));
    }

    /// Makes `NAME.pem` and `NAME.key`, signed by an authority with these extensions.
    fn sign(&self, name: &str, by: &str, subject: &str, extensions: &str, days: &str) {
        let (key, csr) = (format!("{name}.key"), format!("{name}.csr"));
        self.openssl(&[
            "req",
            "-new",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-noenc",
            "-utf8",
            "-subj",
            subject,
            "-keyout",
            &key,
            "-out",
            &csr,
        ]);
        let extensions_file = format!("{name}.ext");
        // Of version 3, which certificates without extensions are not.
        std::fs::write(self.file(&extensions_file), format!("basicConstraints=CA:FALSE\n{extensions}"))
            .unwrap();
        self.openssl(&[
            "x509",
            "-req",
            "-in",
            &csr,
            "-CA",
            &format!("{by}.pem"),
            "-CAkey",
            &format!("{by}.key"),
            "-extfile",
            &extensions_file,
            "-days",
            days,
            "-out",
            &format!("{name}.pem"),
        ]);
    }

    /// A certificate for clients, of this authority, with this alternative name.
    fn person(&self, name: &str, alternative: &str) {
        let extensions = format!("{FOR_CLIENTS}subjectAltName={alternative}\n");
        self.sign(name, "ca", &format!("/CN={name}"), &extensions, "30");
    }

    fn revoke(&self, name: &str) {
        self.openssl(&["ca", "-config", "ca.conf", "-revoke", &format!("{name}.pem")]);
    }

    fn list_revoked(&self, days: &str) {
        let end = ["-crldays", days];
        self.openssl(&[&["ca", "-config", "ca.conf", "-gencrl", "-out", "ca.crl"][..], &end].concat());
    }

    /// `tidegate token`; returns what it prints.
    fn token(&self, arguments: &[&str]) -> String {
        succeed(tidegate().arg("token").args(arguments).arg("--tokens").arg(self.file("tokens.toml")))
    }

    fn start(&mut self, more: &[&str]) {
        let tls = |name: &str| Path::new("tests/cli/tls").join(name);
        let mut command = tidegate();
        command.args(["up", "--ingest", "--no-insight", "--listen", "127.0.0.1:0", "--data"]);
        command.arg(self.file("data")).arg("--tokens").arg(self.file("tokens.toml"));
        command.arg("--tls-cert").arg(tls("first.pem")).arg("--tls-key").arg(tls("first.key"));
        command.arg("--tls-client-ca").arg(self.file("ca.pem")).args(more).stderr(Stdio::piped());
        let mut up = Up::spawn(command);
        let (log, stderr) = (Arc::clone(&self.log), up.stderr());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                log.lock().unwrap().push_str(&(line + "\n"));
            }
        });
        self.up = Some(up);
    }

    fn address(&self) -> &str {
        &self.up.as_ref().unwrap().address
    }

    /// curl as somebody with this certificate; `""` shows none.
    fn curl(&self, name: &str, headers: &[&str], path: &str, body: Option<&str>) -> Answer {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--write-out", "\n%{http_code}", "--cacert"]);
        command.arg("tests/cli/tls/ca.pem").arg(format!("https://{}{path}", self.address()));
        if !name.is_empty() {
            command.arg("--cert").arg(self.file(&format!("{name}.pem")));
            command.arg("--key").arg(self.file(&format!("{name}.key")));
        }
        for (option, value) in
            headers.iter().map(|header| ("--header", *header)).chain(body.map(|body| ("--data", body)))
        {
            command.args([option, value]);
        }
        let ended = run(&mut command);
        let (text, status) = ended.stdout.rsplit_once('\n').unwrap();
        Answer { status: status.parse().unwrap(), text: text.to_owned(), error: ended.stderr }
    }

    fn sql(&self, name: &str, headers: &[&str]) -> Answer {
        self.curl(name, headers, "/v1/sql", Some("SELECT 1 AS n"))
    }

    /// An open connection of somebody with this certificate.
    fn connect(&self, name: &str) -> StreamOwned<ClientConnection, TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file("tests/cli/tls/ca.pem").unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let chain = vec![CertificateDer::from_pem_file(self.file(&format!("{name}.pem"))).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.file(&format!("{name}.key"))).unwrap();
        let config = config.with_root_certificates(roots).with_client_auth_cert(chain, key).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let socket = TcpStream::connect(self.address()).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), socket)
    }

    fn logged(&self, words: &[&str]) -> bool {
        let log = self.log.lock().unwrap();
        log.lines().any(|line| words.iter().all(|word| line.contains(word)))
    }
}

const CA_CONF: &str = "
[ca]
default_ca = d
[d]
database = index.txt
new_certs_dir = .
rand_serial = yes
default_md = sha256
crlnumber = crlnumber
certificate = ca.pem
private_key = ca.key
policy = p
[p]
commonName = supplied
";

#[derive(Debug)]
struct Answer {
    /// 0 if there was none.
    status: u16,
    text: String,
    /// curl's words where there was no answer.
    error: String,
}

/// A request on a connection that stays open, which it would not if a refusal left a body unread;
/// returns status and body.
fn ask(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> (u16, String) {
    request(&mut *stream, "GET /v1/status HTTP/1.1", &["Connection: keep-alive"], b"");
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(char::from(byte[0]));
    }
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.unwrap_or_else(|| panic!("{head}")).trim().parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), String::from_utf8(body).unwrap())
}

#[test]
fn who_shows_a_certificate_is_the_principal_of_its_name() {
    let Some(mut site) = Site::new() else { return };
    site.person("ann", "email:ann@site.example,DNS:ben.site.example");
    site.person("service", "URI:spiffe://site.example/board,DNS:other.site.example");
    site.sign("carl", "ca", "/O=Site/CN=Carl Müller", FOR_CLIENTS, "30");
    site.person("stranger", "email:stranger@site.example");
    site.person("longer", "email:ann@site.example.org");
    site.person("wild", "email:*@site.example");
    site.person("address", "IP:10.0.0.1");
    site.sign("dns", "ca", "/CN=email:ann@site.example", FOR_CLIENTS, "30");
    let escape = format!("{FOR_CLIENTS}subjectAltName=URI:urn:ann{CLEAR_SCREEN}\n");
    site.sign("escape", "ca", "/CN=escape", &escape, "30");

    assert_eq!(
        site.token(&["new", "--role", "viewer", "--id", "ann", "--certificate", "email:ann@site.example"]),
        ""
    );
    site.token(&[
        "new",
        "--role",
        "viewer",
        "--id",
        "board",
        "--certificate",
        "uri:spiffe://site.example/board",
        "--team",
        "vision",
    ]);
    let token = site.token(&[
        "new",
        "--role",
        "operator",
        "--id",
        "carl",
        "--certificate",
        "cn:Carl Müller",
        "--with-token",
    ]);
    let listed = site.token(&["list"]);
    assert!(
        listed.contains("email:ann@site.example") && listed.contains("token, cn:Carl Müller"),
        "{listed}"
    );
    site.start(&[]);

    // The rights of the role, and the bounds of the principal.
    for who in ["ann", "service", "carl"] {
        let answer = site.sql(who, &["Accept: text/csv"]);
        assert_eq!((answer.status, answer.text.as_str()), (200, "n\n1\n"), "{who}: {answer:?}");
    }
    assert_eq!(site.curl("ann", &[], "/v1/status", None).status, 200);
    let topics = site.curl("ann", &[], "/v1/log", None);
    assert!(topics.status == 403 && topics.text.contains("ann"), "a viewer lists no topics: {topics:?}");
    assert_eq!(site.curl("carl", &[], "/v1/log", None).status, 200);
    assert_eq!(site.curl("service", &[], "/v1/status", None).status, 403, "a viewer of a team");
    // Commands show certificates too.
    let mut price = tidegate();
    price.args(["price", "set", "--cluster", "c", "--contract", "on_demand", "--price", "2"]);
    price.args(["--from", "2024-03-01", "--currency", "EUR", "--log-ca", "tests/cli/tls/ca.pem", "--log"]);
    price.arg(format!("https://{}", site.address()));
    run(&mut price).refused(&["asks for a token"]);
    price.arg("--log-cert").arg(site.file("carl.pem")).arg("--log-key").arg(site.file("carl.key"));
    assert!(succeed(&mut price).starts_with("1 prices entered"));
    // Nobody else: neither a part of a name, nor a pattern, nor another kind.
    for (who, named) in [
        ("stranger", "email:stranger@site.example"),
        ("longer", "email:ann@site.example.org"),
        ("wild", "email:*@site.example"),
        ("dns", "cn:email:ann@site.example"),
        ("escape", r"uri:urn:ann\\u{1b}[2J"),
        ("address", "neither e-mail, URI nor DNS"),
    ] {
        let answer = site.sql(who, &[]);
        assert!(answer.status == 401 && answer.text.contains(named), "{who}: {answer:?}");
        assert!(!answer.text.contains('\u{1b}'), "{answer:?}");
    }
    // None needs a token.
    let token = format!("Authorization: Bearer {}", token.trim());
    assert_eq!(site.sql("", &[]).status, 401);
    assert_eq!(site.sql("", &[&token]).status, 200);
    // Both name one principal, or nobody.
    assert_eq!(site.sql("carl", &[&token]).status, 200);
    for (who, word) in [("ann", "not of the same principal"), ("stranger", "email:stranger")] {
        let both = site.sql(who, &[&token]);
        assert!(both.status == 401 && both.text.contains(word), "{both:?}");
    }
    assert_eq!(site.sql("carl", &["Authorization: Bearer tidegate_wrong"]).status, 401);
    // A browser shows certificates by itself, to requests of other pages too.
    assert_eq!(site.sql("ann", &["Origin: https://evil.example"]).status, 403);
}

#[test]
fn what_the_authority_did_not_sign_for_clients_is_refused_in_the_handshake() {
    let Some(mut site) = Site::new() else { return };
    let named = format!("{FOR_CLIENTS}subjectAltName=email:ann@site.example\n");
    site.sign("foreign-ann", "foreign", &format!("/CN=Ann{CLEAR_SCREEN}"), &named, "30");
    site.sign("expired", "ca", "/CN=expired", &named, "0");
    site.sign(
        "server",
        "ca",
        "/CN=server",
        "extendedKeyUsage=serverAuth\nsubjectAltName=email:ann@site.example\n",
        "30",
    );
    site.sign("any", "ca", "/CN=any", "subjectAltName=email:ann@site.example\n", "30");
    site.person("ann", "email:ann@site.example");
    site.token(&["new", "--role", "viewer", "--id", "ann", "--certificate", "email:ann@site.example"]);
    site.start(&[]);
    let began = Instant::now();
    for (who, alert) in [
        ("foreign-ann", "unknown ca"),
        ("expired", "expired"),
        ("server", "unsupported certificate"),
        ("any", "unsupported certificate"),
    ] {
        let answer = site.sql(who, &[]);
        assert!(answer.status == 0 && answer.error.contains(alert), "{who}: {answer:?}");
    }
    // The first is logged; the rest within its ten seconds are counted.
    let (subject, why) = (r"CN=Ann\u{1b}[2J", "no authority of --tls-client-ca");
    wait_until("the refusal to be logged", || site.logged(&["refused a client certificate", subject, why]));
    let others =
        ["expired", "server", "any"].iter().any(|who| site.logged(&["refused", &format!("CN={who}")]));
    assert!(!others || began.elapsed() >= Duration::from_secs(10), "one in ten seconds is logged");
    let metrics = site.curl("ann", &[], "/metrics", None);
    assert!(metrics.text.contains("\ntidegate_http_certificates_refused_total 4\n"), "{}", metrics.text);
    // A self-made certificate of the authority's name, and one that is none.
    let answer = site.sql("foreign", &[]);
    assert_eq!(answer.status, 0, "{answer:?}");
}

#[test]
fn a_certificate_is_taken_back_while_its_connection_is_open() {
    let Some(mut site) = Site::new() else { return };
    for who in ["ann", "ben"] {
        site.person(who, &format!("email:{who}@site.example"));
        let name = format!("email:{who}@site.example");
        site.token(&["new", "--role", "viewer", "--id", who, "--certificate", &name]);
    }
    site.list_revoked("30");
    let list = site.file("ca.crl");
    site.start(&["--tls-client-crl", list.to_str().unwrap()]);
    let (mut ann, mut ben) = (site.connect("ann"), site.connect("ben"));
    assert_eq!(ask(&mut ann).0, 200);
    assert_eq!(ask(&mut ben).0, 200);

    site.token(&["revoke", "ann"]);
    let mut said = String::new();
    wait_until("the entry to be gone", || {
        let (status, text) = ask(&mut ann);
        said = text;
        status == 401
    });
    assert!(said.contains("email:ann@site.example"), "{said}");

    // By the authority's list: on the open connection as in a handshake.
    site.revoke("ben");
    site.list_revoked("30");
    wait_until("the list to be read", || {
        let (status, text) = ask(&mut ben);
        said = text;
        assert_eq!(ask(&mut ann).0, 401, "its connection is open still");
        status == 401
    });
    assert!(said.contains("revoked"), "{said}");
    let again = site.sql("ben", &[]);
    assert!(again.status == 0 && again.error.contains("revoked"), "{again:?}");
    // What is not whole changes nothing. openssl writes version 1 unless told otherwise.
    std::fs::write(site.file("ca.conf"), CA_CONF.replace("crlnumber", "# crlnumber")).unwrap();
    site.list_revoked("30");
    wait_until("the list of version 1 to be named", || {
        site.sql("ben", &[]);
        site.logged(&["ca.crl", "version 1", "stay in use"])
    });
    assert_eq!(site.sql("ben", &[]).status, 0);
}

/// Replacing the authority takes effect without a restart: the old one's certificates are refused.
#[test]
fn authorities_are_read_again_when_they_change() {
    let Some(mut site) = Site::new() else { return };
    site.person("ann", "email:ann@site.example");
    let named = format!("{FOR_CLIENTS}subjectAltName=email:ann@site.example\n");
    site.sign("new-ann", "foreign", "/CN=Ann", &named, "30");
    site.token(&["new", "--role", "viewer", "--id", "ann", "--certificate", "email:ann@site.example"]);
    site.start(&[]);
    let mut old = site.connect("ann");
    assert_eq!((ask(&mut old).0, site.sql("new-ann", &[]).status), (200, 0));
    std::fs::copy(site.file("foreign.pem"), site.file("ca.pem")).unwrap();
    std::thread::scope(|scope| {
        // Asked all the time: a connection without requests is closed.
        let refused =
            scope.spawn(|| wait_until("the old connection to be refused", || ask(&mut old).0 == 401));
        wait_until("the new authority", || site.sql("new-ann", &[]).status == 200);
        refused.join().unwrap();
    });
    assert_eq!(site.sql("ann", &[]).status, 0);
}

#[test]
fn a_certificate_ends_on_an_open_connection_too() {
    let Some(mut site) = Site::new() else { return };
    site.token(&["new", "--role", "viewer", "--id", "ann", "--certificate", "email:ann@site.example"]);
    site.start(&[]);
    site.person("ann", "email:ann@site.example");
    let end = (chrono::Utc::now() + Duration::from_secs(4)).format("%Y%m%d%H%M%SZ").to_string();
    site.openssl(&[
        "ca", "-batch", "-notext", "-config", "ca.conf", "-in", "ann.csr", "-extfile", "ann.ext", "-enddate",
        &end, "-out", "ann.pem",
    ]);
    let mut connection = site.connect("ann");
    assert_eq!(ask(&mut connection).0, 200);
    wait_until("the certificate to end", || {
        let (status, text) = ask(&mut connection);
        status == 401 && text.contains("it has expired")
    });
}

#[test]
fn commands_say_what_is_wrong_with_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens.toml");
    let new = |id: &str, name: &str| {
        let mut command = tidegate();
        command.args(["token", "new", "--role", "viewer", "--id", id, "--certificate", name, "--tokens"]);
        run(command.arg(&file))
    };
    assert_eq!(new("ann", "email:ann@site.example").status, Some(0));
    new("ben", "email:ann@site.example").refused(&["ben", "email:ann@site.example", "\"ann\""]);
    let two = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, two.clone() + &two.replace("\"ann\"", "\"ben\"")).unwrap();
    run(tidegate().args(["token", "list", "--tokens"]).arg(&file)).refused(&["(line 3)", "(line 10)"]);
    for (name, word) in [
        ("ann@site.example", "email:NAME"),
        ("dns:*.site.example", "compared whole"),
        ("cn:a\u{7}", "control"),
    ] {
        let ended = new("carl", name);
        assert!(ended.status == Some(2) && ended.stderr.contains(word), "{ended:?}");
    }
    for (arguments, word) in [
        (vec!["--tls-client-ca", "ca.pem"], "--tls-cert"),
        (vec!["--tls-client-crl", "ca.crl"], "--tls-client-ca"),
    ] {
        let ended = run(tidegate().arg("up").args(arguments));
        assert!(ended.status == Some(2) && ended.stderr.contains(word), "{ended:?}");
    }
    std::fs::write(&file, two).unwrap();
    let mut command = tidegate();
    command.args(["up", "--tls-cert", "tests/cli/tls/first.pem", "--tls-key", "tests/cli/tls/first.key"]);
    command.args(["--tls-client-ca", "tests/cli/tls/README.md", "--tokens"]).arg(&file);
    run(command.arg("--data").arg(folder.path().join("data"))).refused(&["README.md", "no certificate"]);
}
