//! Imports from a server that speaks Prometheus' API badly. Real servers are in tests/prometheus.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tidegate_import::{Credentials, ImportError, PrometheusOptions, PrometheusSummary, import_prometheus};
use tidegate_log::TopicConfig;

use crate::samples::batches;
use crate::support::{Imported, MemoryLog};

const HOUR_MS: i64 = 3_600_000;
const BEGIN_MS: i64 = 491_112 * HOUR_MS;
const LABELS: &str = r#""Hostname":"n1","gpu":"0","UUID":"GPU-1","modelName":"H100""#;

/// A request: the path, and begin and end that it asks for, ms since the epoch.
#[derive(Debug, Clone)]
struct Asked {
    path: String,
    /// What it came with, to be let in.
    authorization: Option<String>,
    from_ms: i64,
    to_ms: i64,
}

impl Asked {
    fn new(target: &str) -> Self {
        let (path, query) = target.split_once('?').unwrap();
        let ms = |name: &str| {
            let pair = query.split('&').find_map(|pair| pair.strip_prefix(name));
            (pair.unwrap().parse::<f64>().unwrap() * 1e3) as i64
        };
        Self { path: path.to_owned(), authorization: None, from_ms: ms("start="), to_ms: ms("end=") }
    }

    fn is_for_names(&self) -> bool {
        self.path.ends_with("/values")
    }

    /// The answer of an orderly server with one series.
    fn answer(&self) -> String {
        if self.is_for_names() {
            return r#"{"status":"success","data":["DCGM_FI_DEV_GPU_UTIL","up"]}"#.into();
        }
        let ticks = (self.from_ms / 1_000..=self.to_ms / 1_000).step_by(60);
        let values: Vec<_> = ticks.map(|at_s| format!(r#"[{at_s},"{}"]"#, at_s / 60 % 100)).collect();
        matrix(LABELS, &values.join(","))
    }
}

fn matrix(labels: &str, values: &str) -> String {
    format!(
        r#"{{"status":"success","data":{{"resultType":"matrix","result":[{{"metric":{{{labels}}},"values":[{values}]}}]}}}}"#
    )
}

/// Serves each request by `answer`, and records it.
fn server(
    answer: impl Fn(&Asked, usize) -> (u16, String) + Send + 'static,
) -> (String, Arc<Mutex<Vec<Asked>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::<Mutex<Vec<Asked>>>::default();
    let recorded = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            let mut request = Asked::new(first.split(' ').nth(1).unwrap());
            let head = lines.map_while(|line| line.ok().filter(|line| !line.is_empty()));
            let fields =
                head.filter_map(|line| line.split_once(": ").map(|(a, b)| (a.to_owned(), b.to_owned())));
            let shown = fields.filter(|(name, _)| name.eq_ignore_ascii_case("authorization")).last();
            request.authorization = shown.map(|(_, value)| value);
            let before = recorded.lock().unwrap().len();
            let (status, body) = answer(&request, before);
            recorded.lock().unwrap().push(request);
            let head =
                format!("HTTP/1.1 {status} x\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", body.len());
            // A client that has read enough hangs up.
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).ok();
        }
    });
    (url, asked)
}

fn options(url: &str, hours: i64) -> PrometheusOptions {
    PrometheusOptions {
        url: url.to_owned(),
        credentials: None,
        from_ms: BEGIN_MS,
        to_ms: BEGIN_MS + hours * HOUR_MS,
        step_ms: 60_000,
        matcher: None,
        remote_read: false,
        node_label: None,
        cluster: "c".into(),
        patience: Duration::from_secs(20),
        allow_partial: false,
        topics: TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None },
    }
}

fn run(options: &PrometheusOptions) -> (MemoryLog, Result<PrometheusSummary, ImportError>) {
    let log = MemoryLog::default();
    let summary = import_prometheus(options, &log, &mut |_| {});
    (log, summary)
}

