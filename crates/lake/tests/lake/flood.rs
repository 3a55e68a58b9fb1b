//! What a process takes that computes the tables of more events of nodes than it may hold.

use std::process::Command;

use tidegate_events::Event;
use tidegate_events::v1::{NodeEvent, NodeEventKind};

use crate::flat_cost::{START_MS, Site};
use crate::histories::envelope;

const COMMITS: i64 = 20;
const EVENTS_PER_COMMIT: i64 = 10_000;
/// What later commits of as many events may add to the first.
const GROWTH_MIB: u64 = 64;
/// Environment variable of the process that is measured.
const MEASURED: &str = "TIDEGATE_TEST_NODE_FLOOD";

/// Most memory that this process has had, MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

/// Errors of a device, a millisecond apart.
fn errors(commit: i64) -> Vec<Event> {
    let error = |number: i64| {
        Event::Node(NodeEvent {
            envelope: envelope("c", START_MS + commit * EVENTS_PER_COMMIT + number),
            kind: NodeEventKind::DeviceEvent.into(),
            node: "n1".into(),
            fault_class: Some(format!("flood-{number}")),
            ..NodeEvent::default()
        })
    };
    (0..EVENTS_PER_COMMIT).map(error).collect()
}

#[tokio::test]
async fn tables_hold_no_events_of_nodes_that_say_nothing_to_them() {
    if std::env::var_os(MEASURED).is_none() {
        // It starts itself once more: memory of other tests does not count.
        let name = "flood::tables_hold_no_events_of_nodes_that_say_nothing_to_them";
        let measured = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(MEASURED, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&measured.stdout);
        assert!(measured.status.success(), "{said}{}", String::from_utf8_lossy(&measured.stderr));
        return;
    }
    let mut site = Site::open().await;
    let mut first = 0;
    for commit in 0..COMMITS {
        site.commit(errors(commit)).await;
        site.lake.update_live().await.unwrap();
        if commit == 2 {
            first = peak_mib();
        }
    }
    let peak = peak_mib();
    assert!(peak - first <= GROWTH_MIB, "{first} MiB, then {peak} MiB");
    println!("{first} MiB, then {peak} MiB");
}
