//! Step reports from files.

use std::collections::BTreeSet;
use std::io::Write;

use tidegate_events::{Event, v1};
use tidegate_import::{ImportSummary, StepOptions, import_steps};
use tidegate_log::TopicConfig;

use crate::support::{Imported, MemoryLog, text};

const STEP: &str = r#"{"job":"4711","rank":0,"step":5,"start":1763712000.5,"duration_s":1}"#;

fn import_into(log: &MemoryLog, content: impl Into<Vec<u8>>) -> (ImportSummary, BTreeSet<String>) {
    let options = StepOptions {
        cluster: "c".into(),
        node: Some("n1".into()),
        topics: TopicConfig { partitions: 2, retain_ms: None, retain_bytes: None },
    };
    import_steps(text("steps.jsonl", content), &options, log, &mut |_| {}).unwrap()
}

fn steps(log: &MemoryLog) -> Vec<v1::StepReport> {
    let steps = log.events("steps").into_iter().map(|event| match event {
        Event::Step(step) => step,
        other => panic!("not a step: {other:?}"),
    });
    steps.collect()
}

#[test]
fn lines_become_the_events_that_an_agent_would_have_sent() {
    let log = MemoryLog::default();
    let other = STEP.replace("\"rank\":0", "\"rank\":1,\"node\":\"n2\",\"los\":1");
    let content = format!("{STEP}\r\n\n{STEP}\n{other}");
    let (summary, ignored) = import_into(&log, content.as_bytes());
    assert_eq!((summary.rows_read, summary.rows_accepted, summary.rows_duplicate), (3, 2, 1));
    assert_eq!(ignored, BTreeSet::from(["los".to_owned()]));
    let mut seen: Vec<_> =
        steps(&log).into_iter().map(|step| (step.rank, step.node.unwrap(), step.duration_us)).collect();
    seen.sort();
    assert_eq!(seen, [(0, "n1".to_owned(), 1_000_000), (1, "n2".to_owned(), 1_000_000)]);

    // The id is that of the agent's event, so a step that came both ways counts once.
    let fields = serde_json::from_str(STEP).unwrap();
    let (report, _) = tidegate_readings::step::from_json(fields, "n1", 1).unwrap();
    let mut event = Event::Step(report);
    event.envelope_mut().cluster = "c".into();
    let id = event.content_id().to_vec();
    assert!(steps(&log).iter().any(|step| step.envelope.as_ref().unwrap().event_id == id));

    let (again, _) = import_into(&log, content.as_bytes());
    assert_eq!((again.events_written, again.events_already_present), (0, 2));
}

#[test]
fn a_gzipped_file_is_read_and_one_that_breaks_off_is_an_error() {
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(format!("{STEP}\n").as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    let log = MemoryLog::default();
    assert_eq!(import_into(&log, packed.clone()).0.rows_accepted, 1);
    let options = StepOptions {
        cluster: "c".into(),
        node: None,
        topics: TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None },
    };
    let cut = text("steps.jsonl.gz", &packed[..packed.len() - 9]);
    let error = import_steps(cut, &options, &MemoryLog::default(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("ends in the middle of its compressed data"), "{error}");
}

#[test]
fn lines_that_are_no_reports_are_dead_letters() {
    let long = format!("{{\"job\":\"{}\"}}", "x".repeat(20_000));
    let mut content = b"[1]\n{\"job\":\"1\"}\n".to_vec();
    content.extend_from_slice(STEP.replace("\"step\":5", "\"step\":-5").as_bytes());
    content.extend_from_slice(b"\n\xff\xfe\n");
    content.extend_from_slice(long.as_bytes());
    content.extend_from_slice(format!("\n{STEP}\n").as_bytes());
    let log = MemoryLog::default();
    let (summary, _) = import_into(&log, content);
    assert_eq!((summary.rows_read, summary.rows_accepted, summary.rejected()), (6, 1, 5));
    let letters = log.dead_letters();
    let seen: Vec<_> = letters.iter().map(|letter| (letter.line.unwrap(), letter.code.as_str())).collect();
    let expected =
        [(1, "BAD_REPORT"), (2, "BAD_REPORT"), (3, "BAD_REPORT"), (4, "BAD_ENCODING"), (5, "LINE_TOO_LONG")];
    assert_eq!(seen, expected);
    assert!(letters[1].reason.contains("start is missing") && letters[2].reason.contains("step is -5"));
    assert_eq!((letters[0].raw.as_slice(), letters[4].raw.len()), (b"[1]".as_slice(), 4_096));
}
