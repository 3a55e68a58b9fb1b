//! Merges of samples in slices: commits go on meanwhile, and no row is lost or there twice.

use std::time::Duration;

use tidegate_events::Event;
use tidegate_lake::lake::Lake;
use tidegate_lake::maintenance::{self, Maintenance, Merges};
use url::Url;

use crate::samples::{TOPIC, absorb, ask, batch, column, files_of, open, shipped};

/// Nodes, each with six rows in a commit. 33 commits then have more rows than one step of a merge
/// takes, so the merge has to pause.
const NODES: u64 = 150;
const ROWS: &str =
    "SELECT count(*), sum(power_mw), count(DISTINCT concat(node, gpu_uuid, event_time)) FROM gpu_samples";

/// Commits three seconds of samples, of 1 mW each.
async fn commit(lake: &mut Lake, number: u64) {
    let event = |node: u64| {
        let mut event = batch(&format!("n{node:03}"), vec![column("power_mw", &[1, 0, 0, 1, 0, 0], &[])]);
        let Event::GpuSamples(samples) = &mut event else { unreachable!("a batch of samples") };
        samples.first_tick_ms = 3_000 * number as i64;
        samples.envelope.as_mut().unwrap().seq = number;
        event.seal();
        event
    };
    absorb(lake, number * NODES, &(0..NODES).map(event).collect::<Vec<_>>());
    lake.flush().await.unwrap();
}

/// What [`ROWS`] must say after so many commits.
fn rows_of(commits: u64) -> String {
    let rows = commits * NODES * 6;
    format!("|{rows}|{rows}|{rows}|")
}

#[tokio::test]
async fn a_merge_in_slices_lets_commits_through() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let spec = shipped().await.tables().into_iter().find(|t| t.name == "gpu_samples").unwrap();
    let mut lake = open(&root).await;
    lake.attach(TOPIC, &[0]).await.unwrap();
    let when = Maintenance::default();
    let mut commits = 0;
    while commits < 33 {
        commit(&mut lake, commits).await;
        commits += 1;
    }
    let mut merges = Merges::sliced(Duration::ZERO);
    let mut files = 33;
    loop {
        maintenance::run_sliced(&mut lake, &when, &mut merges).await.unwrap();
        assert_eq!(ask(&lake.catalog(), ROWS).await, [rows_of(commits)]);
        let left = files_of(&root, &spec).await;
        if left < files {
            assert_eq!(left, files - 33 + 1, "one in place of those it began with");
            break;
        }
        commit(&mut lake, commits).await;
        (commits, files) = (commits + 1, files + 1);
    }
    assert!(commits > 33 + 1, "it did not pause: {commits}");

    // Files that somebody else merged meanwhile are not merged again.
    while files_of(&root, &spec).await < 1 + 33 {
        commit(&mut lake, commits).await;
        commits += 1;
    }
    maintenance::run_sliced(&mut lake, &when, &mut merges).await.unwrap();
    maintenance::run_due(&mut lake, &when).await.unwrap();
    let left = files_of(&root, &spec).await;
    assert!(left < 1 + 33, "{left}");
    for _ in 0..8 {
        maintenance::run_sliced(&mut lake, &when, &mut merges).await.unwrap();
        assert_eq!(files_of(&root, &spec).await, left);
        assert_eq!(ask(&lake.catalog(), ROWS).await, [rows_of(commits)]);
    }
}
