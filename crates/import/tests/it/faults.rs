//! Faults of nodes and GPUs from files.

use tidegate_events::{Event, v1};
use tidegate_import::{ImportOptions, ImportSummary, Mapping, import};

use crate::support::{Imported, MemoryLog, text};

fn import_into(log: &MemoryLog, content: &str) -> ImportSummary {
    let options = ImportOptions { cluster: Some("c".into()), ..ImportOptions::default() };
    let mapping = Mapping::load("faults_csv").unwrap();
    import(text("faults.csv", content), &mapping, &options, log, &mut |_| {}).unwrap()
}

fn nodes(log: &MemoryLog) -> Vec<v1::NodeEvent> {
    let mut nodes: Vec<_> = log
        .events("nodes")
        .into_iter()
        .map(|event| match event {
            Event::Node(node) => node,
            other => panic!("not a node's: {other:?}"),
        })
        .collect();
    nodes.sort_by_key(|node| (node.envelope.as_ref().unwrap().event_time_ms, node.kind, node.gpu_index));
    nodes
}

#[test]
fn rows_become_the_events_that_agents_report() {
    let content = "time,end_time,node,gpu_uuid,gpu_index,xid,kind,class,message\n\
        2026-10-01T00:00:00Z,,n1,GPU-1,0,79,,,fallen off the bus\n\
        2026-10-01T00:00:00Z,,n1,GPU-2,1,79,xid,,fallen off the bus\n\
        2026-10-01T00:01:00Z,,n1,GPU-1,0,,device_lost,,\n\
        2026-10-01T00:02:00Z,2026-10-01T01:00:00Z,n2,,,0,,fan,loud\n\
        2026-10-01T00:03:00Z,,n2,,0,,,nvlink,\n\
        2026-10-01T00:03:00Z,,n2,,1,,,nvlink,\n";
    let log = MemoryLog::default();
    let summary = import_into(&log, content);
    assert_eq!((summary.rows_accepted, summary.rejected(), summary.events_written), (6, 0, 7));
    let nodes = nodes(&log);
    let kinds: Vec<_> = nodes.iter().map(v1::NodeEvent::kind).collect();
    use v1::NodeEventKind::{DeviceLost, FaultEnded, FaultStarted, Xid};
    assert_eq!(kinds, [Xid, Xid, DeviceLost, FaultStarted, FaultStarted, FaultStarted, FaultEnded]);
    assert_eq!(
        (nodes[0].xid, nodes[0].gpu_uuid.as_deref(), nodes[0].gpu_index),
        (Some(79), Some("GPU-1"), Some(0))
    );
    assert_eq!(
        (nodes[0].description.as_deref(), nodes[0].fault_id.as_deref()),
        (Some("fallen off the bus"), None)
    );
    assert_eq!((nodes[3].fault_class.as_deref(), &nodes[3].fault_id), (Some("fan"), &nodes[6].fault_id));
    assert_ne!(nodes[4].fault_id, nodes[5].fault_id, "faults of two GPUs at one time");

    let again = import_into(&log, content);
    assert_eq!((again.events_written, again.events_already_present), (0, 7));
}

#[test]
fn rows_that_report_nothing_are_dead_letters() {
    let content = "time,end_time,node,gpu_uuid,xid,kind\n\
        2026-10-01T00:00:00Z,,n1,GPU-1,-79,\n\
        2026-10-01T00:00:00Z,,n1,GPU-1,99999999999,\n\
        2026-10-01T00:00:00Z,,n1,GPU-1,,XID\n\
        2026-10-01T00:00:00Z,,n1,,,DEVICE_LOST\n\
        2026-10-01T00:00:00Z,,n1,GPU-1,,melted\n\
        2026-10-01T00:00:00Z,2026-09-30T00:00:00Z,n1,,,\n\
        2026-10-01T00:00:00Z,,,GPU-1,79,\n";
    let log = MemoryLog::default();
    let summary = import_into(&log, content);
    assert_eq!((summary.rows_accepted, summary.events_written), (0, 7));
    let letters = log.dead_letters();
    let codes: Vec<_> = letters.iter().map(|letter| letter.code.as_str()).collect();
    let expected = [
        "BAD_NUMBER",
        "BAD_NUMBER",
        "MISSING_VALUE",
        "MISSING_VALUE",
        "UNKNOWN_KIND",
        "END_BEFORE_START",
        "MISSING_VALUE",
    ];
    assert_eq!(codes, expected);
    assert!(letters[4].reason.contains("kind is MELTED; write FAULT, XID"), "{}", letters[4].reason);
}
