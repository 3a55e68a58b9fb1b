//! The site of `tidegate up --demo`: every documented question has rows, but those that say why
//! not; people steer its autopilot, and watch it on a terminal.

use std::collections::BTreeSet;
use std::io::{BufRead, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::program::{address_of, post, succeed, tidegate, tidegate_alone, wait_until};
use crate::support::Response;

/// The page that lists the tables whose questions have no rows, and why.
const GUIDE: &str = include_str!("../../../../docs/guide/demo.md");
/// What a terminal is sent for its other screen to go.
const LEAVES_SCREEN: &str = "\u{1b}[?1049l";
const QUESTIONS: &str = include_str!("../../../../docs/reference/questions.md");
/// From the end of the past on, in which signals and joined tables follow.
const PATIENCE: Duration = Duration::from_secs(600);

/// Each question as a table and its query.
fn questions() -> Vec<(&'static str, &'static str)> {
    let question = |section: &'static str| {
        let table = section.split_once("\n[")?.1.split_once(']')?.0;
        Some((table, section.split_once("```sql\n")?.1.split_once("```")?.0))
    };
    QUESTIONS.split("\n## ").skip(1).filter_map(question).collect()
}

fn excepted() -> BTreeSet<&'static str> {
    let cell = |line: &'static str| line.strip_prefix("| `")?.split_once('`');
    let section = GUIDE.split("\n## ").find(|section| section.starts_with("Questions without rows")).unwrap();
    section.lines().filter_map(cell).map(|(table, _)| table).collect()
}

/// Rows of an answer, without its header; the refusal if there is none.
fn rows(address: &str, sql: &str) -> Result<usize, String> {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.write_all(post(sql, "text/csv").as_bytes()).unwrap();
    let answer = Response::read(socket);
    match answer.status {
        200 => Ok(answer.text().lines().count().saturating_sub(1)),
        _ => Err(answer.text().to_owned()),
    }
}

/// Sends a request as a program on this machine does, and reads the JSON of the answer.
fn ask(address: &str, request: &str, body: &str) -> serde_json::Value {
    let mut socket = TcpStream::connect(address).unwrap();
    let kind = "Content-Type: application/json";
    let head =
        format!("{request} HTTP/1.0\r\nHost: localhost\r\n{kind}\r\nContent-Length: {}\r\n\r\n", body.len());
    socket.write_all((head + body).as_bytes()).unwrap();
    let answer = Response::read(socket);
    assert!([200, 202].contains(&answer.status), "{request}: {}", answer.text());
    serde_json::from_str(answer.text()).unwrap()
}

/// Somebody pauses the site's autopilot and resumes it.
fn steer(address: &str) {
    wait_until("a step of the autopilot in the present", || {
        let standing = ask(address, "GET /v1/autopilot", "");
        standing["leads"] == true && standing["switch"]["by"] == "the demo"
    });
    ask(address, "POST /v1/autopilot/pause", r#"{"why": "lunch"}"#);
    let paused = ask(address, "GET /v1/autopilot", "");
    assert_eq!((&paused["switch"]["on"], &paused["switch"]["why"]), (&false.into(), &"lunch".into()));
    ask(address, "POST /v1/autopilot/resume", "{}");
    assert_eq!(ask(address, "GET /v1/autopilot", "")["switch"]["on"], true);
}

fn top(folder: &Path) -> Command {
    let mut command = tidegate();
    command.arg("top").arg("--data").arg(folder.join("data"));
    command
}

fn top_once(folder: &Path) -> String {
    let output = top(folder).arg("--once").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// What `top` draws on a terminal that `script` makes, until somebody presses `q`.
fn top_on_a_terminal(folder: &Path) -> String {
    let command = top(folder);
    let words = command.get_args().map(|word| format!("'{}'", word.display()));
    let line = format!(
        "stty rows 40 columns 120; '{}' {}",
        command.get_program().display(),
        words.collect::<Vec<_>>().join(" ")
    );
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]).env("TERM", "xterm");
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut keys, mut screen) = (script.stdin.take().unwrap(), script.stdout.take().unwrap());
    let mut drawn = Vec::new();
    while !String::from_utf8_lossy(&drawn).contains("ends") {
        let mut piece = [0; 4096];
        let read = screen.read(&mut piece).unwrap();
        assert!(read > 0, "it ended: {}", String::from_utf8_lossy(&drawn));
        drawn.extend_from_slice(&piece[..read]);
    }
    keys.write_all(b"q").unwrap();
    screen.read_to_end(&mut drawn).unwrap();
    assert!(script.wait().unwrap().success());
    String::from_utf8_lossy(&drawn).into_owned()
}

#[test]
fn every_question_has_rows_but_those_that_say_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = tidegate_alone();
    command.args(["up", "--demo", "--demo-speed", "max", "--listen", "127.0.0.1:0", "--data"]);
    let mut child = command.arg(folder.path().join("data")).stdout(Stdio::piped()).spawn().unwrap();
    let (address, mut stdout) = address_of(&mut child, "SQL");
    let mut said = Vec::new();
    for line in stdout.by_ref().lines().map_while(Result::ok) {
        let is_now = line.starts_with("It is now");
        said.push(line);
        if is_now {
            break;
        }
    }
    let (asked, begun) = (questions(), Instant::now());
    assert!(asked.len() > 90, "{} questions", asked.len());
    let mut without = asked.clone();
    while !without.is_empty() && begun.elapsed() < PATIENCE {
        without.retain(|(_, sql)| rows(&address, sql).unwrap_or(0) == 0);
        if without.iter().map(|(table, _)| *table).collect::<BTreeSet<_>>() == excepted() {
            break;
        }
        std::thread::sleep(Duration::from_secs(5));
    }
    let answers: Vec<_> = without.iter().map(|(table, sql)| (table, rows(&address, sql))).collect();
    steer(&address);
    // As the story advises.
    let explained =
        succeed(tidegate().args(["explain", "job", "4711", "--data"]).arg(folder.path().join("data")));
    let sentences: Vec<&str> = explained.lines().take(3).collect();
    assert!(sentences[0].starts_with("Job 4711 of team language runs on 16 GPUs since "), "{sentences:?}");
    assert!(
        sentences[1].starts_with("It is slower since ") && sentences[1].contains(" takes 1"),
        "{sentences:?}"
    );
    assert!(sentences[2].starts_with("What helps most: move it off gpu-"), "{sentences:?}");
    let (frame, drawn) = (top_once(folder.path()), top_on_a_terminal(folder.path()));
    child.kill().unwrap();
    child.wait().unwrap();
    for part in ["88 GPUs: ", "train ", "serving ", "productive", "capacity_taken", "4711 ", "reclaim "] {
        assert!(frame.contains(part), "{part} is not in:\n{frame}");
    }
    assert!(!frame.contains('\u{1b}'), "{frame}");
    assert!(drawn.contains("capacity_taken") && drawn.contains(LEAVES_SCREEN), "{drawn:?}");
    let without: BTreeSet<&str> = without.iter().map(|(table, _)| *table).collect();
    assert_eq!(without, excepted(), "of {} questions: {answers:?}", asked.len());
    // The story is told, each chapter with its answer.
    let told = said.join("\n");
    for question in ["Where does the money go?", "What was lent", "Why does a job wait?", "Who is slow?"] {
        assert!(told.contains(question), "{question} is not in:\n{told}");
    }
}
