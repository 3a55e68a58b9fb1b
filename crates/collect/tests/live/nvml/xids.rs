//! XIDs from NVML and the kernel log.

use std::fs::File;
use std::io::Write;
use std::time::Duration;

use nix::sys::stat::Mode;
use tidegate_collect::nvml::NvmlOptions;
use tidegate_collect::xid::XidOptions;
use tidegate_events::v1::NodeEvent;
use tidegate_events::v1::NodeEventKind::*;

use super::Node;
use crate::sink::RecordingSink;

/// The kernel log is a pipe here, with a window long enough for a slow machine.
fn with_log(node: &Node) -> (NvmlOptions, File) {
    let path = node.path("kmsg");
    nix::unistd::mkfifo(&path, Mode::S_IRWXU).unwrap();
    // Opened for reading and writing, so that opening does not wait for a reader.
    let writer = File::options().read(true).write(true).open(&path).unwrap();
    let xid = XidOptions { kernel_log: Some(path), position: None, window: Duration::from_secs(4) };
    (NvmlOptions { xid, ..node.options() }, writer)
}

fn line(bus: u8, code: u32, pid: u32) -> String {
    format!("NVRM: Xid (PCI:0000:{bus:02x}:00): {code}, pid={pid}, name=python3, something happened\n")
}

/// Code, bus and evidence of each event, in order of codes.
fn xids(recorded: &RecordingSink) -> Vec<(u32, String, String)> {
    let one = |e: &&NodeEvent| {
        (e.xid.unwrap(), e.pci_bus_id.clone().unwrap_or_default(), e.evidence.clone().unwrap())
    };
    let mut all: Vec<_> = recorded.of_kind(Xid).iter().map(one).collect();
    all.sort();
    all
}

fn expected(of: &[(u32, &str, &str)]) -> Vec<(u32, String, String)> {
    of.iter().map(|(code, pci, evidence)| (*code, (*pci).to_owned(), (*evidence).to_owned())).collect()
}

#[test]
fn nvml_alone_gives_one_event_per_occurrence() {
    let node = Node::new("devices 3\nxid 1 31 3000\nxid 1 31 3010\nxid 2 9999 3500\nevent 0 2 0 3600");
    let (source, sink) = node.start();
    let recorded = sink.until("all three", |recorded| {
        recorded.of_kind(Xid).len() == 3 && recorded.of_kind(DeviceEvent).len() == 1
    });
    let (one, two) = ("0000:27:00.0", "0000:37:00.0");
    assert_eq!(xids(&recorded), expected(&[(31, one, "nvml"), (31, one, "nvml"), (9999, two, "nvml")]));
    let known = recorded.of_kind(Xid)[0];
    assert_eq!(known.gpu_index, Some(1));
    assert_eq!(
        (known.fault_level.as_deref(), known.fault_class.as_deref()),
        (Some("error"), Some("memory_page_fault"))
    );
    let at = known.envelope.as_ref().unwrap().event_time_ms - node.start_ms;
    assert!((3_000..8_000).contains(&at), "{at}");
    let unknown = recorded.of_kind(Xid)[2];
    assert_eq!(
        (unknown.fault_level.clone(), unknown.description.clone()),
        (None, None),
        "nothing is guessed"
    );
    let ecc = recorded.of_kind(DeviceEvent)[0];
    assert_eq!((ecc.fault_class.as_deref(), ecc.gpu_index), (Some("DOUBLE_BIT_ECC"), Some(0)));
    assert!(!source.status().kernel_log_read);
}