#[test]
fn a_day_is_asked_for_at_once_and_written_by_the_hour() {
    let (url, asked) = server(|request, _| (200, request.answer()));
    let (log, summary) = run(&options(&url, 30));
    let summary = summary.unwrap();
    assert_eq!((summary.samples, summary.events_written, summary.queries), (30 * 60, 30, 3));
    let windows: Vec<_> = asked.lock().unwrap()[1..].iter().map(|a| (a.from_ms, a.to_ms)).collect();
    let step = 60_000;
    let end = BEGIN_MS + 24 * HOUR_MS - step;
    assert_eq!(windows, [(BEGIN_MS - step, end), (end, BEGIN_MS + 30 * HOUR_MS - step)]);
    for (hour, batch) in (0..).zip(batches(&log)) {
        assert_eq!((batch.node.as_str(), batch.first_tick_ms), ("n1", BEGIN_MS + hour * HOUR_MS));
        assert_eq!((batch.tick_delta_ms.len(), batch.devices.len()), (59, 1));
    }
    // Hours that are there already are not written again, whatever the span of the second import.
    let later = PrometheusOptions { from_ms: BEGIN_MS + 24 * HOUR_MS, ..options(&url, 40) };
    let again = import_prometheus(&later, &log, &mut |_| {}).unwrap();
    let ids = |log: &MemoryLog| {
        let mut ids: Vec<_> =
            batches(log).into_iter().map(|batch| batch.envelope.unwrap().event_id).collect();
        ids.sort();
        ids.dedup();
        ids.len()
    };
    assert_eq!((again.samples, ids(&log)), (16 * 60, 40));
}

