//! A start from saved keys gives the same tables as one that reads all rows, whatever became of the
//! saved files.

use std::fs;
use std::path::{Path, PathBuf};

use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::v1::{NodeEvent, NodeEventKind};
use tidegate_events::{Event, SchemaId};
use tidegate_lake::catalog::committed_catalog;
use tidegate_lake::engine::Limits;
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::pipeline::{Plan, shipped};
use tidegate_lake::testing::equivalence::{TableContents, read_tables};
use tidegate_lake::testing::with_dependencies;
use url::Url;

use crate::equivalence::seeds;
use crate::flat_cost::START_MS;
use crate::histories::{envelope, history};

/// What happens to the saved files before each start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Good,
    Deleted,
    Damaged,
    /// Another version of the program wrote them.
    OfAnotherVersion,
    /// The newest is damaged, the one before it is good.
    NewestDamaged,
    /// They were copied from another table.
    OfAnotherTable,
}

const FATES: [Fate; 6] = [
    Fate::Good,
    Fate::Deleted,
    Fate::Damaged,
    Fate::OfAnotherVersion,
    Fate::NewestDamaged,
    Fate::OfAnotherTable,
];

/// The folders of saved keys below a lake, each with its files in order.
fn saved(lake: &Path) -> Vec<Vec<PathBuf>> {
    let list = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let mut folders = Vec::new();
    let mut open = vec![lake.to_owned()];
    while let Some(folder) = open.pop() {
        if folder.ends_with("_known_keys") {
            folders.push(list(&folder));
        } else {
            open.extend(list(&folder).into_iter().filter(|path| path.is_dir()));
        }
    }
    folders
}

fn spoil(lake: &Path, fate: Fate) {
    let flip = |path: &PathBuf, place: usize| {
        let mut bytes = fs::read(path).unwrap();
        bytes[place] ^= 4;
        fs::write(path, bytes).unwrap();
    };
    for files in saved(lake) {
        match fate {
            Fate::Good => {}
            Fate::Deleted => files.iter().for_each(|file| fs::remove_file(file).unwrap()),
            Fate::Damaged => files.iter().for_each(|file| flip(file, 60)),
            Fate::OfAnotherVersion => files.iter().for_each(|file| flip(file, 6)),
            Fate::NewestDamaged => files.last().into_iter().for_each(|file| flip(file, 60)),
            Fate::OfAnotherTable => {
                // Its name claims an offset that this table has, too.
                let other = saved(lake).into_iter().flatten().find(|other| !files.contains(other));
                for file in files.iter().filter(|_| other.is_some()) {
                    fs::copy(other.as_ref().unwrap(), file).unwrap();
                }
            }
        }
    }
}

/// Delivers events at random cuts, saves after some and starts anew after others. Returns all
/// tables, and the number of starts that found files.
async fn tables(plan: &Plan, arrivals: &[Event], seed: u64, fate: Fate) -> (TableContents, usize) {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut lake, mut next, mut starts) = (open(&root, plan).await, 0, 0);
    while next < arrivals.len() {
        let end = (next + rng.random_range(1..arrivals.len() / 4)).min(arrivals.len());
        for group in &plan.groups {
            let mut intake = lake.intake(group.raw.schema.topic(), 0);
            (next..end).for_each(|i| intake.push(i as u64, &arrivals[i]));
            lake.absorb(intake, end as u64).unwrap();
        }
        next = end;
        lake.flush().await.unwrap();
        lake.update_joined().await.unwrap();
        if rng.random_bool(0.5) {
            lake.save_keys().await;
        }
        if rng.random_bool(0.5) {
            drop(lake);
            starts += usize::from(saved(folder.path()).iter().any(|files| !files.is_empty()));
            spoil(folder.path(), fate);
            lake = open(&root, plan).await;
        }
    }
    let counts: Vec<usize> = saved(folder.path()).iter().map(Vec::len).collect();
    assert!(counts.iter().all(|files| *files <= 2), "two are kept: {counts:?}");
    (read_tables(&committed_catalog(&root, plan, Limits::default()).await.unwrap()).await.unwrap(), starts)
}

async fn open(root: &Url, plan: &Plan) -> Lake {
    let mut lake = Lake::open(root, plan.clone(), Limits::default(), Sharing::Exclusive).await.unwrap();
    for group in &plan.groups {
        lake.attach(group.raw.schema.topic(), &[0]).await.unwrap();
    }
    lake
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_from_saved_keys_gives_the_same_tables() {
    let pipelines = with_dependencies(shipped(), vec!["usage_1h".into(), "gpu_holds".into()]);
    let plan = Plan::compile(pipelines).await.unwrap();
    for seed in 0..seeds().div_ceil(4) {
        let mut arrivals = history(seed, 20);
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Events come late, some after days, and some come twice.
        let repeated: Vec<Event> = arrivals.iter().filter(|_| rng.random_ratio(1, 5)).cloned().collect();
        arrivals.extend(repeated);
        arrivals.shuffle(&mut rng);
        arrivals.sort_by_cached_key(|event| {
            let hours = if rng.random_ratio(1, 10) { 72 } else { 1 };
            event.event_time_ms() + rng.random_range(0..hours * 3_600_000)
        });
        let mut expected = None;
        for fate in FATES {
            let (found, starts) = tables(&plan, &arrivals, seed, fate).await;
            assert!(starts > 0, "seed {seed}: no start found saved keys");
            let expected = expected.get_or_insert_with(|| found.clone());
            for (name, rows) in &found {
                assert_eq!(rows, &expected[name], "seed {seed}, table {name}: {fate:?}");
            }
        }
    }
}

/// Offset up to which keys are saved, read from the names of the files that hold them.
fn saved_up_to(lake: &Path) -> u64 {
    let offset = |file: &PathBuf| -> u64 {
        let name = file.file_stem().unwrap().to_str().unwrap();
        name.rsplit('-').next().unwrap().parse().unwrap()
    };
    saved(lake).iter().flatten().map(offset).max().unwrap_or(0)
}

/// As an import does: the next checkpoint of the raw table is a hundred versions away.
#[tokio::test(flavor = "multi_thread")]
async fn keys_of_many_records_in_few_commits_are_saved() {
    const RECORDS: u64 = 30_000;
    const COMMITS: u64 = 7;
    // Keys are saved by the first commit that brings 100,000 records since the last save.
    const UNSAVED_MAX: u64 = 100_000 + RECORDS;
    let plan = Plan::compile(with_dependencies(shipped(), vec!["node_faults".into()])).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut lake = open(&root, &plan).await;
    let topic = SchemaId::NodeEvent.topic();
    let event = |number: u64| {
        Event::Node(NodeEvent {
            envelope: envelope("c", START_MS + number as i64),
            kind: NodeEventKind::DeviceEvent.into(),
            node: "n1".into(),
            ..NodeEvent::default()
        })
    };
    for commit in 0..COMMITS {
        let end = (commit + 1) * RECORDS;
        let mut intake = lake.intake(topic, 0);
        (commit * RECORDS..end).for_each(|number| intake.push(number, &event(number)));
        lake.absorb(intake, end).unwrap();
        lake.flush().await.unwrap();
        let saved = saved_up_to(folder.path());
        assert!(end - saved <= UNSAVED_MAX, "{saved} of {end} are saved");
    }
}