#[test]
fn both_sources_give_one_event_per_occurrence() {
    let node =
        Node::new("devices 3\nxid 0 13 4000\nxid 0 13 4001\nxid 2 79 4100\nxid 1 48 4200\nlost 2 4050 1e12");
    let (options, mut log) = with_log(&node);
    let (source, sink) = node.start_with(options);
    assert!(source.status().kernel_log_read);
    sink.until("time 4000", |recorded| {
        recorded.readings.iter().any(|(r, _)| r.tick_ms >= node.start_ms + 4_000)
    });
    // Three lines where NVML has two events; one of a device without a UUID; one without an event.
    let lines =
        [line(0x17, 13, 100), line(0x17, 13, 100), line(0x17, 13, 101), line(0x37, 79, 7), line(0x27, 63, 8)];
    log.write_all(lines.concat().as_bytes()).unwrap();
    log.write_all(b"nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 28006, Non-fatal, Link 46\nunrelated\n")
        .unwrap();
    let recorded = sink.until("six", |recorded| {
        recorded.of_kind(Xid).len() == 5 && recorded.of_kind(DeviceEvent).len() == 1
    });
    let (zero, one, two) = ("0000:17:00.0", "0000:27:00.0", "0000:37:00.0");
    // Event 48 of device 1 has no line of its own and confirms the existing one, as NVML may report
    // another code.
    assert_eq!(
        xids(&recorded),
        expected(&[
            (13, zero, "kmsg"),
            (13, zero, "nvml,kmsg"),
            (13, zero, "nvml,kmsg"),
            (63, one, "nvml,kmsg"),
            (79, two, "nvml,kmsg"),
        ])
    );
    let lost = recorded.of_kind(Xid).into_iter().find(|e| e.xid == Some(79)).unwrap();
    assert_eq!((lost.pid, lost.gpu_index), (Some(7), Some(2)));
    assert_eq!(lost.description.as_deref(), Some("something happened (process python3)"));
    assert_eq!(lost.fault_class.as_deref(), Some("fallen_off_bus"));
    let switch = recorded.of_kind(DeviceEvent)[0];
    assert_eq!(
        (switch.fault_class.as_deref(), switch.pci_bus_id.as_deref()),
        (Some("SXID-28006"), Some("0000:c1:00.0"))
    );
    drop(source);
    assert_eq!(sink.recorded().of_kind(Xid).len(), 5, "nothing more at the end");
}

#[test]
fn codes_that_nvml_mixes_up_do_not_count_twice() {
    let node = Node::new("devices 1\ncoalesce\nxid 0 31 4000\nxid 0 43 4000");
    let (options, mut log) = with_log(&node);
    let (_source, sink) = node.start_with(options);
    sink.until("time 4000", |recorded| {
        recorded.readings.iter().any(|(r, _)| r.tick_ms >= node.start_ms + 4_000)
    });
    log.write_all([line(0x17, 31, 5), line(0x17, 43, 5)].concat().as_bytes()).unwrap();
    let recorded = sink.until("both", |recorded| recorded.of_kind(Xid).len() == 2);
    let pci = "0000:17:00.0";
    assert_eq!(xids(&recorded), expected(&[(31, pci, "nvml,kmsg"), (43, pci, "nvml,kmsg")]));
}

#[test]
fn xids_from_before_the_start_are_emitted_once() {
    let node = Node::new("devices 1");
    let log = node.path("kmsg");
    let record = |seq: u32, code| format!("6,{seq},5140900,-;{}", line(0x17, code, 1));
    std::fs::write(&log, [record(10, 63), record(11, 94)].concat()).unwrap();
    let xid = XidOptions {
        kernel_log: Some(log.clone()),
        position: Some(node.path("position")),
        ..XidOptions::default()
    };
    let options = NvmlOptions { xid, ..node.options() };
    let (source, sink) = node.start_with(options.clone());
    sink.until("both", |recorded| recorded.of_kind(Xid).len() == 2);
    drop(source);
    let more = record(12, 95) + &record(14, 79);
    File::options().append(true).open(&log).unwrap().write_all(more.as_bytes()).unwrap();
    let (source, sink) = node.start_with(options);
    let recorded = sink.until("the new ones", |recorded| recorded.of_kind(Xid).len() == 2);
    assert_eq!(
        xids(&recorded).iter().map(|x| x.0).collect::<Vec<_>>(),
        [79, 95],
        "63 and 94 are not reported again"
    );
    assert_eq!(source.status().kernel_records_lost, 1, "record 13 is missing");
}

#[test]
fn an_unreadable_kernel_log_is_reported_and_nvml_continues() {
    let node = Node::new("devices 1\nxid 0 119 3000");
    let xid = XidOptions { kernel_log: Some(node.path("no-kmsg")), ..XidOptions::default() };
    let (source, sink) = node.start_with(NvmlOptions { xid, ..node.options() });
    let why = source.status().kernel_log.unwrap();
    assert!(why.contains("no-kmsg") && why.contains("NVML alone"), "{why}");
    let recorded = sink.until("the XID", |recorded| recorded.of_kind(Xid).len() == 1);
    assert_eq!(xids(&recorded), expected(&[(119, "0000:17:00.0", "nvml")]));
}
