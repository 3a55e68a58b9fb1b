use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc;

use tidegate_autopilot::action::Kind;
use tidegate_autopilot::slo::{Burn, Objective, Series};

use super::*;

fn alert(since_us: i64) -> Alert {
    Alert {
        series: Series { objective: Objective::Verified, kind: Some(Kind::Lend) },
        burn: Burn::Fast,
        firing: true,
        since_us,
        burn_rate_milli: 20_000,
        why: "2 of 10 lend not verified".to_owned(),
    }
}

/// A receiver that answers each delivery with the next of `codes`, and tells what it was sent.
fn receiver(codes: &'static [u16]) -> (String, mpsc::Receiver<Value>) {
    receiver_that_waits(codes, || {})
}

/// The same; it calls `wait` before each answer.
fn receiver_that_waits(
    codes: &'static [u16],
    wait: impl Fn() + Send + 'static,
) -> (String, mpsc::Receiver<Value>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/api/v2/alerts", listener.local_addr().unwrap());
    let (send, sent) = mpsc::channel();
    std::thread::spawn(move || {
        for code in codes {
            let (mut stream, _) = listener.accept().unwrap();
            let mut text = Vec::new();
            let body = loop {
                let mut piece = [0; 4096];
                let length = stream.read(&mut piece).unwrap();
                text.extend(&piece[..length]);
                let whole = String::from_utf8_lossy(&text).into_owned();
                let Some((head, body)) = whole.split_once("\r\n\r\n") else { continue };
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
                });
                if Some(body.len()) == length {
                    break body.to_owned();
                }
            };
            wait();
            write!(stream, "HTTP/1.1 {code} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n").unwrap();
            send.send(serde_json::from_str(&body).unwrap()).unwrap();
        }
    });
    (url, sent)
}

fn pager(url: &str) -> Pager {
    let config =
        PagerConfig { url: Some(url.to_owned()), repeat_every_s: Some(3_600), ..PagerConfig::default() };
    assert!(config.problems().is_empty());
    Pager::start(&config, Path::new("."), "prod").unwrap()
}

fn next(sent: &mpsc::Receiver<Value>) -> Value {
    sent.recv_timeout(Duration::from_secs(30)).unwrap()
}

#[test]
fn alerts_are_told_until_they_are_taken_and_again_when_they_end() {
    let (url, sent) = receiver(&[503, 200, 200]);
    let pager = pager(&url);
    pager.report(vec![alert(1_000_000)], None);
    let first = next(&sent);
    // The receiver was out of order: the same again, though nothing was new.
    let second = next(&sent);
    for state in [&first, &second] {
        let labels = &state[0]["labels"];
        assert_eq!(
            (labels["alertname"].as_str(), labels["severity"].as_str()),
            (Some("TidegateAutopilotSlo"), Some("page"))
        );
        assert_eq!((labels["kind"].as_str(), labels["cluster"].as_str()), (Some("lend"), Some("prod")));
        assert_eq!(state[0]["startsAt"], "1970-01-01T00:00:01.000Z");
        assert_eq!(state[1]["labels"]["alertname"], ALIVE);
    }
    pager.report(Vec::new(), None);
    let over = next(&sent);
    let ends: DateTime<Utc> = over[0]["endsAt"].as_str().unwrap().parse().unwrap();
    assert!(over[0]["labels"] == first[0]["labels"] && ends <= Utc::now(), "{over}");
}

#[test]
fn a_report_returns_before_anybody_answers() {
    let (returned, may_answer) = mpsc::channel();
    // If the report waited for the answer, both would wait, and the receiver would give up.
    let wait = move || may_answer.recv_timeout(Duration::from_secs(2)).expect("the report has returned");
    let (url, sent) = receiver_that_waits(&[200], wait);
    let pager = pager(&url);
    pager.report(vec![alert(1_000_000)], None);
    returned.send(()).unwrap();
    next(&sent);
}

#[test]
fn entries_of_the_journal_that_do_not_count_page() {
    let (url, sent) = receiver(&[200, 200]);
    let pager = pager(&url);
    let why = "3 entries of the journal do not count".to_owned();
    pager.report(Vec::new(), Some(Alarm { since_us: 1_000_000, why: why.clone() }));
    let told = next(&sent);
    let alarm =
        told.as_array().unwrap().iter().find(|alert| alert["labels"]["alertname"] == JOURNAL).unwrap();
    assert_eq!(
        (&alarm["labels"]["severity"], &alarm["annotations"]["summary"]),
        (&"page".into(), &why.into())
    );
    pager.report(Vec::new(), None);
    let over = next(&sent);
    assert_eq!(over.as_array().unwrap().len(), 1, "the sign of life alone: {over}");
}

#[test]
fn an_autopilot_that_does_not_act_pages_without_a_sign_of_life() {
    let (url, sent) = receiver(&[200]);
    let alarm = |since_us| Alarm { since_us, why: "it died twice of its journal".to_owned() };
    let pager = pager(&url);
    pager.alarm(alarm(1_000_000));
    pager.alarm(alarm(2_000_000));
    let told = next(&sent);
    let told = told.as_array().unwrap();
    assert_eq!((told.len(), &told[0]["labels"]["alertname"]), (1, &JOURNAL.into()), "{told:?}");
    assert_eq!(told[0]["startsAt"], "1970-01-01T00:00:01.000Z", "one that fires keeps its beginning");
}

#[test]
fn the_sign_of_life_ends_with_the_last_step() {
    let line = Delivery {
        url: String::new(),
        agent: Agent::new_with_defaults(),
        cluster: "prod".to_owned(),
        repeat: Duration::from_secs(60),
        dead_after: chrono::Duration::seconds(300),
        since: DateTime::UNIX_EPOCH,
    };
    let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
    // However late it is reported: it ends five minutes after the last step.
    let state = line.body(&[], &[], Some(at("2026-11-23T00:00:00Z")), at("2026-11-23T00:04:00Z"));
    assert_eq!(state[0]["endsAt"], "2026-11-23T00:05:00.000Z");
    assert_eq!(state.as_array().unwrap().len(), 1);
}

#[test]
fn an_address_with_a_secret_goes_by_reference() {
    let config =
        |text: &str| serde_json::from_value::<PagerConfig>(serde_json::from_str(text).unwrap()).unwrap();
    for (text, said) in [
        ("{}", "takes one of"),
        (r#"{"url": "http://a/", "url_env": "B"}"#, "takes one of"),
        (r#"{"url": "https://me:hunter2@a/"}"#, "url_file or url_env"),
        (r#"{"url": "https://a/?token=hunter2"}"#, "url_file or url_env"),
        (r#"{"url": "alertmanager:9093"}"#, "is not an address"),
        (r#"{"url": "http://a/", "repeat_every_s": 0}"#, "repeat_every_s is 0"),
    ] {
        let problems = config(text).problems().join("; ");
        assert!(problems.contains(said) && !problems.contains("hunter2"), "{text}: {problems}");
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("page"), "https://a/?token=hunter2\n").unwrap();
    let by_file = config(r#"{"url_file": "page"}"#);
    assert!(by_file.problems().is_empty());
    assert_eq!(by_file.address(folder.path()).unwrap(), "https://a/?token=hunter2");
    std::fs::write(folder.path().join("page"), "hunter2").unwrap();
    let error = by_file.address(folder.path()).unwrap_err();
    assert!(error.contains("is not an address") && !error.contains("hunter2"), "{error}");
    assert!(
        config(r#"{"url_env": "TIDEGATE_NONESUCH"}"#)
            .address(folder.path())
            .unwrap_err()
            .contains("is not set")
    );
}
