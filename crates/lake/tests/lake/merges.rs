//! A merge of samples pauses for commits, and neither loses nor repeats a row. Large files are
//! written in parts.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, new_null_array};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, SchemaRef};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use tidegate_events::Event;
use tidegate_lake::delta::{DataFileWriter, DeltaStore, FileRows};
use tidegate_lake::lake::Lake;
use tidegate_lake::maintenance::{self, Maintenance, Merges};
use tidegate_lake::table::PARTITION;
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

/// Rows of samples that do not compress: ten columns of random numbers, nothing in the others.
fn noise(schema: &SchemaRef, rows: usize, random: &mut ChaCha8Rng) -> RecordBatch {
    let mut numbers = 0;
    let columns = schema.fields().iter().map(|field| -> ArrayRef {
        numbers += usize::from(*field.data_type() == DataType::Int64);
        match *field.data_type() == DataType::Int64 && numbers <= 10 {
            true => Arc::new((0..rows).map(|_| random.random::<i64>()).collect::<Int64Array>()),
            false => new_null_array(field.data_type(), rows),
        }
    });
    RecordBatch::try_new(Arc::clone(schema), columns.collect()).unwrap()
}

/// Files of a folder, with their sizes.
fn listed(folder: &Path) -> Vec<(String, u64)> {
    let entries = folder.read_dir().unwrap().map(|entry| entry.unwrap());
    entries.map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().len())).collect()
}

#[tokio::test]
async fn a_large_file_is_written_in_parts_while_it_grows() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let spec = shipped().await.tables().into_iter().find(|t| t.name == "gpu_samples").unwrap();
    let store = DeltaStore::open_or_create(&root, Arc::clone(&spec)).await.unwrap();
    let (schema, mut random) = (spec.file_schema(), ChaCha8Rng::seed_from_u64(1));
    let batches: Vec<_> = (0..3).map(|_| noise(&schema, 200_000, &mut random)).collect();
    let place = folder.path().join(spec.folder()).join(format!("{PARTITION}=0"));
    let begin =
        || DataFileWriter::new(&store, vec![(PARTITION, "0".into())], "", &FileRows::default()).unwrap();

    let mut file = begin();
    for batch in &batches {
        file.push(batch).await.unwrap();
    }
    let [(name, bytes)] = &listed(&place)[..] else { panic!("one file of parts") };
    assert!(name.ends_with(".parquet#1") && *bytes >= 16 << 20, "{name} has {bytes} bytes");
    let file = file.complete().await.unwrap();
    assert_eq!(listed(&place), [(file.path.rsplit_once('/').unwrap().1.to_owned(), file.size as u64)]);
    let read = store.read_file(&file).await.unwrap();
    let all = |batches: &[RecordBatch]| concat_batches(&schema, batches).unwrap();
    assert!(all(&read) == all(&batches));

    // One that is given up leaves nothing.
    let mut file = begin();
    for batch in &batches {
        file.push(batch).await.unwrap();
    }
    assert_eq!(listed(&place).len(), 2);
    drop(file);
    // The plain store, which other tests put in place of ours, deletes it in the background.
    let begun = Instant::now();
    while listed(&place).len() > 1 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", listed(&place));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
