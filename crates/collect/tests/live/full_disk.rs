//! A full spool disk is reported with advice, and the agent keeps sending.
//!
//! The disk is a small memory file system in its own namespace. Where the user may not mount, the
//! test is skipped.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use tidegate_testing::needs;

use crate::kit::*;

const DIR: &str = "TIDEGATE_FULL_SPOOL";
const NAME: &str = "full_disk::a_full_disk_is_reported_and_sending_continues";

#[test]
fn a_full_disk_is_reported_and_sending_continues() {
    if let Ok(dir) = env::var(DIR) {
        return on_a_small_disk(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    let mount =
        Command::new("unshare").args(["-m", "mount", "-t", "tmpfs", "tmpfs"]).arg(dir.path()).output();
    if !mount.is_ok_and(|mount| mount.status.success()) {
        return needs::note("this user may not mount a small disk");
    }
    let this = this_test(NAME);
    let script = r#"mount -t tmpfs -o size=2m tmpfs "$TIDEGATE_FULL_SPOOL" && exec "$@""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, "sh"]).arg(this.get_program()).args(this.get_args());
    let output = command.env(DIR, dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn on_a_small_disk(dir: &Path) {
    let log = Log::embedded();
    let (spool, ballast) = (dir.join("spool"), dir.join("ballast"));
    let agent = start(options(&spool), &log);
    (0..5).for_each(|number| agent.sink().event(numbered(number)));
    agent.store().unwrap();
    wait_until("all is delivered", || agent.stats().delivered == 5);

    // Fills the disk to the last byte; the failing write writes what fits.
    fs::write(&ballast, vec![0; 4 << 20]).unwrap_err();
    for number in 5..40 {
        agent.sink().event(numbered(number));
        agent.sink().event(large(number, 10_000));
    }
    let refused = agent.store().unwrap_err();
    assert!(refused.contains("free some space") && refused.contains("spool"), "{refused}");
    wait_until("what the disk does not take is delivered", || agent.stats().delivered == 75);

    // While the log is away too, a little waits in memory; beyond that the oldest is dropped.
    log.go_away(true);
    for number in 40..440 {
        agent.sink().event(large(number, 20_000));
        if number % 50 == 0 {
            agent.store().unwrap_err();
        }
    }
    agent.store().unwrap_err();
    let dropped = agent.stats().dropped;
    assert!((100..400).contains(&dropped), "{dropped}");

    fs::remove_file(&ballast).unwrap();
    log.go_away(false);
    wait_until("all is delivered", || {
        agent.stats().delivered + agent.stats().dropped == agent.stats().records
    });
    agent.sink().event(numbered(1_000));
    agent.store().unwrap();
    assert!(agent.stop(Duration::from_secs(60), ""));
    let dropped = agent.stats().dropped;
    let events = check_numbers(&*log.log, dropped);
    assert_eq!(numbers(&events), (0..40).chain([1_000]).collect::<Vec<_>>());
    let reports = node_events(&events, tidegate_events::v1::NodeEventKind::RecordsDropped);
    assert_eq!(reports.iter().filter_map(|event| event.count).sum::<u64>(), dropped);
}
