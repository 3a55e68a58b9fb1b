//! A restart forgets nothing by which the next events invalidate less.

use std::path::Path;

use serde_json::Value;
use tidegate_events::Event;
use tidegate_events::v1::StepReport;

use crate::flat_cost::{START_MS, Site};
use crate::histories::envelope;

const MINUTE_MS: i64 = 60_000;

/// A step of a minute.
fn step(job: &str, minute: i64) -> Event {
    Event::Step(StepReport {
        envelope: envelope("c", START_MS + minute * MINUTE_MS),
        job_id: job.into(),
        duration_us: 60_000_000,
        ..StepReport::default()
    })
}

/// What commits to the tables below a folder say of the spans that they invalidate.
fn notes(folder: &Path, found: &mut Vec<Value>) {
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            notes(&entry, found);
        } else if entry.extension().is_some_and(|end| end == "json") {
            let commit = std::fs::read_to_string(entry).unwrap();
            let actions = commit.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
            found.extend(actions.map(|action| action["commitInfo"].clone()));
        }
    }
}

/// The spans that the newest commit invalidates, minutes.
fn invalidated(site: &Site) -> Vec<(i64, i64)> {
    let mut found = Vec::new();
    notes(site.folder(), &mut found);
    found.retain(|note| note["tidegate.touched_us"].is_array());
    let newest = found.into_iter().max_by_key(|note| note["timestamp"].as_i64()).unwrap();
    let spans: Vec<(i64, i64)> = serde_json::from_value(newest["tidegate.touched_us"].clone()).unwrap();
    let minute = |us: i64| (us / 1_000 - START_MS) / MINUTE_MS;
    spans.into_iter().map(|(from, to)| (minute(from), minute(to))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_after_a_restart_invalidates_the_time_since_the_one_before() {
    let mut site = Site::open().await;
    site.commit(vec![step("a", 600)]).await;
    let mut site = site.reopen().await;
    site.commit(vec![step("a", 603)]).await;
    assert_eq!(invalidated(&site), [(600, 604)], "since the watermark, at which the step before began");
    site.commit(vec![step("b", 604)]).await;
    assert_eq!(invalidated(&site), [(604 - 360, 605)], "a job's first step tells what it did before");
}