#[test]
fn less_is_asked_for_where_a_day_is_too_much() {
    let (url, asked) = server(|request, _| {
        if request.to_ms - request.from_ms > 2 * HOUR_MS && !request.is_for_names() {
            let error = "query processing would load too many samples into memory";
            return (422, format!(r#"{{"status":"error","errorType":"execution","error":"{error}"}}"#));
        }
        (200, request.answer())
    });
    let (_, summary) = run(&options(&url, 3));
    assert_eq!(summary.unwrap().samples, 180);
    let widest = asked.lock().unwrap().iter().skip(2).map(|a| a.to_ms - a.from_ms).min();
    assert_eq!(widest, Some(HOUR_MS));

    let (url, _) = server(|request, _| match request.is_for_names() {
        true => (200, request.answer()),
        false => (200, "x".repeat(40 << 20)),
    });
    let (log, summary) = run(&options(&url, 1));
    let error = summary.unwrap_err().to_string();
    assert!(error.contains("longer than 32 MiB; ask for less of the cluster with --matcher"), "{error}");
    assert_eq!(log.events("gpu-samples").len(), 0);
}

#[test]
fn a_failure_that_passes_is_asked_again() {
    let (url, _) = server(|request, before| match before {
        1 => (500, "out of order".into()),
        _ => (200, request.answer()),
    });
    let summary = run(&options(&url, 1)).1.unwrap();
    assert_eq!((summary.samples, summary.queries), (60, 3));
}

#[test]
fn a_partial_answer_is_taken_only_where_that_is_allowed() {
    for partial in [r#""isPartial":true"#, r#""warnings":["a store did not answer"]"#] {
        let (url, _) =
            server(move |request, _| (200, request.answer().replacen('{', &format!("{{{partial},"), 1)));
        let (log, summary) = run(&options(&url, 1));
        let error = summary.unwrap_err().to_string();
        assert!(error.contains("may lack something") && error.contains("--allow-partial"), "{error}");
        assert_eq!(log.events("gpu-samples").len(), 0);
        let summary = run(&PrometheusOptions { allow_partial: true, ..options(&url, 1) }).1.unwrap();
        assert_eq!((summary.samples, summary.warnings.len()), (60, 1));
    }
}

#[test]
fn answers_that_are_none_end_the_import_and_say_why() {
    let cases: [(u16, String, &str); 7] = [
        (200, "<html>".into(), "not one of Prometheus' HTTP API"),
        (200, r#"{"status":"error"}"#.into(), "status error and no data"),
        (302, String::new(), "give the address that it leads to"),
        (401, String::new(), "--bearer-token-file"),
        (404, String::new(), "the address before /api/v1"),
        (400, r#"{"status":"error","error":"parse error: x"}"#.into(), "400: parse error: x"),
        (200, matrix(LABELS, r#"[1,"5"]"#), "a time that was not asked for"),
    ];
    for (status, body, expected) in cases {
        let (url, _) = server(move |request, _| match request.is_for_names() {
            true => (200, request.answer()),
            false => (status, body.clone()),
        });
        let (log, summary) = run(&options(&url, 1));
        let error = summary.unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(&url), "{expected}: {error}");
        assert_eq!(log.events("gpu-samples").len(), 0);
    }
    let (url, _) = server(|_, _| (200, r#"{"status":"success","data":["up"]}"#.into()));
    assert!(run(&options(&url, 1)).1.unwrap_err().to_string().contains("no metrics DCGM_FI_"));
}

#[test]
fn credentials_are_shown_as_servers_read_them_and_not_debugged() {
    let basic = Credentials::Basic { user: "ada".into(), password: "open sesame".into() };
    for (shown, expected) in [
        (None, None),
        (Some(Credentials::Token("abc".into())), Some("Bearer abc")),
        (Some(basic), Some("Basic YWRhOm9wZW4gc2VzYW1l")),
    ] {
        let (url, asked) = server(|request, _| (200, request.answer()));
        let options = PrometheusOptions { credentials: shown, ..options(&url, 1) };
        assert!(!format!("{options:?}").contains("sesame"));
        run(&options).1.unwrap();
        let asked = asked.lock().unwrap();
        assert!(asked.iter().all(|request| request.authorization.as_deref() == expected), "{expected:?}");
    }
}

#[test]
fn series_that_name_no_gpu_are_dead_letters_once() {
    let long = "x".repeat(10_000);
    let (url, _) = server(move |request, _| {
        if request.is_for_names() {
            return (200, request.answer());
        }
        let at = request.to_ms / 1_000;
        (200, matrix(&format!(r#""Hostname":"{long}","gpu":"0","UUID":"GPU-1""#), &format!(r#"[{at},"5"]"#)))
    });
    let (log, summary) = run(&options(&url, 30));
    let summary = summary.unwrap();
    assert_eq!((summary.samples, summary.series_rejected["BAD_SERIES"]), (0, 1));
    let letters = log.dead_letters();
    assert_eq!((letters.len(), letters[0].code.as_str()), (1, "BAD_SERIES"));
    assert!(letters[0].reason.contains("more than 256 bytes") && letters[0].raw.len() == 4_096);
    assert!(letters[0].raw.starts_with(b"DCGM_FI_DEV_GPU_UTIL{Hostname=\"xxx"));
}

#[test]
fn options_that_cannot_be_are_refused_before_anything_is_asked() {
    let bad: [(&str, PrometheusOptions); 6] = [
        ("no whole hour", PrometheusOptions { to_ms: BEGIN_MS + HOUR_MS - 1, ..options("http://h", 1) }),
        ("divide an hour", PrometheusOptions { step_ms: 7_000, ..options("http://h", 1) }),
        ("divide an hour", PrometheusOptions { step_ms: 0, ..options("http://h", 1) }),
        ("--matcher must be", PrometheusOptions { matcher: Some("job".into()), ..options("http://h", 1) }),
        ("http:// or https://", options("h:9090", 1)),
        ("a user name or password", options("http://me:secret@h", 1)),
    ];
    for (expected, options) in bad {
        let error = run(&options).1.unwrap_err().to_string();
        assert!(error.contains(expected) && !error.contains("secret"), "{expected}: {error}");
    }
}
