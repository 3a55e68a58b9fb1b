//! The files of the page, and the stream that tells it what changed.

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tidegate_events::Event;
use tidegate_events::v1::{CapacityEvent, CapacityEventKind, Envelope};
use tidegate_server::QueryLimits;

use crate::access::Site;
use crate::program::{succeed, tidegate};
use crate::support::{Server, request};

/// Reads until the text is there, or the other side ends the connection.
fn read_until(socket: &mut TcpStream, wanted: &str) -> String {
    let mut text = String::new();
    let mut block = [0; 4096];
    while !text.contains(wanted) {
        let read = socket.read(&mut block).unwrap();
        if read == 0 {
            break;
        }
        text.push_str(std::str::from_utf8(&block[..read]).unwrap());
    }
    text
}

fn quota() -> Event {
    Event::Capacity(CapacityEvent {
        envelope: Some(Envelope {
            cluster: "c".into(),
            source: "watch/slurm/c".into(),
            event_time_ms: 1_767_225_600_000,
            ..Envelope::default()
        }),
        kind: CapacityEventKind::QuotaSet.into(),
        owner: "vision".into(),
        gpus_milli: Some(8_000),
        ..CapacityEvent::default()
    })
}

#[test]
fn files_are_kept_by_their_version_and_asked_for_without_a_token() {
    let mut site = Site::new();
    site.token("ann", &["--role", "viewer"]);
    site.start();
    let page = site.ask("", "GET /", &["Accept: text/html"], b"");
    let (_, rest) = page.text().split_once("/page/").unwrap();
    let path = format!("/page/{}", rest.split('"').next().unwrap());
    let (version, _) = rest.split_once('/').unwrap();

    let file = site.get("", &path);
    assert_eq!(file.status, 200, "{}", file.head);
    let tag = format!("etag: \"{version}\"");
    for header in ["content-type: text/javascript", "immutable", tag.as_str(), "nosniff"] {
        assert!(file.head.contains(header), "{header} in {}", file.head);
    }
    let again = site.ask("", &format!("GET {path}"), &[&format!("If-None-Match: \"{version}\"")], b"");
    assert_eq!((again.status, again.body.len()), (304, 0));

    let other = site.get("", &path.replace(version, "0123456789abcdef"));
    assert_eq!((other.refusal().0, other.refusal().1.as_str()), (404, "not_found"));
    for outside in ["js/../index.html", "index.html", "js/%2e%2e/index.html", "vendor/SHA256SUMS"] {
        assert_eq!(site.get("", &format!("/page/{version}/{outside}")).status, 404, "{outside}");
    }
    assert_eq!(site.get("", "/v1/tables").status, 401);
}

/// Where the page's files are in the tree.
fn folder() -> PathBuf {
    PathBuf::from("../server/page")
}

/// Every file below the folder, by its name from there.
fn found(folder: &Path, below: &str) -> Vec<String> {
    let entries = std::fs::read_dir(folder.join(below)).unwrap();
    entries
        .flat_map(|entry| {
            let entry = entry.unwrap();
            let name = format!("{below}{}", entry.file_name().to_str().unwrap());
            match entry.file_type().unwrap().is_dir() {
                true => found(folder, &format!("{name}/")),
                false => vec![name],
            }
        })
        .collect()
}

/// The files of the page that a text asks for: by links of the page, or imports of a module.
fn asked_for(text: &str) -> BTreeSet<String> {
    let linked = text.split("/page/VERSION/").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned());
    let imports = text.split(" from '").skip(1).chain(text.split("import('").skip(1));
    let targets = imports.filter_map(|rest| rest.split('\'').next()).filter(|to| to.starts_with('.'));
    let imported = targets.map(|to| match to.strip_prefix("../") {
        Some(name) => name.to_owned(),
        None => format!("js/{}", &to[2..]),
    });
    linked.chain(imported).collect()
}

#[test]
fn every_script_and_style_is_served_and_no_other_is_asked_for() {
    let server = Server::start(QueryLimits::default());
    let page = server.request("GET /", &["Accept: text/html"], b"");
    let version = page.text().split("/page/").nth(1).unwrap().split('/').next().unwrap();
    let names = found(&folder(), "");
    let here: Vec<&String> = names
        .iter()
        .filter(|name| [".js", ".css", ".LICENSE"].iter().any(|end| name.ends_with(end)))
        .collect();
    assert!(here.len() > 30, "{here:?}");
    let mut asked = asked_for(&std::fs::read_to_string(folder().join("index.html")).unwrap());
    for name in &here {
        let served = server.request(&format!("GET /page/{version}/{name}"), &[], b"");
        let bytes = std::fs::read(folder().join(name)).unwrap();
        assert!(served.status == 200 && served.body == bytes, "{name}: {}", served.head);
        if name.starts_with("js/") {
            asked.extend(asked_for(std::str::from_utf8(&bytes).unwrap()));
        }
    }
    assert!(asked.len() > 30, "{asked:?}");
    assert!(asked.iter().all(|name| here.contains(&name)), "{asked:?} of {here:?}");
}

/// Vendored files have the recorded checksums; ATTRIBUTION.md says where they come from.
#[test]
fn vendored_files_are_as_they_were_taken() {
    let vendor = folder().join("vendor");
    let check = ["--check", "--strict", "SHA256SUMS"];
    let output = Command::new("sha256sum").args(check).current_dir(&vendor).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    let sums = std::fs::read_to_string(vendor.join("SHA256SUMS")).unwrap();
    let summed = sums.lines().map(|line| line.split_once("  ").unwrap().1.to_owned()).collect();
    let ours = ["SHA256SUMS", "ATTRIBUTION.md", "codemirror.entry.mjs", "build.sh"];
    let here = found(&vendor, "").into_iter().filter(|name| !ours.contains(&name.as_str()));
    assert_eq!(here.collect::<BTreeSet<String>>(), summed);
    let attribution = std::fs::read_to_string(vendor.join("ATTRIBUTION.md")).unwrap();
    for name in ["uPlot 1.6.32", "CodeMirror 6", "MIT", "esbuild 0.28.2"] {
        assert!(attribution.contains(name), "{name}");
    }
}

#[test]
fn the_stream_tells_who_asks_and_what_was_committed_until_the_token_is_revoked() {
    let mut site = Site::new();
    site.token("ann", &["--role", "viewer"]);
    site.token("watch", &["--role", "watcher", "--cluster", "c"]);
    site.start();
    assert_eq!(site.get("", "/v1/changes").status, 401);
    assert_eq!(site.get("watch", "/v1/changes").status, 403);

    let mut stream = site.send("ann", "GET /v1/changes HTTP/1.1", &[], b"");
    let head = read_until(&mut stream, "event: principal");
    assert!(head.contains("text/event-stream"), "{head}");
    let hello = format!("{head}{}", read_until(&mut stream, "\n\n"));
    assert!(hello.contains("{\"principal\":\"ann\",\"role\":\"viewer\"}"), "{hello}");

    assert_eq!(site.append("watch", "watch/slurm/c@c", 1, quota()).status, 200);
    let told = read_until(&mut stream, "\"capacity_events\"");
    assert!(told.contains("event: tables"), "{told}");

    succeed(tidegate().args(["token", "revoke", "ann", "--tokens"]).arg(site.file()));
    let since = Instant::now();
    read_until(&mut stream, "never told");
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
}

#[test]
fn a_server_that_stops_ends_its_streams() {
    let server = Server::start(QueryLimits::default());
    let mut stream = server.send("GET /v1/changes HTTP/1.1", &["Connection: keep-alive"], b"");
    read_until(&mut stream, "\"local\"");
    let since = Instant::now();
    drop(server);
    assert!(since.elapsed() < Duration::from_secs(3), "{:?}", since.elapsed());
}

#[test]
fn streams_are_bounded() {
    let server = Server::start(QueryLimits::default());
    let open = || server.send("GET /v1/changes HTTP/1.1", &["Connection: keep-alive"], b"");
    let mut streams: Vec<TcpStream> = (0..128).map(|_| open()).collect();
    for stream in &mut streams {
        read_until(stream, "event: principal");
    }
    let refused = server.request("GET /v1/changes", &[], b"");
    assert_eq!((refused.refusal().0, refused.refusal().1.as_str()), (503, "too_many_streams"));
    // Those who leave make room, once the server sees it.
    drop(streams);
    let since = Instant::now();
    loop {
        let mut stream = request(TcpStream::connect(server.address).unwrap(), "GET /v1/changes", &[], b"");
        if read_until(&mut stream, "event: principal").contains("200 OK") {
            break;
        }
        assert!(since.elapsed() < Duration::from_secs(20));
    }
}
